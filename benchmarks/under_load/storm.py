"""Clients that misbehave: 500 that leave, some that are killed, some that dawdle, and some that send nonsense.

In: a model. Out: a report. After each kind the server must be at rest within two seconds and still write the text that
it wrote before; meanwhile well-behaved clients are answered.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from draftgraph.bench.tables import Table
from under_load.client import Answer, ask, ask_and_leave, connect, request_bytes, streamed
from under_load.report import Report, percentile
from under_load.server import Served, serving
from under_load.traffic import BAD_ROUNDS, CANARY, bad_bodies, chat, fill_memory, long_stream

_SERVER = (
    "--slots", "8", "--queue", "64", "--context", "1024", "--kv-tokens", "4096",
    "--time-limit", "20", "--body-seconds", "5",
)  # fmt: skip
_CANCELS, _TOGETHER, _DELAYS = 500, 32, (0.0, 0.1, 0.5)
_VICTIMS, _STREAMS_EACH = 6, 4
_DAWDLERS, _GOOD_CLIENTS, _GOOD_SECONDS = 51, 4, 15.0
_RISE = 8 * 2**20  # bytes of resident memory that a storm may leave behind


async def measure(subject: Sequence[str]) -> Report:
    """Returns the report on one storm of each kind."""
    report = Report("storm", {"subject": subject, "server": _SERVER})
    with serving(subject, *_SERVER) as served:
        fresh = served.process().resident_bytes
        await fill_memory(served.url)
        canary = (await ask(served.url, CANARY)).text
        before = served.process()
        rows = [
            ("none yet", "the cache filled, the longest bodies once", "", _megabytes(before.resident_bytes - fresh))
        ]
        for name, storm in _STORMS.items():
            memory = served.process().resident_bytes
            measured = await storm(served, report)
            rest = await served.seconds_to_rest()
            alive = await served.is_healthy() and (await ask(served.url, CANARY)).text == canary
            report.claim(f"{name}: alive, the same canary, at rest within 2 s", f"{rest:.2f} s", alive and rest < 2)
            rise = served.process().resident_bytes - memory
            rows.append((name, measured, f"{rest:.2f}", _megabytes(rise)))
        after, errors = served.process(), served.logged_errors()
    rise = after.resident_bytes - before.resident_bytes
    report.claim("resident memory rises by at most 8 MB", f"{_megabytes(rise)} MB", rise <= _RISE)
    counts = f"{after.threads - before.threads:+d} threads, {after.descriptors - before.descriptors:+d} descriptors"
    report.claim("no descriptor is left open", counts, after.descriptors <= before.descriptors)
    report.claim("no error is logged", f"{len(errors)} {errors[:1]}", not errors)
    report.tables["Storms"] = Table(("storm", "what happened", "at rest after s", "memory MB"), tuple(rows))
    return report


def _megabytes(rise: float) -> str:
    return f"{rise / 2**20:+.1f}"


async def _cancels(served: Served, report: Report) -> str:
    """500 clients that leave 0, 0.1 or 0.5 s after their request was sent, by FIN and by RST, streaming and not."""
    ease = await _first_token_seconds(served)
    kinds = itertools.cycle(itertools.product(_DELAYS, (True, False), (True, False)))
    orders = list(enumerate(itertools.islice(kinds, _CANCELS)))
    room = asyncio.Semaphore(_TOGETHER)

    async def one(number: int, seconds: float, by_reset: bool, stream: bool) -> None:
        async with room:
            await ask_and_leave(served.url, {**long_stream(number), "stream": stream}, seconds, by_reset=by_reset)

    await asyncio.gather(*(one(number, *kind) for number, kind in orders))
    rest = await served.seconds_to_rest()
    after = await _first_token_seconds(served)
    report.claim(f"{_CANCELS} cancels: at rest within 2 s", f"{rest:.2f} s", rest < 2)
    report.claim(
        "the next first tokens take at most 20% longer",
        f"{1e3 * after:.1f} ms after {1e3 * ease:.1f} ms, medians of ten",
        after <= 1.2 * ease,
    )
    texts = (await served.metrics())["texts_total"]
    return f"{_CANCELS} left; {texts:.0f} texts ended so far"


async def _first_token_seconds(served: Served) -> float:
    number = itertools.count(int(time.time() * 1000))
    answers = [await ask(served.url, streamed(chat(next(number), max_tokens=4))) for _ in range(10)]
    return statistics.median(answer.first_token_seconds for answer in answers)


async def _kills(served: Served, report: Report) -> str:
    """Client processes that are killed with kill -9 in the middle of their streams."""
    command = (sys.executable, "-m", "under_load.victim", served.url, str(_STREAMS_EACH))
    folder = Path(__file__).parent.parent
    victims = [
        await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=folder)
        for _ in range(_VICTIMS)
    ]
    for victim in victims:
        assert victim.stdout is not None, "asked for above"
        await victim.stdout.readline()
    running = (await served.metrics())["requests_running"]
    for victim in victims:
        victim.kill()
    rest = await served.seconds_to_rest()
    await asyncio.gather(*(victim.wait() for victim in victims))
    report.claim(
        "kill -9 of clients: at rest within 2 s", f"{rest:.2f} s, {running:.0f} ran before", rest < 2 and running > 1
    )
    return f"{_VICTIMS} processes with {_STREAMS_EACH} streams each"


async def _dawdle(served: Served, report: Report) -> str:
    """Clients that send a byte a second, half a body, or read nothing, beside good ones."""
    alone = await _good_seconds(served, 10**7)
    closed: list[float] = []
    kinds: list[Callable[[str], Coroutine[Any, Any, None]]] = [_slow_head, _half_body, _reads_nothing]

    async def one(dawdler: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        started = time.perf_counter()
        await dawdler(served.url)
        closed.append(time.perf_counter() - started)

    tasks = [asyncio.create_task(one(kinds[number % len(kinds)])) for number in range(_DAWDLERS)]
    await asyncio.sleep(1)  # some of them are written to first, as anyone would be
    await served.seconds_to_rest()
    beside = await _good_seconds(served, 2 * 10**7)
    await asyncio.wait(tasks, timeout=30)
    p99 = percentile(beside, 0.99), percentile(alone, 0.99)
    report.claim(
        f"{_DAWDLERS} slow clients: the p99 of {_GOOD_CLIENTS} good ones is within 1.5 x",
        f"{p99[0]:.2f} s of {len(beside)}, alone {p99[1]:.2f} s of {len(alone)}",
        p99[0] <= 1.5 * p99[1],
    )
    ended = sum(task.done() for task in tasks)
    report.claim("slow clients are cut off", f"{ended} of {len(tasks)}, the last after {max(closed, default=0):.1f} s",
                 ended == len(tasks))  # fmt: skip
    for task in tasks:
        task.cancel()
    return f"{_DAWDLERS} slow ones, {len(beside)} good answers beside them"


async def _good_seconds(served: Served, first: int) -> list[float]:
    """Returns how long each answer took that good clients got in some seconds."""
    numbers = itertools.count(first)
    deadline = time.perf_counter() + _GOOD_SECONDS
    seconds: list[float] = []

    async def good() -> None:
        while time.perf_counter() < deadline:
            answer = await ask(served.url, streamed(chat(next(numbers), max_tokens=32)))
            seconds.append(answer.arrivals[-1] - answer.sent if answer.is_whole else float("inf"))

    await asyncio.gather(*(good() for _ in range(_GOOD_CLIENTS)))
    return seconds


async def _slow_head(url: str) -> None:
    """Sends a byte of the head a second until the server closes."""
    reader, writer = await connect(url)
    for byte in itertools.chain(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", itertools.repeat(ord("a"))):
        try:
            writer.write(bytes((byte,)))
            await asyncio.wait_for(reader.read(1), 1)
        except TimeoutError:
            continue
        except OSError:
            pass
        break
    writer.close()


async def _half_body(url: str) -> None:
    """Sends a part of the body and waits until the server closes."""
    reader, writer = await connect(url)
    writer.write(request_bytes(CANARY)[:-20])
    await reader.read()
    writer.close()


async def _reads_nothing(url: str) -> None:
    """Asks for a stream, reads 4 kB of it, and the rest much later."""
    place = urlsplit(url)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, (place.hostname, place.port))
        await loop.sock_sendall(connection, request_bytes(chat(7, max_tokens=100, stream=True)))
        await loop.sock_recv(connection, 4096)
        await asyncio.sleep(_GOOD_SECONDS)
        while await loop.sock_recv(connection, 2**16):
            pass


async def _nonsense(served: Served, report: Report) -> str:
    """Every bad body several times, all at once, beside good clients."""
    bodies = bad_bodies() * BAD_ROUNDS
    good = asyncio.create_task(_good_seconds(served, 3 * 10**7))
    started = time.perf_counter()
    answers: list[Answer] = await asyncio.gather(*(ask(served.url, body, timeout=30) for body in bodies))
    took = time.perf_counter() - started
    wrong = [f"{body[:60]!r}… {answer.status} {answer.error}" for body, answer in zip(bodies, answers, strict=True)
             if not 400 <= answer.status < 500]  # fmt: skip
    report.claim(
        f"{len(bodies)} bad bodies: each a 4xx within 10 s", f"{len(wrong)} not, all in {took:.2f} s {wrong[:1]}",
        not wrong and took < 10,
    )  # fmt: skip
    failed = sum(seconds == float("inf") for seconds in await good)
    report.claim("good clients are answered meanwhile", f"{failed} failed", not failed)
    return f"{len(bodies)} bad bodies"


_STORMS: dict[str, Callable[[Served, Report], Coroutine[Any, Any, str]]] = {
    "cancels": _cancels,
    "kills": _kills,
    "slow clients": _dawdle,
    "nonsense": _nonsense,
}
