"""Models of the Hub, fetched from a Hub that is served on 127.0.0.1."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from draftgraph import environment
from draftgraph.errors import DownloadError, MissingPackageError, ModelNotFoundError
from draftgraph.models import catalog, hub
from support.downloads import assert_three_parts, keep_local, serve

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
        "additional_chat_templates/tool_use.jinja": b"y",
        "pytorch_model.bin": b"never",
        "onnx/model.onnx": b"never",
    },
    "owner/nothing": {"README.md": b"#"},
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def only_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_local(tmp_path, monkeypatch)


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
    assert hub._is_whole_folder(tmp_path)
    (tmp_path / absent).unlink()
    assert not hub._is_whole_folder(tmp_path)


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
    assert hub.choose_gguf("owner/name", files) == chosen


def test_gguf_files_without_a_preferred_one_are_listed() -> None:
    with pytest.raises(ModelNotFoundError, match=r"owner/name:a-Q2_K\.gguf, owner/name:a-Q3_K\.gguf"):
        hub.choose_gguf("owner/name", ["a-Q3_K.gguf", "a-Q2_K.gguf"])
