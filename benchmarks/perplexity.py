"""Perplexity of a text, with llama.cpp beside it on demand: do the quantised kernels compute what the file means?

    python benchmarks/perplexity.py MODEL --text FILE [--tokens 8192] [--window 512] [--peer] [--out FILE.json]

The peer needs `llama-cpp-python`. Both sides read the same token ids in separate windows; every token but a window's
first counts. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

import draftgraph as dg
from draftgraph.data import read_text
from draftgraph.types import Extension, VerifyBatch

_CHUNK = 64

# token ids of a window -> negative log-likelihoods of its second and later tokens
Score = Callable[[list[int]], list[float]]


def ours(llm: dg.LLM) -> Score:
    """Returns DraftGraph's score."""

    def score(ids: list[int]) -> list[float]:
        slot, losses = llm.runner.open(), []
        for start in range(0, len(ids), _CHUNK):
            chunk = np.asarray(ids[start : start + _CHUNK], np.int32)
            extension = Extension(chunk, np.arange(-1, len(chunk) - 1, dtype=np.int32), 0)
            (rows,) = llm.runner.extend(VerifyBatch((slot,), [extension])).rows
            llm.runner.commit(slot, range(len(chunk)))
            losses += negative_log_likelihoods(rows, ids[start + 1 : start + 1 + len(chunk)])
        llm.runner.release(slot)
        return losses

    return score


def theirs(model: str, window: int) -> Score:
    """Returns llama.cpp's score."""
    from llama_cpp import Llama

    llama = Llama(model, n_ctx=window, n_batch=window, logits_all=True, verbose=False)

    def score(ids: list[int]) -> list[float]:
        llama.reset()
        llama.eval(ids)
        return negative_log_likelihoods(np.asarray(llama.scores[: len(ids)]), ids[1:])

    return score


def negative_log_likelihoods(rows: npt.NDArray[np.float32], following: list[int]) -> list[float]:
    """Returns -log p of each following token, given logits [rows, vocabulary]; the last row may have none."""
    logits = rows[: len(following)].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    picked = logits[np.arange(len(following)), following]
    return [float(loss) for loss in np.log(np.exp(logits).sum(axis=1)) - picked]


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
        ids = llm.model.tokenizer.encode(read_text(args.text)[: 8 * args.tokens], special=False)[: args.tokens]
        sides = {"draftgraph": ours(llm)} | ({"llama.cpp": theirs(args.model, args.window)} if args.peer else {})
        windows = [ids[start : start + args.window] for start in range(0, len(ids), args.window)]
        means = {name: np.mean([loss for window in windows for loss in score(window)]) for name, score in sides.items()}
    result: dict[str, object] = {"model": Path(args.model).name, "tokens": len(ids), "window": args.window}
    result["perplexity"] = {name: round(math.exp(mean), 4) for name, mean in means.items()}
    if args.peer:
        ratio = math.exp(means["draftgraph"] - means["llama.cpp"])
        result["difference_percent"] = round(100 * (ratio - 1), 3)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
