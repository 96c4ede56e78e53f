"""The Qwen2 family: Qwen2, Qwen2.5 and Qwen2.5-Coder, dense models only.

In: nothing. Out: names and choices for the shared blocks. Query, key and value have biases; RoPE rotates halves in
both file formats; the sliding window is off unless config.json switches it on.
"""

from __future__ import annotations

from draftgraph.models.blocks import GGUF_NAMES, HF_NAMES, Family
from draftgraph.models.windows import no_gguf_window, qwen_windows

QWEN2 = Family(
    name="qwen2",
    gguf_archs=("qwen2",),
    model_types=("qwen2",),
    gguf_names=GGUF_NAMES,
    hf_names=HF_NAMES,
    hf=qwen_windows,
    gguf=no_gguf_window,
    always_biased=True,
)
