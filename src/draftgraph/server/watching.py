"""What a stream says beside its text, for who asks: the source of every token, and the graph of every step.

In: a request after a step, the step's delta and verdict. Out: plain values for the event's `draftgraph` object. Runs on
the engine thread, so that no graph outlives its step. Never sees HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from draftgraph.engine.request import Request
from draftgraph.engine.trace import Tracer
from draftgraph.models.tokenizer import Tokenizer
from draftgraph.server.engine_thread import Watch
from draftgraph.server.schema import Watching
from draftgraph.steps import step_view
from draftgraph.types import Delta, Verdict

_DIGITS = 6  # of seconds and estimates


def watching(wanted: Watching | None, tokenizer: Tokenizer, model: str) -> Callable[[], Watch] | None:
    """Returns what makes the watch of a text; None if nothing is wanted."""
    if wanted is None or not (wanted.sources or wanted.graphs):
        return None
    return partial(_Watcher, wanted, tokenizer, model)


class _Watcher:
    """Watches one text."""

    def __init__(self, wanted: Watching, tokenizer: Tokenizer, model: str) -> None:
        self._wanted = wanted
        self._label = tokenizer.token_label
        self._model = model
        self._tracer = Tracer(tokenizer.token_bytes)
        self._plain_seconds = 0.0  # of all steps before

    def __call__(self, request: Request, delta: Delta, verdict: Verdict, seconds: float) -> dict[str, Any]:
        stats = request.stats
        seen: dict[str, Any] = {
            "so_far": {
                "tokens": stats.completion_tokens,
                "steps": stats.target_passes,
                "seconds": round(stats.decode_seconds, _DIGITS),
                "plain_seconds": round(stats.plain_seconds, _DIGITS),
            }
        }
        if self._wanted.sources:
            seen["tokens"] = [{"text": text, "sources": list(by)} for text, by in self._tracer.pieces(delta)]
        if self._wanted.graphs and stats.target_passes:  # the prompt's own pass drafts nothing
            before = request.tokens[: len(request.tokens) - len(verdict.tokens)]
            number, budget = stats.target_passes, request.budget
            view = step_view(verdict, before, self._label, model=self._model, step=number, budget=budget)
            plain_seconds = stats.plain_seconds - self._plain_seconds
            seen["step"] = {**_plain(view), "seconds": _plain(seconds), "plain_seconds": _plain(plain_seconds)}
        self._plain_seconds = stats.plain_seconds
        return seen


def _plain(value: Any) -> Any:
    """Returns a view, or a part of one, as plain values with every fraction rounded; five times as fast as `asdict`."""
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, str | int):
        return value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return {name: _plain(getattr(value, name)) for name in value.__slots__}
