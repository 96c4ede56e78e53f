"""Connections that take without giving: clients that never read, too many of them, bodies in crumbs, two lengths."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftgraph.config import ServerConfig
from draftgraph.server.connections import HEAD_SECONDS, Connections
from support.heartbeat import MOST, heartbeat, longest_hold
from support.serving import TEXT, Serving, raw, request_bytes, serving, wait_for

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
DOCUMENT = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
SEND_SECONDS = 1.0


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[Serving]:
    with serving(model_path, slots=2, server={"queue": 32, "send_seconds": SEND_SECONDS}) as running:
        yield running


def connect(running: Serving) -> socket.socket:
    """Returns a connection whose kernel holds few bytes that nobody has read."""
    host, _, port = running.url.removeprefix("http://").partition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect((host, int(port)))
    return connection


def num_open(running: Serving) -> int:
    return len(running.server.server_state.connections)


def test_clients_that_send_ahead_and_never_read_are_gone_soon(running: Serving) -> None:
    """However little each has asked for: it is paused for writing, or idle, with bytes that nobody takes."""
    with contextlib.ExitStack() as stack:
        for number in range(20):
            connection = stack.enter_context(connect(running))
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.sendall(DOCUMENT * 2_000 if number % 2 else HEALTH * 100)
        wait_for(lambda: num_open(running) >= 20)
        with running.http() as client:  # everybody else is answered
            assert client.get("/health").status_code == 200
        wait_for(lambda: num_open(running) == 0, SEND_SECONDS + HEAD_SECONDS + 3)


def test_a_client_that_leaves_the_last_bytes_unread_is_gone_soon(running: Serving) -> None:
    """The server would close the connection, and wait for ever for the client to take the rest first."""
    with connect(running) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(DOCUMENT * 200 + HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        wait_for(lambda: num_open(running) == 1)
        wait_for(lambda: num_open(running) == 0, SEND_SECONDS + 6)


def test_a_stream_that_nobody_reads_ends_and_frees_its_place(running: Serving) -> None:
    order = {"prompt": "Once", "max_tokens": 1_900, "ignore_eos": True, "stream": True, "logprobs": 20, "n": 8}
    with connect(running) as connection:
        connection.sendall(request_bytes(TEXT, order))
        wait_for(lambda: running.server._service.engine.num_reserved > 0)
        wait_for(lambda: num_open(running) == 0, 60)
    running.assert_idle(5)


def test_a_slow_reader_is_not_cut(running: Serving) -> None:
    """It takes some bytes a second, far fewer than are written, for several times as long as a stalled one may."""
    with connect(running) as connection:
        connection.sendall(DOCUMENT * 200)
        deadline = time.monotonic() + 5 * SEND_SECONDS
        while time.monotonic() < deadline:
            assert connection.recv(3_000)
            time.sleep(SEND_SECONDS / 5)
        assert num_open(running) == 1
    wait_for(lambda: num_open(running) == 0)


def test_above_the_cap_connections_are_refused_at_once_and_said_so(
    model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="draftgraph.server")
    with serving(model_path, server={"max_connections": 4, "max_connections_each": 3}) as running:
        with contextlib.ExitStack() as stack:
            taken = [stack.enter_context(raw(running.url, b"")) for _ in range(3)]
            wait_for(lambda: num_open(running) == 3)
            with raw(running.url, b"") as refused, refused.makefile("rb") as answer:
                head, _, content = answer.read().partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"Connection: close" in head
            assert content == b"too many connections; try again soon\n"
            assert "3 are open from 127.0.0.1" in caplog.text
            taken[0].sendall(HEALTH)
            assert taken[0].recv(2**16).startswith(b"HTTP/1.1 200")
        wait_for(lambda: num_open(running) == 0)
        with raw(running.url, HEALTH) as again:
            assert again.recv(2**16).startswith(b"HTTP/1.1 200")


def test_connections_are_counted_in_all_and_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = Connections(ServerConfig(max_connections=3, max_connections_each=2))
    assert [connections.enter("a") for _ in range(3)] == [True, True, False]
    assert [connections.enter("b") for _ in range(2)] == [True, False]
    connections.leave("a")
    assert connections.enter("b")
    assert not connections.enter("b")
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    few = Connections(ServerConfig(max_connections_each=1_000))
    assert [few.enter("a") for _ in range(40)] == [True] * 30 + [False] * 10


CRUMBS = (
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def test_a_body_in_crumbs_does_not_hold_up_the_loop(running: Serving) -> None:
    """Each chunk has its price, and the wire has room for forty thousand in one read."""
    body = b'{"prompt":"' + b"a" * 150_000 + b'"}'
    sent = CRUMBS + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"

    def send() -> bytes:
        with raw(running.url, sent) as connection:
            return connection.recv(2**16)

    held, answer = longest_hold(heartbeat(running), send)
    assert answer.startswith(b"HTTP/1.1 200")
    assert held < MOST


SMUGGLED = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "fields",
    [
        "Content-Length: 6\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 6",
        "transfer-encoding: Chunked\r\ncontent-length: 6", "Content-Length: 6\r\nContent-Length: 7",
        "Content-Length: 6, 7", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: identity", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: \x0bchunked", "Transfer-Encoding : chunked", "Content-Length : 6", "Content-Length: +6",
        "Content-Length: 0x6", "Content-Length: -6", "Content-Length: ", "Host: localhost\r\nContent-Length: 6",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/tokenize", "/health", "/nothing"])
def test_a_body_that_ends_in_two_places_is_refused_and_nothing_behind_it_is_read(
    running: Serving, fields: str, path: str
) -> None:
    """A proxy that takes the other length would take the rest for the next client's request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{fields}\r\n\r\n"
    with raw(running.url, head.encode() + SMUGGLED) as connection, connection.makefile("rb") as answer:
        read = answer.read()
    assert read.startswith(b"HTTP/1.1 400")
    assert read.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in read.lower()


def test_chunks_are_of_http_1_1(running: Serving) -> None:
    with raw(running.url, CRUMBS.replace(b"HTTP/1.1", b"HTTP/1.0") + SMUGGLED) as connection:
        answer = connection.recv(2**16)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"transfer-encoding with HTTP/1.0" in answer
