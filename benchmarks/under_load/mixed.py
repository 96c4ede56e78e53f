"""Sixteen different requests together, two more that leave: every text is the one that is written alone.

In: a model. Out: a report. The texts alone come from the same server, once as asked and once without drafts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from draftgraph.bench.tables import Table
from under_load.client import Answer, ask, connect, request_bytes, streamed
from under_load.report import Report
from under_load.server import Served, serving
from under_load.traffic import long_stream, mixed

# What the server is started with: a slot for everyone; and few slots and little memory, so that requests wait for
# both and lose their slots again.
SERVERS = {
    "a slot each": ("--slots", "18", "--queue", "18", "--context", "1024"),
    "6 slots, 512 tokens of memory": ("--slots", "6", "--queue", "18", "--context", "512", "--kv-tokens", "512"),
}
_EVENTS_UNTIL_LEAVING = 40  # lines of the stream that those who leave read before


async def measure(subject: Sequence[str], rounds: int) -> Report:
    """Returns the report on `rounds` rounds for each server."""
    report = Report("mixed", {"subject": subject, "rounds": rounds, "servers": SERVERS})
    bodies = mixed()
    for name, options in SERVERS.items():
        with serving(subject, *options) as served:
            alone = [await ask(served.url, body) for body in bodies]
            plain = [await ask(served.url, {**body, "draft": "off"}) for body in bodies]
            together = [await _together(served, bodies) for _ in range(rounds)]
            rest = await served.seconds_to_rest()
            errors = served.logged_errors()
        _judge(report, name, alone, plain, together)
        report.claim(
            f"{name}: at rest within 2 s", f"{rest:.2f} s, {len(errors)} errors logged", rest < 2 and not errors
        )
        report.tables[name] = _table(bodies, alone, together)
    return report


async def _together(served: Served, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """Asks all at once, every second one as a stream, with two more that leave in the middle of theirs."""
    leaving = [asyncio.create_task(_leave(served.url, number)) for number in (900, 901)]
    answers = await asyncio.gather(
        *(ask(served.url, streamed(body) if number % 2 else body) for number, body in enumerate(bodies))
    )
    await asyncio.gather(*leaving)
    return answers


async def _leave(url: str, number: int) -> None:
    reader, writer = await connect(url)
    writer.write(request_bytes(long_stream(number)))
    for _ in range(_EVENTS_UNTIL_LEAVING):
        await reader.readline()
    writer.close()


def _judge(report: Report, name: str, alone: list[Answer], plain: list[Answer], together: list[list[Answer]]) -> None:
    texts = sum(len(answers) for answers in together)
    equal = sum(_same(one, other) for answers in together for one, other in zip(alone, answers, strict=True))
    undrafted = sum(_same(one, other) for one, other in zip(alone, plain, strict=True))
    report.claim(f"{name}: each text equals its solo run", f"{equal} of {texts}", equal == texts)
    report.claim(
        f"{name}: solo runs with and without drafts are equal", f"{undrafted} of {len(alone)}", undrafted == len(alone)
    )


def _same(one: Answer, other: Answer) -> bool:
    return one.is_whole and other.is_whole and _outcome(one) == _outcome(other)


def _outcome(answer: Answer) -> tuple[str, str | None, int]:
    return answer.text, answer.finish, answer.num_tokens


def _table(bodies: Sequence[dict[str, Any]], alone: list[Answer], together: list[list[Answer]]) -> Table:
    rows = []
    for number, (body, one) in enumerate(zip(bodies, alone, strict=True)):
        others = [answers[number] for answers in together]
        rows.append(
            (
                str(number),
                str(body["temperature"]),
                str(one.num_tokens),
                str(one.finish),
                str(sum(int(other.usage.get("draft", {}).get("preemptions", 0)) for other in others)),
                f"{sum(_same(one, other) for other in others)}/{len(others)}",
            )
        )
    return Table(("request", "temperature", "tokens", "finish", "preemptions", "equal"), tuple(rows))
