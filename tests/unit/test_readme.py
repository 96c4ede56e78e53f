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


def test_every_speed_is_a_committed_result() -> None:
    results = ROOT / "benchmarks" / "results"
    for name in ("peer_llama_cpp_qwen", "peer_llama_cpp_smollm2"):
        result = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
        for side in ("decode", "prompt"):
            speeds = result[f"{side}_tokens_per_second"]
            cells = [speeds["draftgraph"], speeds["llama.cpp"], result[f"{side}_ratio"]]
            assert "| " + " | ".join(f"{cell:g}" for cell in cells) + " |" in README
    for path in sorted(results.glob("bench_*.json")):
        arms = json.loads(path.read_text(encoding="utf-8"))["arms"]
        auto = arms["auto"]
        speeds = [arms["plain"]["tokens_per_second"], auto["tokens_per_second"]]
        cells = [*speeds, auto["tokens_per_step"], auto["speedup"], auto["worst"]["speedup"]]
        assert "| " + " | ".join(f"{cell:g}" for cell in cells) + " |" in README, path.name


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
