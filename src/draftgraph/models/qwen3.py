"""The Qwen3 family, dense models only.

In: nothing. Out: names and choices for the shared blocks. As Qwen2, but each head's query and key are normalised
before rotation, there are no biases, and the head size is a setting of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftgraph.models.base import ModelConfig
from draftgraph.models.blocks import GGUF_NAMES, HF_NAMES, Family, Fields
from draftgraph.models.windows import no_gguf_window, qwen_windows


def _hf(fields: Fields, config: ModelConfig) -> Mapping[str, Any]:
    return {"qk_norm": True, **qwen_windows(fields, config)}


def _gguf(fields: Fields, config: ModelConfig) -> Mapping[str, Any]:
    return {"qk_norm": True, **no_gguf_window(fields, config)}


QWEN3 = Family(
    name="qwen3",
    gguf_archs=("qwen3",),
    model_types=("qwen3",),
    gguf_names=GGUF_NAMES,
    hf_names=HF_NAMES,
    hf=_hf,
    gguf=_gguf,
    hf_settings=lambda config: {"head_dim": 128, **config},
)
