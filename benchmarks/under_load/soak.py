"""Some minutes of constant mixed traffic: nothing fails, nothing slows down, memory stays where it settled.

In: a model and a time. Out: a report. One in five requests is left by its client, one in twenty is nonsense, the others
are of every kind. The cache is bounded and in use from the start, and so is the memory that the longest texts take.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftgraph.bench.tables import Table
from under_load.client import Answer, ask, ask_and_leave, streamed
from under_load.report import Report, growth, milliseconds, percentile
from under_load.server import Process, Served, serving
from under_load.traffic import CANARY, anything, bad_bodies, fill_memory, long_stream

_SERVER = ("--slots", "4", "--queue", "8", "--context", "1024", "--kv-tokens", "2048")
_CLIENTS = 6
_LEAVE, _BAD = 0.2, 0.05  # shares of the requests
_SECONDS = 1.0  # between two looks at the process
_RISE = 2**20  # bytes that settled memory may rise by in the last half
_SLOWER = 1.25  # of the last third over the middle one


@dataclass(slots=True)
class _Seen:
    """What came of the requests and what the process looked like, with times since the start."""

    looks: list[tuple[float, Process]] = field(default_factory=list)
    answers: list[tuple[float, Answer]] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


async def measure(subject: Sequence[str], minutes: float) -> Report:
    """Returns the report on so many minutes."""
    report = Report("soak", {"subject": subject, "minutes": minutes, "server": _SERVER, "clients": _CLIENTS})
    with serving(subject, *_SERVER) as served:
        await fill_memory(served.url)
        canary = (await ask(served.url, CANARY)).text
        seen = await _run(served, 60 * minutes)
        rest = await served.seconds_to_rest()
        alive = await served.is_healthy() and (await ask(served.url, CANARY)).text == canary
        metrics, errors = await served.metrics(), served.logged_errors()
    _judge_memory(report, seen, 60 * minutes)
    _judge_answers(report, seen, 60 * minutes)
    failed = metrics["step_failures_total"]
    report.claim("no step fails, no error is logged", f"{failed:.0f}, {len(errors)} {errors[:1]}",
                 not failed and not errors)  # fmt: skip
    report.claim("alive, the same canary, at rest within 2 s", f"{rest:.2f} s", alive and rest < 2)
    return report


async def _run(served: Served, seconds: float) -> _Seen:
    seen = _Seen()
    started = time.perf_counter()
    clients = [asyncio.create_task(_client(served, number, seen, started, seconds)) for number in range(_CLIENTS)]
    while (now := time.perf_counter() - started) < seconds:
        seen.looks.append((now, served.process()))
        await asyncio.sleep(_SECONDS)
    await asyncio.gather(*clients)
    return seen


async def _client(served: Served, number: int, seen: _Seen, started: float, seconds: float) -> None:
    draw = random.Random(number)
    bad = itertools.cycle(bad_bodies())
    while (now := time.perf_counter() - started) < seconds:
        seen.requests.append(now)
        kind = draw.random()
        if kind < _LEAVE:
            body = {**long_stream(draw.randrange(10**6)), "stream": draw.random() < 0.5}
            await ask_and_leave(served.url, body, draw.random() / 2, by_reset=draw.random() < 0.5)
        elif kind < _LEAVE + _BAD:
            answer = await ask(served.url, next(bad))
            if not 400 <= answer.status < 500:
                seen.faults.append(f"a bad body got {answer.status} {answer.error}")
        else:
            body = anything(draw)
            answer = await ask(served.url, streamed(body) if draw.random() < 0.7 else body)
            seen.answers.append((now, answer))
            if not answer.is_whole:
                seen.faults.append(f"{answer.status} {answer.error}")


def _judge_memory(report: Report, seen: _Seen, seconds: float) -> None:
    half = [(now, process) for now, process in seen.looks if now >= seconds / 2]
    times = [now for now, _ in half]
    rise = growth(times, [process.resident_bytes for _, process in half])
    requests = sum(now >= seconds / 2 for now in seen.requests)
    report.claim(
        "settled memory is flat: by a least-squares line it rises by at most 1 MB over the last half",
        f"{rise / 2**20:+.2f} MB in {seconds / 2:.0f} s, {rise / max(requests, 1):+.0f} bytes a request",
        rise <= _RISE,
    )
    for name in ("threads", "descriptors"):
        rise = growth(times, [getattr(process, name) for _, process in half])
        report.claim(f"{name} are flat", f"{rise:+.1f}", abs(rise) <= 2)
    step = max(1, len(seen.looks) // 12)
    report.tables["The process"] = Table(
        ("second", "resident MB", "threads", "descriptors"),
        tuple(
            (f"{now:.0f}", f"{process.resident_bytes / 2**20:.1f}", str(process.threads), str(process.descriptors))
            for now, process in seen.looks[::step]
        ),
    )


def _judge_answers(report: Report, seen: _Seen, seconds: float) -> None:
    report.claim("no error", f"{len(seen.faults)} of {len(seen.requests)} requests {seen.faults[:1]}", not seen.faults)
    rows, slow = [], []
    for third in range(3):
        some = [
            answer
            for now, answer in seen.answers
            if third <= 3 * now / seconds < third + 1 and len(answer.arrivals) > 1
        ]
        first = [percentile([a.first_token_seconds for a in some], share) for share in (0.5, 0.95)]
        each = [percentile([a.token_seconds for a in some], share) for share in (0.5, 0.95)]
        slow.append((first[1], each[1]))
        rows.append((str(third + 1), str(len(some)), *map(milliseconds, (*first, *each))))
    for name, middle, last in zip(("the first token", "a token"), slow[1], slow[2], strict=True):
        report.claim(
            f"the p95 of {name} is stable",
            f"{milliseconds(last)} ms in the last third, {milliseconds(middle)} in the middle one",
            last <= _SLOWER * middle,
        )
    report.tables["Streams by thirds of the time, in ms"] = Table(
        ("third", "streams", "TTFT p50", "TTFT p95", "per token p50", "per token p95"), tuple(rows)
    )
