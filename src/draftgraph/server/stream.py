"""An answer as server-sent events: one for each piece of a delta, then the usage if it was asked for, then [DONE].

In: a generation that has begun. Out: bytes, as fast as the client reads. After an error there is no [DONE], so a cut
answer never looks like a whole one. When the client leaves, the generation is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from draftgraph.server.errors import ApiError, internal_error, json_bytes, log
from draftgraph.server.formats import Format, Head
from draftgraph.server.generation import ClientGone, Generation, time_limit, unless_gone
from draftgraph.server.replies import Usage

_LONG = 2**14  # bytes of an event after which others have a turn: sending waits for nothing while there is room
_LAST_SECONDS = 2.0  # for the last event


class EventStream(Response):
    """Streams a generation.

    Args:
        usage: returns the usage when all choices have ended; None if no usage is wanted.
        deadline: when this ends at the latest, by the event loop's clock, however slowly the client reads.
    """

    media_type = "text/event-stream"

    def __init__(
        self, generation: Generation, form: Format, head: Head, usage: Callable[[], Usage] | None, deadline: float
    ) -> None:
        self._generation = generation
        self._form = form
        self._head = {**head.to_json(), "object": form.chunk}
        self._usage = usage
        self._deadline = deadline
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        except ClientGone:
            pass
        except TimeoutError:
            log.warning("a client did not read the end of its stream")
        finally:
            self._generation.cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with time_limit(self._deadline):
                async for content in self._contents():
                    data = json_bytes(content)
                    await send(_event(data))
                    if len(data) > _LONG:
                        await asyncio.sleep(0)
            last = b"[DONE]"
        except ApiError as error:
            last = json_bytes(error.to_json())
        except Exception:
            log.exception("a stream failed")
            last = json_bytes(internal_error().to_json())
        # NOTE: a client that reads nothing would hold this up for ever.
        async with asyncio.timeout(_LAST_SECONDS):
            await send({**_event(last), "more_body": False})

    async def _contents(self) -> AsyncIterator[dict[str, Any]]:
        for index in range(len(self._generation)):
            if (choice := self._form.opening(index)) is not None:
                yield self._chunk(choice)
        async for index, delta, view in self._generation.deltas():
            choices = self._form.pieces(index, delta) or ([self._form.silence(index)] if view else [])
            if view:
                yield {**self._chunk(choices.pop(0)), "draftgraph": view}
            if delta.finish_reason is not None:
                choices += self._form.ending(index, self._generation.written(index))
            for choice in choices:
                yield self._chunk(choice)
        if self._usage is not None:
            yield {**self._head, "choices": [], "usage": self._usage().model_dump()}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "choices": [choice]}
        return chunk if self._usage is None else {**chunk, "usage": None}


def _event(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True}
