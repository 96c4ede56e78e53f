"""Which runner computes a model: the native one where it can, else the reference runner.

In: a model and the engine's settings. Out: a runner with its memory allocated.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from draftgraph.config import EngineConfig
from draftgraph.environment import cache_dir, cpu_name, kernel_level, num_cores
from draftgraph.errors import ParameterError, UnsupportedModelError
from draftgraph.models.families import Source, load_weights, weight_names
from draftgraph.models.gguf import GgufFile
from draftgraph.models.loader import Model, ModelFiles
from draftgraph.models.quantize import QuantizedFolder
from draftgraph.runner.head import ReducedHead
from draftgraph.runner.kv import BLOCK, blocks_for
from draftgraph.runner.native import NativeRunner, why_not
from draftgraph.runner.paged import PagedRunner
from draftgraph.runner.reference import ReferenceRunner

_DROP_SECONDS = 0.02
_HEAVY = 1 / 8  # of what the target reads
_FREQUENT = 49_152  # 96 to 99% of what is written in English and code, by the first ids of a vocabulary of 152,000


def open_runner(
    model: ModelFiles,
    vocab_size: int,
    config: EngineConfig,
    context_length: int,
    max_open: int,
    *,
    reduced: ReducedHead | None = None,
    coarse: bool = False,
) -> PagedRunner:
    """Returns the runner that `config.runner` names; "auto" is the native one where it can compute the model.

    Args:
        vocab_size: number of real token ids.
        context_length, max_open: as `PagedRunner`.
        reduced: for a model that only drafts: its head on the native runner, these tokens and those it has read.
        coarse: for a model that only drafts: on the native runner its weights are repacked to 4 bits.

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
    sizes = {
        "vocab_size": vocab_size,
        "context_length": context_length,
        "num_slots": config.slots,
        "max_open": max_open,
        "num_cells": blocks_for(config.kv_tokens or 0) * BLOCK,
    }
    with _dropping_pages(source):
        if config.runner == "reference" or obstacle is not None:
            return ReferenceRunner(model.config, load_weights(source, model.config), **sizes)
        setting = (config.quantize, reduced is not None, coarse)
        packed = _packed_file(model, *setting) if config.packed == "keep" else None
        runner = NativeRunner(
            source,
            model.config,
            **sizes,
            threads=config.threads or num_cores(),
            level=kernel_level(),
            packed="" if packed is None else str(packed),
            reduced=reduced,
            coarse=coarse,
        )
    if packed is not None:
        _check_kept(packed, runner.weight_bytes)
    return runner


@contextmanager
def _dropping_pages(source: Source) -> Iterator[None]:
    """Gives back the pages of the model's files while their weights are copied, so that they are in memory once."""
    done = threading.Event()

    def drop() -> None:
        while not done.wait(_DROP_SECONDS):
            source.drop_pages()

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        source.drop_pages()


def frequent_head(model: Model) -> ReducedHead:
    """Returns a head for a model that only drafts: of the first ids and the special ones.

    Byte-pair merges are numbered as they were learned, the most frequent ones first.
    """
    size = model.tokenizer.size
    return ReducedHead([*range(min(size, _FREQUENT)), *model.tokenizer.special_ids, *model.end_ids], size)


def _source(model: ModelFiles, quantize: str) -> Source:
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


def is_heavy(model: ModelFiles, target_bytes: int) -> bool:
    """Whether a pass over a draft model's layers weighs beside one of the target, which reads `target_bytes`.

    Coarser weights make its passes shorter and its guesses worse: that pays where the passes are a good part of a step.
    """
    names = [weight.name for weight in weight_names(model.source, model.config) if weight.layer >= 0]
    return sum(model.source.blocks(name).nbytes for name in names) > _HEAVY * target_bytes


def cost_file(model: ModelFiles, config: EngineConfig, weight_bytes: int) -> Path:
    """Returns where the measured pass costs of this model, runner, machine and number of threads are kept.

    Args:
        weight_bytes: of the runner; they tell a model from the same one repacked to draft.
    """
    setting = (
        weight_bytes,
        config.runner,
        config.threads or num_cores(),
        kernel_level(),
        cpu_name(),
        version("draftgraph"),
    )
    return cache_dir() / "costs" / f"{_stamp(model, config.quantize, *setting)}.json"


def _packed_file(model: ModelFiles, *setting: object) -> Path | None:
    """Returns where the packed weights of exactly these model files are kept; makes the folder.

    Warns, and returns None, where there can be no such folder: a model loads without it.
    """
    folder = cache_dir() / "packed"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _warn_not_kept(folder, str(error.strerror))
        return None
    return folder / f"{_stamp(model, *setting)}.bin"


def _stamp(model: ModelFiles, *setting: object) -> str:
    """Returns a name for exactly these model files and this setting."""
    stamps = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in model.source.files]
    key = hashlib.sha256(repr((stamps, *setting)).encode()).hexdigest()
    return f"{model.path.stem}-{key[:16]}"


def _check_kept(file: Path, weight_bytes: int) -> None:
    """Warns if the packed weights are not in their file, now that they should be."""
    try:
        kept = file.stat().st_size > weight_bytes
    except OSError:
        kept = False
    if not kept:
        free = shutil.disk_usage(file.parent).free
        _warn_not_kept(file.parent, f"{weight_bytes} bytes could not be written, with {free} free")


def _warn_not_kept(folder: Path, reason: str) -> None:
    warnings.warn(
        f"packed weights are not kept in {folder} ({reason}): the next start packs them again; "
        "make room there, set DRAFTGRAPH_CACHE to another folder, or leave out --packed keep",
        stacklevel=6,
    )
