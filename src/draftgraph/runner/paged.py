"""Slots, open trees and blocks: the part of a runner that is the same for every way to compute.

In: `VerifyBatch`. Out: `TargetRows`. It turns each row's ancestors into the list of cells the row attends to, in
position order, and leaves the arithmetic to a `Backend`. Never sees drafters or probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from draftgraph.errors import CapacityError
from draftgraph.graph.encode import path_to
from draftgraph.runner.kv import BLOCK, BlockPool, BlockTable, Cells
from draftgraph.types import Extension, FloatArray, IntArray, TargetRows, VerifyBatch


class Backend(Protocol):
    """Computes rows over cells that it owns. A row's result depends on its own cells alone, bit for bit."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one pass reads."""

    @property
    def isa(self) -> str:
        """What computes: the level of the native kernels, or "numpy"."""

    @property
    def threads(self) -> int:
        """Threads that compute a pass together."""

    def forward(
        self, tokens: IntArray, positions: IntArray, cells: Sequence[Cells], wanted: npt.NDArray[np.bool_]
    ) -> FloatArray:
        """Computes rows and stores their keys and values; returns the logits of those wanted, [wanted, vocabulary].

        Args:
            tokens, positions, wanted: [rows].
            cells: for each row the cells it attends to, in position order, its own last.
        """

    def move(self, source: Cells, target: Cells) -> None:
        """Copies cells `source` [n] to cells `target` [n] in every layer; they may overlap."""

    def read(self, layer: int, cells: Cells) -> tuple[FloatArray, FloatArray]:
        """Returns copies of the keys and values of cells [n], each [kv_heads, n, head_dim]."""


def cells_needed(context_length: int, num_slots: int, max_open: int) -> int:
    """Returns how many cells a backend must have, so that every slot can be full at once."""
    return num_slots * -(-(context_length + max_open) // BLOCK) * BLOCK


@dataclass(slots=True)
class _Slot:
    """One slot: its blocks, its committed length and the parents of its open nodes."""

    table: BlockTable
    committed: int = 0
    parents: list[int] = field(default_factory=list)


class PagedRunner:
    """A `Runner` over a backend with `cells_needed(…)` cells.

    Args:
        vocab_size: number of real token ids; the model may have more rows.
        context_length: longest committed text plus tree path of a slot.
        num_slots: slots that can be open together.
        max_open: nodes an open tree may have.
    """

    def __init__(
        self, backend: Backend, *, vocab_size: int, context_length: int, num_slots: int, max_open: int
    ) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self._backend = backend
        self._num_slots = num_slots
        self._max_open = max_open
        self._pool = BlockPool(cells_needed(context_length, num_slots, max_open) // BLOCK)
        self._slots: dict[int, _Slot] = {}

    @property
    def num_free_slots(self) -> int:
        return self._num_slots - len(self._slots)

    @property
    def weight_bytes(self) -> int:
        return self._backend.weight_bytes

    @property
    def isa(self) -> str:
        return self._backend.isa

    @property
    def threads(self) -> int:
        return self._backend.threads

    def open(self) -> int:
        if not self.num_free_slots:
            raise CapacityError(
                f"all {self._num_slots} slots are in use", "one request per slot", "raise --slots or wait"
            )
        slot = min(set(range(self._num_slots)) - set(self._slots))
        self._slots[slot] = _Slot(BlockTable(self._pool))
        return slot

    def release(self, slot: int) -> None:
        self._slots.pop(slot).table.resize(0)

    def extend(self, batch: VerifyBatch) -> TargetRows:
        cells: list[Cells] = []
        wanted: list[npt.NDArray[np.bool_]] = []
        for slot, ext in zip(batch.slots, batch.extensions, strict=True):
            cells += self._append(self._slots[slot], ext)
            wanted.append(np.arange(len(ext.tokens)) >= ext.first_row)
        logits = self._backend.forward(
            np.concatenate([ext.tokens for ext in batch.extensions]),
            np.asarray([len(row) - 1 for row in cells], np.int32),
            cells,
            np.concatenate(wanted),
        )
        borders = np.cumsum([mask.sum() for mask in wanted])[:-1]
        return TargetRows(tuple(np.split(logits, borders)))

    def commit(self, slot: int, path: Sequence[int]) -> None:
        state = self._slots[slot]
        for parent, node in zip((-1, *path), path, strict=False):
            assert state.parents[node] == parent, "the committed nodes are not a path from the top of the open tree"
        start = state.committed
        moved = [index for index, node in enumerate(path) if node != index]
        if moved:
            source = state.table.cells([start + path[index] for index in moved])
            self._backend.move(source, state.table.cells([start + index for index in moved]))
        state.committed += len(path)
        state.parents.clear()
        state.table.resize(state.committed)

    def committed_keys(self, slot: int, layer: int) -> tuple[FloatArray, FloatArray]:
        """Returns copies of a slot's committed keys and values, [kv_heads, committed, head_dim] each."""
        state = self._slots[slot]
        return self._backend.read(layer, state.table.cells(np.arange(state.committed)))

    def check(self) -> None:
        """Asserts that every block has one owner."""
        self._pool.check([block for state in self._slots.values() for block in state.table.blocks])

    def _append(self, state: _Slot, ext: Extension) -> list[Cells]:
        """Adds the nodes of `ext` to the open tree. Returns for each of them the cells it attends to, its own last."""
        first = len(state.parents)
        parents = state.parents + ext.parents.tolist()
        assert all(-1 <= parent < first + i for i, parent in enumerate(parents[first:])), "a node precedes its parent"
        assert ((ext.tokens >= 0) & (ext.tokens < self.vocab_size)).all(), "a token is outside the vocabulary"
        paths = [path_to(parents, node) for node in range(first, len(parents))]
        longest = state.committed + max(map(len, paths))
        if longest > self.context_length or len(parents) > self.context_length + self._max_open - state.committed:
            raise CapacityError(
                f"{longest} tokens in a slot", f"at most {self.context_length}", "raise --context or shorten the prompt"
            )
        state.parents = parents
        state.table.resize(state.committed + len(parents))
        cells = state.table.cells(np.arange(state.committed + len(parents)))
        committed, open_cells = cells[: state.committed], cells[state.committed :]
        return [np.concatenate([committed, open_cells[path]]) for path in paths]
