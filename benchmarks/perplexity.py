"""Perplexity of a text, with llama.cpp beside it on demand: do the quantised kernels compute what the file means?

    python benchmarks/perplexity.py MODEL --text FILE [--tokens 8192] [--window 512] [--peer] [--out FILE.json]

The peer needs `llama-cpp-python`. Both sides read the same token ids in the same windows; the calculation is
`draftgraph.perplexity`. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import draftgraph as dg
from draftgraph.bench.machine import commit, machine
from draftgraph.data import read_text
from draftgraph.perplexity import Score, first_ids, negative_log_likelihoods, perplexity, score_with


def theirs(model: str, window: int) -> Score:
    """Returns llama.cpp's score."""
    from llama_cpp import Llama

    llama = Llama(model, n_ctx=window, n_batch=window, logits_all=True, verbose=False)

    def score(ids: Sequence[int]) -> list[float]:
        llama.reset()
        llama.eval(list(ids))
        return negative_log_likelihoods(np.asarray(llama.scores[: len(ids)]), ids[1:])

    return score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with dg.load(args.model, draft="off", context=args.window + 1, slots=1) as llm:
        ids = first_ids(llm.model.tokenizer, read_text(args.text), args.tokens)
        scores = {"draftgraph": score_with(llm.runner)} | (
            {"llama.cpp": theirs(args.model, args.window)} if args.peer else {}
        )
        found = {name: perplexity(score, ids, args.window).perplexity for name, score in scores.items()}
    result: dict[str, object] = {"model": Path(args.model).name, "tokens": len(ids), "window": args.window}
    result["perplexity"] = {name: round(value, 4) for name, value in found.items()}
    result |= {"machine": machine(), "commit": commit(Path(__file__))}
    if args.peer:
        result["difference_percent"] = round(100 * (found["draftgraph"] / found["llama.cpp"] - 1), 3)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
