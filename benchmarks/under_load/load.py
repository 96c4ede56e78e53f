"""Throughput and delay of a server at 1, 4 and 16 clients, with and without drafts; and 200 requests at once.

In: a model. Out: a report. A closed loop: every client asks again as soon as it has its answer. Two servers, one with
the default drafts and one with none, take turns in every round, so that both see the same moods of the machine;
ratios are taken within a round, and their medians reported. Tokens are counted while every client is busy.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftgraph.bench.tables import Table
from under_load.client import Answer, ask, connect, read_answer, request_bytes, streamed
from under_load.report import Report, milliseconds, percentile
from under_load.server import Served, serving
from under_load.traffic import chat

LEVELS = {1: 10, 4: 24, 16: 64}  # clients -> requests in a run
ARMS = {"auto": (), "off": ("--draft", "off")}
OPTIONS = ("--slots", "16", "--queue", "16", "--context", "2048")
MAX_TOKENS = 64
CROWD, CROWD_SLOTS, CROWD_QUEUE = 200, 4, 8


@dataclass(frozen=True, slots=True)
class Run:
    """One closed loop.

    Args:
        began, ended: the time while all clients were busy.
    """

    answers: list[Answer]
    began: float
    ended: float

    @property
    def rate(self) -> float:
        """Tokens per second that arrived while all clients were busy."""
        return sum(map(self._tokens, self.answers)) / (self.ended - self.began)

    def _tokens(self, answer: Answer) -> float:
        inside = sum(self.began <= arrival <= self.ended for arrival in answer.arrivals)
        return answer.num_tokens * inside / max(len(answer.arrivals), 1)


async def measure(subject: Sequence[str], rounds: int) -> Report:
    """Returns the report on `rounds` rounds of every level and arm, and on as many crowds."""
    report = Report(
        "load", {"subject": subject, "rounds": rounds, "server": OPTIONS, "max_tokens": MAX_TOKENS, "requests": LEVELS}
    )
    with serving(subject, *OPTIONS, *ARMS["auto"]) as auto, serving(subject, *OPTIONS, *ARMS["off"]) as off:
        servers = {"auto": auto, "off": off}
        for served in servers.values():
            await closed_loop(served, 4, 12, first=10**6)
        runs: dict[tuple[int, str], list[Run]] = {(level, arm): [] for level in LEVELS for arm in ARMS}
        for number in range(rounds):
            for level, requests in LEVELS.items():
                for arm in list(ARMS)[:: 1 if number % 2 else -1]:
                    runs[level, arm].append(await closed_loop(servers[arm], level, requests, first=1000 * number))
        errors = [line for served in servers.values() for line in served.logged_errors()]
    _judge_loops(report, runs, errors)
    await _measure_crowds(report, subject, rounds)
    return report


async def closed_loop(served: Served, clients: int, requests: int, first: int) -> Run:
    """Asks for the chats `first`, `first` + 1, and so on."""
    numbers = iter(range(first, first + requests))
    answers: dict[int, Answer] = {}
    idle: list[float] = []
    began = time.perf_counter()
    await asyncio.gather(*(_client(served.url, numbers, answers, idle) for _ in range(clients)))
    return Run([answers[number] for number in sorted(answers)], began, min(idle))


async def _client(url: str, numbers: Iterator[int], answers: dict[int, Answer], idle: list[float]) -> None:
    for number in numbers:
        answers[number] = await ask(url, streamed(chat(number, max_tokens=MAX_TOKENS, temperature=0)))
    idle.append(time.perf_counter())


def _judge_loops(report: Report, runs: dict[tuple[int, str], list[Run]], errors: list[str]) -> None:
    answers = [answer for some in runs.values() for run in some for answer in run.answers]
    failed = [answer.error for answer in answers if not answer.is_whole]
    most = max(LEVELS)
    for arm in ARMS:
        gain = _median_ratio(runs[most, arm], runs[1, arm])
        report.claim(f"throughput at {most} clients is at least 4 x that at 1, {arm}", f"{gain:.2f} x", gain >= 4)
    for level in LEVELS:
        gain = _median_ratio(runs[level, "auto"], runs[level, "off"])
        report.claim(f"auto is at least 0.95 of off at {level}", f"{gain:.3f}", gain >= 0.95)
    total = f"{len(failed)} of {len(answers)} requests, {len(errors)} logged {failed[:1]}"
    report.claim("no error below capacity", total, not failed and not errors)
    pairs = [
        (one.text, other.text)
        for level in LEVELS
        for auto, off in zip(runs[level, "auto"], runs[level, "off"], strict=True)
        for one, other in zip(auto.answers, off.answers, strict=True)
    ]
    equal = sum(one == other for one, other in pairs)
    report.claim("texts are the same with and without drafts", f"{equal} of {len(pairs)}", equal == len(pairs))
    report.tables["Closed loop; rates are medians over rounds, times are of all requests, in ms"] = Table(
        (
            "clients, drafts",
            "tokens/s",
            "TTFT p50",
            "TTFT p90",
            "TTFT p99",
            "per token p50",
            "per token p90",
            "per token p99",
            "gap p99",
            "tokens/step",
        ),
        tuple(_row(f"{level}, {arm}", some) for (level, arm), some in runs.items()),
    )


def _median_ratio(above: list[Run], below: list[Run]) -> float:
    return statistics.median(one.rate / other.rate for one, other in zip(above, below, strict=True))


def _row(name: str, runs: list[Run]) -> tuple[str, ...]:
    whole = [answer for run in runs for answer in run.answers if answer.is_whole]
    first = [answer.first_token_seconds for answer in whole]
    each = [answer.token_seconds for answer in whole]
    gaps = [b - a for answer in whole for a, b in itertools.pairwise(answer.arrivals)]
    steps = sum(answer.usage["draft"]["target_passes"] for answer in whole)
    tokens = sum(answer.num_tokens - 1 for answer in whole)
    return (
        name,
        f"{statistics.median(run.rate for run in runs):.1f}",
        *(milliseconds(percentile(values, share)) for values in (first, each) for share in (0.5, 0.9, 0.99)),
        milliseconds(percentile(gaps, 0.99)),
        f"{tokens / steps:.2f}",
    )


async def _measure_crowds(report: Report, subject: Sequence[str], rounds: int) -> None:
    """Many more at once than the server has places for."""
    options = ("--slots", str(CROWD_SLOTS), "--queue", str(CROWD_QUEUE), "--context", "2048")
    with serving(subject, *options) as served:
        await closed_loop(served, 4, 8, first=10**6)
        crowds = [await _crowd(served.url, CROWD * number) for number in range(rounds)]
        rest = await served.seconds_to_rest()
    refused = [[a.answered - a.sent for a in answers if a.status == 429] for answers in crowds]
    kept = [[a for a in answers if a.status != 429] for answers in crowds]
    slowest = max(max(delays, default=0.0) for delays in refused)
    hasty = all("retry-after" in a.headers for answers in crowds for a in answers if a.status == 429)
    report.claim(
        f"{CROWD} at once on {CROWD_SLOTS} slots and a queue of {CROWD_QUEUE}: the excess is refused within 100 ms",
        f"{sum(map(len, refused))} refused, the slowest after {1e3 * slowest:.1f} ms",
        all(refused) and slowest <= 0.1 and hasty,
    )
    finished = sum(a.is_whole for answers in kept for a in answers)
    enough = all(len(answers) >= CROWD_SLOTS + CROWD_QUEUE for answers in kept)
    report.claim("the rest finish", f"{finished} of {sum(map(len, kept))}", enough and finished == sum(map(len, kept)))
    report.claim("at rest within 2 s afterwards", f"{rest:.2f} s", rest < 2)
    report.tables["Crowds: refusals in ms, seconds until the last answer"] = Table(
        ("round", "refused", "p50", "p99", "slowest", "answered", "last"),
        tuple(
            (
                str(number),
                str(len(delays)),
                *(milliseconds(percentile(delays, share)) for share in (0.5, 0.99, 1.0)),
                str(len(answers)),
                f"{max(a.arrivals[-1] - a.sent for a in answers if a.is_whole):.2f}",
            )
            for number, (delays, answers) in enumerate(zip(refused, kept, strict=True), start=1)
        ),
    )


async def _crowd(url: str, first: int) -> list[Answer]:
    """Sends all requests over connections that are open already, and returns the answers."""
    wires = [await connect(url) for _ in range(CROWD)]
    bodies = [request_bytes(chat(first + number, max_tokens=MAX_TOKENS)) for number in range(CROWD)]

    async def one(number: int) -> Answer:
        reader, writer = wires[number]
        answer = Answer(time.perf_counter())
        writer.write(bodies[number])
        try:
            await read_answer(reader, answer)
        except (OSError, EOFError, ValueError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        writer.close()
        return answer

    return await asyncio.gather(*map(one, range(CROWD)))
