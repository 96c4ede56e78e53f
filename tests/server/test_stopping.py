"""The end of a server: new work is refused at once, answers finish or say that they were cut, and the exit is clean."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.serving import TEXT, error_of, raw, read_events, request_bytes, serving, wait_for

LONG = {"prompt": "Once", "max_tokens": 1_900, "ignore_eos": True, "stream": True}


def test_answers_finish_within_the_grace_time_and_new_work_is_refused(model_path: Path) -> None:
    """D-SV-21."""
    with serving(model_path, slots=2, server={"grace": 20.0}) as running, ThreadPoolExecutor(4) as pool:
        running.brake.hold()
        with running.http() as client:
            assert client.get("/health").status_code == 200  # a connection that stays open
            jobs = [pool.submit(running.post, TEXT, {"prompt": "Once", "max_tokens": 30}) for _ in range(4)]
            wait_for(lambda: running.server._service.engine.num_reserved == 4)
            busy = raw(running.url, request_bytes(TEXT, LONG)[:-1])
            time.sleep(0.05)
            running.stop()
            wait_for(lambda: not running.server._service.engine.is_up)
            busy.sendall(b"}")  # a request that was on its way
            assert b"503" in busy.recv(2**16)[:20]
            busy.close()
        with pytest.raises(OSError, match="refused"):
            raw(running.url, b"")
        running.brake.release()
        assert [job.result().json()["usage"]["completion_tokens"] for job in jobs] == [30] * 4
        running.thread.join(5)
        assert not running.thread.is_alive()


@pytest.mark.parametrize("stream", [True, False])
def test_answers_that_do_not_finish_in_time_say_so(model_path: Path, stream: bool) -> None:
    with serving(model_path, slots=1, server={"grace": 0.2}) as running, ThreadPoolExecutor(4) as pool:
        running.brake.seconds = 0.01
        jobs = [pool.submit(running.post, TEXT, {**LONG, "stream": stream}) for _ in range(3)]
        wait_for(lambda: running.metric("requests_running") == 1 and running.metric("requests_waiting") == 2)
        running.stop()
        for job in jobs:
            answer = job.result()
            if answer.status_code == 200:
                *_, last = read_events(answer)
                assert last["error"]["code"] == "stopping"
            else:
                assert error_of(answer, 503)["code"] == "stopping"
        running.thread.join(5)
        assert not running.thread.is_alive()


def test_a_second_signal_ends_everything(model_path: Path) -> None:
    with serving(model_path, server={"grace": 60.0}) as running:
        running.brake.seconds = 0.01
        connection = raw(running.url, request_bytes(TEXT, LONG))
        wait_for(lambda: running.metric("requests_running") == 1)
        started = time.monotonic()
        running.stop(signals=2)
        running.thread.join(10)
        assert time.monotonic() - started < 2.0
        connection.close()


class Program:
    """`draftgraph serve` as a program of its own."""

    def __init__(self, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "draftgraph", "serve", "--port", "0", "--json", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.said: dict[str, Any] = json.loads(self.process.stdout.readline())

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, str]:
        out, err = self.process.communicate(timeout=30)
        assert out == "", out
        return self.process.returncode, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_with_code_0(model_path: Path, number: int) -> None:
    with Program(model_path, "--slots", "2", "--queue", "1") as program:
        assert program.said | {"url": ""} == {"url": "", "model": "Tiny llama", "slots": 2, "queue": 1}
        body = {"prompt": "Once", "max_tokens": 5, "stream": True}
        assert httpx.post(program.said["url"] + TEXT, json=body).text.endswith("data: [DONE]\n\n")
        program.process.send_signal(number)
        assert program.end() == (0, "")


def test_a_killed_server_leaves_a_port_that_can_be_used_again(model_path: Path) -> None:
    with Program(model_path) as program:
        url = program.said["url"]
        with raw(url, request_bytes(TEXT, LONG)) as connection, connection.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 200")
            os.kill(program.process.pid, signal.SIGKILL)
            program.process.wait(10)
            with contextlib.suppress(ConnectionResetError):
                assert b"[DONE]" not in answer.read()  # the client sees an end, and not that of an answer
        with Program(model_path, "--port", url.rpartition(":")[2]) as again:
            assert again.said["url"] == url
