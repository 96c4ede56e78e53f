"""Safetensors folders, sound and broken: values exact, everything else refused in plain words."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.errors import DraftGraphError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from draftgraph.models.safetensors import SafetensorsFolder
from support import tiny

INDEX = "model.safetensors.index.json"
A = {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}
B = {"dtype": "F16", "shape": [4], "data_offsets": [32, 40]}


def framed(header: Any, data: bytes = bytes(40)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def opened(folder: Path, content: bytes) -> SafetensorsFolder:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(content)
    return SafetensorsFolder(folder)


def with_a(**changes: Any) -> bytes:
    return framed({"a": A | changes, "b": B})


SOUND = framed({"__metadata__": {"format": "pt"}, "a": A, "b": B}, bytes(range(40)))
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "seven bytes": (b"abcdefg", "7 bytes"),
    "a git-LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git-LFS pointer"),
    "a web page": (b"<html><body>not found</body></html>", "web page"),
    "a GGUF file": (b"GGUF" + bytes(60), "GGUF file"),
    "zeros": (bytes(64), "zeros"),
    "header length 0": (bytes(8) + b"{}", "header of 0 bytes"),
    "header length 1": (framed(b"{"), "header of 1 bytes|no JSON"),
    "header length 101 MB": ((101_000_000).to_bytes(8, "little") + b"{}", "header of 101000000 bytes"),
    "header length 2**63": ((2**63).to_bytes(8, "little") + b"{}", f"header of {2**63} bytes"),
    "a header past the end": ((200).to_bytes(8, "little") + b"{}", "header of 200 bytes in a file of 10"),
    "junk": (framed(b"\x01\x02junk"), "no JSON"),
    "half a header": (framed(b'{"a": {"dtype"'), "no JSON"),
    "a header that is not UTF-8": (framed(b'{"\xff": 1}'), "no JSON"),
    "deep nesting": (framed(b"[" * 100_000), "no JSON"),
    "a list": (framed([A]), "JSON list"),
    "a name twice": (framed(b'{"a": %s, "a": %s}' % ((json.dumps(A).encode(),) * 2)), "appears twice"),
    "an entry that is a list": (framed({"a": [1]}), "tensor 'a' is"),
    "an entry without a type": (framed({"a": {"shape": [2], "data_offsets": [0, 8]}}), "tensor 'a' is"),
    "an unknown type": (with_a(dtype="F5"), "'a' of type 'F5'"),
    "a type that is a number": (with_a(dtype=3), "'a' of type 3"),
    "a type of another size": (with_a(dtype="F64"), "'a' of type F64 .* has 32 bytes"),
    "a shape of another size": (with_a(shape=[2, 5]), "has 32 bytes"),
    "a shape with a minus": (with_a(shape=[-2, -4]), "'a' has shape"),
    "a shape with a fraction": (with_a(shape=[2.0, 4]), "'a' has shape"),
    "a shape with a truth value": (with_a(shape=[True, 8]), "'a' has shape"),
    "a giant shape": (with_a(shape=[2**62, 2**62]), "has 32 bytes"),
    "too many dimensions": (with_a(shape=[1] * 1000), "'a' has shape"),
    "one offset": (with_a(data_offsets=[0]), "data_offsets"),
    "offsets in reverse": (with_a(data_offsets=[32, 0]), r"\[.*\) of a file"),
    "offsets outside": (with_a(data_offsets=[2**40, 2**40 + 32]), "of a file of"),
    "negative offsets": (with_a(data_offsets=[-32, 0]), "data_offsets"),
    "overlapping tensors": (
        framed({"a": A, "b": B | {"data_offsets": [24, 32]}}, bytes(32)),
        "'b' overlaps tensor 'a'",
    ),
    "a gap": (framed({"a": A, "b": B | {"data_offsets": [40, 48]}}, bytes(48)), "8 bytes between"),
    "bytes after the last tensor": (framed({"a": A, "b": B}, bytes(48)), "8 bytes after"),
    "one byte too few": (framed({"a": A, "b": B}, bytes(39)), "of a file of"),
}


@pytest.mark.parametrize(("content", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_refused_quickly_and_in_words(tmp_path: Path, content: bytes, words: str) -> None:
    tracemalloc.start()
    started = time.perf_counter()
    with pytest.raises((ModelFileError, UnsupportedModelError), match=words) as caught:
        opened(tmp_path, content)
    seconds, (_, peak) = time.perf_counter() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 1
    assert peak < 16 * 2**20
    assert "model.safetensors" in caught.value.given
    assert len(str(caught.value)) < 1000


def test_a_sound_file_gives_its_bytes(tmp_path: Path) -> None:
    source = opened(tmp_path, SOUND)
    assert source.names() == ("a", "b")
    assert source.shape("a") == (2, 4)
    assert source.load("a").tobytes() == bytes(range(32))
    assert "__metadata__" not in source


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_every_float_type_keeps_its_values(tmp_path: Path, dtype: str) -> None:
    values = np.array([[1.0, -2.5, 3.140625, 2.0**-14], [0.0, -0.0, 65280.0, 0.33203125]], np.float32)
    folder = tmp_path / dtype
    folder.mkdir()
    data = tiny.encode_floats(values, dtype)
    header = {"odd": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}
    header["w"] = {"dtype": dtype, "shape": [2, 4], "data_offsets": [3, 3 + len(data)]}
    loaded = opened(folder, framed(header, b"odd" + data)).load("w")
    assert loaded.tobytes() == values.tobytes()
    assert loaded.dtype == np.float32
    assert loaded.flags.c_contiguous
    assert loaded.flags.aligned
    assert loaded.flags.writeable


def test_scalars_and_empty_tensors_load(tmp_path: Path) -> None:
    header = {
        "s": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        "e": {"dtype": "F32", "shape": [0, 4], "data_offsets": [4, 4]},
    }
    source = opened(tmp_path, framed(header, bytes(4)))
    assert source.load("s").shape == ()
    assert source.load("e").shape == (0, 4)


@pytest.mark.parametrize("dtype", ["I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"])
def test_a_type_that_is_no_float_is_refused_by_name(tmp_path: Path, dtype: str) -> None:
    source = opened(tmp_path, framed({"w": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4]}}, bytes(4)))
    with pytest.raises(UnsupportedModelError, match=f"'w' of type {dtype}"):
        source.load("w")


def test_a_truncated_file_is_refused_at_every_offset(tmp_path: Path) -> None:
    for length in range(len(SOUND)):
        with pytest.raises(ModelFileError):
            opened(tmp_path, SOUND[:length])


def test_a_changed_byte_gives_tensors_or_a_typed_error(tmp_path: Path) -> None:
    for place in range(len(SOUND) - 40):
        for value in (0, ord("9"), ord('"'), ord("}"), 0xFF):
            changed = bytearray(SOUND)
            changed[place] = value
            _open_and_load(tmp_path, bytes(changed))


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "__metadata__"]),
        st.fixed_dictionaries(
            {},
            optional={
                "dtype": st.sampled_from(["F32", "F16", "I64", None, 0]),
                "shape": st.one_of(st.none(), st.lists(st.integers(-1, 4), max_size=4)),
                "data_offsets": st.one_of(st.none(), st.lists(st.integers(-1, 50), max_size=3)),
            },
        ),
    )
)
def test_any_header_gives_tensors_or_a_typed_error(tmp_path_factory: Any, header: dict[str, Any]) -> None:
    _open_and_load(tmp_path_factory.getbasetemp(), framed(header))


def _open_and_load(folder: Path, content: bytes) -> None:
    try:
        source = opened(folder, content)
        for name in source.names():
            assert source.load(name).shape == source.shape(name)
    except DraftGraphError:
        pass


def test_shards_load_as_the_single_file(tmp_path: Path) -> None:
    single = SafetensorsFolder(tiny.write_hf_folder(tmp_path / "single"))
    sharded = SafetensorsFolder(tiny.write_hf_folder(tmp_path / "sharded", num_shards=3))
    assert set(single.names()) == set(sharded.names())
    for name in single.names():
        np.testing.assert_array_equal(single.load(name), sharded.load(name))


def _edit_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def _shard(number: int) -> str:
    return f"model-{number:05d}-of-00003.safetensors"


def _swap(folder: Path) -> None:
    (folder / _shard(1)).rename(folder / "x")
    (folder / _shard(2)).rename(folder / _shard(1))
    (folder / "x").rename(folder / _shard(2))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing shard": (lambda f: (f / _shard(2)).unlink(), "1 of 3 shards are missing: model-00002"),
    "swapped shards": (_swap, "no tensor"),
    "a cut shard": (lambda f: (f / _shard(3)).write_bytes((f / _shard(3)).read_bytes()[:-1]), "model-00003"),
    "a pointer shard": (lambda f: (f / _shard(1)).write_bytes(b"version https://git-lfs" + bytes(99)), "git-LFS"),
    "a tensor no shard has": (lambda f: _edit_index(f, lambda m: m.update(x=_shard(1))), "no tensor 'x'"),
    "a tensor the index lacks": (lambda f: _edit_index(f, lambda m: m.pop("model.norm.weight")), "'model.norm.weight'"),
    "no weight_map": (lambda f: (f / INDEX).write_text("{}"), "no weight_map"),
    "an empty weight_map": (lambda f: _edit_index(f, lambda m: m.clear()), "no weight_map"),
    "an index that is a list": (lambda f: (f / INDEX).write_text("[]"), "JSON list"),
    "an index that is junk": (lambda f: (f / INDEX).write_text("{"), "no JSON"),
    "a giant number": (lambda f: (f / INDEX).write_text('{"a": ' + "9" * 5000 + "}"), "no JSON"),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_folder_with_a_bad_part_is_refused(tmp_path: Path, damage: Callable[[Path], object], words: str) -> None:
    folder = tiny.write_hf_folder(tmp_path / "model", num_shards=3)
    damage(folder)
    with pytest.raises(ModelFileError, match=words):
        SafetensorsFolder(folder)


@pytest.mark.parametrize(
    "file",
    ["../outside.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..\\x.safetensors", "C:x.safetensors",
     ".hidden.safetensors", "x.bin", "x\0.safetensors", "", 7, None],
)  # fmt: skip
def test_the_index_names_only_plain_files_of_the_folder(tmp_path: Path, file: Any) -> None:
    folder = tiny.write_hf_folder(tmp_path / "model", num_shards=3)
    tiny.write_safetensors(tmp_path / "outside.safetensors", {"x": np.zeros(1, np.float32)})
    _edit_index(folder, lambda weight_map: weight_map.update(x=file))
    with pytest.raises(ModelFileError, match="tensor 'x' in"):
        SafetensorsFolder(folder)


def test_a_folder_without_its_files_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such folder"):
        SafetensorsFolder(tmp_path / "missing")
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        SafetensorsFolder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match=r"neither model\.safetensors nor"):
        SafetensorsFolder(tmp_path)
