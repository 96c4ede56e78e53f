"""Tokens per target pass with each drafter, on the default model: the table in the README.

    python benchmarks/tokens_per_step.py

Writes `benchmarks/results/tokens_per_step.json` and prints the table. Tokens per step do not depend on the machine;
every text is compared with plain decoding.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import draftgraph as dg
from draftgraph.audit import as_prompts, audit
from draftgraph.bench.machine import commit, machine
from draftgraph.data import read_prompts

MODEL = "smollm2-135m"
HERE = Path(__file__).parent
RESULT = HERE / "results" / "tokens_per_step.json"
MAX_TOKENS = 128
SEED = 7
TEMPERATURES = (0.0, 0.8)
# name -> what is passed to `dg.load`
ARMS: dict[str, dict[str, Any]] = {
    "ngram": {"draft": "ngram", "budget": 8},
    "suffix": {"draft": "suffix", "budget": 8},
    "recycle": {"draft": "recycle", "budget": 8},
    "ngram,suffix,recycle": {"draft": "ngram,suffix,recycle", "budget": 8},
    "model (its own draft), chain of 4": {"draft": f"model:{MODEL}", "budget": 4, "width": 1, "depth": 4},
    "model (its own draft), graph of 8": {"draft": f"model:{MODEL}", "budget": 8},
}


def measure(options: dict[str, Any], temperature: float) -> dict[str, Any]:
    """Returns the audit of one arm at one temperature."""
    with dg.load(MODEL, **options) as llm:
        prompts = as_prompts(read_prompts(HERE / "prompts.jsonl"), raw=False)
        sampling = {"max_tokens": MAX_TOKENS, "temperature": temperature, "seed": SEED}
        return audit(llm, prompts, lambda _: None, **sampling).to_json()


def main() -> None:
    result = {
        "model": MODEL,
        "max_tokens": MAX_TOKENS,
        "seed": SEED,
        "machine": machine(),
        "commit": commit(Path(__file__)),
        "arms": {name: {str(t): measure(options, t) for t in TEMPERATURES} for name, options in ARMS.items()},
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(table(result))


def table(result: dict[str, Any]) -> str:
    """Returns the Markdown table of a result."""
    lines = [
        "| drafter | greedy | temperature 0.8 | tokens compared | mismatches |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in result["arms"].items():
        steps = " | ".join(f"{runs[str(t)]['tokens_per_step']:.2f}" for t in TEMPERATURES)
        tokens, mismatches = (sum(run[key] for run in runs.values()) for key in ("tokens", "mismatches"))
        lines.append(f"| {name} | {steps} | {tokens} | {mismatches} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
