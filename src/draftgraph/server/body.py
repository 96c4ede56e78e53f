"""Request bodies, read with limits and parsed without mercy.

In: bytes from anyone, and the model of a request. Out: a checked request of JSON values that are plain, finite, not
deep, and of whole Unicode characters; or a 4xx. Time and memory are linear in the bytes, whatever they are, and a long
body is looked at beside the event loop. Never knows what a field means.
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
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from draftgraph.server.errors import ApiError, invalid_fields

MAX_DEPTH = 64
MAX_VALUES = 2**16  # arrays and objects: they cost the garbage collector, which stops every thread, 1 µs each
_MAX_DIGITS = 20  # of a whole number: enough for 64 bits
# A string, ended or not, or a bracket. Every byte is looked at once, whatever the text.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_CLOSE = {"connection": "close"}
_AT_ONCE = 2**14  # bytes of a body that is looked at on the event loop


def parse_json(body: bytes) -> Any:
    """Returns the value of a JSON text.

    Raises:
        ApiError: 400; the text is not JSON in UTF-8, or it has NaN, an infinite or huge number, a key twice, half a
            surrogate pair, more than MAX_DEPTH levels, or more than MAX_VALUES arrays and objects.
    """
    if fault := fault_of_shape(body):
        raise _bad(f"it has {fault}")
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


def fault_of_shape(text: bytes) -> str:
    """Returns what makes a JSON text too deep or too manifold to be read; "" where nothing does."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return ""
    depth = opened = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        token = match[0]
        if token in (b"[", b"{"):
            depth += 1
            opened += 1
        elif token in (b"]", b"}"):
            depth -= 1
        if depth > MAX_DEPTH:
            return f"more than {MAX_DEPTH} levels"
        if opened > MAX_VALUES:
            return f"more than {MAX_VALUES} arrays and objects"
    return ""


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
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise _bad(f"the key {key[:80]!r} stands there twice")
        value[key] = item
    return value


def _bad(why: str) -> ApiError:
    return ApiError(400, f"the body cannot be read: {why}", code="invalid_json")


def check_framing(scope: Scope) -> None:
    """Raises ApiError, 400, unless everybody on the way sees a body end where we do: or the rest is a request to some.

    The connection is closed, so what follows is never read.
    """
    headers = Headers(scope=scope)
    if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
        other = "content-length" if "content-length" in headers else "HTTP/1.0"
        raise ApiError(400, f"transfer-encoding with {other}; allowed: one way to end a body", headers=_CLOSE)


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


def read_request(model: type[BaseModel], body: bytes, fields: frozenset[str]) -> BaseModel:
    """Returns the request that a body is.

    Raises:
        ApiError: 400; it is no JSON, or no such request.
    """
    value = parse_json(body)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid_fields(error.errors(include_url=False, include_input=False), fields) from None


def strict_route(max_bytes: int, seconds: float, fields: frozenset[str]) -> type[APIRoute]:
    """Returns the class of route whose bodies are read by `read_body` and `read_request`.

    Args:
        fields: see `invalid_fields`.
    """

    class StrictRequest(Request):
        """A request that has its body, and what it asks for, already."""

        def __init__(self, request: Request, body: bytes, value: BaseModel) -> None:
            super().__init__(request.scope, request.receive)
            self._body = body
            self._value = value

        async def json(self) -> BaseModel:
            return self._value

    class StrictRoute(APIRoute):
        """A route that refuses a body before anything else looks at it."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            if self.body_field is None:
                return handle
            model = self.body_field.field_info.annotation
            assert isinstance(model, type), "a body has a model"
            assert issubclass(model, BaseModel), "it is one of ours"

            async def strict(request: Request) -> Response:
                _check_type(request.headers.get("content-type", ""))
                try:
                    body = await read_body(request, max_bytes, seconds)
                except ClientDisconnect:
                    return Response(status_code=499)
                if len(body) <= _AT_ONCE:
                    value = read_request(model, body, fields)
                else:
                    value = await asyncio.to_thread(read_request, model, body, fields)
                return await handle(StrictRequest(request, body, value))

            return strict

    return StrictRoute


def _check_type(content_type: str) -> None:
    # NOTE: a web page can send other types to any address without asking; JSON it must ask for first.
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(400, f"content-type {content_type[:80]!r}; allowed: application/json")
