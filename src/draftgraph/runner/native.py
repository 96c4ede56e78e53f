"""The native runner: the whole forward pass in one call of the C++ core, over quantised blocks as the file has them.

In and out: as `PagedRunner`. The extension is optional; `why_not` says why a model cannot run here. The core keeps the
numerical contract: a row's bits do not depend on the other rows, the threads or the instruction set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from draftgraph.errors import ModelFileError, ParameterError
from draftgraph.extension import core
from draftgraph.kernels.reference import rope_table
from draftgraph.models.base import ModelConfig
from draftgraph.models.blocks import WeightName
from draftgraph.models.families import Source, weight_names
from draftgraph.runner.head import ReducedHead
from draftgraph.runner.kv import Cells
from draftgraph.runner.paged import PagedRunner, cells_needed
from draftgraph.types import FloatArray, IntArray

# The GGUF types that the core reads, by their number in a file.
TYPES: Mapping[str, int] = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "BF16": 30,
}  # fmt: skip
_LINEAR = ("q", "k", "v", "o", "gate", "up", "down")
_VECTORS = (
    "attn_norm", "ffn_norm", "q_bias", "k_bias", "v_bias", "q_norm", "k_norm", "post_attn_norm", "post_ffn_norm",
)  # fmt: skip


def why_not(source: Source, config: ModelConfig) -> str | None:
    """Returns why the native runner cannot compute this model, or None if it can."""
    if core is None:
        return "the extension is not installed"
    if config.head_dim % 16:
        return f"its head size, {config.head_dim}, is not a multiple of 16"
    for weight in weight_names(source, config):
        kind = source.type_name(weight.name)
        if len(weight.shape) == 2 and kind not in TYPES:
            return f"tensor {weight.name!r} has type {kind}"
    return None


class NativeBackend:
    """A `Backend` over the C++ core. Owns the packed weights and the cache."""

    def __init__(
        self,
        source: Source,
        config: ModelConfig,
        *,
        vocab_size: int,
        num_positions: int,
        num_cells: int,
        threads: int,
        level: str,
        packed: str,
        reduced: ReducedHead | None,
        coarse: bool,
    ) -> None:
        self.threads = threads
        self._reduced = reduced
        self._num_logits = len(reduced) if reduced else vocab_size
        self._heads = (config.num_kv_heads, config.head_dim)
        weights = {(weight.layer, weight.field): weight for weight in weight_names(source, config)}
        embedding = weights[-1, "embedding"]
        head = weights.get((-1, "head"), embedding)
        # Rows that are read later are copied: the file may be changed or cut short while the model is used. Where the
        # head is packed whole, as it is, the embedding's rows are read from there.
        in_head = head is embedding and not reduced and not coarse
        embedding_blocks = (
            source.blocks(embedding.name) if in_head else source.blocks(embedding.name)[:vocab_size].copy()
        )
        head_blocks = embedding_blocks if head is embedding else source.blocks(head.name)
        if reduced:
            self._head_rows = head_blocks if head is embedding else head_blocks.copy()
        rope = rope_table(num_positions, config.rope_base, config.rope_dim, config.rope_factors)
        local_rope = rope_table(num_positions, config.local_rope_base or config.rope_base, config.rope_dim, None)
        layers = [
            core.Layer(
                **_layer(source, {field: weight for (i, field), weight in weights.items() if i == index}),
                window=config.window(index),
                local_rope=bool(config.window(index) and config.local_rope_base),
            )
            for index in range(config.num_layers)
        ]
        self._decoder = core.Decoder(
            shape=core.Shape(
                num_layers=config.num_layers,
                hidden=config.hidden_size,
                intermediate=config.intermediate_size,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                vocab=vocab_size,
                head=self._num_logits,
                num_cells=num_cells,
                num_positions=num_positions,
                rope_dim=config.rope_dim,
                rope_interleaved=config.rope_interleaved,
                coarse=coarse,
                gelu=config.activation == "gelu",
                norm_eps=config.norm_eps,
                embedding_scale=config.embedding_scale,
                score_scale=config.score_scale,
            ),
            embedding=None if in_head else _tensor(source, embedding, embedding_blocks),
            head=_tensor(source, head, head_blocks[np.maximum(reduced.ids, 0) if reduced else slice(vocab_size)]),
            layers=layers,
            final_norm=_vector(source, weights[-1, "final_norm"]),
            cos=rope[0].ravel(),
            sin=rope[1].ravel(),
            local_cos=local_rope[0].ravel(),
            local_sin=local_rope[1].ravel(),
            threads=threads,
            level=level,
            packed=packed,
        )

    @property
    def weight_bytes(self) -> int:
        return int(self._decoder.weight_bytes)

    @property
    def isa(self) -> str:
        return str(self._decoder.level)

    def forward(
        self, tokens: IntArray, positions: IntArray, cells: Sequence[Cells], wanted: npt.NDArray[np.bool_]
    ) -> FloatArray:
        if self._reduced:
            self._reduced.admit(tokens)
            for tile in sorted(self._reduced.stale):
                self._decoder.set_head_tile(tile, self._head_rows[self._reduced.rows_of(tile)].reshape(-1))
                self._reduced.stale.discard(tile)
        logits = np.empty((int(wanted.sum()), self._num_logits), np.float32)
        offsets = np.zeros(len(cells) + 1, np.int32)
        np.cumsum([len(row) for row in cells], out=offsets[1:])
        self._decoder.forward(
            tokens, positions, offsets, np.concatenate(cells).astype(np.int32), wanted.view(np.uint8), logits
        )
        return self._reduced.spread(logits) if self._reduced else logits

    def move(self, source: Cells, target: Cells) -> None:
        self._decoder.move_cells(source.astype(np.int32), target.astype(np.int32))

    def read(self, layer: int, cells: Cells) -> tuple[FloatArray, FloatArray]:
        keys = np.empty((len(cells), *self._heads), np.float32)
        values = np.empty_like(keys)
        self._decoder.read_cells(layer, cells.astype(np.int32), keys, values)
        return keys.transpose(1, 0, 2), values.transpose(1, 0, 2)


class NativeRunner(PagedRunner):
    """A `PagedRunner` over a `NativeBackend`; arguments as there.

    Args:
        num_cells: 0 for so many that every slot can be full at once.
        threads: threads of the core, the calling one included.
        level: kernel level, or "" for the fastest this CPU can run.
        packed: file that keeps the packed weights for the next start, or "" for none.
        reduced: for a draft model: the head's tokens.
        coarse: for a draft model: repack the weights to 4 bits where they have more.
    """

    def __init__(
        self,
        source: Source,
        config: ModelConfig,
        *,
        vocab_size: int,
        context_length: int,
        num_slots: int,
        max_open: int,
        threads: int,
        level: str = "",
        packed: str = "",
        reduced: ReducedHead | None = None,
        coarse: bool = False,
        num_cells: int = 0,
    ) -> None:
        num_cells = num_cells or cells_needed(context_length, num_slots, max_open)
        try:
            backend = NativeBackend(
                source,
                config,
                vocab_size=vocab_size,
                num_positions=context_length,
                num_cells=num_cells,
                threads=threads,
                level=level,
                packed=packed,
                reduced=reduced,
                coarse=coarse,
            )
        except core.BadMatrixError as error:
            raise ModelFileError(f"{source.path}: {error}", "tensors that agree", "convert the model again") from error
        except core.BadLevelError as error:
            raise ParameterError(str(error), "one of these levels, or none", "change DRAFTGRAPH_KERNELS") from error
        super().__init__(
            backend,
            vocab_size=vocab_size,
            context_length=context_length,
            num_slots=num_slots,
            max_open=max_open,
            num_cells=num_cells,
        )


def _layer(source: Source, weights: Mapping[str, WeightName]) -> dict[str, Any]:
    """Returns one layer's tensors and vectors by field."""
    tensors = {field: _tensor(source, weights[field]) for field in _LINEAR}
    return tensors | {field: _vector(source, weights.get(field)) for field in _VECTORS}


def _tensor(source: Source, weight: WeightName, blocks: npt.NDArray[np.uint8] | None = None) -> Any:
    """Returns a matrix as the core takes it: all its rows, a view of the file, or the rows given as `blocks`."""
    blocks = source.blocks(weight.name) if blocks is None else blocks
    return core.Tensor(TYPES[source.type_name(weight.name)], len(blocks), weight.shape[1], blocks.reshape(-1))


def _vector(source: Source, weight: WeightName | None) -> FloatArray:
    """Returns a norm or a bias as the computation uses it; empty if the model has none."""
    if weight is None:
        return np.empty(0, np.float32)
    # NOTE: no copy without need: NumPy gives way to other threads in it, and does not soon get its turn again.
    is_plain = source.type_name(weight.name) == "F32"
    values = source.blocks(weight.name).view("<f4").reshape(-1) if is_plain else source.load(weight.name)
    return np.require(values + np.float32(weight.offset) if weight.offset else values, np.float32, "A")
