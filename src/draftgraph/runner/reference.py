"""The reference runner: NumPy float32, written to be read, the oracle of the other runners.

In: `VerifyBatch`. Out: `TargetRows`. Row-invariant by construction: every sum is computed for one row at a time, over
that row's own keys in position order, so its bits cannot depend on company. Never sees drafters or probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from draftgraph.errors import CapacityError
from draftgraph.graph.encode import path_to
from draftgraph.kernels import reference as kernels
from draftgraph.models.base import ModelConfig, ModelWeights
from draftgraph.models.transformer import Transformer
from draftgraph.runner.kv import BLOCK, BlockPool, BlockTable, Cells, KeyValueStore
from draftgraph.types import Extension, FloatArray, TargetRows, VerifyBatch


@dataclass(slots=True)
class _Slot:
    """One slot: its blocks, its committed length and the parents of its open nodes."""

    table: BlockTable
    committed: int = 0
    parents: list[int] = field(default_factory=list)


class ReferenceRunner:
    """A `Runner` over NumPy kernels.

    Args:
        vocab_size: number of real token ids; the model may have more rows.
        context_length: longest committed text plus tree path of a slot.
        num_slots: slots that can be open together.
        max_open: nodes an open tree may have.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        vocab_size: int,
        context_length: int,
        num_slots: int,
        max_open: int,
    ) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self._model = Transformer(config, weights, context_length)
        self._num_slots = num_slots
        self._max_open = max_open
        self._pool = BlockPool(num_slots * -(-(context_length + max_open) // BLOCK))
        self._store = KeyValueStore(
            config.num_layers, config.num_kv_heads, self._pool.num_blocks * BLOCK, config.head_dim
        )
        self._slots: dict[int, _Slot] = {}

    @property
    def num_free_slots(self) -> int:
        return self._num_slots - len(self._slots)

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
        plans = [self._append(self._slots[slot], ext) for slot, ext in zip(batch.slots, batch.extensions, strict=True)]
        hidden = self._model.hidden(
            np.concatenate([ext.tokens for ext in batch.extensions]),
            np.asarray([len(row) - 1 for plan in plans for row in plan], np.int32),
            self._attend([row for plan in plans for row in plan]),
        )
        rows, start = [], 0
        for ext in batch.extensions:
            end = start + len(ext.tokens)
            rows.append(self._model.logits(hidden[start + ext.first_row : end], self.vocab_size))
            start = end
        return TargetRows(tuple(rows))

    def commit(self, slot: int, path: Sequence[int]) -> None:
        state = self._slots[slot]
        for parent, node in zip((-1, *path), path, strict=False):
            assert state.parents[node] == parent, "the committed nodes are not a path from the top of the open tree"
        start = state.committed
        moved = [index for index, node in enumerate(path) if node != index]
        if moved:
            source = state.table.cells([start + path[index] for index in moved])
            self._store.move(source, state.table.cells([start + index for index in moved]))
        state.committed += len(path)
        state.parents.clear()
        state.table.resize(state.committed)

    def committed_keys(self, slot: int, layer: int) -> tuple[FloatArray, FloatArray]:
        """Returns copies of a slot's committed keys and values, [kv_heads, committed, head_dim] each."""
        state = self._slots[slot]
        return self._store.read(layer, state.table.cells(range(state.committed)))

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
        committed = state.table.cells(range(state.committed))
        return [
            np.concatenate([committed, state.table.cells([state.committed + node for node in path])]) for path in paths
        ]

    def _attend(self, cells: list[Cells]) -> _Attention:
        return _Attention(self._store, cells)


class _Attention:
    """Attention of one pass: each row over its own list of cells, in position order."""

    def __init__(self, store: KeyValueStore, cells: list[Cells]) -> None:
        self._store = store
        self._cells = cells
        self._own: Cells = np.asarray([row[-1] for row in cells], np.intp)

    def __call__(self, layer: int, queries: FloatArray, keys: FloatArray, values: FloatArray) -> FloatArray:
        self._store.write(layer, self._own, keys, values)
        out = np.empty_like(queries)
        for row, cells in enumerate(self._cells):
            out[row] = kernels.attend_row(queries[row], *self._store.read(layer, cells))
        return out
