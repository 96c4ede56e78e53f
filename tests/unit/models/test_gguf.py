"""GGUF files, sound and broken: what loads equals the reference, what does not is refused in time and words."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.errors import DraftGraphError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from draftgraph.models import gguf as module
from draftgraph.models import gguf_part
from draftgraph.models.gguf import GgufFile
from draftgraph.models.gguf_part import GgufPart
from support import tiny
from support.children import load_in_child, needs_children

_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8
U32, BOOL, STRING, ARRAY = 4, 7, 8, 9
GIANTS = (2**20, 2**40, 2**63, 2**64 - 1)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return u64(len(data)) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return string(key) + u32(kind) + value


def entry(
    name: str | bytes, dims: Sequence[int], type_id: int = F32, offset: int = 0, num_dims: int | None = None
) -> bytes:
    count = len(dims) if num_dims is None else num_dims
    return string(name) + u32(count) + b"".join(map(u64, dims)) + u32(type_id) + u64(offset)


def raw(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    num_pairs: int | None = None,
    num_tensors: int | None = None,
    version: bytes = u32(3),
    alignment: int = 32,
) -> bytes:
    counts = (
        u64(len(tensors) if num_tensors is None else num_tensors),
        u64(len(pairs) if num_pairs is None else num_pairs),
    )
    head = b"GGUF" + version + b"".join(counts) + b"".join(pairs) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + data


def opened(folder: Path, content: bytes) -> GgufFile:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return GgufFile(path)


SOUND = [pair("general.architecture", STRING, string("llama")), pair("n", U32, u32(7))]
ONE = [entry("a", (8, 2))]
ZEROS = bytes(64)

BROKEN: dict[str, bytes] = {
    "empty": b"",
    "half a magic": b"GG",
    "a magic alone": b"GGUF",
    "another magic": b"FUGG" + raw()[4:],
    "the older GGML format": b"tjgg" + raw()[4:],
    "a git-LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
    "a web page": b"<!DOCTYPE html><html></html>",
    "a zip archive": b"PK\x03\x04" + bytes(64),
    "zeros": bytes(256),
    "version 0": raw(version=u32(0)),
    "version 1": raw(version=u32(1)),
    "version 4": raw(version=u32(4)),
    "big-endian": raw(version=struct.pack(">I", 3)),
    "more pairs than there are": raw(SOUND, num_pairs=3),
    "more tensors than there are": raw(SOUND, ONE, ZEROS, num_tensors=3),
    "an empty key": raw([pair("", U32, u32(1))]),
    "a key that is not UTF-8": raw([pair(b"\xff\xfe", U32, u32(1))]),
    "a key twice": raw([pair("n", U32, u32(1)), pair("n", U32, u32(1))]),
    "a value that is not UTF-8": raw([pair("n", STRING, string(b"\xc3"))]),
    "an element that is not UTF-8": raw([pair("n", ARRAY, u32(STRING) + u64(1) + string(b"\x80"))]),
    "value type 13": raw([pair("n", 13, u64(0))]),
    "value type 2**32 - 1": raw([pair("n", 2**32 - 1, u64(0))]),
    "element type 13": raw([pair("n", ARRAY, u32(13) + u64(1) + u64(0))]),
    "an array of arrays": raw([pair("n", ARRAY, u32(ARRAY) + u64(1) + u32(U32) + u64(0))]),
    "a truth value of 2": raw([pair("n", BOOL, b"\x02")]),
    "an array with a truth value of 2": raw([pair("n", ARRAY, u32(BOOL) + u64(2) + b"\x01\x02")]),
    "strings that end early": raw(
        [pair("n", ARRAY, u32(STRING) + u64(3) + string("abcdefghijklmnop") + string("b"))], alignment=1
    ),
    "an empty tensor name": raw(SOUND, [entry("", (8, 2))], ZEROS),
    "a tensor twice": raw(SOUND, [*ONE, entry("a", (8,), F32, 64)], ZEROS * 2),
    "overlapping tensors": raw(SOUND, [*ONE, entry("b", (8, 2), F32, 32)], ZEROS * 2),
    "rows that are not whole blocks": raw(SOUND, [entry("a", (33, 2), Q8_0)], ZEROS * 2),
    "an offset that is not aligned": raw(SOUND, [entry("a", (8, 2), F32, 4)], ZEROS * 2),
    "an offset outside": raw(SOUND, [entry("a", (8, 2), F32, 64)], ZEROS),
    "an offset of 2**64 - 32": raw(SOUND, [entry("a", (8, 2), F32, 2**64 - 32)], ZEROS),
    "one byte too few": raw(SOUND, ONE, ZEROS[:-1]),
    "an alignment that is text": raw([*SOUND, pair("general.alignment", STRING, string("32"))], ONE, ZEROS),
    "a split count that is text": raw([*SOUND, pair("split.count", STRING, string("2"))], ONE, ZEROS),
    "a giant split count": raw([*SOUND, pair("split.count", U32, u32(2**32 - 1))], ONE, ZEROS),
    "a part under another name": raw([*SOUND, pair("split.count", U32, u32(2))], ONE, ZEROS),
    **{f"{n} dimensions": raw(SOUND, [entry("a", (1,) * min(n, 9), num_dims=n)], ZEROS) for n in (0, 5, 9, 2**32 - 1)},
    **{
        f"shape {dims}": raw(SOUND, [entry("a", dims)], ZEROS)
        for dims in ((0,), (8, 0), (2**42 + 1,), (2**32, 2**32), (2**63, 2), (2**16,) * 4, (2**64 - 1,) * 4)
    },
    **{
        f"alignment {n}": raw([*SOUND, pair("general.alignment", U32, u32(n))], ONE, ZEROS * 4)
        for n in (0, 13, 48, 2**30, 2**31)
    },
    **{f"{n} pairs": raw(num_pairs=n) for n in GIANTS},
    **{f"{n} tensors": raw(num_tensors=n) for n in GIANTS},
    **{f"a key of {n} bytes": raw([u64(n) + b"abcdefgh" * 8]) for n in GIANTS},
    **{f"a string of {n} bytes": raw([pair("n", STRING, u64(n) + b"abcdefgh" * 8)]) for n in GIANTS},
    **{f"an element of {n} bytes": raw([pair("n", ARRAY, u32(STRING) + u64(1) + u64(n) + bytes(64))]) for n in GIANTS},
    **{f"a tensor name of {n} bytes": raw(SOUND, [u64(n) + bytes(64)]) for n in GIANTS},
    **{
        f"{n} elements of type {kind}": raw([pair("n", ARRAY, u32(kind) + u64(n) + bytes(64))])
        for n in GIANTS
        for kind in (*_CODES, STRING, ARRAY)
    },
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_refused_quickly_and_without_large_memory(tmp_path: Path, content: bytes) -> None:
    gguf_types = module.ggml_types()  # the import is not what is timed
    assert gguf_types
    tracemalloc.start()
    started = time.perf_counter()
    with pytest.raises((ModelFileError, UnsupportedModelError)) as caught:
        opened(tmp_path, content)
    seconds, (_, peak) = time.perf_counter() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 1
    assert peak < 2**20
    assert str(tmp_path / "model.gguf") in caught.value.given
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("empty", "is empty"),
        ("a git-LFS pointer", "git-LFS pointer"),
        ("a web page", "web page"),
        ("the older GGML format", "older GGML"),
        ("a zip archive", "zip archive"),
        ("zeros", "zeros"),
        ("big-endian", "big-endian"),
        ("version 1", "version 1"),
        ("a key twice", "'n' appears twice"),
        ("overlapping tensors", "'a' and 'b' overlap"),
        ("rows that are not whole blocks", "'a' of type Q8_0 has rows of 33"),
        ("alignment 13", "general.alignment=13"),
    ],
)
def test_the_message_says_what_is_wrong(tmp_path: Path, kind: str, words: str) -> None:
    with pytest.raises(DraftGraphError, match=words):
        opened(tmp_path, BROKEN[kind])


@needs_children
def test_the_native_loader_refuses_each_broken_file_and_lives(tmp_path: Path) -> None:
    sound = tiny.write_gguf(tmp_path / "whole.gguf").read_bytes()
    outcomes = load_in_child(tmp_path, sound, BROKEN)
    assert set(outcomes.values()) == {"ModelFileError", "UnsupportedModelError"}


def test_a_sound_file_gives_every_kind_of_value(tmp_path: Path) -> None:
    samples = {
        0: 255,
        1: -128,
        2: 65535,
        3: -2,
        4: 2**32 - 1,
        5: -3,
        6: 0.5,
        7: True,
        10: 2**64 - 1,
        11: -(2**63),
        12: 0.1,
    }
    pairs = [pair(f"k{kind}", kind, struct.pack(f"<{_CODES[kind]}", value)) for kind, value in samples.items()]
    for kind, value in samples.items():
        packed = struct.pack(f"<{_CODES[kind]}", value)
        pairs.append(pair(f"a{kind}", ARRAY, u32(kind) + u64(2) + packed * 2))
    pairs += [pair("s", STRING, string("é")), pair("as", ARRAY, u32(STRING) + u64(2) + string("") + string("né"))]
    pairs += [pair("empty", ARRAY, u32(STRING) + u64(0)), pair("general.alignment", U32, u32(64))]
    content = raw(
        pairs, [entry("a", (8, 2)), entry("b", (3, 2, 2), F16, 64)], bytes(range(64)) + bytes(24), alignment=64
    )
    metadata = opened(tmp_path, content).metadata
    assert {key: metadata[key] for key in ("s", "as", "empty")} == {"s": "é", "as": ["", "né"], "empty": []}
    for kind, value in samples.items():
        assert metadata[f"k{kind}"] == value
        assert metadata[f"a{kind}"] == [value, value]
        assert type(metadata[f"k{kind}"]) is type(value) is type(metadata[f"a{kind}"][0])
    source = GgufFile(tmp_path / "model.gguf")
    assert source.names() == ("a", "b")
    assert (source.shape("a"), source.shape("b")) == ((2, 8), (2, 2, 3))
    assert source.load("a").tobytes() == bytes(range(64))
    assert "a" in source
    assert "c" not in source
    assert not source.blocks("a").flags.writeable


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=8), st.binary(max_size=6)), max_size=6), st.integers(0, 12), st.data())
def test_strings_are_read_the_same_with_and_without_the_extension(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str | bytes], cut: int, data: st.DataObject
) -> None:
    content = raw([pair("k", ARRAY, u32(STRING) + u64(len(texts)) + b"".join(map(string, texts)))], alignment=1)
    content = content[: len(content) - cut]
    if data.draw(st.booleans()):
        at = data.draw(st.integers(24, max(len(content) - 1, 24)))
        content = content[:at] + bytes([data.draw(st.integers(0, 255))]) + content[at + 1 :]
    path = tmp_path_factory.getbasetemp() / "strings.gguf"
    path.write_bytes(content)

    def read() -> object:
        try:
            return GgufPart(path).metadata
        except DraftGraphError as error:
            return type(error), str(error)

    with pytest.MonkeyPatch.context() as patch:
        native = read()
        patch.setattr(gguf_part, "core", None)
        assert native == read()


@pytest.mark.parametrize("version", [2, 3])
def test_versions_2_and_3_are_read(tmp_path: Path, version: int) -> None:
    assert opened(tmp_path, raw(SOUND, ONE, ZEROS, version=u32(version))).metadata["n"] == 7


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        GgufFile(tmp_path / "missing.gguf")
    with pytest.raises(ModelFileError, match="not a regular file"):
        GgufFile(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        with pytest.raises(ModelFileError, match="not a regular file"):
            GgufFile(tmp_path / "pipe.gguf")


def test_a_truncated_file_is_refused_at_every_offset(tmp_path: Path) -> None:
    content = raw([*SOUND, pair("t", ARRAY, u32(STRING) + u64(2) + string("ab") + string("c"))], ONE, ZEROS)
    for length in range(len(content)):
        with pytest.raises(ModelFileError):
            opened(tmp_path, content[:length])


def test_a_truncated_model_is_refused_at_many_offsets(tmp_path: Path) -> None:
    content = tiny.write_gguf(tmp_path / "whole.gguf").read_bytes()
    lengths = {*range(0, len(content), len(content) // 40), *range(1, 12000, 119), len(content) - 1}
    # The writer pads the last tensor; a cut within the padding loses nothing.
    for length in sorted(lengths - {len(content) - pad for pad in range(1, 32)}):
        with pytest.raises(ModelFileError):
            opened(tmp_path, content[:length])


def test_a_changed_byte_gives_a_model_or_a_typed_error(tmp_path: Path) -> None:
    content = raw([*SOUND, pair("t", ARRAY, u32(STRING) + u64(2) + string("ab") + string("c"))], ONE, ZEROS)
    for place in range(len(content) - len(ZEROS)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            changed = bytearray(content)
            changed[place] = value
            _open_and_load(tmp_path, bytes(changed))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 3), st.integers(0, 3))
def test_random_bytes_give_a_file_or_a_typed_error(
    tmp_path_factory: Any, body: bytes, tensors: int, pairs: int
) -> None:
    content = b"GGUF" + u32(3) + u64(tensors) + u64(pairs) + body
    _open_and_load(tmp_path_factory.getbasetemp(), content)


def _open_and_load(folder: Path, content: bytes) -> None:
    try:
        source = opened(folder, content)
        for name in source.names():
            assert source.load(name).shape == source.shape(name)
    except DraftGraphError:
        pass


def _can_dequantise(kind: gguf.GGMLQuantizationType) -> bool:
    try:
        dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


REQUIRED = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"}
LOADABLE = [kind for kind in gguf.GGMLQuantizationType if kind.name in REQUIRED | {"F64"} or _can_dequantise(kind)]


def _blocks(kind: gguf.GGMLQuantizationType, rows: int, seed: int = 0) -> np.ndarray[Any, Any]:
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    return np.random.default_rng(seed).integers(0, 256, (rows, 3 * block_bytes), np.uint8)


@pytest.mark.parametrize("kind", LOADABLE, ids=lambda kind: kind.name)
def test_every_type_loads_as_the_reference_dequantises_it(
    tmp_path: Path, kind: gguf.GGMLQuantizationType, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = _blocks(kind, rows=7)
    row_len = 3 * gguf.GGML_QUANT_SIZES[kind][0]
    source = opened(tmp_path, raw(SOUND, [entry("a", (row_len, 7), int(kind))], blocks.tobytes()))
    with np.errstate(all="ignore"):
        wanted = blocks.view("<f8").astype("f4") if kind.name == "F64" else dequantize(blocks, kind)
    assert source.type_name("a") == kind.name
    for chunk in (1, 2 * row_len, 2**20):
        monkeypatch.setattr(module, "_CHUNK", chunk)
        values = source.load("a")
        np.testing.assert_array_equal(values, wanted)
        assert values.dtype == np.float32
        assert values.flags.c_contiguous
        assert values.flags.writeable
    np.testing.assert_array_equal(source.blocks("a"), blocks)


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
def test_halves_and_bfloats_keep_their_values(tmp_path: Path, dtype: str) -> None:
    values = np.array([[1.0, -2.5, 3.140625, 2.0**-14], [0.0, -0.0, 65280.0, 0.33203125]], np.float32)
    type_id = int(gguf.GGMLQuantizationType[dtype])
    source = opened(tmp_path, raw(SOUND, [entry("a", (4, 2), type_id)], tiny.encode_floats(values, dtype)))
    assert source.load("a").tobytes() == values.tobytes()


@pytest.mark.parametrize("type_id", [*range(46), 139, 2**31])
def test_every_type_id_loads_or_is_refused_by_tensor_and_type(tmp_path: Path, type_id: int) -> None:
    known = {int(kind): kind for kind in gguf.GGMLQuantizationType}
    content = raw(SOUND, [entry("blk.0.x", (256, 2), type_id)], bytes(4096))
    if type_id not in known:
        with pytest.raises(UnsupportedModelError, match=rf"'blk\.0\.x' has the unknown type {type_id}\b"):
            opened(tmp_path, content)
        return
    source = opened(tmp_path, content)
    if known[type_id] in LOADABLE:
        assert source.load("blk.0.x").shape == (2, 256)
        return
    with pytest.raises(UnsupportedModelError, match=rf"'blk\.0\.x' of type {known[type_id].name}\b"):
        source.load("blk.0.x")


def _split(folder: Path) -> list[Path]:
    first = tiny.write_gguf(folder / "split.gguf", max_tensors_in_part=8)
    return sorted(first.parent.glob("split-*.gguf"))


def test_a_split_file_loads_as_the_whole_one(tmp_path: Path) -> None:
    whole = GgufFile(tiny.write_gguf(tmp_path / "whole.gguf"))
    parts = _split(tmp_path)
    assert len(parts) == 3
    for part in parts:
        source = GgufFile(part)
        assert set(source.names()) == set(whole.names())
        assert source.metadata["tokenizer.ggml.model"] == "gpt2"
        for name in whole.names():
            np.testing.assert_array_equal(source.load(name), whole.load(name))


def _drop(parts: list[Path]) -> None:
    parts[1].unlink()


def _swap(parts: list[Path]) -> None:
    second, third = parts[1].read_bytes(), parts[2].read_bytes()
    parts[1].write_bytes(third)
    parts[2].write_bytes(second)


def _cut(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[2].read_bytes()[:-100])


def _repeat(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[0].read_bytes())


@pytest.mark.parametrize(
    ("damage", "words"),
    [(_drop, r"split-00002-of-00003\.gguf"), (_swap, "split.no=2"), (_cut, "the file has"), (_repeat, "split.no=0")],
)
def test_a_split_file_with_a_bad_part_is_refused(
    tmp_path: Path, damage: Callable[[list[Path]], None], words: str
) -> None:
    parts = _split(tmp_path)
    damage(parts)
    with pytest.raises(ModelFileError, match=words):
        GgufFile(parts[0])


def test_a_large_vocabulary_opens_quickly(tmp_path: Path) -> None:
    count = 150_000
    tokens = b"".join(string(f"token{i}") for i in range(count))
    content = raw([*SOUND, pair("tokenizer.ggml.tokens", ARRAY, u32(STRING) + u64(count) + tokens)], ONE, ZEROS)
    opened(tmp_path, raw(SOUND))
    started = time.perf_counter()
    source = opened(tmp_path, content)
    assert time.perf_counter() - started < 1.0
    assert source.metadata["tokenizer.ggml.tokens"][-1] == f"token{count - 1}"
