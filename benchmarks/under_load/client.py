"""A client that costs little: on a small machine it shares the cores with the server that it measures.

In: a request's body. Out: the answer with the times at which its pieces arrived. It reads HTTP/1.1 by lines, which is
all that answers and streams need, and leaves in every way in which clients leave.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
_EVENT = b"data: "
_DONE = b"data: [DONE]"
_LIMIT = 2**24  # longest line of an answer

Body = Mapping[str, Any]


@dataclass(slots=True)
class Answer:
    """One answer, or what came instead. Times are those of `time.perf_counter`.

    Args:
        status: 0 where there was none.
        arrivals: when events with text came; of an answer in one piece, when it came.
        usage: what the server says it cost.
        error: why there is no whole answer.
    """

    sent: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    answered: float = 0.0  # when the status came
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        return int(self.usage.get("completion_tokens", 0))

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self.error is None and self.finish is not None

    @property
    def first_token_seconds(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def token_seconds(self) -> float:
        """Seconds per token after the first."""
        return (self.arrivals[-1] - self.arrivals[0]) / max(self.num_tokens - 1, 1)


def request_bytes(body: Body | bytes, path: str = CHAT) -> bytes:
    """Returns a POST request as it stands on the wire; bytes are sent as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


def streamed(body: Body) -> Body:
    """Returns a request for a stream that ends with its usage."""
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a connection to the server."""
    place = urlsplit(url)
    return await asyncio.open_connection(place.hostname, place.port, limit=_LIMIT)


async def ask(url: str, body: Body | bytes, timeout: float = 120.0) -> Answer:
    """Returns the server's answer, whatever it is."""
    answer = Answer(time.perf_counter())
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await connect(url)
            try:
                writer.write(request_bytes(body))
                await read_answer(reader, answer)
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    return answer


async def read_answer(reader: asyncio.StreamReader, answer: Answer) -> None:
    """Fills in `answer` from a connection on which a request was sent."""
    line = await reader.readline()
    answer.answered = time.perf_counter()
    if not line:
        raise EOFError("the server closed the connection without an answer")
    answer.status = int(line.split()[1])
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().partition(":")
        answer.headers[name.lower()] = value.strip()
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        await _read_events(reader, answer)
    else:
        content = await reader.readexactly(int(answer.headers["content-length"]))
        answer.arrivals.append(time.perf_counter())
        _read_whole(json.loads(content), answer)


async def _read_events(reader: asyncio.StreamReader, answer: Answer) -> None:
    """Takes the times first and reads the events when all are there, so that reading delays nobody."""
    lines: list[tuple[float, bytes]] = []
    while (line := await reader.readline()) and not line.startswith(_DONE):
        if line.startswith(_EVENT):
            lines.append((time.perf_counter(), line))
    if not line:
        answer.error = "the stream ended without [DONE]"
    for arrived, event in lines:
        content = json.loads(event[len(_EVENT) :])
        if "error" in content:
            answer.error = content["error"]["message"]
            return
        answer.usage = content.get("usage") or answer.usage
        for choice in content["choices"]:
            answer.finish = choice["finish_reason"] or answer.finish
            if text := choice["delta"].get("content"):
                answer.text += text
                answer.arrivals.append(arrived)


def _read_whole(content: Any, answer: Answer) -> None:
    if answer.status != 200:
        answer.error = content["error"]["message"]
        return
    choice = content["choices"][0]
    answer.text, answer.finish, answer.usage = choice["message"]["content"], choice["finish_reason"], content["usage"]


def reset(writer: asyncio.StreamWriter) -> None:
    """Closes a connection by RST."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def ask_and_leave(url: str, body: Body, seconds: float, *, by_reset: bool) -> None:
    """Sends a whole request and leaves after `seconds`, by FIN or by RST, wherever the answer stands then."""
    _, writer = await connect(url)
    writer.write(request_bytes(body))
    await writer.drain()
    await asyncio.sleep(seconds)
    if by_reset:
        reset(writer)
    else:
        writer.close()
