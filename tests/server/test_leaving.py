"""Clients that leave, in every way and at every stage: what they held is free within two seconds."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.serving import CHAT, TEXT, Serving, raw, request_bytes, serving, wait_for

LONG = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1_900, "ignore_eos": True}


@pytest.fixture(scope="module")
def slow(model_path: Path) -> Iterator[Serving]:
    """Four slots; a long answer takes far longer than any test waits."""
    with serving(model_path, slots=4, server={"queue": 20}, draft="off") as running:
        running.brake.seconds = 0.01
        yield running


def reset(connection: socket.socket) -> None:
    """Closes a connection by RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


LEAVE = {"fin": socket.socket.close, "rst": reset}


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE.keys())
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_its_answer_is_written(slow: Serving, leave: object, stream: bool) -> None:
    """D-BA-06: twenty at once on four slots, so that most leave while they wait."""
    cancelled = slow.metric("texts_total", reason="cancelled")
    connections = [raw(slow.url, request_bytes(CHAT, {**LONG, "stream": stream})) for _ in range(20)]
    wait_for(lambda: slow.metric("requests_running") == 4 and slow.metric("requests_waiting") == 16)
    if stream:
        with connections[0].makefile("rb") as answer:
            assert any(line.startswith(b"data: ") for line in answer)
    for connection in connections:
        leave(connection)  # type: ignore[operator]
    slow.assert_idle()
    assert slow.metric("texts_total", reason="cancelled") == cancelled + 20


def test_leaving_takes_one_step(slow: Serving) -> None:
    written = slow.metric("generated_tokens_total")
    connection = raw(slow.url, request_bytes(TEXT, {"prompt": "a", "max_tokens": 1_900, "ignore_eos": True}))
    wait_for(lambda: slow.metric("generated_tokens_total") >= written + 3)
    connection.close()
    wait_for(slow.is_idle)
    assert slow.metric("generated_tokens_total") < written + 100


def test_a_client_that_leaves_before_its_body_is_whole(slow: Serving) -> None:
    whole = request_bytes(CHAT, LONG)
    for cut in (10, len(whole) - 60, len(whole) - 1):
        raw(slow.url, whole[:cut]).close()
    slow.assert_idle()


def test_one_of_several_choices_left_over_is_cancelled_with_the_rest(slow: Serving) -> None:
    connection = raw(slow.url, request_bytes(CHAT, {**LONG, "n": 4, "stream": True}))
    wait_for(lambda: slow.metric("requests_running") == 4)
    connection.close()
    slow.assert_idle()


def test_an_answer_nobody_waits_for_ends_at_the_time_limit(model_path: Path) -> None:
    with serving(model_path, server={"time_limit": 0.5}) as running:
        running.brake.seconds = 0.01
        answer = running.post(CHAT, LONG)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "time_limit"
        with running.http() as client:
            lines = client.post(CHAT, json={**LONG, "stream": True}).text.split("\n\n")
        assert '"code":"time_limit"' in lines[-2]
        assert "[DONE]" not in lines[-2]


def test_a_client_that_reads_nothing_is_given_up(model_path: Path) -> None:
    """Two megabytes wait for it: what it holds ends with the time limit, and the others notice nothing."""
    with serving(model_path, server={"time_limit": 2.0}, draft="off") as running, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", int(running.url.rpartition(":")[2])))
        connection.sendall(request_bytes(CHAT, {**LONG, "stream": True, "n": 8}))
        wait_for(lambda: running.metric("generated_tokens_total") > 1_000)
        wait_for(lambda: not running.server.server_state.tasks, 8)
        running.assert_idle()


def test_slow_bodies_are_cut_off(model_path: Path) -> None:
    with serving(model_path, server={"body_seconds": 0.3}) as running:
        with raw(running.url, request_bytes(CHAT, LONG)[:-5]) as connection:
            assert connection.recv(4096).startswith(b"HTTP/1.1 408")
        running.assert_idle()


BEGUN = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("sent", [b"", BEGUN])
def test_connections_without_the_head_of_a_request_are_closed(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, answered: bool, sent: bytes
) -> None:
    """However slowly it trickles in; nothing sent, or a head begun, also after an answer. Others are answered."""
    monkeypatch.setattr("draftgraph.server.connections.HEAD_SECONDS", 1)
    with serving(model_path) as running, raw(running.url, b"") as connection:
        if answered:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(sent)
        connection.settimeout(0.1)
        started = time.monotonic()
        while time.monotonic() - started < 5:
            try:
                if sent:
                    connection.sendall(b"a")
                if not connection.recv(4096):
                    break
            except TimeoutError:
                pass
            except ConnectionError:
                break
        assert 0.5 < time.monotonic() - started < 3
        running.assert_idle()
