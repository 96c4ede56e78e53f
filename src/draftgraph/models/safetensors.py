"""Folders of safetensors files: a memory-mapped `TensorSource` with the folder's config.json.

In: a folder with config.json and model.safetensors, or an index and its shards. Out: settings as plain Python values,
tensors as float32. Headers, offsets and sizes are checked against the bytes that exist before they are used; the index
may name only plain files of the folder. Needs no torch; knows nothing of families, tokenizers or runners.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from draftgraph.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from draftgraph.models.files import describe_head, drop_pages, map_file, read_json
from draftgraph.types import FloatArray

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_HEADER = 100_000_000
_MAX_DIMS = 8
_SIZES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_REMEDY = "download the file again; it may be a pointer or a partial download"


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One header entry; its bytes are [start, end) of the file."""

    shape: tuple[int, ...]
    dtype: str
    start: int
    end: int


class SafetensorsFolder:
    """A model folder. Per model; the files must not change while it is open.

    Raises:
        ModelNotFoundError: no such folder, or no config.json or safetensors file in it.
        ModelFileError: a file is cut short, damaged or contradicts another, or a shard is missing.
        UnsupportedModelError: a tensor of an unknown type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not os.path.isdir(path):
            raise ModelNotFoundError(f"{path}: no such folder", "a model folder", "check the path")
        self.config: Mapping[str, Any] = read_json(path / "config.json")
        self._tensors: dict[str, tuple[_Shard, _Tensor]] = {}
        shards = self._shards()
        self.files = [shard.path for shard, _ in shards]
        for shard, names in shards:
            self._tensors |= {name: (shard, shard.tensors[name]) for name in names}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def names(self) -> Sequence[str]:
        return tuple(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name][1].shape

    def type_name(self, name: str) -> str:
        """Returns the tensor's type, such as "BF16"."""
        return self._tensors[name][1].dtype

    def blocks(self, name: str) -> npt.NDArray[np.uint8]:
        """Returns the tensor's bytes as the file has them, [rows, bytes of a row], a read-only view."""
        shard, tensor = self._tensors[name]
        count = tensor.end - tensor.start
        return np.frombuffer(shard.bytes, np.uint8, count, tensor.start).reshape(tensor.shape[0], -1)

    def drop_pages(self) -> None:
        """Gives back the memory of what was read; the tensors stay usable. For after the weights have been copied."""
        for shard in {id(shard): shard for shard, _ in self._tensors.values()}.values():
            drop_pages(shard.bytes)

    def load(self, name: str) -> FloatArray:
        """Returns a float32 copy. Raises UnsupportedModelError for types other than F64, F32, F16 and BF16."""
        shard, tensor = self._tensors[name]
        count = prod(tensor.shape)
        if tensor.dtype == "BF16":
            bits = np.frombuffer(shard.bytes, "<u2", count, tensor.start).astype(np.uint32) << 16
            return bits.view(np.float32).reshape(tensor.shape)
        if tensor.dtype not in ("F64", "F32", "F16"):
            raise UnsupportedModelError(
                f"{shard.path}: tensor {name!r} of type {tensor.dtype}",
                "F64, F32, F16 or BF16",
                "use an unquantised folder or a GGUF file of this model",
            )
        code = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[tensor.dtype]
        with np.errstate(over="ignore"):
            values = np.frombuffer(shard.bytes, code, count, tensor.start).astype(np.float32)
        return values.reshape(tensor.shape)

    def _shards(self) -> list[tuple[_Shard, Sequence[str]]]:
        """Returns each file with the names to take from it."""
        if (self.path / _SINGLE).exists():
            shard = _Shard(self.path / _SINGLE)
            return [(shard, tuple(shard.tensors))]
        if not (self.path / _INDEX).exists():
            raise ModelNotFoundError(
                f"{self.path}: neither {_SINGLE} nor {_INDEX}",
                "a folder with one of them",
                "download the safetensors files of this model, or pass a GGUF file",
            )
        files = _read_index(self.path / _INDEX)
        if missing := [file for file in files if not (self.path / file).exists()]:
            raise ModelFileError(
                f"{self.path}: {len(missing)} of {len(files)} shards are missing: {', '.join(missing[:3])}",
                f"all shards that {_INDEX} names",
                "download the missing shards",
            )
        shards: list[tuple[_Shard, Sequence[str]]] = []
        for file, names in files.items():
            shard = _Shard(self.path / file)
            if absent := [name for name in names if name not in shard.tensors]:
                shard.refuse(f"no tensor {absent[0]!r}", f"the {len(names)} tensors that {_INDEX} places in it")
            if extra := set(shard.tensors) - set(names):
                shard.refuse(f"tensor {min(extra)!r}", f"only the {len(names)} tensors that {_INDEX} places in it")
            shards.append((shard, names))
        return shards


def _read_index(path: Path) -> dict[str, list[str]]:
    """Returns {file: tensor names}. Raises ModelFileError for anything but plain file names."""
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{path}: no weight_map", "a map from tensor names to files", "download the index again")
    files: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        plain = isinstance(file, str) and file.endswith(".safetensors") and not set(file) & set("/\\:\0")
        if not plain or file.startswith("."):
            given = f"{path}: tensor {name!r} in {file!r}"
            raise ModelFileError(given, "plain names of .safetensors files", "download the index again")
        files.setdefault(file, []).append(name)
    return files


class _Shard:
    """One safetensors file: `tensors` by name, `bytes` of the whole file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = map_file(path)
        header_len = self._header_len()
        entries = self._header(self.bytes[8 : 8 + header_len])
        self.tensors = {
            name: self._tensor(name, entry, 8 + header_len) for name, entry in entries.items() if name != "__metadata__"
        }
        self._check_coverage(8 + header_len)

    def refuse(self, given: str, allowed: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {given}", allowed, _REMEDY)

    def _header_len(self) -> int:
        size = len(self.bytes)
        head = self.bytes[:64]
        length = int.from_bytes(head[:8], "little")
        if length > _MAX_HEADER or not 2 <= length <= size - 8:
            given = f"a header of {length} bytes in a file of {size} bytes: {describe_head(head)}"
            self.refuse(given, f"a header of 2 to {_MAX_HEADER} bytes inside the file")
        return length

    def _header(self, text: bytes) -> dict[str, Any]:
        try:
            entries = json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            self.refuse(f"the header is no JSON ({error or 'nested too deeply'})", "a JSON header")
        if not isinstance(entries, dict):
            self.refuse(f"the header is a JSON {type(entries).__name__}", "a JSON object")
        return entries

    def _tensor(self, name: str, entry: Any, data_start: int) -> _Tensor:
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
            self.refuse(f"tensor {name!r} is {str(entry)[:80]}", "an object with dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _SIZES:
            known = ", ".join(_SIZES)
            raise UnsupportedModelError(f"{self.path}: tensor {name!r} of type {dtype!r}", known, "use another folder")
        if not _whole_list(shape) or len(shape) > _MAX_DIMS:
            self.refuse(f"tensor {name!r} has shape {str(shape)[:80]}", f"up to {_MAX_DIMS} whole numbers")
        if not _whole_list(offsets) or len(offsets) != 2:
            self.refuse(f"tensor {name!r} has data_offsets {str(offsets)[:80]}", "two whole numbers")
        start, end = (data_start + offset for offset in offsets)
        if not start <= end <= len(self.bytes):
            given = f"tensor {name!r} lies in bytes [{start}, {end}) of a file of {len(self.bytes)} bytes"
            self.refuse(given, "tensors inside the file")
        needed = prod(shape) * _SIZES[dtype]
        if end - start != needed:
            given = f"tensor {name!r} of type {dtype} and shape {tuple(shape)} has {end - start} bytes"
            self.refuse(given, f"{needed} bytes")
        return _Tensor(tuple(shape), dtype, start, end)

    def _check_coverage(self, data_start: int) -> None:
        """The tensors lie one after another and fill the file, as the format demands."""
        at, before = data_start, "the header"
        for name, tensor in sorted(self.tensors.items(), key=lambda item: (item[1].start, item[1].end)):
            if tensor.start < at:
                self.refuse(f"tensor {name!r} overlaps {before}", "tensors with bytes of their own")
            if tensor.start > at:
                self.refuse(f"{tensor.start - at} bytes between {before} and tensor {name!r}", "tensors without gaps")
            at, before = tensor.end, f"tensor {name!r}"
        if at != len(self.bytes):
            self.refuse(f"{len(self.bytes) - at} bytes after the last tensor", "nothing after the last tensor")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name appears twice")
    return entries


def _whole_list(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)
