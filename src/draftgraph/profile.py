"""The profile: what a target pass costs, by its number of rows and by its context, beside the least it could cost.

In: a loaded model. Out: medians in seconds and ratios to one row, and a ceiling: the weights' bytes over the memory's
speed, or their multiply-adds over the speed of products in the cache, whichever takes longer. The row counts take
turns, so that a slow moment of the machine falls on all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from draftgraph.bench.machine import commit, machine
from draftgraph.draw import NUM_COLOURS, Floor, Lines, Series, render_lines
from draftgraph.llm import LLM
from draftgraph.models.families import weight_names
from draftgraph.models.loader import Model
from draftgraph.plan.measure import read, time_pass
from draftgraph.runner.paged import PagedRunner
from draftgraph.speeds import memory_speed, multiply_speed

_PROMPT = 512


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What no pass can beat, whatever its context: attention and the key-value cache are not counted.

    Args:
        weight_bytes: bytes of weights that a pass reads.
        multiply_adds: with these weights, per row.
        memory_speed: bytes per second.
        multiply_speed: multiply-adds per second.
    """

    weight_bytes: int
    multiply_adds: int
    memory_speed: float
    multiply_speed: float

    def seconds(self, rows: int) -> float:
        """Returns the least time of a pass of `rows` rows."""
        return max(self.weight_bytes / self.memory_speed, rows * self.multiply_adds / self.multiply_speed)


@dataclass(frozen=True, slots=True)
class Profile:
    """What passes cost.

    Args:
        curves: committed tokens below the measured rows -> rows -> median seconds.
        prompt_tokens_per_second: reading a prompt of 512 tokens, or of what the runner holds if that is less.
    """

    name: str
    curves: Mapping[int, Mapping[int, float]]
    ceiling: Ceiling
    isa: str
    threads: int
    prompt_tokens_per_second: float

    def to_json(self) -> dict[str, Any]:
        """Returns the published form.

        `contexts` has one entry per context: `context` in tokens; `rows`, `seconds`, `relative` (to one row) and
        `ceiling_seconds`, one number per row count each; `weight_bytes`, `memory_gb_s`, `isa` and `threads`.
        """
        return {
            "model": self.name,
            "contexts": [
                {
                    "context": context,
                    "rows": list(curve),
                    "seconds": [round(seconds, 6) for seconds in curve.values()],
                    "relative": [round(seconds / curve[1], 3) for seconds in curve.values()],
                    "weight_bytes": self.ceiling.weight_bytes,
                    "memory_gb_s": round(self.ceiling.memory_speed / 1e9, 2),
                    "ceiling_seconds": [round(self.ceiling.seconds(rows), 6) for rows in curve],
                    "isa": self.isa,
                    "threads": self.threads,
                }
                for context, curve in self.curves.items()
            ],
            "multiply_adds_per_second": round(self.ceiling.multiply_speed),
            "prompt_tokens_per_second": round(self.prompt_tokens_per_second, 1),
            "machine": machine(),
            "commit": commit(),
        }

    def to_svg(self) -> str:
        """Returns the curves over their ceiling as a picture."""
        counts = tuple(next(iter(self.curves.values())))
        most = counts[-1]
        series = tuple(
            Series(f"context {context}", number % NUM_COLOURS, tuple(1e3 * seconds for seconds in curve.values()))
            for number, (context, curve) in enumerate(self.curves.items())
        )
        facts = f"{self.isa}, {self.threads} threads, {self.ceiling.memory_speed / 1e9:.1f} GB/s"
        plot = Lines(
            "ms per pass",
            "rows",
            counts,
            series,
            places=tuple(rows / most for rows in counts),
            floor=Floor(
                "ceiling", tuple((rows / most, 1e3 * self.ceiling.seconds(rows)) for rows in range(1, most + 1))
            ),
        )
        return render_lines(f"What a pass of {self.name} costs", facts, [plot])


def profile(llm: LLM, rows: Sequence[int], contexts: Sequence[int], repeats: int) -> Profile:
    """Measures passes of `rows` rows (1 is added) over each context, in a free slot, which it leaves as it was."""
    runner, counts = llm.runner, sorted({1, *rows})
    speed_before = memory_speed(runner.threads)
    curves: dict[int, dict[int, float]] = {}
    slot, num_read = runner.open(), 0
    try:
        for context in sorted(set(contexts)):
            read(runner, slot, context - num_read)
            num_read = context
            curves[context] = _curve(runner, slot, counts, repeats)
    finally:
        runner.release(slot)
    ceiling = Ceiling(
        runner.weight_bytes,
        _multiply_adds(llm.model),
        max(speed_before, memory_speed(runner.threads)),  # what neighbours leave of it changes by the minute
        multiply_speed(runner.isa, runner.threads),
    )
    return Profile(llm.name, curves, ceiling, runner.isa, runner.threads, _prompt_speed(runner))


def _curve(runner: PagedRunner, slot: int, counts: Sequence[int], repeats: int) -> dict[int, float]:
    """Returns rows -> median seconds above what the slot holds."""
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    for repeat in range(repeats + 1):
        for count in counts:
            taken = time_pass(runner, slot, count)
            if repeat:  # the first round warms up
                seconds[count].append(taken)
    return {count: statistics.median(values) for count, values in seconds.items()}


def _multiply_adds(model: Model) -> int:
    """Returns how many weights meet each row: those of all matrices, the head included, the embedding not."""
    weights = {(weight.layer, weight.field): weight.shape for weight in weight_names(model.source, model.config)}
    weights.setdefault((-1, "head"), weights.pop((-1, "embedding")))
    return sum(prod(shape) for shape in weights.values() if len(shape) == 2)


def _prompt_speed(runner: PagedRunner) -> float:
    length = min(_PROMPT, runner.context_length)
    slot = runner.open()
    try:
        start = time.perf_counter()
        read(runner, slot, length)
        return length / (time.perf_counter() - start)
    finally:
        runner.release(slot)
