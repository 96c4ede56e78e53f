"""The Gemma 3 family, text models only.

In: nothing. Out: names and choices for the shared blocks. Heads are normalised, and so are the outputs of attention and
feed-forward; the gate is GELU; the embedding is scaled. Of six layers five are local: they have a sliding window and
their own, unscaled RoPE. Folders store every norm less one, GGUF files store it whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from draftgraph.models.base import ModelConfig
from draftgraph.models.blocks import GGUF_NAMES, HF_NAMES, Family, Fields
from draftgraph.models.windows import windows_of

_PERIOD = 6  # every so many layers the last is global
_LOCAL_BASE = 10000.0
_DEFAULTS: Mapping[str, Any] = {
    "head_dim": 256, "query_pre_attn_scalar": 256, "rope_theta": 1e6, "sliding_window": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
# The one size of the family whose scores are not scaled by the head size; a GGUF file does not say so.
_LAYERS_OF_27B = 62
_LOCAL_ROPE = "rope_parameters.sliding_attention"


def _shared(config: ModelConfig, query_dim: float, local_base: float) -> dict[str, Any]:
    return {
        "qk_norm": True,
        "post_norms": True,
        "activation": "gelu",
        "embedding_scale": float(np.sqrt(np.float32(config.hidden_size))),
        "attention_scale": 0.0 if query_dim == config.head_dim else query_dim**-0.5,
        "local_rope_base": float(np.float32(local_base)),
    }


def _gguf(fields: Fields, config: ModelConfig) -> Mapping[str, Any]:
    window = fields.whole("attention.sliding_window")
    query_dim = config.hidden_size / config.num_heads if config.num_layers == _LAYERS_OF_27B else config.head_dim
    windows = tuple(window if is_local else 0 for is_local in _gguf_pattern(fields, config.num_layers))
    local_base = fields.number("rope.freq_base_swa", default=_LOCAL_BASE)
    return {"windows": windows, **_shared(config, query_dim, local_base)}


def _gguf_pattern(fields: Fields, num_layers: int) -> list[bool]:
    """Returns for each layer whether it is local: the setting is the period, or a list of just that."""
    name = "attention.sliding_window_pattern"
    pattern = fields.get(name)
    if not isinstance(pattern, list):
        period = fields.whole(name, default=_PERIOD)
        return [bool((layer + 1) % period) for layer in range(num_layers)]
    if len(pattern) != num_layers or any(not isinstance(is_local, bool) for is_local in pattern):
        fields.refuse(name, f"a period, or true or false for each of {num_layers} layers")
    return pattern


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Adds the defaults; newer files have the RoPE of global and of local layers as two objects in one."""
    settings = {**_DEFAULTS, **config}
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and isinstance(rope.get("full_attention"), dict):
        others = {key: value for key, value in rope.items() if key not in ("full_attention", "sliding_attention")}
        settings["rope_parameters"] = {**rope["full_attention"], **others}
        settings[_LOCAL_ROPE] = rope.get("sliding_attention")
    return settings


def _hf(fields: Fields, config: ModelConfig) -> Mapping[str, Any]:
    query_dim = fields.number("query_pre_attn_scalar")
    period = fields.whole("sliding_window_pattern", default=fields.whole("_sliding_window_pattern", default=_PERIOD))
    windows = windows_of(fields, config, fields.whole("sliding_window"), lambda layer: bool((layer + 1) % period))
    return {**windows, **_shared(config, query_dim, _hf_local_base(fields))}


def _hf_local_base(fields: Fields) -> float:
    values = fields.get(_LOCAL_ROPE) or {}
    if not isinstance(values, dict):
        fields.refuse(_LOCAL_ROPE, "an object")
    rope = Fields(fields.path, {f"{_LOCAL_ROPE}.{name}": value for name, value in values.items()}, f"{_LOCAL_ROPE}.")
    rope.expect("rope_type", "default")
    for name, value in values.items():
        if name not in ("rope_type", "rope_theta") and value is not None:
            rope.unsupported(name, "no such setting in local layers")
    return rope.number("rope_theta", default=fields.number("rope_local_base_freq", default=_LOCAL_BASE))


GEMMA3 = Family(
    name="gemma3",
    gguf_archs=("gemma3",),
    model_types=("gemma3_text",),
    gguf_names={
        **GGUF_NAMES,
        "post_attn_norm": "blk.{i}.post_attention_norm.weight",
        "post_ffn_norm": "blk.{i}.post_ffw_norm.weight",
    },
    hf_names={
        **HF_NAMES,
        "post_attn_norm": "model.layers.{i}.post_attention_layernorm.weight",
        "ffn_norm": "model.layers.{i}.pre_feedforward_layernorm.weight",
        "post_ffn_norm": "model.layers.{i}.post_feedforward_layernorm.weight",
    },
    hf=_hf,
    gguf=_gguf,
    hf_settings=_settings,
    hf_plain={
        "hidden_act": ("gelu_pytorch_tanh",),
        "hidden_activation": ("gelu_pytorch_tanh",),
        "query_pre_attn_scalar": None,
        "rope_local_base_freq": None,
    },
    gguf_known=frozenset({"attention.sliding_window_pattern", "rope.freq_base_swa"}),
    hf_norm_offset=1.0,
)
