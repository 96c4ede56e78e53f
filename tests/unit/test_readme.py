"""The README keeps its promises: short, and every number from a committed result."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_the_table_is_the_committed_result() -> None:
    path = ROOT / "benchmarks" / "tokens_per_step.py"
    spec = importlib.util.spec_from_file_location("tokens_per_step", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.table(json.loads(module.RESULT.read_text(encoding="utf-8"))) in README


def row(*cells: float | str) -> str:
    """Part of a table's row: speeds with one digit, and whatever is written out already."""
    return "| " + " | ".join(cell if isinstance(cell, str) else f"{cell:.1f}" for cell in cells) + " |"


def test_every_speed_is_a_committed_result() -> None:
    results = ROOT / "benchmarks" / "results"
    for name in ("qwen_slow_memory", "qwen_fast_memory", "smollm2"):
        result = json.loads((results / f"peer_llama_cpp_{name}.json").read_text(encoding="utf-8"))
        for side in ("decode", "prompt"):
            speeds = result[f"{side}_tokens_per_second"]
            assert row(speeds["draftgraph"], speeds["llama.cpp"], f"{result[f'{side}_ratio']:.2f}") in README
    for path in sorted(results.glob("bench_*.json")):
        arms = json.loads(path.read_text(encoding="utf-8"))["arms"]
        auto = arms["auto"]
        ratios = [auto["tokens_per_step"], auto["speedup"], auto["worst"]["speedup"]]
        shown = row(
            arms["plain"]["tokens_per_second"], auto["tokens_per_second"], *(f"{ratio:.2f}" for ratio in ratios)
        )
        assert shown in README, path.name


def test_every_file_the_readme_names_exists() -> None:
    for name in (
        "docs/pictures/graph.svg",
        "docs/pictures/playground.png",
        "docs/exactness.md",
        "benchmarks/prompts.jsonl",
        "examples",
    ):
        assert name in README
        assert (ROOT / name).exists()
