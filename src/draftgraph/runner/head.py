"""A reduced output head: logits for the tokens that are likely to be written, and for all that have been read.

In: the ids it begins with, then every token that passes through the model. Out: which id each logit belongs to, and
which tiles of the head must be packed anew. A draft model needs no more: a token outside the head is merely never
proposed. Never sees weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftgraph.types import FloatArray, IntArray

TILE = 16  # outputs that the core packs together
_SPARE = 2048  # places for tokens that are rare but have been read, the latest ones kept


class ReducedHead:
    """Owns the assignment of logits to token ids.

    Args:
        ids: token ids that are always there.
        vocab_size: of the model.
    """

    def __init__(self, ids: Sequence[int], vocab_size: int) -> None:
        fixed = sorted(set(ids))
        self._vocab_size = vocab_size
        self._first_spare = len(fixed)
        spare = min(-len(fixed) % TILE + _SPARE, vocab_size - len(fixed))
        self.ids: IntArray = np.concatenate([np.asarray(fixed, np.int32), np.full(spare, -1, np.int32)])
        self._present = np.zeros(vocab_size, np.bool_)
        self._present[fixed] = True
        self._next = self._first_spare
        self._num_filled = len(fixed)
        self.stale: set[int] = set()  # tiles that must be packed anew; whoever has packed one takes it out

    def __len__(self) -> int:
        return len(self.ids)

    def admit(self, tokens: IntArray) -> None:
        """Gives places to those of `tokens` that have none; their tiles become stale."""
        new = list(dict.fromkeys(tokens[~self._present[tokens]].tolist()))[: len(self) - self._first_spare]
        for token in new:
            self.stale.add(self._next // TILE)
            old = int(self.ids[self._next])
            if old >= 0:
                self._present[old] = False
            self.ids[self._next] = token
            self._present[token] = True
            self._next += 1
            self._num_filled = max(self._num_filled, self._next)
            if self._next == len(self):
                self._next = self._first_spare

    def rows_of(self, tile: int) -> IntArray:
        """Returns [16]: the ids whose rows a tile holds; places that are free hold row 0."""
        rows = np.zeros(TILE, np.int32)
        ids = self.ids[tile * TILE : (tile + 1) * TILE]
        rows[: len(ids)] = np.maximum(ids, 0)
        return rows

    def spread(self, logits: FloatArray) -> FloatArray:
        """Returns [rows, vocabulary] from logits [rows, head]: -inf for tokens outside the head."""
        full = np.full((len(logits), self._vocab_size), -np.inf, np.float32)
        places = self.ids[: self._num_filled].astype(np.intp)
        for row, values in zip(full, logits, strict=True):  # NumPy takes three times as long for all rows at once
            row[places] = values[: self._num_filled]
        return full
