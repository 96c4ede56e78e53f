"""Which runner computes a model: the native one where it can, else the reference runner.

In: a model and the engine's settings. Out: a runner with its memory allocated.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

from draftgraph.config import EngineConfig
from draftgraph.environment import cache_dir, cpu_name, kernel_level, num_cores
from draftgraph.errors import ParameterError, UnsupportedModelError
from draftgraph.models.families import Source, load_weights
from draftgraph.models.gguf import GgufFile
from draftgraph.models.loader import Model
from draftgraph.models.quantize import QuantizedFolder
from draftgraph.runner.head import ReducedHead
from draftgraph.runner.kv import BLOCK, blocks_for
from draftgraph.runner.native import NativeRunner, why_not
from draftgraph.runner.paged import PagedRunner
from draftgraph.runner.reference import ReferenceRunner

_FREQUENT = 49_152  # 96 to 99% of what is written in English and code, by the first ids of a vocabulary of 152,000


def open_runner(
    model: Model, config: EngineConfig, context_length: int, max_open: int, *, coarse: bool = False
) -> PagedRunner:
    """Returns the runner that `config.runner` names; "auto" is the native one where it can compute the model.

    Args:
        coarse: the model only drafts: on the native runner its weights are repacked to 4 bits, and its head is reduced
            to frequent tokens and those it has read.

    Raises:
        UnsupportedModelError: "native" was named and cannot compute it.
        ParameterError: a GGUF file was to be quantised.
    """
    source = _source(model, config.quantize)
    obstacle = why_not(source, model.config)
    if config.runner == "native" and obstacle is not None:
        raise UnsupportedModelError(
            f"--runner native with {model.name}: {obstacle}", "--runner auto or reference", "see `draftgraph doctor`"
        )
    vocab_size = model.tokenizer.size
    num_cells = blocks_for(config.kv_tokens or 0) * BLOCK
    if config.runner == "reference" or obstacle is not None:
        weights = load_weights(source, model.config)
        return ReferenceRunner(
            model.config,
            weights,
            vocab_size=vocab_size,
            context_length=context_length,
            num_slots=config.slots,
            max_open=max_open,
            num_cells=num_cells,
        )
    return NativeRunner(
        source,
        model.config,
        vocab_size=vocab_size,
        context_length=context_length,
        num_slots=config.slots,
        max_open=max_open,
        num_cells=num_cells,
        threads=config.threads or num_cores(),
        level=kernel_level(),
        packed=str(_packed_file(model, config.quantize, coarse)) if config.packed == "keep" else "",
        reduced=_frequent_head(model) if coarse else None,
    )


def _frequent_head(model: Model) -> ReducedHead:
    """Returns a head of the first ids and the special ones.

    Byte-pair merges are numbered as they were learned, the most frequent ones first.
    """
    size = model.tokenizer.size
    return ReducedHead([*range(min(size, _FREQUENT)), *model.tokenizer.special_ids, *model.end_ids], size)


def _source(model: Model, quantize: str) -> Source:
    """Returns the model's tensors, quantised if that was asked for."""
    if quantize == "off":
        return model.source
    if isinstance(model.source, GgufFile):
        raise ParameterError(
            f"--quantize {quantize} with {model.path.name}",
            "a safetensors folder",
            "leave it out: a GGUF file has its types",
        )
    return QuantizedFolder(model.path, quantize)


def cost_file(model: Model, config: EngineConfig, *, coarse: bool = False) -> Path:
    """Returns where the measured pass costs of this model, runner, machine and number of threads are kept."""
    setting = (coarse, config.runner, config.threads or num_cores(), kernel_level(), cpu_name(), version("draftgraph"))
    return cache_dir() / "costs" / f"{_stamp(model, config.quantize, *setting)}.json"


def _packed_file(model: Model, quantize: str, coarse: bool) -> Path:
    """Returns where the packed weights of exactly these model files are kept; makes the folder."""
    folder = cache_dir() / "packed"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{_stamp(model, quantize, coarse)}.bin"


def _stamp(model: Model, *setting: object) -> str:
    """Returns a name for exactly these model files and this setting."""
    files = sorted(model.path.glob("*.safetensors")) if model.path.is_dir() else [model.path]
    stamps = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(repr((stamps, model.tokenizer.size, *setting)).encode()).hexdigest()
    return f"{model.path.stem}-{key[:16]}"
