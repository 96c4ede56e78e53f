"""A GGUF file taken apart without any check, and put together with anything in it.

In: the bytes of a sound file. Out: its fields as bytes and numbers, where each stands, and the bytes of a file with
other fields. It must never know what our parser takes or refuses.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_ALIGNMENT = 32


@dataclass
class Value:
    """One value as it stands in the file: its type, and its bytes or its items' bytes."""

    kind: int
    data: bytes = b""
    item_kind: int = 0
    items: list[bytes] = field(default_factory=list)
    count: int | None = None  # where it is said to be another than there are items

    def to_bytes(self) -> bytes:
        if self.kind == STRING:
            return _text(self.data)
        if self.kind != ARRAY:
            return self.data
        items = [_text(item) if self.item_kind == STRING else item for item in self.items]
        count = len(items) if self.count is None else self.count
        return struct.pack("<IQ", self.item_kind, count % 2**64) + b"".join(items)


@dataclass
class Tensor:
    """One entry of the table; `data` is what its offset begins in the sound file."""

    name: bytes
    dims: list[int]
    kind: int
    offset: int


@dataclass
class GgufBytes:
    """A file: all that a mutation can change."""

    version: int
    pairs: list[tuple[bytes, Value]]
    tensors: list[Tensor]
    data: bytes
    num_pairs: int | None = None
    num_tensors: int | None = None

    def to_bytes(self) -> bytes:
        num_pairs = len(self.pairs) if self.num_pairs is None else self.num_pairs
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        out = bytearray(struct.pack("<4sIQQ", b"GGUF", self.version, num_tensors % 2**64, num_pairs % 2**64))
        for key, value in self.pairs:
            out += _text(key) + struct.pack("<I", value.kind) + value.to_bytes()
        for tensor in self.tensors:
            out += _text(tensor.name) + struct.pack("<I", len(tensor.dims))
            out += b"".join(struct.pack("<Q", dim % 2**64) for dim in tensor.dims)
            out += struct.pack("<IQ", tensor.kind % 2**32, tensor.offset % 2**64)
        return bytes(out) + bytes(-len(out) % _ALIGNMENT) + self.data


def _text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.fields = data, 0, list[tuple[int, int]]()

    def take(self, length: int) -> bytes:
        self.fields.append((self.at, length))
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self, code: str) -> int:
        found: int = struct.unpack(f"<{code}", self.take(struct.calcsize(code)))[0]
        return found

    def text(self) -> bytes:
        return self.take(self.number("Q"))


def take_apart(data: bytes) -> tuple[GgufBytes, list[tuple[int, int]]]:
    """Returns a sound file's fields, and the place and length in bytes of each."""
    cursor = _Cursor(data)
    cursor.take(4)
    version, num_tensors, num_pairs = cursor.number("I"), cursor.number("Q"), cursor.number("Q")
    pairs = [(cursor.text(), _value(cursor)) for _ in range(num_pairs)]
    tensors = []
    for _ in range(num_tensors):
        name, num_dims = cursor.text(), cursor.number("I")
        tensors.append(
            Tensor(name, [cursor.number("Q") for _ in range(num_dims)], cursor.number("I"), cursor.number("Q"))
        )
    start = -(-cursor.at // _ALIGNMENT) * _ALIGNMENT
    return GgufBytes(version, pairs, tensors, data[start:]), cursor.fields


def _value(cursor: _Cursor) -> Value:
    kind = cursor.number("I")
    if kind == STRING:
        return Value(kind, cursor.text())
    if kind != ARRAY:
        return Value(kind, cursor.take(SIZES[kind]))
    item_kind, count = cursor.number("I"), cursor.number("Q")
    items = [cursor.text() if item_kind == STRING else cursor.take(SIZES[item_kind]) for _ in range(count)]
    return Value(kind, item_kind=item_kind, items=items)
