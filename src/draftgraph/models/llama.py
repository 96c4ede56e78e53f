"""The Llama family: Llama 1 to 3, SmolLM, TinyLlama, Mistral and others with the same computation.

In: nothing. Out: names and choices for the shared blocks. GGUF files store query and key rows permuted for RoPE over
neighbouring pairs; config.json folders rotate halves.
"""

from __future__ import annotations

from draftgraph.models.blocks import GGUF_NAMES, HF_NAMES, Family, Fields

_MISTRAL_DEFAULT_WINDOW = 4096


def _window(fields: Fields) -> int | None:
    """A Mistral config without the key means 4096; null means none."""
    missing = "sliding_window" not in fields.values
    if missing and fields.get("model_type") == "mistral":
        return _MISTRAL_DEFAULT_WINDOW
    return None if fields.get("sliding_window") is None else fields.whole("sliding_window")


LLAMA = Family(
    name="llama",
    gguf_archs=("llama",),
    model_types=("llama", "mistral"),
    gguf_names=GGUF_NAMES,
    hf_names=HF_NAMES,
    always_biased=False,
    gguf_interleaved=True,
    window=_window,
)
