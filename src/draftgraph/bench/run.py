"""Writing with every arm: prompt by prompt in turns, and many prompts together.

In: arms and prompts. Out: what each run wrote and took. It measures and judges nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from draftgraph.audit import as_prompt
from draftgraph.bench.arms import PLAIN, Arm
from draftgraph.bench.peer import Peer, PeerRun
from draftgraph.data import DataPrompt
from draftgraph.errors import ParameterError
from draftgraph.llm import Completion, Prompt

Report = Callable[[str], None]
T = TypeVar("T")
R = TypeVar("R", "Run", PeerRun)
_WARM_UP = 8  # tokens
_ROUNDS = 3  # per batch size


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt written by one arm; times and passes are those after the first token.

    Args:
        pass_seconds: in passes of the target.
        draft_seconds: in drafters, draft models included.
        draft_passes: passes of draft models.
    """

    completion: Completion
    pass_seconds: float
    draft_seconds: float
    draft_passes: int

    @property
    def rate(self) -> float:
        """Tokens per second after the first token."""
        return self.completion.stats.decode_tokens_per_second


@dataclass(frozen=True, slots=True)
class Trial:
    """One prompt, written by every arm, perhaps several times in turns, and by every peer.

    Args:
        turns: in each turn, an arm's name -> what it wrote.
    """

    prompt: DataPrompt
    turns: Sequence[Mapping[str, Run]]
    peers: Mapping[str, PeerRun] = field(default_factory=dict)

    @property
    def runs(self) -> dict[str, Run]:
        """Of the runs of each arm the one with the median rate; but one that wrote another text than plain decoding, if
        there is one."""
        return {arm: self._typical([turn[arm] for turn in self.turns]) for arm in self.turns[0]}

    def rate(self, arm: str) -> float:
        """Tokens per second after the first token."""
        return self.runs[arm].rate

    def speedup(self, arm: str) -> float:
        """An arm's rate over plain in the same turn, as both meet the machine in the same mood there; the median of all
        turns. 1 where no token followed the first."""
        return statistics.median(turn[arm].rate / turn[PLAIN].rate if turn[PLAIN].rate else 1.0 for turn in self.turns)

    def _typical(self, runs: Sequence[Run]) -> Run:
        plain = self.turns[0][PLAIN].completion.token_ids
        return next((run for run in runs if run.completion.token_ids != plain), middle(runs))


@dataclass(frozen=True, slots=True)
class BatchRun:
    """So many requests written together by one arm, from the moment when all of them had their first token.

    Args:
        mean_budget: drafts verified per request and pass.
        mismatches: requests whose ids were not those they have alone.
    """

    arm: str
    size: int
    tokens: int
    seconds: float
    mean_budget: float
    mismatches: int

    @property
    def rate(self) -> float:
        """Tokens per second of all requests together."""
        return self.tokens / self.seconds


def compare(
    arms: Sequence[Arm],
    peers: Sequence[Peer],
    prompts: Sequence[DataPrompt],
    report: Report,
    *,
    raw: bool,
    repeats: int = 1,
    **sampling: Any,
) -> list[Trial]:
    """Writes each prompt `repeats` times with each arm and peer, who take turns at going first, after a warm-up of all.

    Of a peer's runs of a prompt, that with the median rate counts.
    """
    count = sampling.get("max_tokens", 64)
    first = as_prompt(prompts[0], raw=raw)
    for arm in arms:
        arm.llm.generate(first, **{**sampling, "max_tokens": min(_WARM_UP, count)})
    for peer in peers:
        peer.write(arms[0].llm.prompt_ids(first), min(_WARM_UP, count))
    trials = []
    order: list[Arm | Peer] = [*arms, *peers]
    for number, prompt in enumerate(prompts):
        given = as_prompt(prompt, raw=raw)
        turns: list[dict[str, Run]] = []
        beside: dict[str, list[PeerRun]] = {peer.name: [] for peer in peers}
        for turn in range(number * repeats, (number + 1) * repeats):
            turns.append({})
            for one in rotated(order, turn):
                report(f"prompt {number + 1} of {len(prompts)} ({prompt.id}): {one.name}")
                if isinstance(one, Arm):
                    turns[-1][one.name] = write(one, given, sampling)
                else:
                    beside[one.name].append(one.write(arms[0].llm.prompt_ids(given), count))
        trials.append(Trial(prompt, turns, {name: middle(some) for name, some in beside.items()}))
    return trials


def middle(runs: Sequence[R]) -> R:
    """Returns the run with the median rate, the slower one of two."""
    return sorted(runs, key=lambda run: run.rate)[(len(runs) - 1) // 2]


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """Returns the items from number `turn` on, and then those before it; every second round runs backwards, so that
    no item always follows the same other."""
    start = turn % len(items)
    order = [*items[start:], *items[:start]]
    return order[::-1] if turn // len(items) % 2 else order


def write(arm: Arm, prompt: Prompt, sampling: Mapping[str, Any]) -> Run:
    """Writes one prompt and returns what that took after the first token."""
    arm.forget()
    stream = arm.llm.stream(prompt, **sampling)
    while not stream.request.num_written:
        next(stream)
    before = arm.meter()
    completion = stream.finish()
    after = arm.meter()
    return Run(
        completion,
        after.pass_seconds - before.pass_seconds,
        after.draft_seconds - before.draft_seconds,
        after.draft_passes - before.draft_passes,
    )


def compare_batches(
    arms: Sequence[Arm], trials: Sequence[Trial], sizes: Sequence[int], report: Report, *, raw: bool, **sampling: Any
) -> dict[int, list[dict[str, BatchRun]]]:
    """Writes batches of each size with each arm in turns. Returns for each size one set of runs per round, by arm.

    The prompts are those of `trials`, over and over; what they wrote alone is what they must write together.
    """
    found: dict[int, list[dict[str, BatchRun]]] = {}
    for size in sizes:
        found[size] = []
        for number in range(_ROUNDS):
            chosen = [trials[(number * size + i) % len(trials)] for i in range(size)]
            runs = {}
            for arm in rotated(arms, number):
                report(f"{size} requests together, round {number + 1} of {_ROUNDS}: {arm.name}")
                runs[arm.name] = write_together(arm, chosen, raw=raw, **sampling)
            found[size].append(runs)
    return found


def write_together(arm: Arm, trials: Sequence[Trial], *, raw: bool, **sampling: Any) -> BatchRun:
    """Writes the trials' prompts in one batch.

    Raises:
        ParameterError: every text ended while others' prompts were still being read.
    """
    arm.forget()
    engine = arm.llm.engine
    streams = [arm.llm.stream(as_prompt(trial.prompt, raw=raw), **sampling) for trial in trials]
    requests = [stream.request for stream in streams]
    while not all(request.num_written for request in requests):
        engine.step()
    start, before = time.perf_counter(), sum(request.num_written for request in requests)
    while engine.scheduler.has_work:
        engine.step()
    seconds = time.perf_counter() - start
    tokens = sum(request.num_written for request in requests) - before
    if not tokens:
        raise ParameterError("texts too short to measure a batch", "texts longer than prompts", "raise --max-tokens")
    budgets = [request.stats.budgets for request in requests]
    passes = sum(sum(counts.values()) for counts in budgets)
    drafts = sum(drafts * count for counts in budgets for drafts, count in counts.items())
    alone = [trial.runs[PLAIN].completion.token_ids for trial in trials]
    wrong = sum(tuple(request.output) != ids for request, ids in zip(requests, alone, strict=True))
    return BatchRun(arm.name, len(trials), tokens, seconds, drafts / passes if passes else 0.0, wrong)
