"""`draftgraph profile`: what a pass costs, in the documented forms, and refusals."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from draftgraph.models.loader import load_model
from draftgraph.profile import Ceiling, Profile, _multiply_adds
from draftgraph.speeds import memory_speed, multiply_speed
from support.commands import command, refusal, unchanged
from support.tiny import tiny_config, tiny_tokenizer, write_gguf

SVG = "{http://www.w3.org/2000/svg}"
OPTIONS = ["--rows", "4,2", "--context", "8,20", "--repeats", "3"]
ENTRY = {"rows", "seconds", "relative", "weight_bytes", "memory_gb_s", "ceiling_seconds", "isa", "threads"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("profile") / "model.gguf")


@pytest.mark.parametrize(("runner", "threads"), [("auto", "1"), ("reference", "1")])
def test_a_profile_has_a_curve_for_each_context(model: Path, runner: str, threads: str) -> None:
    outcome = command("profile", model, *OPTIONS, "--runner", runner, "--threads", threads, "--json")
    assert outcome.code == 0
    assert set(outcome.json) == {
        "model", "contexts", "multiply_adds_per_second", "prompt_tokens_per_second", "machine", "commit",
    }  # fmt: skip
    assert [entry["context"] for entry in outcome.json["contexts"]] == [8, 20]
    for entry in outcome.json["contexts"]:
        assert set(entry) == ENTRY | {"context"}
        assert entry["rows"] == [1, 2, 4]
        assert all(seconds > 0 for seconds in entry["seconds"])
        one = entry["seconds"][0]
        assert entry["relative"] == pytest.approx([seconds / one for seconds in entry["seconds"]], rel=0.02)
        assert entry["ceiling_seconds"] == sorted(entry["ceiling_seconds"])
        assert entry["memory_gb_s"] > 0.1
        if runner == "reference":
            assert entry["isa"] == "numpy"
        elif entry["isa"] != "numpy":
            assert entry["threads"] == 1


def test_the_ceiling_is_the_slower_of_memory_and_arithmetic() -> None:
    ceiling = Ceiling(weight_bytes=100, multiply_adds=30, memory_speed=50.0, multiply_speed=10.0)
    assert [ceiling.seconds(rows) for rows in (0, 1, 2)] == [2.0, 3.0, 6.0]


@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_of_a_matrix_is_multiplied_once_a_row(tmp_path: Path, tied: bool) -> None:
    config = tiny_config("llama")
    hidden, kv = config.hidden_size, config.num_kv_heads * config.head_dim
    layer = 2 * hidden * config.num_heads * config.head_dim + 2 * hidden * kv + 3 * hidden * config.intermediate_size
    found = _multiply_adds(load_model(write_gguf(tmp_path / "model.gguf", tied=tied)))
    assert found == config.num_layers * layer + len(tiny_tokenizer().tokens) * hidden


def test_the_usual_contexts_are_those_that_fit(model: Path) -> None:
    outcome = command("profile", model, "--rows", "2", "--repeats", "3", "--json")
    assert [entry["context"] for entry in outcome.json["contexts"]] == [128]  # of a model of 256


def test_a_profile_is_printed_and_drawn(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "curve.svg"
    outcome = command("profile", model, *OPTIONS, "--out", out)
    assert outcome.code == 0
    assert "ceiling" in outcome.out
    assert "ms at 20" in outcome.out
    picture = ET.parse(out).getroot()
    assert len(picture.findall(f".//{SVG}circle")) == 2 * 3
    assert len(picture.findall(f".//{SVG}path[@class='floor']")) == 1
    assert len(picture.findall(f".//{SVG}g[@class='legend-floor']")) == 1


def test_the_picture_shows_each_measured_time_above_the_ceiling() -> None:
    ceiling = Ceiling(10**9, 10**9, 50e9, 400e9)
    shown = Profile("a & b", {8: {1: 0.020, 8: 0.080}}, ceiling, "avx2", 2, 10.0).to_svg()
    picture = ET.fromstring(shown)
    first, last = ((float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in picture.findall(f".//{SVG}circle"))
    (area,) = picture.findall(f".//{SVG}path[@class='floor']")
    corners = [tuple(map(float, point.split())) for point in area.get("d", "")[1:].split("L")]
    bottom = corners[0][1]  # where the value is 0
    assert (bottom - first[1]) / (bottom - last[1]) == pytest.approx(20 / 80, abs=0.01)
    assert corners[0][0] == corners[1][0] == first[0]  # 1 row
    assert corners[-1][0] == corners[-2][0] == last[0]  # 8 rows
    assert corners[1][1] == pytest.approx(first[1], abs=0.1)  # 10**9 bytes at 50e9 per second are 20 ms
    tips = [tip.text for tip in picture.findall(f".//{SVG}title")]
    assert tips == ["1, context 8: 20.000", "8, context 8: 80.000"]
    assert "prefers-color-scheme: dark" in shown


def test_speeds_are_of_this_machine() -> None:
    assert 1e8 < memory_speed(1) < 1e13
    assert 1e7 < multiply_speed("numpy", 1) < 1e14


@pytest.mark.parametrize(
    "options",
    [
        ["--rows", "0"], ["--rows", "x"], ["--rows", "1,,2"], ["--rows", "300"], ["--context", "250"],
        ["--context", "0"], ["--context", "8,x"], ["--context", "²"], ["--out", "picture.png"], ["--out", "no/a.svg"],
    ],
)  # fmt: skip
def test_bad_options_are_refused(model: Path, tmp_path: Path, options: list[str]) -> None:
    with unchanged(tmp_path):
        refusal(command("profile", model, *options))
