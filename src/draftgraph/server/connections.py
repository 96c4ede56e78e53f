"""Connections: how many there may be, and what one has to do to stay.

In: sockets from uvicorn. Out: requests for the application, parsed a few bytes at a time. A connection ends if the head
of a request does not arrive in time, or if what was written is not read; one beyond the limits is refused at once. It
never knows what a request asks for.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
import sys
from collections import Counter
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from draftgraph.config import ServerConfig
from draftgraph.server.errors import log

if sys.platform != "win32":
    import resource

HEAD_SECONDS = 10  # for the head of a request, idle time between two requests included
_PIECE = 2**13  # bytes that are parsed before others have a turn: chunks of one byte cost 9 µs each
_ACKNOWLEDGED = 120  # where Linux's struct tcp_info says how many bytes the other side has acknowledged
_REFUSAL = b"too many connections; try again soon\n"
_REFUSED = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    b"Retry-After: 1\r\nContent-Length: %d\r\n\r\n%s" % (len(_REFUSAL), _REFUSAL)
)


class Connections:
    """Counts the connections of one server. The event loop's."""

    def __init__(self, config: ServerConfig) -> None:
        self.send_seconds = config.send_seconds
        self._most = _most_of(config.max_connections)
        self._most_each = config.max_connections_each
        self._open: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Counts one more connection from `address`; returns whether there is room for it, and does not if not."""
        if self._open.total() >= self._most:
            log.warning("a connection was refused: %d are open", self._most)
            return False
        if self._open[address] >= self._most_each:
            log.warning("a connection was refused: %d are open from %s", self._most_each, address)
            return False
        self._open[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Counts one less."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


class Protocol(H11Protocol):
    """One connection."""

    def __init__(self, connections: Connections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._connections = connections
        self._address: str | None = None  # of a connection that is counted
        self._received = bytearray()  # and not parsed yet
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled_since: float | None = None  # with this many bytes read:
        self._num_read = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        address = _address_of(transport)
        if not self._connections.enter(address):
            transport.set_protocol(asyncio.Protocol())
            transport.write(_REFUSED)
            transport.close()
            return
        self._address = address
        super().connection_made(transport)
        self.flow: _Flow = _Flow(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._received:
            self._received += data
            return
        self._received += data
        self._parse()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._await_head()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._received.clear()
        if self._address is not None:
            self._connections.leave(self._address)
            self._address = None
        super().connection_lost(exc)

    def check_reader(self, now: float) -> None:
        """Ends a connection whose reader has taken nothing for too long. A slow one takes something."""
        if not self.transport.get_write_buffer_size():
            self._stalled_since = None
            return
        num_read = _num_acknowledged(self.transport)
        if self._stalled_since is None or num_read != self._num_read:
            self._stalled_since, self._num_read = now, num_read
        elif now - self._stalled_since > self._connections.send_seconds:
            log.warning("a connection was ended: its client did not read")
            self.transport.abort()

    def _parse(self) -> None:
        """Parses a piece of what was received, and the next one after others had a turn."""
        piece = bytes(self._received[:_PIECE])
        del self._received[:_PIECE]
        super().data_received(piece)
        if self.transport.is_closing():
            self._received.clear()
        elif self._received:
            self.flow.hold()
            self.loop.call_soon(self._parse_next)
        else:
            self.flow.let_go()

    def _parse_next(self) -> None:
        if self._received and not self.transport.is_closing():
            self._parse()

    def _await_head(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Flow(FlowControl):
    """Reads while neither uvicorn nor the parser wants to wait."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_held = self._is_paused = False

    def pause_reading(self) -> None:
        self._is_paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        if not self._is_held:
            super().resume_reading()

    def hold(self) -> None:
        """Waits for the parser."""
        self._is_held = True
        super().pause_reading()

    def let_go(self) -> None:
        """The parser has caught up."""
        self._is_held = False
        if not self._is_paused:
            super().resume_reading()


def _most_of(wanted: int) -> int:
    """Returns how many connections there may be: a quarter of the process's descriptors stays free, for files."""
    if sys.platform == "win32":
        return wanted
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if limit == resource.RLIM_INFINITY else min(wanted, 3 * limit // 4)


def _address_of(transport: asyncio.Transport) -> str:
    """Returns who connects: an address, or the network of one in IPv6, where a host has as many as it likes."""
    peer = transport.get_extra_info("peername")
    if not peer:
        return ""  # it has left already
    address = ipaddress.ip_address(peer[0].partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address) >> 64 << 64, 64)))


def _num_acknowledged(transport: asyncio.Transport) -> int:
    """Returns a number that changes when the other side reads.

    On Linux these are the bytes that it acknowledged: its kernel stops doing so when nobody reads. How many bytes our
    own kernel has taken, all there is elsewhere, changes in steps of megabytes.
    """
    if sys.platform != "linux":
        return transport.get_write_buffer_size()
    try:
        info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED + 8)
    except OSError:
        return 0  # the socket is closed
    return int(struct.unpack_from("=Q", info, _ACKNOWLEDGED)[0]) if len(info) >= _ACKNOWLEDGED + 8 else 0
