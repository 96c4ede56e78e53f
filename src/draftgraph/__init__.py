"""DraftGraph: lossless speculative decoding over a token graph.

import draftgraph as dg

llm = dg.load("smollm2-135m")
print(llm.generate("The capital of France is", max_tokens=32).text)
"""

from __future__ import annotations

from draftgraph.config import DraftConfig, EngineConfig, SamplingParams
from draftgraph.errors import DraftGraphError
from draftgraph.llm import LLM, Completion, load
from draftgraph.types import Delta, FinishReason

__all__ = [
    "LLM",
    "Completion",
    "Delta",
    "DraftConfig",
    "DraftGraphError",
    "EngineConfig",
    "FinishReason",
    "SamplingParams",
    "load",
]
