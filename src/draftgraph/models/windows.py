"""Sliding windows as config.json and GGUF files declare them.

In: settings and the shape of the model. Out: each layer's window, as in `ModelConfig.windows`, or a refusal by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from draftgraph.models.base import ModelConfig
from draftgraph.models.blocks import Fields

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_DEFAULT_WINDOW = 4096


def no_gguf_window(fields: Fields, config: ModelConfig) -> Mapping[str, Any]:
    """Adds nothing. Raises UnsupportedModelError for a window that some text of the context would exceed."""
    return _no_window(fields, "attention.sliding_window", config)


def no_hf_window(fields: Fields, config: ModelConfig) -> Mapping[str, Any]:
    """As `no_gguf_window`, for config.json."""
    kinds = fields.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != _GLOBAL for kind in kinds):
        fields.unsupported("layer_types", f"{_GLOBAL} in every layer")
    return _no_window(fields, "sliding_window", config)


def _no_window(fields: Fields, name: str, config: ModelConfig) -> Mapping[str, Any]:
    if 0 < fields.whole(name, default=0, low=0) < config.context_length:
        fields.unsupported(name, f"no sliding window below the context length {config.context_length}")
    return {}


def windows_of(
    fields: Fields, config: ModelConfig, window: int, is_local: Callable[[int], bool]
) -> Mapping[str, tuple[int, ...]]:
    """Returns the windows as the field `windows`: `window` in the layers that `layer_types` calls local.

    Args:
        window: 0 where there is none.
        is_local: whether a layer has the window, where the settings have no `layer_types`.
    """
    kinds = fields.get("layer_types")
    if kinds is None:
        kinds = [_LOCAL if window and is_local(layer) else _GLOBAL for layer in range(config.num_layers)]
    if not isinstance(kinds, list) or len(kinds) != config.num_layers:
        fields.refuse("layer_types", f"a list of {config.num_layers}, one for each layer")
    if any(kind not in (_GLOBAL, _LOCAL) for kind in kinds) or (_LOCAL in kinds and not window):
        fields.unsupported("layer_types", f"{_GLOBAL}" + (f" or {_LOCAL}" if window else ", as there is no window"))
    windows = tuple(window if kind == _LOCAL else 0 for kind in kinds)
    return {"windows": windows if any(windows) else ()}


def qwen_windows(fields: Fields, config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Returns `windows_of` the Qwen families: off unless switched on, and then in the last layers only."""
    is_on = fields.flag("use_sliding_window", default=False)
    window = fields.whole("sliding_window", default=_DEFAULT_WINDOW) if is_on else 0
    first = fields.whole("max_window_layers", default=28, low=0) if is_on else 0
    return windows_of(fields, config, window, lambda layer: layer >= first)
