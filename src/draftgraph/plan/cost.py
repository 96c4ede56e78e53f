"""What a pass costs: seconds by the number of rows and the cells they attend to.

In: measured passes. Out: an estimate for any pass. The shape is measured once per machine, model and threads and kept
on disk; what passes really take corrects it as they happen. Never sees tokens, graphs or requests.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Shares of each new observation in the corrections.
_MOOD_RATE, _BEND_RATE = 0.1, 0.15
_WILDEST = 2.0  # an observation further off than this factor is the machine's affair, not the model's


@dataclass(frozen=True, slots=True)
class CostTable:
    """Measured passes of one runner.

    Args:
        seconds: rows -> seconds of a pass over a short context; at least the entry for one row.
        cell_seconds: what one more cell adds to one row.
    """

    seconds: Mapping[int, float]
    cell_seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns the form on disk."""
        return {
            "seconds": {str(rows): value for rows, value in self.seconds.items()},
            "cell_seconds": self.cell_seconds,
        }

    @classmethod
    def from_json(cls, data: Any) -> CostTable:
        """Reads `to_json`'s form.

        Raises:
            ValueError: it is another form, or holds what cannot be a time.
        """
        try:
            seconds = {int(rows): float(value) for rows, value in data["seconds"].items()}
            cell_seconds = float(data["cell_seconds"])
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a cost table: {error!r}") from error
        times = [*seconds.values(), cell_seconds]
        if 1 not in seconds or min(seconds) < 1 or not all(0 <= time < 1e6 for time in times) or not seconds[1] > 0:
            raise ValueError("a cost table with impossible times")
        return cls(seconds, cell_seconds)


class PassCost:
    """The estimate. Owns its corrections: one factor for the memory's mood, and one per measured row count.

    A pass of few rows waits for memory, whose speed changes from minute to minute on a shared machine; a pass of many
    is bound by arithmetic. So the mood counts where the table is flat, and less and less where it rises. More rows
    never cost less: what a pass of few rows turns out to take holds for larger ones too, and no fewer rows are thought
    to take longer than a pass of more.

    Plain lists: it is told of every step, and NumPy takes half as long again for a dozen numbers.

    Args:
        table: the measured shape.
    """

    def __init__(self, table: CostTable) -> None:
        self._rows = sorted(table.seconds)
        self._table = [table.seconds[rows] for rows in self._rows]
        self._cell_seconds = table.cell_seconds
        self._shares = [_mood_share(rows, table.seconds[rows] / table.seconds[1]) for rows in self._rows]
        self._mood = 0.0  # logarithm of a factor
        self._bends = [0.0] * len(self._rows)  # the same, per measured row count
        self._kinships: dict[int, list[float]] = {}  # rows of a pass -> what it says about each measured row count
        self._update()

    def seconds(self, rows: int, cells: int) -> float:
        """Returns the estimate for a pass of `rows` rows that attend to `cells` cells in all. 0 rows are no pass."""
        if rows <= 0:
            return 0.0
        low, share = self._place(rows)
        base = self._bent[low]
        if share:
            base += (self._bent[low + 1] - base) * share
        elif rows > self._rows[-1]:
            base *= rows / self._rows[-1]
        return base + cells * self._cell_seconds

    def observe(self, rows: int, cells: int, seconds: float) -> None:
        """Corrects the estimate by one pass that took `seconds`."""
        if rows <= 0 or seconds <= 0:
            return
        error = _bounded_log(seconds / self.seconds(rows, cells))
        kinship = self._kinships.get(rows)
        if kinship is None:
            kinship = self._kinships[rows] = [_kinship(known, rows) for known in self._rows]
        lessons = [error * share for share in kinship]
        bare = max(seconds - cells * self._cell_seconds, 1e-9)
        fewer = bisect.bisect_left(self._rows, rows)
        for i in range(bisect.bisect_right(self._bent, bare, 0, fewer), fewer):  # thought to take longer than this one
            lessons[i] = _bounded_log(bare / self._bent[i])
        self._bends = [bend + _BEND_RATE * lesson for bend, lesson in zip(self._bends, lessons, strict=True)]
        self._mood += _MOOD_RATE * error * self._shares[self._place(rows)[0]]
        self._update()

    def scale(self, ratio: float) -> None:
        """Corrects all estimates by passes that took `ratio` times what was estimated."""
        self._mood += _MOOD_RATE * _bounded_log(ratio)
        self._update()

    def _update(self) -> None:
        parts = zip(self._table, self._bends, self._shares, strict=True)
        bent = (seconds * math.exp(bend + share * self._mood) for seconds, bend, share in parts)
        self._bent = list(itertools.accumulate(bent, max))

    def _place(self, rows: int) -> tuple[int, float]:
        """Returns the index of the last measured row count up to `rows`, and how far it is to the next one."""
        low = bisect.bisect_right(self._rows, rows) - 1
        if low + 1 == len(self._rows):
            return low, 0.0
        return low, (rows - self._rows[low]) / (self._rows[low + 1] - self._rows[low])


def _mood_share(rows: int, ratio: float) -> float:
    """How much the memory's mood matters to passes of `rows` rows that cost `ratio` times one row."""
    return min(max((1.7 - ratio) / 0.5, 0.0), 1.0, 4 / rows)


def _kinship(rows: int, seen: int) -> float:
    """How much a pass of `seen` rows says about one of `rows`: much about larger ones, little about smaller ones."""
    octaves = math.log2(rows / seen)
    return math.exp(-0.3 * octaves) if octaves >= 0 else math.exp(2 * octaves)


def _bounded_log(ratio: float) -> float:
    return math.log(min(max(ratio, 1 / _WILDEST), _WILDEST))


@dataclass(frozen=True, slots=True)
class Choice:
    """What a plan expects: tokens per step and seconds, with `count` drafts."""

    tokens: float
    seconds: float
    count: int

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def best_count(gains: Sequence[float], base_tokens: float, seconds_of: Sequence[float]) -> Choice:
    """Returns the number of drafts with the most expected tokens per second.

    Args:
        gains: path acceptances, best first; the first n add up to what n drafts bring.
        base_tokens: tokens that are written without any draft: one per request.
        seconds_of: [len(gains) + 1] what a step takes in all with n drafts.
    """
    best = Choice(base_tokens, seconds_of[0], 0)
    for count, tokens in enumerate(itertools.accumulate(gains, initial=base_tokens)):
        if tokens * best.seconds > best.tokens * seconds_of[count]:
            best = Choice(tokens, seconds_of[count], count)
    return best
