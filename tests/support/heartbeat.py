"""How long an event loop was held up: the largest lateness of a coroutine that wakes every few milliseconds.

In: the loop of a running server. Out: seconds. Seen from inside the loop, so neither network nor clients count.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from support.serving import Serving

T = TypeVar("T")
MOST = 0.2  # seconds that nothing may hold a loop
_PERIOD = 0.002
_TRIES = 3  # the machine may be busy with other things; a loop that is held is held each time


class Heartbeat:
    """Watches one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.largest = 0.0

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Measures while the block runs; what was measured before is forgotten."""
        self.largest = 0.0
        job = asyncio.run_coroutine_threadsafe(self._beat(), self._loop)
        try:
            yield
            asyncio.run_coroutine_threadsafe(asyncio.sleep(2 * _PERIOD), self._loop).result(60)
        finally:
            job.cancel()

    async def _beat(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_PERIOD)
            self.largest = max(self.largest, time.perf_counter() - before - _PERIOD)


def heartbeat(running: Serving) -> Heartbeat:
    """Returns the heartbeat of a server's loop."""
    loop = running.server._service.engine._loop
    assert loop is not None, "the server is up"
    return Heartbeat(loop)


def longest_hold(beat: Heartbeat, action: Callable[[], T]) -> tuple[float, T]:
    """Returns the longest time that the loop is held while `action` runs, at the best of some tries, and its result."""
    held = float("inf")
    for _ in range(_TRIES):
        with beat.beating():
            result = action()
        held = min(held, beat.largest)
        if held < MOST:
            break
    return held, result
