"""Packed weights in the cache: read only if whole, and no start fails because they could not be written."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import draftgraph as dg
from support.tiny import tiny_config, write_gguf

pytest.importorskip("draftgraph._native", reason="the extension is not built")

LOAD = "import sys, draftgraph as dg; dg.load(sys.argv[1], packed='keep', runner='native').close()"

LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 8192,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 64,
    "rope_dim": 64,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "model.gguf", quant="Q8_0")


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that packed weights are kept in."""
    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packed"


@pytest.mark.parametrize("damage", ["none", "cut", "other"])
def test_packed_weights_are_read_again_only_if_whole(model: Path, packed: Path, damage: str) -> None:
    texts = []
    for _ in range(2):
        with dg.load(model, packed="keep") as llm:
            texts.append(llm.generate("abc", max_tokens=20).token_ids)
        (file,) = packed.iterdir()
        if damage == "cut":
            file.write_bytes(file.read_bytes()[:-1])
        if damage == "other":
            file.write_bytes(b"x" * file.stat().st_size)
    with dg.load(model) as llm:
        assert llm.generate("abc", max_tokens=20).token_ids == texts[0] == texts[1]


def test_packed_weights_are_those_of_all_parts_of_the_file(packed: Path, tmp_path: Path) -> None:
    texts, parts = [], []
    for seed in range(2):
        (folder := tmp_path / str(seed)).mkdir()
        first = write_gguf(folder / "m.gguf", seed=seed, quant="Q8_0", max_tensors_in_part=12)
        parts.append(sorted(folder.glob("*.gguf")))
        with dg.load(first, packed="keep") as llm:
            texts.append(llm.generate("abc", max_tokens=20).token_ids)
    for old, new in zip(parts[0][1:], parts[1][1:], strict=True):
        old.write_bytes(new.read_bytes())
    with dg.load(parts[0][0]) as plain, dg.load(parts[0][0], packed="keep") as kept:
        texts += [llm.generate("abc", max_tokens=20).token_ids for llm in (plain, kept)]
    assert texts[2] == texts[3] != texts[0]


def test_packed_weights_are_really_read(model: Path, packed: Path) -> None:
    dg.load(model, packed="keep").close()
    (file,) = packed.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:32] + bytes(len(whole) - 32))  # the head is right, all weights are zero
    with dg.load(model, packed="keep") as llm:
        assert set(llm.generate("abc", max_tokens=5).token_ids) == {0}


def assert_loads_with_one_warning(model: Path, words: str) -> None:
    with pytest.warns(UserWarning, match="packed weights are not kept") as caught, dg.load(model, packed="keep") as llm:
        assert llm.generate("abc", max_tokens=5).token_ids
    (warning,) = caught
    assert words in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("place", ["cache", "cache/packed"])
def test_a_file_where_the_folder_should_be_is_said_and_the_model_loads(
    model: Path, packed: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("a file")
    assert_loads_with_one_warning(model, str(packed))
    assert (tmp_path / place).read_text() == "a file"


def test_a_folder_in_the_place_of_the_file_is_said_and_the_model_loads(model: Path, packed: Path) -> None:
    dg.load(model, packed="keep").close()
    (file,) = packed.iterdir()
    file.unlink()
    (file / "inner").mkdir(parents=True)
    assert_loads_with_one_warning(model, "could not be written")
    assert list(packed.iterdir()) == [file]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize("before", ["nothing", "a cut file"])
def test_a_full_disk_is_said_and_leaves_nothing(model: Path, packed: Path, before: str) -> None:
    import resource

    if before == "a cut file":
        dg.load(model, packed="keep").close()
        (file,) = packed.iterdir()
        file.write_bytes(file.read_bytes()[:-1])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))  # a write beyond it fails, as on a full disk
    try:
        assert_loads_with_one_warning(model, "could not be written")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(packed.iterdir()) == []


def leave_partial(model: Path, packed: Path) -> Path:
    """Kills a process while it writes and returns the file that it leaves."""
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-c", LOAD, model])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if any(packed.glob("*.partial-*")):
                process.kill()
                break
        process.wait()
        if partials := list(packed.glob("*.partial-*")):
            assert process.returncode == -signal.SIGKILL
            (partial,) = partials
            return partial
        for file in packed.iterdir():  # it was done before it was killed
            file.unlink()
    pytest.fail("no process could be killed while it wrote")


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_writer_leaves_no_weights_and_the_next_one_sweeps(packed: Path, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "large.gguf", config=tiny_config("llama", **LARGE))
    partial = leave_partial(model, packed)
    assert list(packed.iterdir()) == [partial]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dg.load(model, packed="keep").close()
    (file,) = packed.iterdir()
    assert file.suffix == ".bin"


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_a_file_that_is_still_being_written_is_left_alone(model: Path, packed: Path) -> None:
    import fcntl

    packed.mkdir(parents=True)
    live, dead = packed / "other.bin.partial-1", packed / "other.bin.partial-2"
    dead.write_bytes(b"half")
    with live.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        dg.load(model, packed="keep").close()
        assert live.exists()
    assert not dead.exists()
    live.unlink()
    assert len(list(packed.iterdir())) == 1
