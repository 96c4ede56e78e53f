"""A server from its socket to its end.

In: a model, settings, and a way to say where it listens. Out: nothing; it returns when a signal ends it. The first
SIGTERM or SIGINT lets running answers finish for a while and refuses new ones; the second ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from draftgraph.config import ServerConfig
from draftgraph.errors import ParameterError
from draftgraph.server.connections import HEAD_SECONDS, Connections, Protocol
from draftgraph.server.routes import Service

_HEAD_BYTES = 2**15  # about; of the head of a request
_TICKS = 5  # of ten a second, between two looks at who reads
_LAST_SECONDS = 2.0  # for the error events that end answers


def open_socket(config: ServerConfig) -> socket.socket:
    """Returns a socket bound to the config's address.

    Raises:
        ParameterError: the address cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            config.host.strip("[]"), config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as opened:
            bound = opened.enter_context(socket.socket(family))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            opened.pop_all()
            return bound
    except OSError as error:
        raise ParameterError(
            f"--host {config.host} --port {config.port}: {error.strerror}",
            "an address of this machine and a free port",
            "choose another port, such as --port 0 for any, or end the program that has it",
        ) from error


def url_of(bound: socket.socket) -> str:
    """Returns the address of a bound socket for people to click."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: FastAPI, bound: socket.socket, announce: Callable[[], None]) -> None:
    """Answers requests at `bound` until a signal comes.

    Args:
        app: of `build_app`.
        announce: called when requests are answered.
    """
    gc.collect()
    gc.freeze()  # what was loaded stays: looking through it for garbage would hold everybody up, for 50 ms
    try:
        build_server(app, announce).run(sockets=[bound])
    finally:
        gc.unfreeze()


def build_server(app: FastAPI, announce: Callable[[], None]) -> Server:
    """Returns the server for an application of `build_app`. See `serve`."""
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        http=partial(Protocol, Connections(service.config)),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=HEAD_SECONDS,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        timeout_graceful_shutdown=int(service.config.grace + _LAST_SECONDS),
    )
    return Server(config, service, announce)


class Server(uvicorn.Server):
    """Uvicorn, ending as we promise."""

    def __init__(self, config: uvicorn.Config, service: Service, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen, and says so."""
        await super().startup(sockets)
        self._announce()

    async def on_tick(self, counter: int) -> bool:
        """Ends connections that nobody reads; comes ten times a second."""
        if counter % _TICKS == 0:
            for connection in list(self.server_state.connections):
                assert isinstance(connection, Protocol), "there are no others"
                connection.check_reader(time.monotonic())
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles signals while the block runs; unlike uvicorn's own, does not raise them again afterwards."""
        if threading.current_thread() is not threading.main_thread():  # only that one gets signals
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuses new requests, lets running ones finish within the grace time, then ends them with an error."""
        self._service.engine.close()
        timer = asyncio.get_running_loop().call_later(self._service.config.grace, self._service.engine.end_all)
        await super().shutdown(sockets)
        timer.cancel()
        if self.force_exit:
            await asyncio.to_thread(self._service.engine.stop)
