"""Sends made-up bodies to a real server with a tiny model: PYTHONPATH=tests python -m fuzz.fuzz_bodies --seed 1.

In: how many, or for how long, and a seed. Out: a summary; the exit status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from support.fuzzing import fuzz
from support.serving import serving, write_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="how many bodies to send")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(2**32), help="makes the same bodies"
    )
    given = parser.parse_args()
    last = Path(tempfile.gettempdir()) / f"fuzz_bodies_{given.seed}"
    print(f"seed {given.seed}; the body on its way is in {last}", flush=True)
    end = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as folder:
        options = {"context": 256, "slots": 4, "defaults": {"max_tokens": 4}, "server": {"time_limit": 30.0}}
        with serving(write_model(Path(folder)), **options) as running:
            summary = fuzz(running, given.seed, lambda sent: sent < given.count and time.monotonic() < end, last)
    last.unlink(missing_ok=True)
    print(summary)
    sys.exit(bool(summary.wrong))


if __name__ == "__main__":
    main()
