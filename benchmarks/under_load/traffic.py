"""What the server is asked: prompts of `benchmarks/prompts.jsonl`, made into as many different requests as needed.

In: a number. Out: the body of that request, always the same. And what fills a server's memory before it is watched.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from draftgraph.data import read_prompts
from under_load.client import Body, ask

_PROMPTS = [prompt.text for prompt in read_prompts(Path(__file__).parent.parent / "prompts.jsonl")]
_NUM_MIXED = 16
BAD_ROUNDS = 3  # how often each bad body is sent, all at once
CANARY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 12, "temperature": 0, "seed": 0,
}  # fmt: skip


def chat(number: int, **options: Any) -> dict[str, Any]:
    """Returns a chat whose text begins with its number, so that no two share more than the template's first words."""
    prompt = f"Request {number}. {_PROMPTS[number % len(_PROMPTS)]}"
    return {"messages": [{"role": "user", "content": prompt}], "seed": number, **options}


def mixed() -> list[dict[str, Any]]:
    """Returns sixteen requests: greedy and sampled, short and long, with stop strings, penalties, and filters."""
    return [
        chat(
            number,
            max_tokens=(6, 40, 120, 240)[number % 4],
            temperature=(0.0, 0.8, 1.3)[number % 3],
            **({"stop": [".", " the "]} if number % 5 == 0 else {}),
            **({"repetition_penalty": 1.2, "top_k": 40} if number % 7 == 1 else {}),
            **({"top_p": 0.9, "presence_penalty": 0.5} if number % 7 == 3 else {}),
        )
        for number in range(_NUM_MIXED)
    ]


def long_stream(number: int) -> dict[str, Any]:
    """Returns a request that takes far longer than anyone here waits for it."""
    return chat(number, max_tokens=900, ignore_eos=True, stream=True)


def anything(draw: random.Random) -> dict[str, Any]:
    """Returns a request as it may come."""
    return chat(
        draw.randrange(10**6),
        max_tokens=draw.choice((4, 16, 32, 96)),
        temperature=draw.choice((0.0, 0.7, 1.2)),
        **({"stop": ["."]} if draw.random() < 0.2 else {}),
        **({"draft": "off"} if draw.random() < 0.1 else {}),
    )


def bad_bodies() -> list[bytes]:
    """Returns bodies that no server should answer: not numbers, too deep, too long, not text, not allowed."""
    head, tail = b'{"messages":[{"role":"user","content":"Hi"}],', b"}"
    fields = [
        b'"temperature":NaN', b'"temperature":1e999', b'"temperature":-Infinity', b'"temperature":-1', b'"top_p":0',
        b'"max_tokens":0', b'"max_tokens":1e3', b'"max_tokens":' + b"9" * 5000, b'"seed":-1', b'"n":100000',
        b'"stop":[' + b",".join([b'"a"'] * 1000) + b"]", b'"logit_bias":{"1":1e9}', b'"nothing":1',
        b'"seed":1,"seed":2',
        b'"user":"\\ud800"', b'"user":"\xff\xfe"', b'"stop":"' + b"x" * 10**6 + b'"',
        b'"user":' + b"[" * 10**5 + b"]" * 10**5, b'"logit_bias":' + b'{"1":' * 5000 + b"1" + b"}" * 5000,
    ]  # fmt: skip
    longest = b'{"messages":[{"role":"user","content":"' + b"word " * 10**5 + b'"}]}'
    return [
        *(head + field + tail for field in fields),
        longest,
        b'{"messages":[{"role":"user","content":"' + b"x" * 2**21 + b'"}]}',
        b'{"messages":' + b'[{"role":"user","content":"Hi"}]' * 2,
        b"",
        b"\0" * 1000,
        b"[" * 10**6,
        b"nothing of JSON",
        b"null",
    ]


async def fill_memory(url: str) -> None:
    """Asks until all of a small key-value cache was used, and as much memory for long texts as there can be at once.

    The system keeps both for the process, so what is new later is neither. Few chats at a time: none is refused; bad
    bodies as many at once as there will be in the storm.
    """
    room = asyncio.Semaphore(8)

    async def one(body: Body | bytes) -> None:
        async with room:
            await ask(url, body)

    bodies: list[Body | bytes] = [chat(10**6 + number, max_tokens=300, ignore_eos=True) for number in range(16)]
    longest = max(bad_bodies(), key=lambda body: body.count(b" "))
    await asyncio.gather(*map(one, [*bodies, *[longest] * 8]))
    await asyncio.gather(*(ask(url, body) for body in bad_bodies() * BAD_ROUNDS))
