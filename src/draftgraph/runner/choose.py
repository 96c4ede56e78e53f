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
from draftgraph.runner.native import NativeRunner, why_not
from draftgraph.runner.paged import PagedRunner
from draftgraph.runner.reference import ReferenceRunner


def open_runner(model: Model, config: EngineConfig, context_length: int, max_open: int) -> PagedRunner:
    """Returns the runner that `config.runner` names; "auto" is the native one where it can compute the model.

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
    if config.runner == "reference" or obstacle is not None:
        weights = load_weights(source, model.config)
        return ReferenceRunner(
            model.config,
            weights,
            vocab_size=vocab_size,
            context_length=context_length,
            num_slots=config.slots,
            max_open=max_open,
        )
    return NativeRunner(
        source,
        model.config,
        vocab_size=vocab_size,
        context_length=context_length,
        num_slots=config.slots,
        max_open=max_open,
        threads=config.threads or num_cores(),
        level=kernel_level(),
        packed=str(_packed_file(model, config.quantize)) if config.packed == "keep" else "",
    )


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


def cost_file(model: Model, config: EngineConfig) -> Path:
    """Returns where the measured pass costs of this model, runner, machine and number of threads are kept."""
    setting = (config.runner, config.threads or num_cores(), kernel_level(), cpu_name(), version("draftgraph"))
    return cache_dir() / "costs" / f"{_stamp(model, config.quantize, *setting)}.json"


def _packed_file(model: Model, quantize: str) -> Path:
    """Returns where the packed weights of exactly these model files are kept; makes the folder."""
    folder = cache_dir() / "packed"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{_stamp(model, quantize)}.bin"


def _stamp(model: Model, *setting: object) -> str:
    """Returns a name for exactly these model files and this setting."""
    files = sorted(model.path.glob("*.safetensors")) if model.path.is_dir() else [model.path]
    stamps = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(repr((stamps, model.tokenizer.size, *setting)).encode()).hexdigest()
    return f"{model.path.stem}-{key[:16]}"
