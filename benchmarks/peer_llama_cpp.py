"""Plain decoding and prompt reading beside llama.cpp (through `llama-cpp-python`), on the same file, alternately.

    pip install llama-cpp-python
    python benchmarks/peer_llama_cpp.py MODEL.gguf [--threads N] [--tokens 128] [--out FILE.json]

Both sides write greedily from the same prompt tokens; each round measures one side after the other and changes the
order. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from peers import Write, llama_cpp

import draftgraph as dg
from draftgraph.bench.machine import commit, machine
from draftgraph.data import read_prompts
from draftgraph.environment import num_cores
from draftgraph.speeds import memory_speed

HERE = Path(__file__).parent


def ours(llm: dg.LLM) -> Write:
    """Returns plain decoding by DraftGraph."""

    def write(ids: list[int], count: int) -> tuple[float, float, list[int]]:
        request = llm.engine.submit(ids, dg.SamplingParams(max_tokens=count, ignore_eos=True), 0)
        while llm.engine.scheduler.has_work:
            llm.engine.step()
        return request.stats.prefill_seconds, request.stats.decode_seconds, request.output

    return write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=num_cores())
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with dg.load(args.model, draft="off", threads=args.threads, context=2048) as llm:
        sides = {"draftgraph": ours(llm), "llama.cpp": llama_cpp(args.model, args.threads, 2048)}
        prompts = [llm.model.tokenizer.encode(p.text, special=False) for p in read_prompts(HERE / "prompts.jsonl")]
        prompts = prompts[: args.prompts]
        long_prompt = list(itertools.islice(itertools.cycle(itertools.chain(*prompts)), 512))
        result = compare(sides, prompts, long_prompt, args.tokens)
        result["ceiling_tokens_per_second"] = round(memory_speed(llm.runner.threads) / llm.runner.weight_bytes, 2)
    result |= {"model": Path(args.model).name, "threads": args.threads, "tokens": args.tokens}
    result |= {"machine": machine(), "commit": commit(Path(__file__))}
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def compare(sides: dict[str, Write], prompts: list[list[int]], long_prompt: list[int], count: int) -> dict[str, Any]:
    """Returns medians per side and the median of the ratios, ours over theirs."""
    decode: dict[str, list[float]] = {name: [] for name in sides}
    prefill: dict[str, list[float]] = {name: [] for name in sides}
    equal = []
    for side in sides.values():  # warm up
        side(prompts[0], 4)
    for number, ids in enumerate(prompts):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        texts = {}
        for name in order:
            _, seconds, texts[name] = sides[name](ids, count)
            decode[name].append((count - 1) / seconds)
            # Rotated, so that nothing is left in memory of the prompt before.
            rotated = long_prompt[number:] + long_prompt[:number]
            prefill[name].append(len(rotated) / sides[name](rotated, 1)[0])
        pairs = zip(*texts.values(), strict=True)
        equal.append(next((i for i, (a, b) in enumerate(pairs) if a != b), count))
    return {
        "decode_tokens_per_second": {name: round(statistics.median(v), 2) for name, v in decode.items()},
        "decode_ratio": ratio(decode),
        "prompt_tokens_per_second": {name: round(statistics.median(v), 1) for name, v in prefill.items()},
        "prompt_ratio": ratio(prefill),
        "equal_leading_tokens": equal,
    }


def ratio(values: dict[str, list[float]]) -> float:
    one, other = values.values()
    return round(statistics.median(a / b for a, b in zip(one, other, strict=True)), 3)


if __name__ == "__main__":
    main()
