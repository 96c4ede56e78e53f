"""What `examine` reports, with and without the extension, the optional packages and the default model."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftgraph import doctor, environment
from draftgraph.models import catalog

ENTRY = catalog.CATALOG["smollm2-135m"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.CACHE, str(tmp_path / "cache"))
    monkeypatch.delenv(environment.OFFLINE, raising=False)


def replace_extension(monkeypatch: pytest.MonkeyPatch, found: object) -> None:
    real = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name != "draftgraph._native":
            return real(name, package)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("importlib.import_module", import_module)


def what_is_missing(report: doctor.Report) -> str:
    return "\n".join(f"{item.what} | {item.why} | {item.how}" for item in report.missing)


def test_the_report_is_plain_json_with_every_field() -> None:
    report = doctor.examine()
    plain = json.loads(json.dumps(report.to_json()))
    assert set(plain) == {field.name for field in dataclasses.fields(report)}
    assert plain["versions"]["numpy"] == np.__version__
    assert plain["cache_dir"] == str(environment.cache_dir())
    assert 1 <= plain["num_cores"] <= (os.cpu_count() or 1)
    assert plain["free_bytes"] > 0
    assert plain["cpu"]


def test_looking_makes_no_cache_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    report = doctor.examine()
    assert not report.cache_dir.exists()
    assert capfd.readouterr() == ("", "")


def test_the_native_runner_is_claimed_only_where_the_extension_is(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_extension(monkeypatch, ImportError("no"))
    assert doctor.examine().runner == "reference"
    found = SimpleNamespace(compiler=lambda: "GCC 99", cpu_features=list, kernel_levels=lambda: ["fast", "slow"])
    replace_extension(monkeypatch, found)
    assert doctor.examine().runner == "native (fast)"


def test_the_extension_is_asked_for_its_compiler_and_features(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_extension(
        monkeypatch,
        SimpleNamespace(
            compiler=lambda: "GCC 99", cpu_features=lambda: ["avx2", "fma"], kernel_levels=lambda: ["avx2"]
        ),
    )
    report = doctor.examine()
    assert (report.extension, report.extension_problem) == ("GCC 99", None)
    assert report.cpu_features == ("avx2", "fma")
    assert "_native" not in what_is_missing(report)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (ModuleNotFoundError("No module named 'draftgraph._native'"), "is not installed"),
        (ImportError("undefined symbol: nothing"), "cannot be loaded: undefined symbol: nothing"),
    ],
)
def test_an_absent_extension_says_why_and_how_to_get_it(
    error: Exception, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_extension(monkeypatch, error)
    report = doctor.examine()
    assert report.extension is None
    assert problem in (report.extension_problem or "")
    assert "compiler" in what_is_missing(report)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="only Linux has /proc/cpuinfo")
def test_the_kernel_and_the_extension_agree_on_the_cpu() -> None:
    native = pytest.importorskip("draftgraph._native")
    assert set(doctor._features_from_kernel()) == set(native.cpu_features())


@pytest.mark.parametrize(
    ("cpuinfo", "machine", "features", "model"),
    [
        ("model name\t: A CPU\nflags\t\t: sse2 avx2 avx512_vnni\n", "x86_64", {"avx2", "avx512_vnni"}, "A CPU"),
        ("Features\t: half neon vfpv4\nHardware\t: A board\n", "armv7l", set(), "A board"),
        ("Features\t: fp asimd evtstrm\n", "aarch64", set(), None),
        ("", "riscv64", set(), None),
    ],
)
def test_proc_cpuinfo_is_read_in_our_names(
    cpuinfo: str, machine: str, features: set[str], model: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self, **options: cpuinfo)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.processor", lambda: "")
    assert set(doctor._features_from_kernel()) == features
    assert environment.cpu_name() == (model or machine)


def test_a_model_in_the_cache_is_listed_and_no_longer_missing() -> None:
    assert f"draftgraph pull {ENTRY.name}" in what_is_missing(doctor.examine())
    path = catalog.entry_path(ENTRY)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(ENTRY.bytes)
    other = path.parents[1] / f"{catalog.PARTIAL}x" / "half.gguf"
    other.parent.mkdir()
    other.touch()
    report = doctor.examine()
    assert report.models == (doctor.CachedModel(ENTRY.name, path, ENTRY.bytes),)
    assert ENTRY.name not in what_is_missing(report)


def test_offline_is_reported_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.OFFLINE, "1")
    report = doctor.examine()
    assert report.offline
    assert f"unset {environment.OFFLINE}" in what_is_missing(report)


def test_a_package_that_is_absent_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(package: str) -> str:
        if package in ("huggingface_hub", "llguidance", "tokenizers", "uvicorn"):
            raise importlib.metadata.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr("importlib.metadata.version", version)
    report = doctor.examine()
    assert [report.versions[name] for name in ("huggingface_hub", "llguidance", "tokenizers")] == [None] * 3
    assert "draftgraph[hub]" in what_is_missing(report)
    assert "draftgraph[grammar]" in what_is_missing(report)
    assert "uvicorn | serve cannot run | pip install 'draftgraph[server]'" in what_is_missing(report)
    assert "pip install tokenizers" in what_is_missing(report)
