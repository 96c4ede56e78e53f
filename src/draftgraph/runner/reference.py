"""The reference runner: NumPy float32, written to be read, the oracle of the other runners.

In and out: as `PagedRunner`. Row-invariant by construction: every sum is computed for one row at a time, over that
row's own keys in position order, so its bits cannot depend on company.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from draftgraph.environment import num_cores
from draftgraph.kernels import reference as kernels
from draftgraph.models.base import ModelConfig, ModelWeights
from draftgraph.models.transformer import Transformer
from draftgraph.runner.kv import Cells, KeyValueStore
from draftgraph.runner.paged import PagedRunner, cells_needed
from draftgraph.types import FloatArray, IntArray


class ReferenceBackend:
    """A `Backend` over NumPy kernels and float32 weights. It takes all cores, as far as NumPy does."""

    isa = "numpy"

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, vocab_size: int, num_positions: int, num_cells: int
    ) -> None:
        self.threads = num_cores()
        self._vocab_size = vocab_size
        self._weights = weights
        self._config = config
        self._model = Transformer(config, weights, num_positions)
        self._store = KeyValueStore(config.num_layers, config.num_kv_heads, num_cells, config.head_dim)

    @property
    def weight_bytes(self) -> int:
        return self._weights.num_bytes

    def forward(
        self, tokens: IntArray, positions: IntArray, cells: Sequence[Cells], wanted: npt.NDArray[np.bool_]
    ) -> FloatArray:
        hidden = self._model.hidden(tokens, positions, _Attention(self._config, self._store, cells))
        return self._model.logits(hidden[wanted], self._vocab_size)

    def move(self, source: Cells, target: Cells) -> None:
        self._store.move(source, target)

    def read(self, layer: int, cells: Cells) -> tuple[FloatArray, FloatArray]:
        return self._store.read(layer, cells)


class _Attention:
    """Attention of one pass: each row over its own list of cells, in position order, or over the last of them."""

    def __init__(self, config: ModelConfig, store: KeyValueStore, cells: Sequence[Cells]) -> None:
        self._config = config
        self._store = store
        self._cells = cells
        self._own: Cells = np.asarray([row[-1] for row in cells], np.intp)

    def __call__(self, layer: int, queries: FloatArray, keys: FloatArray, values: FloatArray) -> FloatArray:
        self._store.write(layer, self._own, keys, values)
        out = np.empty_like(queries)
        first = -self._config.window(layer)  # 0 is all
        for row, cells in enumerate(self._cells):
            seen_keys, seen_values = self._store.read(layer, cells[first:])
            out[row] = kernels.attend_row(queries[row], seen_keys, seen_values, self._config.score_scale)
        return out


class ReferenceRunner(PagedRunner):
    """A `PagedRunner` over a `ReferenceBackend`; arguments as there.

    Args:
        num_cells: 0 for so many that every slot can be full at once.
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
        num_cells: int = 0,
    ) -> None:
        num_cells = num_cells or cells_needed(context_length, num_slots, max_open)
        super().__init__(
            ReferenceBackend(config, weights, vocab_size, context_length, num_cells),
            vocab_size=vocab_size,
            context_length=context_length,
            num_slots=num_slots,
            max_open=max_open,
            num_cells=num_cells,
        )
