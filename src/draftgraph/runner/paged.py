"""Slots, open trees and blocks: the part of a runner that is the same for every way to compute.

In: `VerifyBatch`. Out: `TargetRows`. It turns each row's ancestors into the list of cells the row attends to, in
position order, and leaves the arithmetic to a `Backend`. Full blocks of committed text are shared between slots and
outlive them, keyed by all the tokens up to their end and by the slot's salt. Never sees drafters or probabilities.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from draftgraph.errors import CapacityError
from draftgraph.graph.encode import path_to
from draftgraph.runner.base import BlockUse
from draftgraph.runner.kv import BLOCK, BlockPool, BlockTable, Cells, blocks_for
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
    return num_slots * blocks_for(context_length + max_open) * BLOCK


def block_keys(tokens: Sequence[int], parent: bytes = b"") -> Iterator[bytes]:
    """Yields the key of each full block of a text: a hash of its tokens and of the key of the block before it.

    Args:
        parent: the key of the block that the text follows; at the start the slot's salt.
    """
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        content = np.asarray(tokens[start : start + BLOCK], np.int32).tobytes()
        parent = hashlib.sha256(parent + content).digest()
        yield parent


@dataclass(slots=True)
class _Slot:
    """One slot: its blocks, its committed text and the nodes of its open tree."""

    table: BlockTable
    salt: bytes
    text: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    @property
    def committed(self) -> int:
        return len(self.text)


class PagedRunner:
    """A `Runner` over a backend with `num_cells` cells.

    Args:
        vocab_size: number of real token ids; the model may have more rows.
        context_length: longest committed text plus tree path of a slot.
        num_slots: slots that can be open together.
        max_open: nodes an open tree may have.
        num_cells: cells of all slots together, whole blocks; enough for one slot's text.
    """

    def __init__(
        self, backend: Backend, *, vocab_size: int, context_length: int, num_slots: int, max_open: int, num_cells: int
    ) -> None:
        assert num_cells % BLOCK == 0, "the cells are not whole blocks"
        assert num_cells >= context_length, "a single text does not fit into the cells"
        self.vocab_size = vocab_size
        self.context_length = context_length
        self._backend = backend
        self._num_slots = num_slots
        self._max_open = max_open
        self._pool = BlockPool(num_cells // BLOCK)
        self._slots: dict[int, _Slot] = {}
        self.num_passes = 0  # since it was opened, with the seconds they took: for whoever measures
        self.pass_seconds = 0.0

    @property
    def num_free_slots(self) -> int:
        return self._num_slots - len(self._slots)

    @property
    def blocks(self) -> BlockUse:
        total = self._pool.num_blocks
        return BlockUse(total=total, used=total - self._pool.num_free, cached=self._pool.num_idle)

    @property
    def weight_bytes(self) -> int:
        return self._backend.weight_bytes

    @property
    def isa(self) -> str:
        return self._backend.isa

    @property
    def threads(self) -> int:
        return self._backend.threads

    def blocks_needed(self, slot: int, num_nodes: int) -> int:
        state = self._slots[slot]
        return blocks_for(state.committed + len(state.parents) + num_nodes) - len(state.table.blocks)

    def open(self, cache_salt: bytes = b"") -> int:
        if not self.num_free_slots:
            raise CapacityError(
                f"all {self._num_slots} slots are in use", "one request per slot", "raise --slots or wait"
            )
        slot = min(set(range(self._num_slots)) - set(self._slots))
        self._slots[slot] = _Slot(BlockTable(self._pool), cache_salt)
        return slot

    def reuse(self, slot: int, tokens: Sequence[int]) -> int:
        state = self._slots[slot]
        state.table.reuse(block_keys(tokens, state.salt))
        state.text = list(tokens[: len(state.table.keys) * BLOCK])
        return state.committed

    def release(self, slot: int) -> None:
        self._slots.pop(slot).table.resize(0)

    def reset(self) -> None:
        self._slots = {}
        self._pool = BlockPool(self._pool.num_blocks)

    def forget(self) -> None:
        """Drops the texts that no slot holds and that are kept for `reuse`: who measures wants them read again."""
        self._pool.forget()

    def extend(self, batch: VerifyBatch) -> TargetRows:
        start = time.perf_counter()
        cells: list[Cells] = []
        for slot, ext in zip(batch.slots, batch.extensions, strict=True):
            cells += self._append(self._slots[slot], ext)
        logits = self._backend.forward(
            np.concatenate([ext.tokens for ext in batch.extensions]),
            np.asarray([len(row) - 1 for row in cells], np.int32),
            cells,
            np.concatenate([np.arange(len(ext.tokens)) >= ext.first_row for ext in batch.extensions]),
        )
        ends = list(accumulate(len(ext.tokens) - ext.first_row for ext in batch.extensions))
        self.num_passes += 1
        self.pass_seconds += time.perf_counter() - start
        return TargetRows(tuple(logits[begin:end] for begin, end in pairwise((0, *ends))))

    def commit(self, slot: int, path: Sequence[int]) -> None:
        state = self._slots[slot]
        for parent, node in zip((-1, *path), path, strict=False):
            assert state.parents[node] == parent, "the committed nodes are not a path from the top of the open tree"
        start = state.committed
        moved = [index for index, node in enumerate(path) if node != index]
        if moved:
            source = state.table.cells([start + path[index] for index in moved])
            self._backend.move(source, state.table.cells([start + index for index in moved]))
        state.text += [state.tokens[node] for node in path]
        state.tokens, state.parents = [], []
        state.table.resize(state.committed)
        keys = state.table.keys
        state.table.publish(block_keys(state.text[len(keys) * BLOCK :], keys[-1] if keys else state.salt))

    def committed_keys(self, slot: int, layer: int) -> tuple[FloatArray, FloatArray]:
        """Returns copies of a slot's committed keys and values, [kv_heads, committed, head_dim] each."""
        state = self._slots[slot]
        return self._backend.read(layer, state.table.first_cells(state.committed))

    def check(self) -> None:
        """Asserts that every block is accounted for, and that those published are the full ones, by their text."""
        self._pool.check(block for state in self._slots.values() for block in state.table.blocks)
        for state in self._slots.values():
            assert state.table.keys == list(block_keys(state.text, state.salt)), "a block's key is not that of its text"
            assert len(state.table.blocks) == blocks_for(state.committed + len(state.parents)), "a slot has idle blocks"

    def _append(self, state: _Slot, ext: Extension) -> list[Cells]:
        """Adds the nodes of `ext` to the open tree. Returns for each of them the cells it attends to, its own last."""
        first = len(state.parents)
        tokens, parents = ext.tokens.tolist(), state.parents + ext.parents.tolist()
        assert all(-1 <= parent < first + i for i, parent in enumerate(parents[first:])), "a node precedes its parent"
        assert all(0 <= token < self.vocab_size for token in tokens), "a token is outside the vocabulary"
        paths = [path_to(parents, node) for node in range(first, len(parents))]
        longest = state.committed + max(map(len, paths))
        if longest > self.context_length or len(parents) > self.context_length + self._max_open - state.committed:
            raise CapacityError(
                f"{longest} tokens in a slot", f"at most {self.context_length}", "raise --context or shorten the prompt"
            )
        state.tokens, state.parents = state.tokens + tokens, parents
        state.table.resize(state.committed + len(parents))
        cells = state.table.first_cells(state.committed + len(parents))
        committed, open_cells = cells[: state.committed], cells[state.committed :]
        return [np.concatenate([committed, open_cells[path]]) for path in paths]
