"""The scheduler: who advances in the next step, and by what.

In: requests. Out: one `Batch` per step, of every request that has a slot: those still reading their prompt by a chunk
of it, the others by their root and drafts. It owns the queue, the running requests and their slots. Never sees
tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from draftgraph.engine.request import Request, State
from draftgraph.rng import Noise
from draftgraph.runner.base import Runner
from draftgraph.types import Context, Ending, Window
from draftgraph.verify.distribution import SamplingContext


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of one step, in one order for all of its lists."""

    requests: tuple[Request, ...]
    slots: tuple[int, ...]
    contexts: tuple[Context, ...]
    windows: tuple[Window, ...]
    samplings: tuple[SamplingContext, ...]
    noises: tuple[Noise, ...]
    endings: tuple[Ending, ...]


class Scheduler:
    """Owns the waiting and running requests, and their slots in `runner`.

    Args:
        prefill_chunk: prompt tokens read per request and step.
        clock: returns seconds.
    """

    def __init__(self, runner: Runner, prefill_chunk: int, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._prefill_chunk = prefill_chunk
        self._clock = clock
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Request] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, request: Request) -> None:
        """Queues a request; first come, first served."""
        self._waiting.append(request)

    def find(self, request_id: int) -> Request | None:
        """Returns the request if it has not finished."""
        if request_id in self._running:
            return self._running[request_id]
        return next((request for request in self._waiting if request.id == request_id), None)

    def next_batch(self) -> Batch:
        """Admits waiting requests to free slots and returns what every running request does next."""
        while self._waiting and self._runner.num_free_slots:
            self._admit(self._waiting.popleft())
        requests = tuple(self._running.values())
        return Batch(
            requests=requests,
            slots=tuple(request.slot for request in requests),
            contexts=tuple(request.context() for request in requests),
            windows=tuple(request.window(self._prefill_chunk) for request in requests),
            samplings=tuple(request.sampling_context() for request in requests),
            noises=tuple(request.noise for request in requests),
            endings=tuple(request.ending for request in requests),
        )

    def retire(self, request: Request) -> None:
        """Frees what a finished request holds."""
        assert request.state is State.FINISHED, "only a finished request is retired"
        if self._running.pop(request.id, None) is not None:
            self._runner.release(request.slot)
        else:
            self._waiting.remove(request)

    def check(self) -> None:
        """Asserts that running requests have distinct slots and agree with their state."""
        slots = [request.slot for request in self._running.values()]
        assert len(set(slots)) == len(slots), "two requests share a slot"
        assert all(request.state in (State.PREFILL, State.DECODE) for request in self._running.values())
        assert all(request.state is State.WAITING for request in self._waiting)

    def _admit(self, request: Request) -> None:
        request.slot = self._runner.open()
        request.state = State.PREFILL
        request.stats.started = self._clock()
        self._running[request.id] = request
