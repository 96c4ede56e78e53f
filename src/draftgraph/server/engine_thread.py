"""The engine's own thread: the one place that touches the engine while the server runs.

In: jobs from the event loop. Out: each delta, or the error that ended a job, on that loop, in order. A step that raises
ends the texts that took part in it, and no others; if the thread itself ends, every text does. Grammars are compiled on
a thread of their own, one at a time. The engine's thread sleeps while there is nothing to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from draftgraph.config import SamplingParams
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Request, State
from draftgraph.errors import DraftGraphError
from draftgraph.server.errors import ApiError, bad_request, internal_error, log
from draftgraph.server.metrics import Metrics, Seen
from draftgraph.types import Delta, Verdict
from draftgraph.verify.grammar import GrammarConstraint

Event: TypeAlias = Delta | ApiError  # the last event of a job is a delta with a finish reason, or an error
# What a client may see of a step beside the text: plain values, from a request after the step, what the step added to
# it, the verdict, and the step's seconds.
Watch: TypeAlias = Callable[[Request, Delta, Verdict, float], dict[str, Any]]


@dataclass(eq=False, slots=True)
class Job:
    """One text to write. The engine thread owns it from `submit` to its last event.

    Args:
        constraint, cache_salt: see `Engine.submit`.
        put: called on the event loop with each event, and with what `watch` made of its step.
        watch: called on the engine thread after each step that wrote.
        request: the engine's own; may be read after the last event.
    """

    ids: Sequence[int]
    sampling: SamplingParams
    budget: int
    put: Callable[[Event, dict[str, Any] | None], None]
    watch: Watch | None = None
    constraint: GrammarConstraint | None = None
    cache_salt: bytes = b""
    request: Request | None = None
    seen: Seen = field(default_factory=lambda: Seen(time.perf_counter()))


@dataclass(slots=True)
class Places:
    """Places in the engine that a request has taken and not submitted a job for. The event loop's."""

    left: int


Posting: TypeAlias = tuple[Job, Event, dict[str, Any] | None]


class EngineThread:
    """Owns the engine, and counts who is in it. Its public methods are for the event loop's thread.

    Args:
        capacity: most jobs at once, those that wait for a slot included.
    """

    def __init__(self, engine: Engine, capacity: int, metrics: Metrics) -> None:
        self.capacity = capacity
        self._engine = engine
        engine.observer = self._observe
        self._verdicts: Sequence[Verdict] = ()  # of the last step
        self._views: dict[int, dict[str, Any]] = {}  # what watching made of the last step, by request
        self._metrics = metrics
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._jobs: dict[int, Job] = {}
        self._lock = threading.Lock()
        self._num_reserved = 0
        self._closing = False
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine")
        self._compiler = ThreadPoolExecutor(1, "grammar")

    @property
    def num_reserved(self) -> int:
        """Jobs in the engine or on their way to it."""
        return self._num_reserved

    @property
    def is_up(self) -> bool:
        """Whether new jobs are taken."""
        return self._thread.is_alive() and not self._closing

    def count(self, *states: State) -> int:
        """Returns how many jobs stand in these states, about now."""
        return sum(job.request is not None and job.request.state in states for job in list(self._jobs.values()))

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    async def constrain(self, sampling: SamplingParams) -> GrammarConstraint | None:
        """Compiles what constrains a text; None if nothing does. Holds up nobody but others who want the same.

        Raises:
            ApiError: 400; it cannot be used. 500; the compiler failed.
        """
        if sampling.constraint is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(self._compiler, self._constrain, sampling)

    def check_open(self) -> None:
        """Raises ApiError, 503 or 429, if a job would be refused now."""
        if not self.is_up:
            raise ApiError(503, "the server is stopping", code="stopping", headers={"retry-after": "5"})
        if self._num_reserved >= self.capacity:
            raise self._busy()

    @contextlib.contextmanager
    def reserve(self, num_jobs: int) -> Iterator[Places]:
        """Takes places for the jobs that the block submits. What it does not use is given back at its end.

        Raises:
            ApiError: 503 if the server is stopping, 429 if there are not that many places now.
        """
        self.check_open()
        with self._lock:
            if self._num_reserved + num_jobs > self.capacity:
                raise self._busy()
            self._num_reserved += num_jobs
        places = Places(num_jobs)
        try:
            yield places
        finally:
            self._release(places.left)

    def submit(self, job: Job, places: Places) -> None:
        """Hands over a job, which keeps one of the places until it ends."""
        assert places.left, "more jobs than places"
        places.left -= 1
        self._commands.put(partial(self._submit, job))

    def cancel(self, job: Job) -> None:
        """Ends a job between two steps; what it still puts is of no interest. Does nothing if it is over."""
        self._commands.put(partial(self._cancel, job))

    def close(self) -> None:
        """Refuses new jobs from now on."""
        self._closing = True

    def end_all(self) -> None:
        """Ends every job with an error that says that the server stops."""
        error = ApiError(503, "the server stopped before the end of this answer", code="stopping")
        self._commands.put(lambda: self._fail(list(self._jobs.values()), error))

    def stop(self) -> None:
        """Ends every job and the thread, and waits for it: at most one step."""
        self.close()
        self.end_all()
        self._commands.put(self._stop)
        if self._thread.is_alive():
            self._thread.join()
        self._compiler.shutdown(wait=False, cancel_futures=True)

    def _constrain(self, sampling: SamplingParams) -> GrammarConstraint | None:
        """On the grammars' thread."""
        try:
            return self._engine.constrain(sampling)
        except DraftGraphError as error:
            raise bad_request(error) from error
        except BaseException as error:
            log.exception("a grammar could not be compiled")
            raise internal_error() from error

    def _release(self, num_places: int) -> None:
        with self._lock:
            self._num_reserved -= num_places
            assert self._num_reserved >= 0, "a place was given back twice"

    def _busy(self) -> ApiError:
        return ApiError(
            429,
            f"all {self.capacity} places are taken; try again soon",
            code="overloaded",
            headers={"retry-after": "1"},
        )

    # From here on: the engine thread.

    def _run(self) -> None:
        # NOTE: also BaseException, here and below: a panic of a native library arrives as one.
        try:
            while not self._stopped:
                self._turn()
        finally:
            self._deliver([(job, internal_error(), None) for job in self._jobs.values()])

    def _turn(self) -> None:
        try:
            self._obey()
            if self._engine.scheduler.has_work:
                self._step()
        except BaseException:
            log.exception("the engine thread goes on after an error of its own")
            self._fail(list(self._jobs.values()), internal_error())

    def _obey(self) -> None:
        """Carries out all commands that wait; sleeps until there is one if there is nothing else to do."""
        if not self._engine.scheduler.has_work:
            self._commands.get()()
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            command()

    def _stop(self) -> None:
        self._stopped = True

    def _submit(self, job: Job) -> None:
        try:
            job.request = self._engine.submit(
                job.ids, job.sampling, job.budget, constraint=job.constraint, cache_salt=job.cache_salt
            )
        except DraftGraphError as error:
            self._refuse(job, bad_request(error))
        except BaseException:
            log.exception("a request could not be submitted")
            self._refuse(job, internal_error())
        else:
            self._jobs[job.request.id] = job
            self._metrics.prompt_tokens.inc(len(job.ids))

    def _refuse(self, job: Job, error: ApiError) -> None:
        self._release(1)
        self._deliver([(job, error, None)])

    def _step(self) -> None:
        self._verdicts = ()
        began = time.perf_counter()
        try:
            deltas = self._engine.step()
        except BaseException:
            log.exception("a step failed")
            self._metrics.step_failures.inc()
            took_part = [self._jobs[request.id] for request in self._engine.failed if request.id in self._jobs]
            self._fail(took_part or list(self._jobs.values()), internal_error())
        else:
            self._look(deltas, time.perf_counter() - began)
        self._hand_over()

    def _observe(self, verdicts: Sequence[Verdict]) -> None:
        self._verdicts = verdicts

    def _look(self, deltas: Sequence[Delta], seconds: float) -> None:
        """Lets jobs that want it watch the step that made these deltas. A text goes on where that fails."""
        for delta, verdict in zip(deltas, self._verdicts, strict=True):
            job = self._jobs.get(delta.request)
            if job is None or job.request is None or job.watch is None or not verdict.tokens:
                continue
            try:
                self._views[delta.request] = job.watch(job.request, delta, verdict, seconds)
            except BaseException:
                log.exception("a step could not be shown")

    def _hand_over(self) -> None:
        """Sends every new delta on its way, and lets go of the jobs that ended."""
        now = time.perf_counter()
        events: list[Posting] = []
        for job in list(self._jobs.values()):
            request = job.request
            assert request is not None, "a job in the engine has a request"
            while request.deltas:
                delta = request.deltas.popleft()
                self._metrics.record(delta, request.stats, job.seen, now)
                if delta.token_ids or delta.finish_reason is not None:
                    events.append((job, delta, self._views.pop(request.id, None)))
            if request.state is State.FINISHED:
                del self._jobs[request.id]
                self._release(1)
        self._deliver(events)

    def _cancel(self, job: Job) -> None:
        if job.request is not None and job.request.id in self._jobs:
            self._end(job)
            self._hand_over()

    def _fail(self, jobs: Sequence[Job], error: ApiError) -> None:
        for job in jobs:
            self._end(job)
            assert job.request is not None, "a job in the engine has a request"
            del self._jobs[job.request.id]
            self._release(1)
            self._metrics.texts.labels("error").inc()
        self._deliver([(job, error, None) for job in jobs])

    def _end(self, job: Job) -> None:
        """Takes a job out of the engine, also where a stage that should be told raises again."""
        request = job.request
        assert request is not None, "a job in the engine has a request"
        try:
            self._engine.cancel(request)
        except BaseException:
            log.exception("a request could not be cancelled in order")
            if request.state is not State.FINISHED:
                request.state = State.FINISHED
                self._engine.scheduler.retire(request)

    def _deliver(self, events: Sequence[Posting]) -> None:
        if not events:
            return
        assert self._loop is not None, "started"
        try:
            self._loop.call_soon_threadsafe(_put_all, events)
        except RuntimeError:
            log.warning("the event loop has ended; %d events had nobody to go to", len(events))


def _put_all(events: Sequence[Posting]) -> None:
    for job, event, view in events:
        job.put(event, view)
