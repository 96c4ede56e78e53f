"""The scheduler: who advances in the next step, and by what.

In: requests. Out: one `Batch` per step. Every request that writes is in it, with its root and drafts; those that still
read share `prefill_chunk` tokens, first come, first served, so that a long prompt makes no step longer than that. It
owns the queue, the running requests, their slots and how the runner's memory is shared. Never sees tensors.

Memory. A request is admitted when all that the running ones will read, all it will read and a little growth of each
fit. Where running requests outgrow the memory, drafts are dropped first; then the youngest request gives up its slot
and goes back to the front of the queue. Resumed, it reads its prompt and what it has written as known tokens, and goes
on to the same text. The oldest request never gives way and fits alone, so at least one advances in every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from draftgraph.engine.request import Request, State
from draftgraph.rng import Noise
from draftgraph.runner.base import Runner
from draftgraph.types import Context, Ending, Window
from draftgraph.verify.distribution import SamplingContext

_GROWTH = 16  # tokens each running request must have room to write when another one is admitted


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


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy the engine is.

    Args:
        running, waiting: requests with a slot, and without.
        blocks_used, blocks_cached, blocks_total: as in `BlockUse`.
        preemptions: times a request gave up its slot for others, since the start.
        reused_tokens: tokens that were found in memory instead of being read, since the start.
    """

    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int
    blocks_total: int
    preemptions: int
    reused_tokens: int


class Scheduler:
    """Owns the waiting and running requests, and their slots in `runner`.

    Args:
        prefill_chunk: known tokens read in one step, of all requests together.
        clock: returns seconds.
    """

    def __init__(self, runner: Runner, prefill_chunk: int, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._prefill_chunk = prefill_chunk
        self._clock = clock
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Request] = {}  # the oldest first
        self._num_preemptions = 0
        self._num_reused = 0

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def load(self) -> EngineLoad:
        """Returns how busy the engine is between two steps."""
        blocks = self._runner.blocks
        return EngineLoad(
            running=len(self._running),
            waiting=len(self._waiting),
            blocks_used=blocks.used,
            blocks_cached=blocks.cached,
            blocks_total=blocks.total,
            preemptions=self._num_preemptions,
            reused_tokens=self._num_reused,
        )

    def add(self, request: Request) -> None:
        """Queues a request; first come, first served."""
        self._waiting.append(request)

    def next_batch(self) -> Batch:
        """Admits waiting requests and returns what running ones do next; the youngest give way if memory is short."""
        while self._waiting and self._admit(self._waiting[0]):
            self._waiting.popleft()
        known = self._known_tokens()
        while len(self._running) > 1 and self._blocks_needed(known) > self._runner.blocks.available:
            self.preempt(next(reversed(self._running.values())))
            known = self._known_tokens()
        budgets = self._budgets(known)
        requests = tuple(self._running[request_id] for request_id in known)
        return Batch(
            requests=requests,
            slots=tuple(request.slot for request in requests),
            contexts=tuple(request.context() for request in requests),
            windows=tuple(request.window(known[request.id], budgets[request.id]) for request in requests),
            samplings=tuple(request.sampling_context() for request in requests),
            noises=tuple(request.noise for request in requests),
            endings=tuple(request.ending for request in requests),
        )

    def preempt(self, request: Request) -> None:
        """Takes a running request's slot and puts it at the front of the queue."""
        self._waiting.appendleft(request)  # first, so that no exception in between loses it
        del self._running[request.id]
        self._runner.release(request.slot)
        request.preempt()
        self._num_preemptions += 1

    def restart(self, also: Iterable[Request] = ()) -> None:
        """Takes all slots and puts every request that is not finished into the queue, the oldest first: an exception
        may have left anything half done.

        Args:
            also: requests that may have been taken out already.
        """
        known = {request.id: request for request in (*self._waiting, *self._running.values(), *also)}
        left = [known[request_id] for request_id in sorted(known) if known[request_id].state is not State.FINISHED]
        self._runner.reset()
        self._running.clear()
        for request in left:
            if request.state is not State.WAITING:
                request.preempt()
        self._waiting = deque(left)

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
        assert self._running or not self._runner.blocks.used, "blocks are used by nobody"

    def _admit(self, request: Request) -> bool:
        """Gives a request a slot and what is still in memory of its text; False if it must wait."""
        if not self._runner.num_free_slots:
            return False
        slot = self._runner.open(request.cache_salt)
        # The row after the last token is needed, so that one is always computed.
        num_reused = self._runner.reuse(slot, request.tokens[:-1])
        needed = self._runner.blocks_needed(slot, len(request.tokens) - num_reused + _GROWTH)
        promised = sum(
            self._runner.blocks_needed(other.slot, other.num_unread + _GROWTH) for other in self._running.values()
        )
        if self._running and promised + needed > self._runner.blocks.available:
            self._runner.release(slot)
            return False
        request.start(slot, num_reused, self._clock())
        self._running[request.id] = request
        self._num_reused += num_reused
        return True

    def _known_tokens(self) -> dict[int, int]:
        """Returns how many known tokens each request computes in this step; those that compute none are left out."""
        left = self._prefill_chunk
        known = {}
        for request in self._running.values():
            if request.state is State.DECODE:
                known[request.id] = request.num_unread
            elif left:
                known[request.id] = min(request.num_unread, left)
                left -= known[request.id]
        return known

    def _blocks_needed(self, num_nodes: Mapping[int, int]) -> int:
        """Returns how many blocks these requests take if their open trees grow by these numbers of nodes."""
        return sum(self._runner.blocks_needed(self._running[key].slot, count) for key, count in num_nodes.items())

    def _budgets(self, known: Mapping[int, int]) -> dict[int, int]:
        """Returns how many drafts each request may make: fewer than its budget where they do not fit into memory."""
        spare = self._runner.blocks.available - self._blocks_needed(known)
        budgets: dict[int, int] = {}
        for request_id, count in known.items():
            share = spare // (len(known) - len(budgets))
            request = self._running[request_id]
            without = self._runner.blocks_needed(request.slot, count)
            budget, extra = request.step_budget, 0
            while budget:
                extra = self._runner.blocks_needed(request.slot, count + budget) - without
                if extra <= share:
                    break
                budget, extra = budget // 2, 0
            budgets[request_id] = budget
            spare -= extra
        return budgets
