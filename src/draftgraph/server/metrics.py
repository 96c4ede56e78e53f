"""What the server counts, for Prometheus. Its own registry per server, so two in one process do not mix.

In: deltas and their requests' statistics, from the engine thread; statuses, from the application. Out: text. Counts
come from what requests report, never from inside a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from draftgraph.engine.stats import RequestStats
from draftgraph.types import Delta

_SMALL = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 512)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


@dataclass(slots=True)
class Seen:
    """What of one text was counted already. Per text."""

    submitted: float
    last_token: float | None = None
    target_passes: int = 0
    verified_rows: int = 0
    plain_seconds: float = 0.0
    proposed: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)


class Metrics:
    """Owns the registry. Any thread may call it."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("draftgraph_http_requests", "Answers sent.", ("path", "status"), registry=registry)
        self.prompt_tokens = Counter("draftgraph_prompt_tokens", "Tokens of accepted prompts.", registry=registry)
        self.tokens = Counter("draftgraph_generated_tokens", "Tokens written.", registry=registry)
        self.passes = Counter(
            "draftgraph_target_passes",
            "Passes after the prompt's own, counted per text; plain decoding needs one per token.",
            registry=registry,
        )
        self.texts = Counter("draftgraph_texts", "Texts that ended.", ("reason",), registry=registry)
        self.proposed = Counter("draftgraph_drafts_proposed", "Drafts verified.", ("source",), registry=registry)
        self.accepted = Counter("draftgraph_drafts_accepted", "Drafts kept.", ("source",), registry=registry)
        self.step_tokens = Histogram(
            "draftgraph_tokens_per_step", "Tokens one pass wrote of a text.", buckets=_SMALL[1:], registry=registry
        )
        self.budget = Histogram(
            "draftgraph_drafts_per_pass", "Drafts checked in one pass of a text.", buckets=_SMALL, registry=registry
        )
        self.first_token = Histogram(
            "draftgraph_time_to_first_token_seconds", "From submission, the queue included.", buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self.inter_token = Histogram(
            "draftgraph_inter_token_seconds", "Between two deltas of a text, per token.", buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self.decode_seconds = Counter(
            "draftgraph_decode_seconds", "Time after the first token, added up over texts.", registry=registry
        )
        self.plain_seconds = Counter(
            "draftgraph_plain_seconds", "What the same tokens would take without drafts, as expected; 0 if unknown.",
            registry=registry,
        )  # fmt: skip
        self.step_failures = Counter("draftgraph_step_failures", "Steps that raised.", registry=registry)

    def gauges(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        """Adds values that are looked up when somebody asks: name to help and function."""
        for name, (text, read) in gauges.items():
            Gauge(f"draftgraph_{name}", text, registry=self.registry).set_function(read)

    def record(self, delta: Delta, stats: RequestStats, seen: Seen, now: float) -> None:
        """Counts one delta of a text. Modifies `seen`."""
        num_tokens = len(delta.token_ids)
        self.tokens.inc(num_tokens)
        if num_tokens and seen.last_token is None:
            self.first_token.observe(now - seen.submitted)
        elif num_tokens:
            assert seen.last_token is not None, "the branch above sets it"
            self.inter_token.observe((now - seen.last_token) / num_tokens)
            self.decode_seconds.inc(now - seen.last_token)
        if num_tokens:
            seen.last_token = now
        if stats.target_passes > seen.target_passes:
            self._record_pass(num_tokens, stats, seen)
        if delta.finish_reason is not None:
            self.texts.labels(str(delta.finish_reason)).inc()

    def _record_pass(self, num_tokens: int, stats: RequestStats, seen: Seen) -> None:
        self.passes.inc(stats.target_passes - seen.target_passes)
        self.step_tokens.observe(num_tokens)
        self.budget.observe(stats.verified_rows - seen.verified_rows - 1)  # the root's row is no draft
        self.plain_seconds.inc(max(0.0, stats.plain_seconds - seen.plain_seconds))
        seen.target_passes, seen.verified_rows = stats.target_passes, stats.verified_rows
        seen.plain_seconds = stats.plain_seconds
        for name, source in stats.by_source.items():
            if source.proposed == seen.proposed.get(name):  # so nothing of it was accepted either
                continue
            self.proposed.labels(name).inc(source.proposed - seen.proposed.get(name, 0))
            self.accepted.labels(name).inc(source.accepted - seen.accepted.get(name, 0))
            seen.proposed[name], seen.accepted[name] = source.proposed, source.accepted

    def to_text(self) -> bytes:
        """Returns all values in Prometheus' text form."""
        return generate_latest(self.registry)
