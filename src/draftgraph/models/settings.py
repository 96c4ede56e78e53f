"""From settings to `ModelConfig`: GGUF metadata and config.json.

In: an open source and its family. Out: the model's shape, every value checked. A setting that would change the
mathematics and is not implemented is refused by name, never ignored. Loads no weights, but for stored RoPE factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from draftgraph.errors import ModelFileError
from draftgraph.models.base import ModelConfig, TensorSource
from draftgraph.models.blocks import Family, Fields, linear_factors, llama3_factors, load_finite
from draftgraph.models.gguf import GgufFile
from draftgraph.models.safetensors import SafetensorsFolder
from draftgraph.types import FloatArray

_MAX_DIM = 2**20
_MAX_LAYERS = 2**16
# Settings under "<arch>." that are read below or do not change the computation; any other is refused.
_GGUF_KNOWN = frozenset({
    "attention.causal", "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.layer_norm_rms_epsilon", "attention.sliding_window", "attention.value_length", "block_count",
    "context_length", "embedding_length", "expert_count", "expert_used_count", "feed_forward_length",
    "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.attn_factor", "rope.scaling.factor",
    "rope.scaling.finetuned", "rope.scaling.original_context_length", "rope.scaling.type", "tensor_data_layout",
    "vocab_size",
})  # fmt: skip
# Settings of config.json that change the computation, with the values that do not.
_HF_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"), "hidden_activation": ("silu", "swish"), "mlp_bias": (False,),
    "partial_rotary_factor": (1,), "rope_interleaved": (False,), "use_bidirectional_attention": (False,),
    "num_experts": (0,), "num_local_experts": (0,), "quantization_config": (), "compression_config": (),
    "attn_logit_softcapping": (), "final_logit_softcapping": (), "logit_scale": (1,), "logits_scaling": (1,),
    "embedding_multiplier": (1,), "residual_multiplier": (1,), "attention_multiplier": (), "query_pre_attn_scalar": (),
    "use_qk_norm": (False,), "qk_layernorm": (False,), "clip_qkv": (), "alibi": (False,), "no_rope_layers": (),
    "use_mrope": (False,), "rope_local_base_freq": (), "scale_emb": (1,), "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
}  # fmt: skip
_ROPE_KEYS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
}
_ROPE_COMMON = frozenset({
    "type", "rope_type", "rope_theta", "original_max_position_embeddings", "partial_rotary_factor",
})  # fmt: skip


def hf_fields(source: SafetensorsFolder) -> Fields:
    """Returns the settings of config.json as they stand there."""
    return Fields(source.path / "config.json", source.config)


def hf_settings(source: SafetensorsFolder, family: Family) -> Fields:
    """Returns the settings of config.json with the family's defaults."""
    return Fields(source.path / "config.json", family.hf_settings(source.config))


def _float32(value: float) -> float:
    """Both formats give the same float32 value, whether they store it in binary or in decimal."""
    return float(np.float32(value))


def _heads(fields: Fields, hidden: int, heads_key: str, kv_key: str, dim_key: str) -> tuple[int, int, int]:
    """Returns heads, key-value heads and the head size, which is given or else hidden / heads."""
    heads = fields.whole(heads_key, high=_MAX_DIM)
    kv_heads = fields.whole(kv_key, default=heads, high=_MAX_DIM)
    if heads % kv_heads:
        fields.refuse(heads_key, f"a multiple of the {kv_heads} key-value heads")
    if fields.get(dim_key) is None and hidden % heads:
        fields.refuse(heads_key, f"a divisor of the hidden size {hidden}, or {fields.prefix}{dim_key} given")
    return heads, kv_heads, fields.whole(dim_key, default=hidden // heads, high=_MAX_DIM)


def _vocab_rows(source: TensorSource, name: str, declared: int | None, num_tokens: int | None) -> int:
    """Returns the embedding's rows. More rows than tokens are padding; fewer are refused."""
    if name not in source or len(source.shape(name)) != 2:
        given = f"{source.path}: no matrix {name!r}"
        raise ModelFileError(given, "an embedding", "download the file again")
    rows = source.shape(name)[0]
    if rows < max(declared or 0, num_tokens or 0):
        given = f"{source.path}: {rows} embedding rows, vocabulary size {declared}, {num_tokens} tokens"
        raise ModelFileError(given, "at least one row for each token", "download the file again or convert it again")
    return rows


def gguf_config(source: GgufFile, family: Family) -> ModelConfig:
    arch = source.metadata["general.architecture"]
    fields = Fields(source.path, source.metadata, f"{arch}.")
    known = _GGUF_KNOWN | family.gguf_known
    for key in source.metadata:
        if key.startswith(fields.prefix) and key.removeprefix(fields.prefix) not in known:
            fields.unsupported(key.removeprefix(fields.prefix), f"no such setting in the family {family.name}")
    fields.expect("attention.causal", True)
    fields.expect("expert_count", 0)
    fields.expect("rope.scaling.attn_factor", 1)
    hidden = fields.whole("embedding_length", high=_MAX_DIM)
    context = fields.whole("context_length")
    heads, kv_heads, head_dim = _heads(
        fields, hidden, "attention.head_count", "attention.head_count_kv", "attention.key_length"
    )
    if fields.whole("attention.value_length", default=head_dim) != head_dim:
        fields.unsupported("attention.value_length", f"{head_dim}, the length of keys")
    rope_dim = _rope_dim(fields, "rope.dimension_count", head_dim)
    tokens = source.metadata.get("tokenizer.ggml.tokens")
    num_tokens = len(tokens) if isinstance(tokens, list) else None
    declared = None if fields.get("vocab_size") is None else fields.whole("vocab_size")
    config = ModelConfig(
        family=family.name,
        num_layers=fields.whole("block_count", high=_MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=fields.whole("feed_forward_length"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_rows=_vocab_rows(source, family.gguf_names["embedding"], declared, num_tokens),
        context_length=context,
        norm_eps=_float32(fields.number("attention.layer_norm_rms_epsilon")),
        rope_base=_float32(fields.number("rope.freq_base", default=10000.0)),
        rope_interleaved=family.gguf_interleaved,
        rope_dim=rope_dim,
        rope_factors=_gguf_rope_factors(source, fields, rope_dim),
        qkv_bias=family.always_biased or family.gguf_names["q_bias"].format(i=0) in source,
    )
    return replace(config, **family.gguf(fields, config))


def _rope_dim(fields: Fields, name: str, head_dim: int) -> int:
    rope_dim = fields.whole(name, default=head_dim)
    if rope_dim > head_dim or rope_dim % 2:
        fields.refuse(name, f"an even number up to the head size {head_dim}")
    return rope_dim


def _gguf_rope_factors(source: GgufFile, fields: Fields, rope_dim: int) -> FloatArray | None:
    kind = fields.text("rope.scaling.type", default="none")
    if kind not in ("none", "linear"):
        fields.unsupported("rope.scaling.type", "none or linear")
    name = "rope.scaling.factor" if kind == "linear" else "rope.scale_linear"
    scale = 1.0 if fields.get(name) in (None, 0) else fields.number(name)
    factors = None if scale == 1 else linear_factors(rope_dim, scale)
    if "rope_freqs.weight" not in source:
        return factors
    if source.shape("rope_freqs.weight") != (rope_dim // 2,):
        given = f"{source.path}: tensor 'rope_freqs.weight' has shape {source.shape('rope_freqs.weight')}"
        raise ModelFileError(given, f"{(rope_dim // 2,)}, half the rotated dimensions", "convert the model again")
    stored = load_finite(source, "rope_freqs.weight")
    if stored.min() <= 0:
        given = f"{source.path}: tensor 'rope_freqs.weight' holds {stored.min()}"
        raise ModelFileError(given, "positive factors", "convert the model again")
    return stored if factors is None else stored * factors


def hf_config(source: SafetensorsFolder, family: Family) -> ModelConfig:
    fields = hf_settings(source, family)
    for name, plain in {**_HF_PLAIN, **family.hf_plain}.items():
        if plain is not None:
            fields.expect(name, *plain)
    hidden = fields.whole("hidden_size", high=_MAX_DIM)
    context = fields.whole("max_position_embeddings")
    heads, kv_heads, head_dim = _heads(fields, hidden, "num_attention_heads", "num_key_value_heads", "head_dim")
    if head_dim % 2:
        fields.refuse("head_dim", "an even head size")
    rope_base, rope_factors = _hf_rope(fields, head_dim)
    config = ModelConfig(
        family=family.name,
        num_layers=fields.whole("num_hidden_layers", high=_MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=fields.whole("intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_rows=_vocab_rows(source, family.hf_names["embedding"], fields.whole("vocab_size"), None),
        context_length=context,
        norm_eps=_float32(fields.number("rms_norm_eps", default=1e-6)),
        rope_base=_float32(rope_base),
        rope_interleaved=False,
        rope_dim=head_dim,
        rope_factors=rope_factors,
        qkv_bias=family.always_biased or fields.flag("attention_bias", default=False),
    )
    return replace(config, **family.hf(fields, config))


def _hf_rope(fields: Fields, head_dim: int) -> tuple[float, FloatArray | None]:
    """Returns the base and the factors, from `rope_parameters` (newer) or `rope_theta` and `rope_scaling`."""
    key = "rope_scaling" if fields.get("rope_parameters") is None else "rope_parameters"
    values = {} if fields.get(key) is None else fields.get(key)
    if not isinstance(values, dict):
        fields.refuse(key, "an object")
    rope = Fields(fields.path, {f"{key}.{name}": value for name, value in values.items()}, f"{key}.")
    default_base = fields.number("rope_theta", default=10000.0)
    base = rope.number("rope_theta", default=default_base)
    kind = rope.text("rope_type", default=rope.text("type", default="default"))
    if kind not in _ROPE_KEYS:
        rope.unsupported("type" if rope.get("rope_type") is None else "rope_type", ", ".join(_ROPE_KEYS))
    rope.expect("partial_rotary_factor", 1)
    for name, value in values.items():
        if name not in _ROPE_COMMON | _ROPE_KEYS[kind] and value is not None:
            rope.unsupported(name, f"no such setting with RoPE of type {kind}")
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, linear_factors(head_dim, rope.number("factor"))
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        rope.refuse("high_freq_factor", f"a number above low_freq_factor={low}")
    factors = llama3_factors(
        head_dim, base, factor=rope.number("factor"), low=low, high=high,
        original_context=rope.whole("original_max_position_embeddings"),
    )  # fmt: skip
    return base, factors
