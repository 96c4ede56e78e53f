"""The page at "/": a chat that shows who wrote each token, and the graph behind each step.

In: the files of `static/`, read once at the start. Out: routes. The page needs no key and holds no data; what it shows
it asks of the endpoints, with the visitor's key where there is one. It may load nothing from elsewhere, run no script
but its own, and stand in no other page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources

from fastapi import APIRouter, Request, Response

PAGE = "/"
FOLDER = "/static/"  # answered without a key, like the page itself
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # asked for again at every visit, and not sent again while it is the same
}


def build_playground() -> APIRouter:
    """Returns the routes of the page and its files, none of which is part of the API."""
    router = APIRouter()
    for file in resources.files("draftgraph.server").joinpath("static").iterdir():
        kind = _TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            path = PAGE if file.name == "index.html" else FOLDER + file.name
            router.add_route(path, _sender(file.read_bytes(), kind), methods=["GET"], include_in_schema=False)
    return router


def _sender(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    headers = {**_HEADERS, "content-type": kind, "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}

    async def send(request: Request) -> Response:
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    return send
