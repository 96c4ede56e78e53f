"""A real server on 127.0.0.1 with a tiny model, in a thread of this process, and the clients that talk to it."""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

from draftgraph import load
from draftgraph.config import ServerConfig
from draftgraph.llm import LLM
from draftgraph.server.app import build_app
from draftgraph.server.run import Server, build_server, open_socket, url_of
from draftgraph.server.security import read_keys
from draftgraph.types import Delta
from support.tiny import tiny_config, write_gguf

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
CONTEXT = 2048


class Brake:
    """Makes an engine's steps slow, or holds them up altogether, so that a test knows what is running."""

    def __init__(self, llm: LLM) -> None:
        self.seconds = 0.0
        self._step: Callable[[], list[Delta]] = llm.engine.step
        self._free = threading.Event()
        self._free.set()
        llm.engine.step = self._braked  # type: ignore[method-assign]

    def _braked(self) -> list[Delta]:
        time.sleep(self.seconds)
        self._free.wait()
        return self._step()

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the steps up while the block runs, or until `release`."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    @contextlib.contextmanager
    def slowed(self, seconds: float) -> Iterator[None]:
        """Makes each step wait so long first while the block runs."""
        self.seconds = seconds
        try:
            yield
        finally:
            self.seconds = 0.0


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server."""

    url: str
    llm: LLM
    server: Server
    brake: Brake
    thread: threading.Thread

    def openai(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        with self.http() as client:
            return client.post(path, json=body, **options)

    def metric(self, name: str, **labels: str) -> float:
        """The value of a metric, 0 where it was never counted."""
        registry = self.server._service.metrics.registry
        return registry.get_sample_value(f"draftgraph_{name}", labels) or 0.0

    def stop(self, signals: int = 1) -> None:
        """Does what a signal does."""
        for _ in range(signals):
            self.server.handle_exit(signal.SIGTERM, None)

    def is_idle(self) -> bool:
        """Whether nobody holds a place, a slot or a block."""
        return (
            self.server._service.engine.num_reserved == 0
            and self.metric("slots_free") == self.metric("slots")
            and self.metric("kv_blocks_used") == 0
        )

    def assert_idle(self, seconds: float = 2.0) -> None:
        """Asserts that within this time everything is free again, and that the server answers as ever."""
        wait_for(self.is_idle, seconds)
        with self.http() as client:
            assert client.get("/health").json() == {"status": "ok"}
            canary = client.post(TEXT, json={"prompt": "The", "max_tokens": 4, "seed": 0}).json()
        assert canary["usage"]["completion_tokens"] == 4, canary


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Asserts that `condition` comes true within this time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} seconds"
        time.sleep(0.005)


def write_model(folder: Path) -> Path:
    """Writes the tiny model that the tests of the server use: it never ends by itself, in practice."""
    return write_gguf(folder / "tiny.gguf", config=tiny_config(context_length=CONTEXT))


@contextlib.contextmanager
def serving(
    model: Path | str,
    *,
    defaults: Mapping[str, Any] | None = None,
    server: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[Serving]:
    """Serves a model while the block runs.

    Args:
        model: its file, or its name in the catalogue.
        defaults: sampling parameters that requests need not give.
        server: fields of `ServerConfig`.
        options: for `load`.
    """
    config = ServerConfig(**{"port": 0, "grace": 1.0, **(server or {})})
    with open_socket(config) as bound, load(model, **{"context": CONTEXT, "threads": 1, "budget": 3, **options}) as llm:
        app = build_app(llm, config, read_keys(config), defaults or {})
        brake = Brake(llm)
        up = threading.Event()
        running = build_server(app, up.set)
        thread = threading.Thread(target=running.run, args=([bound],))
        gc.freeze()  # as `serve` does: a look for garbage would go through all that the tests have imported, for 0.1 s
        thread.start()
        try:
            assert up.wait(10), "the server did not start"
            yield Serving(url_of(bound), llm, running, brake, thread)
        finally:
            brake.release()
            running.handle_exit(signal.SIGTERM, None)
            thread.join()
            gc.unfreeze()


def read_events(response: httpx.Response) -> Iterator[Any]:
    """Yields the objects of a stream's events, and "[DONE]"."""
    for line in response.iter_lines():
        if line:
            assert line.startswith("data: "), line
            yield line[6:] if line == "data: [DONE]" else json.loads(line[6:])


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """Checks that an answer is an error of OpenAI's shape with this status, and returns it."""
    assert response.status_code == status, (response.status_code, response.text[:500])
    assert response.headers["content-type"] == "application/json"
    body = json.loads(response.content.decode())
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    return error


def raw(url: str, data: bytes) -> socket.socket:
    """Sends bytes to a server and returns the open connection."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(data)
    return connection


def request_bytes(path: str, body: Any, headers: Sequence[str] = ()) -> bytes:
    """Returns a POST request as it stands on the wire."""
    content = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
        f"Content-Length: {len(content)}", *headers,
    ]  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode() + content
