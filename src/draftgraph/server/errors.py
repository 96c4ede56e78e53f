"""Errors as OpenAI's clients read them: {"error": {"message", "type", "param", "code"}}, whatever went wrong.

In: our own errors, those of validation and of the framework. Out: JSON answers. A message shows at most the start of
what was sent, and never a path of this machine.
"""

from __future__ import annotations

import http
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from draftgraph.errors import DraftGraphError, MissingPackageError, ParameterError

log = logging.getLogger("draftgraph.server")

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_LEVELS = 5  # of an answer, down to one token's log-probabilities
_SLICE = 1024  # numbers of a list that are written at once
_LONGEST_MESSAGE = 600  # characters
_TYPES: Mapping[int, str] = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
# How a ParameterError begins that is about a field.
_FIELD = re.compile(
    r"(?:a )?([a-z_]+)(?:=|\[| key | with | that cannot be used| without the package| of [0-9]+ characters)"
)
# Errors of pydantic that say more than the alternatives of a union that did not fit, the most telling first.
_TELLING: Mapping[str, str] = {
    "extra_forbidden": "is not implemented here, or misspelt",
    "none_required": "is not implemented here; leave it out",
    "missing": "is missing",
}


class ApiError(Exception):
    """A request that gets no answer.

    Args:
        param: the field that is at fault, such as "messages.0.content".
        code: a word for programs, such as "model_not_found".
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def to_json(self) -> dict[str, Any]:
        """Returns OpenAI's error object."""
        message = self.message
        if len(message) > _LONGEST_MESSAGE:
            message = f"{message[:_LONGEST_MESSAGE]}… ({len(message)} characters)"
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


class JsonResponse(JSONResponse):
    """An object as JSON. Text that is not Unicode, such as half a surrogate pair, becomes "?"."""

    def render(self, content: Any) -> bytes:
        return json_bytes(content)


def json_bytes(content: Any) -> bytes:
    """Returns `content` as one line of JSON, always valid UTF-8."""
    return _ENCODER.encode(content).encode(errors="replace")


def long_json(content: Any) -> Response:
    """Returns an object of any size as an answer. For another thread: the event loop has a turn between its parts."""
    return Response("".join(_parts(content, _LEVELS)).encode(errors="replace"), media_type="application/json")


def _parts(value: Any, levels: int) -> Iterator[str]:
    """Yields the JSON of a value, whose lists may be iterators, in parts that each take little time."""
    if levels and value and isinstance(value, dict):
        opening = "{"
        for key, item in value.items():
            yield f"{opening}{_ENCODER.encode(key)}:"
            yield from _parts(item, levels - 1)
            opening = ","
        yield "}"
    elif isinstance(value, Iterator) or (levels and value and isinstance(value, list) and isinstance(value[0], dict)):
        yield "["
        for number, item in enumerate(value):
            yield "," if number else ""
            yield from _parts(item, levels - 1)
        yield "]"
    elif isinstance(value, list) and len(value) > _SLICE:
        slices = (value[start : start + _SLICE] for start in range(0, len(value), _SLICE))
        yield f"[{','.join(_ENCODER.encode(piece)[1:-1] for piece in slices)}]"
    else:
        yield _ENCODER.encode(value)


def error_response(error: ApiError) -> JsonResponse:
    """Returns the answer that tells `error`."""
    return JsonResponse(error.to_json(), status_code=error.status, headers=error.headers)


def bad_request(error: DraftGraphError) -> ApiError:
    """Returns a typed error of ours as a 400."""
    field = _FIELD.match(error.given) if isinstance(error, (ParameterError, MissingPackageError)) else None
    param = field[1] if field else None
    return ApiError(400, f"{error.given}; allowed: {error.allowed}; do this: {error.remedy}", param=param)


def internal_error() -> ApiError:
    """Returns the 500 that says no more than that it was not the request's fault."""
    return ApiError(500, "the server failed at this request; it is still up, and its log says why", code="internal")


def invalid_fields(errors: Sequence[Mapping[str, Any]], fields: frozenset[str]) -> ApiError:
    """Returns the first of pydantic's `errors` as a 400 that names the field.

    Args:
        fields: the names that fields of our requests have; the rest of a location is pydantic's own.
    """
    error = next((error for kind in _TELLING for error in errors if error["type"] == kind), errors[0])
    location = list(error["loc"])
    at_fault = location[-1:] if error["type"] in _TELLING else []
    named = [part for part in location[: len(location) - len(at_fault)] if isinstance(part, int) or part in fields]
    param = ".".join(map(str, [*named, *at_fault]))[:200]
    others = [other["msg"] for other in errors if other["loc"][: len(named) + 1] == error["loc"][: len(named) + 1]]
    why = _TELLING.get(error["type"]) or ", or: ".join(dict.fromkeys(others))
    return ApiError(400, f"{param or 'the body'}: {why}", param=param or None)


def install(app: FastAPI) -> None:
    """Makes every error that reaches the application an answer of OpenAI's shape."""

    async def api_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError), "registered for this class"
        return error_response(error)

    async def ours(_: Request, error: Exception) -> Response:
        assert isinstance(error, DraftGraphError), "registered for this class"
        return error_response(bad_request(error))

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "registered for this class"
        phrase = http.HTTPStatus(error.status_code).phrase.lower()
        what = f"{phrase}: {request.method} {request.url.path}" if error.status_code in (404, 405) else phrase
        return error_response(ApiError(error.status_code, what, headers=error.headers))

    async def unexpected(request: Request, error: Exception) -> Response:
        return error_response(internal_error())

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(DraftGraphError, ours)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(Exception, unexpected)
