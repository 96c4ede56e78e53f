"""A short search for model files that are neither loaded nor refused with a typed error; `make fuzz-files` is long."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftgraph.errors import ModelFileError
from fuzz import fuzz_files
from fuzz.fuzz_files import Findings, search
from support.children import needs_children

pytestmark = needs_children
TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _children_find_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, sys.path), str(TESTS)]))


def test_a_hundred_broken_model_files_are_loaded_or_refused_with_typed_errors() -> None:
    findings = search(count=100, seed=1, minutes=2)
    assert findings.faults == []
    assert sum(findings.outcomes.values()) == 200
    assert findings.outcomes["loaded"] >= 20
    assert findings.outcomes[ModelFileError.__name__] >= 20


def crash(*_: Any) -> str:
    os.abort()


def hang(*_: Any) -> str:
    time.sleep(60)
    return "loaded"


def swell(*_: Any) -> str:
    return str(len(bytearray(2**33)))


FAULTS = {"crash": "untyped end, status -6", "hang": "untyped hang", "swell": "untyped MemoryError"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported_with_what_caused_it_and_the_search_goes_on(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The child is this file, whose second case has the fault."""
    monkeypatch.setattr(fuzz_files, "CHILD", [sys.executable, __file__, name])
    findings = Findings(seed=3)
    number = 0
    while number < 3:
        number = fuzz_files.run_batch(findings, tmp_path, range(number, 3))
    assert len(findings.faults) == 1
    assert "--seed 3 --case 1, " in findings.faults[0]
    assert FAULTS[name] in findings.faults[0]
    assert len(findings.by_runner) == 3


def child(name: str) -> None:
    """Runs the cases that the arguments ask for; number 1 has the fault."""
    faults: dict[str, Callable[..., str]] = {"crash": crash, "hang": hang, "swell": swell}
    fuzz_files.SECONDS = 1
    fuzz_files.RUNNERS = ("native",)
    fuzz_files.Case.write = lambda case, *_: (case.number, {}, "x")  # type: ignore[method-assign,assignment,return-value]
    fuzz_files.attempt = lambda path, _: faults[name]() if path == 1 else "loaded"  # type: ignore[assignment]
    sys.argv[1:2] = []
    fuzz_files.main()


if __name__ == "__main__":
    child(sys.argv[1])
