"""What a model is, whatever file it came from: its shape, its weights, its words.

In: nothing. Out: the dataclasses that every family fills and every runner reads, and the `TensorSource` protocol that
GGUF files and safetensors folders share. Models never see a drafter, a request or a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from draftgraph.types import FloatArray


class TensorSource(Protocol):
    """A file or folder of named tensors, memory-mapped and read on demand."""

    path: Path

    def __contains__(self, name: str) -> bool: ...

    def names(self) -> Sequence[str]:
        """Returns the names of all tensors, in file order."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape in NumPy order: a linear layer's weight is (outputs, inputs)."""

    def load(self, name: str) -> FloatArray:
        """Returns the tensor as float32, C-contiguous, dequantised exactly as the file's type means it."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one decoder-only model. Per model, shared by all requests.

    Args:
        family: "llama", "qwen2", …
        vocab_rows: rows of the embedding; may exceed the tokenizer's size (padding).
        rope_base: base of the rotary frequencies.
        rope_interleaved: rotate pairs (0, 1), (2, 3), … instead of the halves (0, d/2), (1, d/2 + 1), …
        rope_dim: how many leading dimensions of a head are rotated.
        rope_factors: [rope_dim / 2] divisors of the frequencies (scaled RoPE), or None.
        qkv_bias: whether the query, key and value projections have biases.
        qk_norm: whether each head's query and key are normalised (RMS, over the head) before rotation.
        post_norms: whether the outputs of attention and feed-forward are normalised before they are added.
        activation: of the gate: "silu", or "gelu" in its tanh approximation.
        embedding_scale: factor of the embedding.
        attention_scale: factor of the attention scores, 0 for 1 / sqrt(head_dim).
        windows: [num_layers] how many of the latest positions, its own included, a row of the layer sees; 0 is all.
            () is all in every layer.
        local_rope_base: base of the rotary frequencies in layers with a window, unscaled; 0 for those of the others.
    """

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_rows: int
    context_length: int
    norm_eps: float
    rope_base: float
    rope_interleaved: bool
    rope_dim: int
    rope_factors: FloatArray | None
    qkv_bias: bool
    qk_norm: bool = False
    post_norms: bool = False
    activation: str = "silu"
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    windows: tuple[int, ...] = ()
    local_rope_base: float = 0.0

    @property
    def score_scale(self) -> float:
        """The factor of the attention scores."""
        return self.attention_scale or self.head_dim**-0.5

    def window(self, layer: int) -> int:
        """How many of the latest positions a row of the layer sees; 0 is all."""
        return self.windows[layer] if self.windows else 0


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, float32. A linear weight is (outputs, inputs); biases are (outputs,) or None."""

    attn_norm: FloatArray  # [hidden]
    q: FloatArray  # [heads * head_dim, hidden]
    k: FloatArray  # [kv_heads * head_dim, hidden]
    v: FloatArray  # [kv_heads * head_dim, hidden]
    q_bias: FloatArray | None
    k_bias: FloatArray | None
    v_bias: FloatArray | None
    o: FloatArray  # [hidden, heads * head_dim]
    ffn_norm: FloatArray  # [hidden]
    gate: FloatArray  # [intermediate, hidden]
    up: FloatArray  # [intermediate, hidden]
    down: FloatArray  # [hidden, intermediate]
    q_norm: FloatArray | None = None  # [head_dim]
    k_norm: FloatArray | None = None  # [head_dim]
    post_attn_norm: FloatArray | None = None  # [hidden]
    post_ffn_norm: FloatArray | None = None  # [hidden]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights, float32. `head` is `embedding` itself where the model ties them."""

    embedding: FloatArray  # [vocab_rows, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: FloatArray  # [hidden]
    head: FloatArray  # [vocab_rows, hidden]

    @property
    def num_bytes(self) -> int:
        """Bytes that one pass reads; of the embedding that is a row per token, so it is not counted."""
        arrays = [self.final_norm, self.head]
        for layer in self.layers:
            arrays += [array for name in layer.__slots__ if (array := getattr(layer, name)) is not None]
        return sum(array.nbytes for array in arrays)
