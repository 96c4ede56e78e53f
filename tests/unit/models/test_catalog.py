"""What a model argument means, and where models are kept."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from draftgraph import environment
from draftgraph.errors import ModelNotFoundError
from draftgraph.models import catalog
from support.downloads import ENTRY, assert_three_parts, keep_local

CATALOG = catalog.CATALOG


@pytest.fixture(autouse=True)
def only_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_local(tmp_path, monkeypatch)


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
