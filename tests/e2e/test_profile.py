"""`draftgraph profile`: what a pass costs, in the documented form, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import command
from support.tiny import write_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("profile") / "model.gguf")


@pytest.mark.parametrize("runner", ["auto", "reference"])
def test_a_profile_has_a_cost_for_each_row_count(model: Path, runner: str) -> None:
    options = ["--rows", "4,2", "--at", "8", "--repeats", "3", "--context", "64", "--runner", runner]
    outcome = command("profile", model, *options, "--json")
    assert outcome.code == 0
    assert set(outcome.json) == {"context", "pass_ms", "ratio", "ceiling_ms", "prompt_tokens_per_second"}
    assert list(outcome.json["pass_ms"]) == ["1", "2", "4"]
    assert outcome.json["ratio"]["1"] == 1
    assert all(ms > 0 for ms in outcome.json["pass_ms"].values())


@pytest.mark.parametrize(
    "options", [["--rows", "0"], ["--rows", "x"], ["--rows", "1,,2"], ["--rows", "300"], ["--at", "250"], ["--at", "0"]]
)
def test_bad_row_counts_and_contexts_are_refused(model: Path, options: list[str]) -> None:
    outcome = command("profile", model, "--context", "256", *options)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
