"""Perplexity: how well a model foretells a text, in windows that are read one by one from an empty context.

In: a runner and token ids. Out: the exponential of the mean negative log-likelihood over every token but a window's
first. Knows no file and no drafter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from draftgraph.models.tokenizer import Tokenizer
from draftgraph.runner.base import Runner
from draftgraph.types import Extension, FloatArray, VerifyBatch

_CHUNK = 64
_CUT = 16  # ids before a cut in a text that the cut may have changed

# token ids of a window -> negative log-likelihoods of its second and later tokens
Score = Callable[[Sequence[int]], list[float]]


@dataclass(frozen=True, slots=True)
class Perplexity:
    """What a text cost the model: `tokens` were read in `seconds`."""

    perplexity: float
    tokens: int
    seconds: float

    def to_json(self) -> dict[str, float]:
        """Returns the published form."""
        return {"perplexity": round(self.perplexity, 4), "tokens": self.tokens, "seconds": round(self.seconds, 3)}


def perplexity(score: Score, ids: Sequence[int], window: int) -> Perplexity:
    """Returns the perplexity of at least two ids in windows of `window`, which is at least 2."""
    start = time.perf_counter()
    losses = [loss for at in range(0, len(ids), window) for loss in score(ids[at : at + window])]
    return Perplexity(math.exp(math.fsum(losses) / len(losses)), len(ids), time.perf_counter() - start)


def score_with(runner: Runner) -> Score:
    """Returns the score of a runner, which needs a free slot and room for the window."""

    def score(ids: Sequence[int]) -> list[float]:
        slot = runner.open()
        try:
            return [loss for start in range(0, len(ids), _CHUNK) for loss in _read(runner, slot, ids, start)]
        finally:
            runner.release(slot)

    return score


def _read(runner: Runner, slot: int, ids: Sequence[int], start: int) -> list[float]:
    """Commits one chunk of the ids and returns the losses of the tokens that follow its own."""
    chunk = np.asarray(ids[start : start + _CHUNK], np.int32)
    extension = Extension(chunk, np.arange(-1, len(chunk) - 1, dtype=np.int32), 0)
    (rows,) = runner.extend(VerifyBatch((slot,), [extension])).rows
    runner.commit(slot, range(len(chunk)))
    return negative_log_likelihoods(rows, ids[start + 1 : start + 1 + len(chunk)])


def negative_log_likelihoods(rows: FloatArray, following: Sequence[int]) -> list[float]:
    """Returns -log p of each following token, given logits [rows, vocabulary]; the last row may have none."""
    logits = rows[: len(following)].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    picked = logits[np.arange(len(following)), following]
    return [float(loss) for loss in np.log(np.exp(logits).sum(axis=1)) - picked]


def first_ids(tokenizer: Tokenizer, text: str, count: int | None) -> list[int]:
    """Returns the first `count` ids of a text, or all; of a long text no more is encoded than that takes."""
    length = len(text) if count is None else 8 * (count + _CUT)
    ids = tokenizer.encode(text[:length], special=False)
    while count is not None and len(ids) < count + _CUT and length < len(text):
        length *= 2
        ids = tokenizer.encode(text[:length], special=False)
    return ids[:count]
