"""The forward pass that the families share: pre-norm attention and a gated feed-forward, layer by layer.

In: token ids and positions, and a callable that owns keys and values. Out: hidden states and logits. It never sees a
drafter, a tree or a block table; which rows may see which is the callable's business.
"""

from __future__ import annotations

from collections.abc import Callable

from draftgraph.kernels import reference as kernels
from draftgraph.models.base import LayerWeights, ModelConfig, ModelWeights
from draftgraph.types import FloatArray, IntArray

# (layer, queries [rows, heads, d], keys [rows, kv_heads, d], values like keys) -> [rows, heads, d]
Attend = Callable[[int, FloatArray, FloatArray, FloatArray], FloatArray]


class Transformer:
    """A model ready to compute. Per model, shared by all requests; nothing in it changes.

    Args:
        num_positions: positions it can compute, [0, num_positions).
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights, num_positions: int) -> None:
        self.config = config
        self._weights = weights
        self._gate = {"silu": kernels.swiglu, "gelu": kernels.geglu}[config.activation]
        self._rope = kernels.rope_table(num_positions, config.rope_base, config.rope_dim, config.rope_factors)
        self._local_rope = self._rope
        if config.local_rope_base:
            self._local_rope = kernels.rope_table(num_positions, config.local_rope_base, config.rope_dim, None)

    def hidden(self, tokens: IntArray, positions: IntArray, attend: Attend) -> FloatArray:
        """Returns [rows, hidden]: the final hidden states of tokens [rows] at absolute positions [rows].

        `attend` is called once per layer and may store the keys and values; nothing else is modified.
        """
        x = kernels.embed(self._weights.embedding, tokens, self.config.embedding_scale)
        for index, layer in enumerate(self._weights.layers):
            x = x + self._attention(index, layer, x, positions, attend)
            x = x + self._feed_forward(layer, x)
        return kernels.rms_norm(x, self._weights.final_norm, self.config.norm_eps)

    def logits(self, hidden: FloatArray, vocab_size: int) -> FloatArray:
        """Returns [rows, vocab_size]; rows of the head beyond the real vocabulary are padding and stay out."""
        return kernels.linear(hidden, self._weights.head[:vocab_size])

    def _attention(
        self, index: int, layer: LayerWeights, x: FloatArray, positions: IntArray, attend: Attend
    ) -> FloatArray:
        config = self.config
        normed = kernels.rms_norm(x, layer.attn_norm, config.norm_eps)
        heads = (len(x), config.num_heads, config.head_dim)
        kv_heads = (len(x), config.num_kv_heads, config.head_dim)
        queries = kernels.linear(normed, layer.q, layer.q_bias).reshape(heads)
        keys = kernels.linear(normed, layer.k, layer.k_bias).reshape(kv_heads)
        values = kernels.linear(normed, layer.v, layer.v_bias).reshape(kv_heads)
        queries, keys = self._norm(queries, layer.q_norm), self._norm(keys, layer.k_norm)
        cos, sin = (table[positions] for table in (self._local_rope if config.window(index) else self._rope))
        queries = kernels.rope(queries, cos, sin, config.rope_interleaved)
        keys = kernels.rope(keys, cos, sin, config.rope_interleaved)
        out = kernels.linear(attend(index, queries, keys, values).reshape(len(x), -1), layer.o)
        return self._norm(out, layer.post_attn_norm)

    def _feed_forward(self, layer: LayerWeights, x: FloatArray) -> FloatArray:
        normed = kernels.rms_norm(x, layer.ffn_norm, self.config.norm_eps)
        gated = self._gate(kernels.linear(normed, layer.gate), kernels.linear(normed, layer.up))
        return self._norm(kernels.linear(gated, layer.down), layer.post_ffn_norm)

    def _norm(self, x: FloatArray, weight: FloatArray | None) -> FloatArray:
        """Returns x normalised over its last dimension, or as it is where the family has no norm here."""
        return x if weight is None else kernels.rms_norm(x, weight, self.config.norm_eps)
