"""Request bodies, read with limits and parsed without mercy.

In: bytes from anyone. Out: JSON values that are plain, finite, not deep, and of whole Unicode characters; or a 4xx.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from draftgraph.server.errors import ApiError

MAX_DEPTH = 64
_MAX_DIGITS = 20  # of a whole number: enough for 64 bits
# A string, ended or not, or a bracket. Every byte is looked at once, whatever the text.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_CLOSE = {"connection": "close"}


def parse_json(body: bytes) -> Any:
    """Returns the value of a JSON text.

    Raises:
        ApiError: 400; the text is not JSON in UTF-8, or it has NaN, an infinite or huge number, a key twice, half a
            surrogate pair, or more than MAX_DEPTH levels.
    """
    _check_depth(body)
    try:
        value = json.loads(
            body.decode(),
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
            object_pairs_hook=_unique,
        )
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise _bad(f"it is not UTF-8 at byte {error.start}") from error
    except UnicodeEncodeError as error:
        raise _bad("it has half of a surrogate pair") from error
    except json.JSONDecodeError as error:
        raise _bad(f"{error.msg} at character {error.pos}") from error
    return value


def _check_depth(body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(body):
        token = match[0]
        if token in (b"[", b"{"):
            depth += 1
        elif token in (b"]", b"}"):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _bad(f"it has more than {MAX_DEPTH} levels")


def _refuse_constant(text: str) -> NoReturn:
    raise _bad(f"{text} is no JSON number")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _bad(f"the number {text[:40]} is too large")
    return value


def _parse_int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise _bad(f"the number {text[:40]} is too long")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _bad(f"the key {next(key for key in keys if keys.count(key) > 1)[:80]!r} stands there twice")
    return value


def _bad(why: str) -> ApiError:
    return ApiError(400, f"the body cannot be read: {why}", code="invalid_json")


async def read_body(request: Request, max_bytes: int, seconds: float) -> bytes:
    """Returns the body of `request`.

    Raises:
        ApiError: 413 if it is longer than `max_bytes`, 408 if it does not arrive within `seconds`.
    """
    too_long = ApiError(413, f"a body of more than {max_bytes} bytes", code="body_too_long", headers=_CLOSE)
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:20]) > max_bytes:
        raise too_long
    chunks: list[bytes] = []
    length = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                length += len(chunk)
                if length > max_bytes:
                    raise too_long
                chunks.append(chunk)
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {seconds:g} seconds", headers=_CLOSE) from error
    return b"".join(chunks)


def strict_route(max_bytes: int, seconds: float) -> type[APIRoute]:
    """Returns the class of route whose bodies are read by `read_body` and `parse_json`."""

    class StrictRequest(Request):
        """A request that has its body, and the body's value, already."""

        def __init__(self, request: Request, body: bytes) -> None:
            super().__init__(request.scope, request.receive)
            self._body = body
            self._value = parse_json(body)

        async def json(self) -> Any:
            return self._value

    class StrictRoute(APIRoute):
        """A route that refuses a body before anything else looks at it."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            if self.body_field is None:
                return handle

            async def strict(request: Request) -> Response:
                _check_type(request.headers.get("content-type", ""))
                try:
                    body = await read_body(request, max_bytes, seconds)
                except ClientDisconnect:
                    return Response(status_code=499)
                return await handle(StrictRequest(request, body))

            return strict

    return StrictRoute


def _check_type(content_type: str) -> None:
    # NOTE: a web page can send other types to any address without asking; JSON it must ask for first.
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(400, f"content-type {content_type[:80]!r}; allowed: application/json")
