"""Other engines beside which `draftgraph bench --peer` measures: plain greedy decoding from the same prompt ids.

    python benchmarks/peers.py llama.cpp MODEL.gguf --threads 2 --context 2048      (pip install llama-cpp-python)
    python benchmarks/peers.py transformers FOLDER --threads 2 --context 2048       (pip install torch transformers)

In: on stdin one JSON line `{"ids": […], "count": n}` per text. Out: first a line `{"ready": true}`, then one line
`{"prefill_seconds": …, "decode_seconds": …, "ids": […]}` per text. A peer that is not installed ends it with code 3
and a line `{"missing": "what to install"}`. Imports nothing of DraftGraph, so that a peer's own environment can run it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MISSING = 3
# (prompt ids, tokens to write) -> (seconds until the first token, seconds for the others, ids)
Write = Callable[[list[int], int], tuple[float, float, list[int]]]


def llama_cpp(model: str, threads: int, context: int) -> Write:
    """Returns greedy decoding by llama.cpp, through llama-cpp-python."""
    from llama_cpp import Llama

    llama = Llama(model, n_ctx=context, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False)

    def tokens(ids: list[int]) -> Iterator[int]:
        llama.reset()
        yield from llama.generate(ids, temp=0.0, repeat_penalty=1.0, reset=True)

    return lambda ids, count: timed(tokens(ids), count)


def transformers(model: str, threads: int, context: int) -> Write:
    """Returns greedy decoding by transformers in bfloat16; a GGUF file is dequantised by it first."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    path = Path(model)
    place = (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
    net = AutoModelForCausalLM.from_pretrained(place[0], dtype=torch.bfloat16, **place[1]).eval()

    def tokens(ids: list[int]) -> Iterator[int]:
        known, cache = torch.tensor([ids]), None
        while True:
            with torch.inference_mode():
                out = net(known, past_key_values=cache, use_cache=True)
            known, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
            yield int(known)

    return lambda ids, count: timed(tokens(ids), count)


def timed(tokens: Iterator[int], count: int) -> tuple[float, float, list[int]]:
    """Takes `count` tokens and returns (seconds until the first, seconds for the others, ids)."""
    start, found, times = time.perf_counter(), [], []
    for token in tokens:
        times.append(time.perf_counter())
        found.append(int(token))
        if len(found) == count:
            break
    return times[0] - start, times[-1] - times[0], found


PEERS: dict[str, tuple[str, Callable[[str, int, int], Write]]] = {
    "llama.cpp": ("llama-cpp-python", llama_cpp),
    "transformers": ("torch transformers", transformers),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    args = parser.parse_args()
    package, opened = PEERS[args.peer]
    try:
        write = opened(args.model, args.threads, args.context)
    except ImportError:
        print(json.dumps({"missing": package}), flush=True)
        sys.exit(MISSING)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        prefill, decode, ids = write(order["ids"], order["count"])
        print(json.dumps({"prefill_seconds": prefill, "decode_seconds": decode, "ids": ids}), flush=True)


if __name__ == "__main__":
    main()
