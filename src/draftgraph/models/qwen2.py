"""The Qwen2 family: Qwen2, Qwen2.5 and Qwen2.5-Coder, dense models only.

In: nothing. Out: names and choices for the shared blocks. Query, key and value have biases; RoPE rotates halves in
both file formats; the sliding window is off unless config.json switches it on.
"""

from __future__ import annotations

from draftgraph.models.blocks import GGUF_NAMES, HF_NAMES, Family, Fields

_DEFAULT_WINDOW = 4096


def _window(fields: Fields) -> int | None:
    if not fields.flag("use_sliding_window", default=False):
        return None
    return fields.whole("sliding_window", default=_DEFAULT_WINDOW)


QWEN2 = Family(
    name="qwen2",
    gguf_archs=("qwen2",),
    model_types=("qwen2",),
    gguf_names=GGUF_NAMES,
    hf_names=HF_NAMES,
    always_biased=True,
    gguf_interleaved=False,
    window=_window,
)
