"""Fuzzing a server with bodies: whatever is sent gets an answer below 500, and nobody else waits for it.

In: a running server and a seed. Out: a summary with everything that was wrong.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from fuzz.made_bodies import make_body
from support.heartbeat import MOST, Heartbeat, heartbeat, longest_hold
from support.serving import Serving

_ALLOWED_ABOVE = (503, 504)  # the server stops; the time limit
_BETWEEN_LOOKS = 50  # bodies between two looks at /health
_WARM_UP = 200  # bodies before memory is measured
_GROWTH = 256 * 2**20  # bytes of resident memory: two of the largest bodies, with all that is made of them
_MOST_SHOWN = 160


@dataclass
class Summary:
    """What came of the bodies."""

    statuses: Counter[int] = field(default_factory=Counter)
    largest_lag: float = 0.0
    laggard: str = ""
    growth: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.statuses.total()} bodies in {self.seconds:.1f} s; statuses {counts}\n"
            f"largest lag of the event loop {self.largest_lag:.3f} s, at {self.laggard}\n"
            f"memory {self.growth / 2**20:+.1f} MB\n"
            + "\n".join([f"WRONG {line}" for line in self.wrong[:10]] or ["nothing wrong"])
        )


def fuzz(running: Serving, seed: int, goes_on: Callable[[int], bool], last: Path | None = None) -> Summary:
    """Sends bodies while `goes_on`, which is given how many were sent.

    Args:
        last: a file for the body that is on its way, for the case that the process ends.
    """
    rng, summary, started = random.Random(seed), Summary(), time.monotonic()
    beat, base, number = heartbeat(running), _resident(), 0
    with running.http() as client:
        while goes_on(number):
            path, body = make_body(rng)
            if last is not None:
                last.write_bytes(path.encode() + b"\n" + body)
            what = f"body {number} to {path}: {body[:_MOST_SHOWN]!r}"
            try:
                _send(client, path, body, beat, summary, what)
            except httpx.HTTPError as error:
                summary.wrong.append(f"{what}: no answer: {error!r}")
            number += 1
            if number % _BETWEEN_LOOKS == 0 and client.get("/health").status_code != 200:
                summary.wrong.append(f"{what}: not healthy afterwards")
            if number == _WARM_UP:
                base = _resident()
    summary.growth, summary.seconds = _resident() - base, time.monotonic() - started
    if summary.growth > _GROWTH:
        summary.wrong.append(f"resident memory grew by {summary.growth} bytes")
    return summary


def _send(client: httpx.Client, path: str, body: bytes, beat: Heartbeat, summary: Summary, what: str) -> None:
    post = partial(client.post, path, content=body, headers={"content-type": "application/json"})
    held, answer = longest_hold(beat, post)
    summary.statuses[answer.status_code] += 1
    if held > summary.largest_lag:
        summary.largest_lag, summary.laggard = held, what
    if held >= MOST:
        summary.wrong.append(f"{what}: held up the loop for {held:.3f} s, each time")
    if answer.status_code >= 500 and answer.status_code not in _ALLOWED_ABOVE:
        summary.wrong.append(f"{what}: {answer.status_code} {answer.text[:_MOST_SHOWN]}")


def _resident() -> int:
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
