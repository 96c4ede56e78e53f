"""From a path to a model: which family a file belongs to, its shape, its weights and its end tokens.

In: a GGUF file or a folder with config.json. Out: `ModelConfig`, `ModelWeights`, end token ids. A setting that would
change the mathematics and is not implemented is refused by name, never ignored. Knows no tokenizer and no runner.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftgraph.errors import ModelFileError, ModelNotFoundError
from draftgraph.models.base import ModelConfig, ModelWeights
from draftgraph.models.blocks import (
    GGUF_SPARE,
    HF_SPARE,
    Family,
    Fields,
    Layout,
    WeightName,
    assemble,
    check_weights,
)
from draftgraph.models.files import read_json
from draftgraph.models.gemma3 import GEMMA3
from draftgraph.models.gguf import GgufFile
from draftgraph.models.llama import LLAMA
from draftgraph.models.mistral import MISTRAL
from draftgraph.models.qwen2 import QWEN2
from draftgraph.models.qwen3 import QWEN3
from draftgraph.models.safetensors import SafetensorsFolder
from draftgraph.models.settings import gguf_config, hf_config, hf_fields, hf_settings

FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3)
BY_ARCH: Mapping[str, Family] = {arch: family for family in FAMILIES for arch in family.gguf_archs}
BY_MODEL_TYPE: Mapping[str, Family] = {kind: family for family in FAMILIES for kind in family.model_types}

Source = GgufFile | SafetensorsFolder


def open_source(path: Path) -> Source:
    """Opens a GGUF file or a folder with config.json and safetensors files.

    Raises:
        ModelNotFoundError, ModelFileError, UnsupportedModelError: as `GgufFile` and `SafetensorsFolder`.
    """
    if path.suffix == ".safetensors":
        raise ModelFileError(f"{path}: a single safetensors file", "its whole folder", f"pass {path.parent}")
    if not os.path.isdir(path):  # unlike Path.is_dir, False for a name that is too long
        return GgufFile(path)
    if (path / "config.json").exists():
        return SafetensorsFolder(path)
    found = sorted(file.name for file in path.glob("*.gguf"))[:5]
    remedy = f"pass one of the GGUF files in it: {', '.join(found)}" if found else "check the path"
    raise ModelNotFoundError(f"{path}: a folder without config.json", "a GGUF file or a model folder", remedy)


def family_of(source: Source) -> Family:
    """Returns the family that the file declares. Raises UnsupportedModelError for one that is not in the table."""
    if isinstance(source, GgufFile):
        fields, name, table = Fields(source.path, source.metadata), "general.architecture", BY_ARCH
        fields.expect("general.type", "model")
    else:
        fields, name, table = hf_fields(source), "model_type", BY_MODEL_TYPE
    if fields.text(name) not in table:
        fields.unsupported(name, ", ".join(sorted(table)))
    return table[fields.text(name)]


def read_config(source: Source) -> ModelConfig:
    """Returns the model's shape, checked for sense and against the embedding; `load_weights` checks all tensors.

    Raises:
        ModelFileError: a setting is missing, makes no sense or contradicts another.
        UnsupportedModelError: the family or a setting is not implemented.
    """
    family = family_of(source)
    return gguf_config(source, family) if isinstance(source, GgufFile) else hf_config(source, family)


def weight_names(source: Source, config: ModelConfig) -> list[WeightName]:
    """Returns where each weight lies, after checking all tensors as `load_weights` does; loads nothing."""
    return check_weights(source, config, _layout(source), tied=is_tied(source))


def load_weights(source: Source, config: ModelConfig) -> ModelWeights:
    """Returns all weights as float32; the head is the embedding itself where they are tied.

    Warns where a tied model carries another head as well, which is left unused.

    Raises:
        ModelFileError: a tensor is missing, has another shape or holds values that are not finite.
        UnsupportedModelError: a tensor's type, or a tensor the family does not have.
    """
    return assemble(source, config, _layout(source), tied=is_tied(source))


def is_tied(source: Source) -> bool:
    """Whether the head is the embedding: a GGUF file has no output tensor, a config.json or its family says so."""
    family = family_of(source)
    if isinstance(source, GgufFile):
        return family.gguf_names["head"] not in source
    return hf_settings(source, family).flag("tie_word_embeddings", default=False)


def end_token_ids(source: Source) -> tuple[int, ...]:
    """Returns every id declared to end a text, ascending: the union over all files and keys that declare one."""
    if isinstance(source, GgufFile):
        keys = [f"tokenizer.ggml.{key}_token_id" for key in ("eos", "eot", "eom")]
        return _ids(Fields(source.path, source.metadata), keys, unset=2**32 - 1)
    found = set(_ids(hf_fields(source), ["eos_token_id"]))
    generation, tokenizer = (source.path / name for name in ("generation_config.json", "tokenizer_config.json"))
    if generation.exists():
        found |= set(_ids(Fields(generation, read_json(generation)), ["eos_token_id"]))
    if tokenizer.exists():
        found |= _tokenizer_end_ids(read_json(tokenizer))
    return tuple(sorted(found))


def model_name(source: Source) -> str:
    """Returns the model's name: `general.name` of a GGUF file, else the name of the file or folder."""
    name = source.metadata.get("general.name") if isinstance(source, GgufFile) else None
    if isinstance(name, str) and name.strip():
        return name.strip()
    path = source.path.resolve()
    return path.stem if isinstance(source, GgufFile) else path.name


def _layout(source: Source) -> Layout:
    family = family_of(source)
    if isinstance(source, GgufFile):
        return Layout(family.gguf_names, GGUF_SPARE)
    return Layout(family.hf_names, HF_SPARE, family.hf_norm_offset)


def _ids(fields: Fields, keys: Sequence[str], unset: int = -1) -> tuple[int, ...]:
    """Reads ids or lists of ids. -1, or `unset`, stands for "none"."""
    found: set[int] = set()
    for key in keys:
        value = fields.get(key)
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            if type(item) is not int or item < -1:
                fields.refuse(key, "a token id or a list of token ids")
            found |= {item} - {-1, unset}
    return tuple(sorted(found))


def _tokenizer_end_ids(settings: Mapping[str, Any]) -> set[int]:
    """Returns the id of `eos_token`, which tokenizer_config.json declares by its text."""
    end, added = settings.get("eos_token"), settings.get("added_tokens_decoder")
    text = end.get("content") if isinstance(end, dict) else end
    if text is None or not isinstance(added, dict):
        return set()
    return {
        int(i)
        for i, token in added.items()
        if len(i) < 10 and i.isdecimal() and isinstance(token, dict) and token.get("content") == text
    }
