"""What the memory of finished texts takes, of `--memory process`, while a server reads millions of tokens.

    python benchmarks/finished_texts.py [--out benchmarks/results/finished_texts.json]

Made-up texts of 700 tokens, four fifths of them repeated phrases, are added as those of requests that end. Printed
are resident memory and the longest time that one text took; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path

from draftgraph.draft.suffix import FinishedTexts

_VOCABULARY = 49_152
_LENGTH = 700


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=5_000_000)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    rng = random.Random(1)
    phrases = [[rng.randrange(_VOCABULARY) for _ in range(rng.randrange(2, 12))] for _ in range(20_000)]
    texts, rows = FinishedTexts(), [{"tokens": 0, "kept": 0, "resident_mb": resident_megabytes(), "slowest_ms": 0.0}]
    done, slowest = 0, 0.0
    while done < options.tokens:
        text: list[int] = []
        while len(text) < _LENGTH:
            text += rng.choice(phrases) if rng.random() < 0.8 else [rng.randrange(_VOCABULARY)]
        began = time.perf_counter()
        texts.add(text)
        slowest = max(slowest, time.perf_counter() - began)
        done += len(text)
        if done >= options.tokens * len(rows) / 10:
            kept = sum(map(len, texts.parts))
            rows.append(
                {
                    "tokens": done,
                    "kept": kept,
                    "resident_mb": resident_megabytes(),
                    "slowest_ms": round(1000 * slowest, 1),
                }
            )
            print("{tokens:>9,} tokens: {kept:>7,} kept, {resident_mb} MB, slowest {slowest_ms} ms".format(**rows[-1]))
            slowest = 0.0
    result = json.dumps({"seed": 1, "rows": rows})
    if options.out is not None:
        options.out.write_text(result + "\n", encoding="utf-8")
    print(result)


if __name__ == "__main__":
    main()
