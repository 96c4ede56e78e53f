"""The arithmetic of `benchmarks/load_server.py`: what its verdicts about percentiles and memory rest on."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "under_load" / "report.py"


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("report_under_test", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up by name.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def test_percentiles(report: ModuleType) -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [report.percentile(values, share) for share in (0.01, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert report.percentile([7.0], 0.99) == 7
    assert report.percentile([], 0.5) == 0


@pytest.mark.parametrize(("leak", "is_flat"), [(0, True), (1024, False)])
def test_a_leak_of_a_kilobyte_per_request_is_seen(report: ModuleType, leak: int, is_flat: bool) -> None:
    """Two and a half minutes of twenty requests a second, with a process that breathes by half a megabyte."""
    draw = random.Random(1)
    times = [150 + float(second) for second in range(150)]
    resident = [300e6 + draw.uniform(0, 2**19) + 20 * leak * (now - 150) for now in times]
    assert (report.growth(times, resident) <= 2**20) == is_flat


def test_one_broken_promise_fails_the_report(report: ModuleType) -> None:
    found = report.Report("x", {})
    found.claim("kept", "1", True)
    assert found.passed
    found.claim("broken", "2", False)
    assert not found.passed
    assert [claim["holds"] for claim in found.to_json()["claims"]] == [True, False]
    assert "FAIL  broken: 2" in found.to_text()
