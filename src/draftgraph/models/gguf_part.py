"""The parser for one GGUF file: header, metadata, tensor table.

In: a path. Out: metadata as plain Python values, tensors as read-only views of the file. Every count, length, type and
offset is checked against the bytes that exist before it is used, so that a tiny file with giant claims costs nothing.
Knows nothing of split files, dequantisation or what any key means, but for the alignment.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from draftgraph.errors import ModelFileError, UnsupportedModelError
from draftgraph.extension import core
from draftgraph.models.files import describe_head, drop_pages, map_file

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_LENGTH = struct.Struct("<Q")
_MIN_PAIR = 8 + 1 + 4 + 1  # key length, key, value type, value
_MIN_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, number of dimensions, one dimension, type, offset
_MAX_NAME = 2**16 - 1
_MAX_STRING = 2**26
_MAX_ARRAY = 2**24
_MAX_ALIGNMENT = 2**20


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor table.

    Args:
        shape: NumPy order, the row length last.
        type_id: a GGML type that `ggml_types` lists.
        data: [rows, bytes of a row], a read-only view of the file.
    """

    shape: tuple[int, ...]
    type_id: int
    data: npt.NDArray[np.uint8]


@cache
def ggml_types() -> dict[int, tuple[str, int, int]]:
    """Returns {GGML type id: (name, values in a block, bytes in a block)}."""
    from gguf import GGML_QUANT_SIZES  # slow to import, hence not at the top

    return {int(kind): (kind.name, *size) for kind, size in GGML_QUANT_SIZES.items()}


class GgufPart:
    """One file, parsed: `metadata` and `tensors`. The cursor `_at` never passes the end of the bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = map_file(path)
        self._whole = np.frombuffer(self._bytes, np.uint8)
        self._at = 0
        num_tensors, num_pairs = self._header()
        self.metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self._name("key")
            if key in self.metadata:
                self.refuse(f"key {key!r} appears twice", "each key once")
            self.metadata[key] = self._value(key, self._number("I", f"the type of {key!r}"))
        self.tensors = self._table(num_tensors)

    def drop_pages(self) -> None:
        drop_pages(self._bytes)

    def refuse(self, given: str, allowed: str) -> NoReturn:
        raise ModelFileError(
            f"{self.path}: {given}", allowed, "download the file again; it may be cut short or damaged"
        )

    def _refuse_kind(self, given: str, allowed: str, remedy: str) -> NoReturn:
        raise UnsupportedModelError(f"{self.path}: {given}", allowed, remedy)

    @property
    def _left(self) -> int:
        return len(self._bytes) - self._at

    def _skip(self, length: int, what: str) -> int:
        """Moves past `length` bytes and returns where they began."""
        if length > self._left:
            self.refuse(f"{what} needs {length} bytes at byte {self._at}; {self._left} are left", "a whole file")
        start = self._at
        self._at += length
        return start

    def _number(self, code: str, what: str) -> Any:
        size = struct.calcsize(f"<{code}")
        start = self._skip(size, what)
        if code == "?" and self._bytes[start] > 1:
            self.refuse(f"{what} is the byte {self._bytes[start]}", "0 or 1 for a truth value")
        return struct.unpack_from(f"<{code}", self._bytes, start)[0]

    def _string(self, what: str, limit: int) -> str:
        length = self._number("Q", f"the length of {what}")
        if length > limit:
            self.refuse(f"{what} claims {length} bytes", f"at most {limit} bytes")
        start = self._skip(length, what)
        return self._decode(start, length, what)

    def _decode(self, start: int, length: int, what: str) -> str:
        try:
            return self._bytes[start : start + length].decode()
        except UnicodeDecodeError:
            self.refuse(f"{what} at byte {start} is not UTF-8", "UTF-8 text")

    def _name(self, what: str) -> str:
        name = self._string(f"a {what}", _MAX_NAME)
        if not name:
            self.refuse(f"an empty {what} before byte {self._at}", f"a {what} of at least one character")
        return name

    def _header(self) -> tuple[int, int]:
        """Returns the number of tensors and of metadata pairs."""
        magic = self._bytes[:4]
        if magic != b"GGUF":
            self.refuse(f"not a GGUF file: {describe_head(self._bytes[:64])}", "a file that begins with 'GGUF'")
        self._at = 4
        version = self._number("I", "the version")
        if version not in (2, 3):
            if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, 2, 3):
                self._refuse_kind("a big-endian GGUF file", "little-endian files", "convert the model again")
            self._refuse_kind(f"GGUF version {version}", "versions 2 and 3", "convert the model again")
        num_tensors = self._number("Q", "the number of tensors")
        num_pairs = self._number("Q", "the number of metadata pairs")
        needed = num_tensors * _MIN_TENSOR + num_pairs * _MIN_PAIR
        if needed > self._left:
            self.refuse(
                f"{num_tensors} tensors and {num_pairs} metadata pairs need at least {needed} bytes; "
                f"the file has {self._left} more",
                "counts that fit the file",
            )
        return num_tensors, num_pairs

    def _value(self, key: str, kind: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind], f"the value of {key!r}")
        if kind == _STRING:
            return self._string(f"the value of {key!r}", _MAX_STRING)
        if kind != _ARRAY:
            self.refuse(f"{key!r} has value type {kind}", "value types 0 to 12")
        return self._array(key, self._number("I", f"the element type of {key!r}"))

    def _array(self, key: str, kind: int) -> list[Any]:
        count = self._number("Q", f"the length of {key!r}")
        if kind == _ARRAY:
            self._refuse_kind(f"{key!r} is an array of arrays", "arrays of plain values", "convert the model again")
        if kind != _STRING and kind not in _SCALARS:
            self.refuse(f"{key!r} has element type {kind}", "element types 0 to 12")
        size = 8 if kind == _STRING else struct.calcsize(f"<{_SCALARS[kind]}")
        if count > _MAX_ARRAY or count * size > self._left:
            self.refuse(
                f"{key!r} claims {count} elements, at least {count * size} bytes; the file has {self._left} more",
                f"at most {_MAX_ARRAY} elements that fit the file",
            )
        if kind == _STRING:
            return self._strings(key, count)
        start = self._skip(count * size, key)
        code = "u1" if kind == _BOOL else f"<{_SCALARS[kind]}"
        values = np.frombuffer(self._bytes, code, count, start)
        if kind != _BOOL:
            return list(values.tolist())
        if values.max(initial=0) > 1:
            self.refuse(f"{key!r} holds the byte {values.max()}", "0 or 1 for a truth value")
        return [bool(value) for value in values]

    def _strings(self, key: str, count: int) -> list[str]:
        """Reads `count` strings: in C++ where the extension is there and finds no fault, else here, where faults are
        named. The inner loop of opening a file, so it keeps its own cursor."""
        if core is not None and (found := core.read_strings(self._whole, self._at, count)):
            strings, self._at = found
            return strings
        data, at, unpack = self._bytes, self._at, _LENGTH.unpack_from
        strings = []
        try:
            for _ in range(count):
                (length,) = unpack(data, at)
                start = at + 8
                text = data[start : start + length]
                if len(text) != length:
                    self.refuse(
                        f"element {len(strings)} of {key!r} claims {length} bytes", f"at most {len(data) - start}"
                    )
                strings.append(text.decode())
                at = start + length
        except struct.error:
            self.refuse(f"{key!r} ends after {len(strings)} of {count} elements", "a whole file")
        except UnicodeDecodeError:
            self.refuse(f"element {len(strings)} of {key!r} at byte {start} is not UTF-8", "UTF-8 text")
        self._at = at
        return strings

    def _table(self, num_tensors: int) -> dict[str, GgufTensor]:
        entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(num_tensors):
            name = self._name("tensor name")
            if name in entries:
                self.refuse(f"tensor {name!r} appears twice", "each tensor once")
            entries[name] = self._entry(name)
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            self.refuse(f"general.alignment={alignment!r}", f"a power of two up to {_MAX_ALIGNMENT}")
        start = -(-self._at // alignment) * alignment
        tensors, spans = {}, []
        for name, (shape, type_id, offset) in entries.items():
            label, block_len, block_bytes = ggml_types()[type_id]
            row_bytes = shape[-1] // block_len * block_bytes
            end = offset + prod(shape[:-1]) * row_bytes
            what = f"tensor {name!r} of type {label} and shape {shape}"
            if offset % alignment:
                self.refuse(f"{what} begins at offset {offset}", f"a multiple of the alignment {alignment}")
            if start + end > len(self._bytes):
                size = len(self._bytes)
                self.refuse(f"{what} ends at byte {start + end}; the file has {size} bytes", "tensors inside the file")
            tensors[name] = GgufTensor(shape, type_id, self._whole[start + offset : start + end].reshape(-1, row_bytes))
            spans.append((offset, end, name))
        spans.sort()
        for (_, end, name), (offset, _, other) in pairwise(spans):
            if offset < end:
                self.refuse(f"tensors {name!r} and {other!r} overlap", "tensors with bytes of their own")
        return tensors

    def _entry(self, name: str) -> tuple[tuple[int, ...], int, int]:
        """Returns shape, type id and offset of one table entry."""
        num_dims = self._number("I", f"the dimensions of {name!r}")
        if not 1 <= num_dims <= 4:
            self.refuse(f"tensor {name!r} has {num_dims} dimensions", "1 to 4 dimensions")
        shape = tuple(self._number("Q", f"the shape of {name!r}") for _ in range(num_dims))[::-1]
        if min(shape) < 1 or prod(shape) >= 2**63:
            self.refuse(f"tensor {name!r} has shape {shape}", "dimensions of at least 1, fewer than 2**63 values")
        type_id = self._number("I", f"the type of {name!r}")
        if type_id not in ggml_types():
            known = ", ".join(sorted(entry[0] for entry in ggml_types().values()))
            self._refuse_kind(f"tensor {name!r} has the unknown type {type_id}", known, "use a file with a known type")
        label, block_len, _ = ggml_types()[type_id]
        if shape[-1] % block_len:
            self.refuse(f"tensor {name!r} of type {label} has rows of {shape[-1]} values", f"a multiple of {block_len}")
        return shape, type_id, self._number("Q", f"the offset of {name!r}")
