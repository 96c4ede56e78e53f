"""The Mistral family: Llama's computation, in config.json folders with a sliding window in every layer.

In: nothing. Out: names and choices for the shared blocks. A window of null is none, and a missing one is 4096. GGUF
files of these models declare the Llama family.
"""

from __future__ import annotations

from collections.abc import Mapping

from draftgraph.models.base import ModelConfig
from draftgraph.models.blocks import GGUF_NAMES, HF_NAMES, Family, Fields
from draftgraph.models.windows import no_gguf_window, windows_of


def _windows(fields: Fields, config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    window = 0 if fields.get("sliding_window") is None else fields.whole("sliding_window")
    return windows_of(fields, config, window, lambda layer: True)


MISTRAL = Family(
    name="mistral",
    gguf_archs=(),
    model_types=("mistral",),
    gguf_names=GGUF_NAMES,
    hf_names=HF_NAMES,
    hf=_windows,
    gguf=no_gguf_window,
    hf_settings=lambda config: {"sliding_window": 4096, **config},
)
