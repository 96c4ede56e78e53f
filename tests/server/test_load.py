"""More requests than places, and many different ones together: the excess is refused at once, the rest is exact."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from draftgraph import LLM
from support.serving import TEXT, Serving, error_of, raw, read_events, request_bytes, serving, wait_for

LONG = {"prompt": "Once", "max_tokens": 1_900, "ignore_eos": True}


@pytest.fixture(scope="module")
def small(model_path: Path) -> Iterator[Serving]:
    with serving(model_path, slots=2, server={"queue": 3}) as running:
        yield running


def test_more_than_fit_are_refused_at_once(small: Serving) -> None:
    """D-SV-17: two run, three wait, the rest is told to come back; those that were taken finish."""
    with ThreadPoolExecutor(5) as pool, small.brake.held():
        taken = [pool.submit(small.post, TEXT, {"prompt": "Once", "max_tokens": 20}) for _ in range(5)]
        wait_for(lambda: small.server._service.engine.num_reserved == 5)
        delays, bodies = [], ({"prompt": "a"}, {"prompt": "a", "stream": True}, {"prompt": "a", "n": 2})
        for body in bodies * 10:
            started = time.perf_counter()
            answer = small.post(TEXT, body)
            delays.append(time.perf_counter() - started)
            assert error_of(answer, 429)["type"] == "rate_limit_error"
            assert int(answer.headers["retry-after"]) >= 1
        with small.http() as client:  # before the body is even looked at
            error_of(client.post(TEXT, content=b"{", headers={"content-type": "application/json"}), 429)
        small.brake.release()
        assert [job.result().json()["usage"]["completion_tokens"] for job in taken] == [20] * 5
    assert min(delays) < 0.1  # the others too, where nothing else runs on this machine
    small.assert_idle()


def test_of_many_in_one_moment_the_excess_is_refused_unread(small: Serving) -> None:
    """All arrive before the first of them is in the engine; what is refused costs no look at its body."""
    service, app = small.server._service, small.server.config.app
    bodies = [b'{"prompt": "Once", "max_tokens": 4}'] * 5 + [b"{"] * 5

    async def send() -> list[int]:
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"content-type": "application/json"}
            answers = await asyncio.gather(*(client.post(TEXT, content=body, headers=headers) for body in bodies))
        return [answer.status_code for answer in answers]

    with small.brake.held():
        assert service.engine._loop is not None
        statuses = asyncio.run_coroutine_threadsafe(send(), service.engine._loop)
        wait_for(lambda: service.engine.num_reserved == 5)
        small.brake.release()
        assert statuses.result(20) == [200] * 5 + [429] * 5
    small.assert_idle()


def test_a_request_for_more_texts_than_places_left_is_refused(small: Serving) -> None:
    with ThreadPoolExecutor(1) as pool, small.brake.held():
        taken = pool.submit(small.post, TEXT, {"prompt": "Once", "max_tokens": 5, "n": 4})
        wait_for(lambda: small.server._service.engine.num_reserved == 4)
        error_of(small.post(TEXT, {"prompt": ["a", "b"]}), 429)
        small.brake.release()
        assert len(taken.result().json()["choices"]) == 4
    small.assert_idle()


def test_a_refused_request_takes_no_place(small: Serving) -> None:
    for _ in range(10):
        error_of(small.post(TEXT, {"prompt": [10**6]}), 400)
        error_of(small.post(TEXT, {"prompt": "a", "n": 6}), 400)
    small.assert_idle()


def test_texts_are_encoded_two_at_a_time(small: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a long text takes of memory meanwhile is taken twice at most, whoever asks for what."""
    busy = most = 0
    lock = threading.Lock()

    def encode(*_: Any) -> list[int]:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(0.05)
        with lock:
            busy -= 1
        return [1, 2]

    monkeypatch.setattr("draftgraph.server.routes.encode", encode)
    orders = [("/tokenize", {"prompt": "a"}), (TEXT, {"prompt": "a", "max_tokens": 1})] * 4
    with ThreadPoolExecutor(len(orders)) as pool:
        answers = list(pool.map(lambda order: small.post(*order), orders))
    assert {answer.status_code for answer in answers} == {200}
    assert most == 2
    monkeypatch.undo()
    small.assert_idle()


def test_two_hundred_at_once(model_path: Path) -> None:
    """Row 12 of the plan, once: four slots, a queue of eight; each is either answered whole or refused."""
    with serving(model_path, slots=4, server={"queue": 8}) as running:
        running.brake.hold()
        body = request_bytes(TEXT, {"prompt": "Once", "max_tokens": 8}, ["Connection: close"])
        wires = [raw(running.url, body) for _ in range(200)]
        wait_for(lambda: running.metric("http_requests_total", path=TEXT, status="429") == 188, 20)
        running.brake.release()
        statuses = []
        for wire in wires:
            with wire, wire.makefile("rb") as answer:
                head, _, content = answer.read().partition(b"\r\n\r\n")
            statuses.append(int(head.split()[1]))
            if statuses[-1] == 200:
                assert json.loads(content)["usage"]["completion_tokens"] == 8
        assert (statuses.count(200), statuses.count(429)) == (12, 188)
        running.assert_idle()


WORDS = ["river", "stone", "lamp", "violin", "harbour", "seventeen", "glass", "winter"]
MIXED: list[dict[str, Any]] = [
    {
        "prompt": f"{'the same words again and again ' * (i % 3)}{WORDS[i % 8]} {i}",
        "max_tokens": [1, 12, 40, 90][i % 4],
        "temperature": [0.0, 0.8, 1.5][i % 3],
        "seed": 100 + i,
        **({"stop": ["e", " t"]} if i % 5 == 0 else {}),
        **({"repetition_penalty": 1.3, "top_k": 20} if i % 7 == 0 else {}),
    }
    for i in range(16)
]


def ask(running: Serving, number: int, body: dict[str, Any]) -> str:
    if number % 2:
        answer: httpx.Response = running.post(TEXT, body)
        return str(answer.json()["choices"][0]["text"])
    with running.http() as client, client.stream("POST", TEXT, json={**body, "stream": True}) as stream:
        return "".join(event["choices"][0]["text"] for event in read_events(stream) if event != "[DONE]")


def test_sixteen_mixed_requests_are_each_what_they_are_alone(model_path: Path, alone: LLM) -> None:
    """D-BA-01: greedy and sampled, long and short, with and without stops, streamed and not; two more leave."""
    expected = [solo(alone, body) for body in MIXED]
    with serving(model_path, slots=6, server={"queue": 16}) as running, ThreadPoolExecutor(16) as pool:
        running.brake.hold()
        jobs = [pool.submit(ask, running, number, body) for number, body in enumerate(MIXED)]
        leaving = [raw(running.url, request_bytes(TEXT, {**LONG, "stream": stream})) for stream in (True, False)]
        wait_for(lambda: running.server._service.engine.num_reserved == 18)
        running.brake.release()
        for connection in leaving:
            connection.close()
        texts = [job.result() for job in jobs]
        running.assert_idle()
    assert texts == expected


def solo(alone: LLM, body: dict[str, Any]) -> str:
    options = {name: value for name, value in body.items() if name != "prompt"}
    return str(alone.generate(body["prompt"], **options).text)
