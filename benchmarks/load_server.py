"""A server under load: exact texts, throughput, storms of bad clients, a soak.

    python benchmarks/load_server.py mixed|load|storm|soak [--model smollm2-135m] [--threads N] [--json] [--out FILE]

Starts `draftgraph serve` itself on a free port and looks at it from outside alone, over HTTP and through /proc. Each
prints its tables and a verdict for each claim; with `--json` one JSON object instead. The exit code is 1 where a claim
does not hold. Client and server share the machine, so leave it alone meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from under_load import load, mixed, soak, storm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("mixed", "load", "storm", "soak"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, help="of the server's core; the default is one per core")
    parser.add_argument("--rounds", type=int, help="of mixed (default 3) and load (default 5)")
    parser.add_argument("--minutes", type=float, default=5, help="of soak (default 5)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="also write the JSON object there")
    args = parser.parse_args()
    subject = (args.model, *(("--threads", str(args.threads)) if args.threads else ()))
    measures = {
        "mixed": lambda: mixed.measure(subject, args.rounds or 3),
        "load": lambda: load.measure(subject, args.rounds or 5),
        "storm": lambda: storm.measure(subject),
        "soak": lambda: soak.measure(subject, args.minutes),
    }
    report = asyncio.run(measures[args.what]())
    if args.out:
        args.out.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report.to_json()) if args.json else report.to_text())
    sys.exit(not report.passed)


if __name__ == "__main__":
    main()
