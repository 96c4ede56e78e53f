"""The Llama family: Llama 1 to 3, SmolLM, TinyLlama and others with the same computation.

In: nothing. Out: names and choices for the shared blocks. GGUF files store query and key rows permuted for RoPE over
neighbouring pairs; config.json folders rotate halves. GGUF files of Mistral models declare this family.
"""

from __future__ import annotations

from draftgraph.models.blocks import GGUF_NAMES, HF_NAMES, Family
from draftgraph.models.windows import no_gguf_window, no_hf_window

LLAMA = Family(
    name="llama",
    gguf_archs=("llama",),
    model_types=("llama",),
    gguf_names=GGUF_NAMES,
    hf_names=HF_NAMES,
    hf=no_hf_window,
    gguf=no_gguf_window,
    gguf_interleaved=True,
)
