"""One HTTP request's texts on their way: from prompts to events, and back out when nobody listens any more.

In: prompts and parameters. Out: (choice, delta) pairs in the order they were written, or one ApiError. Knows nothing of
how an answer looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from starlette.types import Receive

from draftgraph.config import SamplingParams
from draftgraph.engine.stats import RequestStats
from draftgraph.server.engine_thread import EngineThread, Event, Job, Places, Watch
from draftgraph.server.errors import ApiError
from draftgraph.types import Delta, FinishReason, TokenLogprobs
from draftgraph.verify.grammar import GrammarConstraint

T = TypeVar("T")
_NUM_SEEDS = 2**63
_MOST_GRAPHS = 256  # that wait for a client; one that reads so slowly gets the rest without
Arrival: TypeAlias = tuple[int, Event, dict[str, Any] | None]  # choice, event, what its watch saw


@dataclass(frozen=True, slots=True)
class Order:
    """What to write: `num_each` texts for every prompt, choice i being text i % num_each of prompt i // num_each.

    Args:
        budget: most drafts in one tree.
        watch: makes the watch of a choice; None to watch none.
        cache_salt: see `Engine.submit`.
    """

    prompts: Sequence[Sequence[int]]
    sampling: SamplingParams
    num_each: int
    budget: int
    watch: Callable[[], Watch] | None = None
    cache_salt: bytes = b""

    def choices(self) -> Iterator[tuple[Sequence[int], SamplingParams]]:
        """Yields ids and parameters of each choice. Text j of a prompt draws with seed + j: text 0 is that of n = 1."""
        seed = self.sampling.seed
        for ids in self.prompts:
            for j in range(self.num_each):
                yield ids, self.sampling if seed is None else replace(self.sampling, seed=(seed + j) % _NUM_SEEDS)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(map(len, self.prompts))


class ClientGone(Exception):
    """Nobody reads the answer any more."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Returns what `work` returns; ends it within moments if the client leaves first.

    Raises:
        ClientGone: the client left, and `work` was cancelled and has ended.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(gone, task, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, slots=True)
class Written:
    """One finished text. `seed` repeats it; `logprobs` are those of its tokens, where they were asked for."""

    text: str
    num_tokens: int
    finish_reason: FinishReason
    seed: int
    stats: RequestStats
    logprobs: Sequence[TokenLogprobs] | None


class Generation:
    """The choices of one request, in the engine. Whoever opened it cancels it in every case."""

    def __init__(
        self, engine: EngineThread, places: Places, order: Order, constraint: GrammarConstraint | None = None
    ) -> None:
        self.num_prompt_tokens = order.num_prompt_tokens
        self._engine = engine
        self._events: asyncio.Queue[Arrival] = asyncio.Queue()  # the texts themselves, and so many graphs
        self._first: Arrival | None = None
        self._jobs = [
            Job(
                ids,
                sampling,
                order.budget,
                functools.partial(self._put, index),
                order.watch and order.watch(),
                constraint and constraint.copy(),
                order.cache_salt,
            )
            for index, (ids, sampling) in enumerate(order.choices())
        ]
        for job in self._jobs:
            engine.submit(job, places)

    def __len__(self) -> int:
        return len(self._jobs)

    async def begin(self) -> None:
        """Waits for the first event.

        Raises:
            ApiError: the engine refused the request or failed at it.
        """
        self._first = await self._events.get()
        if isinstance(self._first[1], ApiError):
            raise self._first[1]

    async def deltas(self) -> AsyncIterator[tuple[int, Delta, dict[str, Any] | None]]:
        """Yields (choice, delta, what its watch saw), until all choices have ended. Only after `begin`.

        Raises:
            ApiError: the engine failed, or the server stops.
        """
        running = len(self._jobs)
        event = self._first
        while running:
            index, delta, view = event or await self._events.get()
            event = None
            if isinstance(delta, ApiError):
                raise delta
            running -= delta.finish_reason is not None
            yield index, delta, view

    async def finish(self) -> list[Written]:
        """Returns the texts, after running to the end of all."""
        texts: list[list[str]] = [[] for _ in self._jobs]
        async for index, delta, _ in self.deltas():
            texts[index].append(delta.text)
        return [self.written(index, "".join(parts)) for index, parts in enumerate(texts)]

    def written(self, index: int, text: str = "") -> Written:
        """Returns what became of a choice that has ended; only a caller that kept its text has it."""
        request = self._jobs[index].request
        assert request is not None, "the choice was submitted"
        assert request.finish_reason is not None, "the choice has ended"
        return Written(text, request.num_written, request.finish_reason, request.seed, request.stats, request.logprobs)

    def cancel(self) -> None:
        """Ends what has not ended."""
        for job in self._jobs:
            self._engine.cancel(job)

    def _put(self, index: int, event: Event, view: dict[str, Any] | None) -> None:
        if view is not None and self._events.qsize() >= _MOST_GRAPHS:
            view.pop("step", None)
        self._events.put_nowait((index, event, view))


@contextlib.asynccontextmanager
async def time_limit(deadline: float) -> AsyncIterator[None]:
    """Ends what runs inside at this time of the event loop's clock.

    Raises:
        ApiError: 504, at that time.
    """
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError as error:
        raise ApiError(504, "the answer took longer than the server's --time-limit", code="time_limit") from error


async def open_generation(engine: EngineThread, places: Places, prepare: Callable[[], Order]) -> Generation:
    """Encodes the prompts and compiles the grammar beside the event loop, and submits them.

    Args:
        places: of `EngineThread.reserve`, one for each choice.
        prepare: returns the order; runs in another thread.

    Raises:
        ApiError: the engine refused.
        DraftGraphError: `prepare` refused.
    """
    order = await asyncio.to_thread(prepare)
    generation = Generation(engine, places, order, await engine.constrain(order.sampling))
    try:
        await generation.begin()
    except BaseException:
        generation.cancel()
        raise
    return generation
