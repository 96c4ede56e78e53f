"""Who may ask: keys, host names and origins, checked before anything of a request is read.

In: `ServerConfig` and the headers of a request. Out: the request goes on, or a 401 or 403. Keys are compared in
constant time and appear in no message.

A server without keys on this machine has two enemies. A web page of elsewhere may send it requests: they carry that
page's `Origin`, which is refused unless it was allowed. And a page may rebind its own host name to 127.0.0.1, after
which its requests are of one origin: they carry that name as `Host`, which is refused unless it is an address,
localhost, or a name that was given. With keys neither matters, because no page has one.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import stat
import sys
import warnings
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from draftgraph.config import ServerConfig
from draftgraph.data import read_text
from draftgraph.errors import ParameterError
from draftgraph.server.errors import ApiError, error_response
from draftgraph.server.playground import FOLDER, PAGE

OPEN_PATHS = frozenset({"/health", PAGE})  # answered without a key, as are the page's files
_SHORTEST_KEY = 16
_KEY = "draftgraph.key"  # where a request's scope has the hash of its key
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::\d*)?")

Check = Callable[[Scope], None]


def read_keys(config: ServerConfig) -> tuple[bytes, ...]:
    """Returns the hashes of the keys in the key file; () where there is none.

    Raises:
        ParameterError: the file has no key, or one that is too short or not plain text; or the server would answer
            strangers without keys.
        DataFileError: the file cannot be read.
    """
    if config.api_key_file is None:
        _check_keyless(config)
        return ()
    file = Path(config.api_key_file)
    lines = [line.strip() for line in read_text(file).splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys or not all(len(key) >= _SHORTEST_KEY and key.isascii() and " " not in key for key in keys):
        raise ParameterError(
            f"the keys of {config.api_key_file}",
            f"one key a line, at least one, each of {_SHORTEST_KEY} or more ASCII characters without blanks",
            "write long random keys, such as those of `openssl rand -hex 24`",
        )
    _warn_if_shared(file)
    return tuple(_hash(key) for key in keys)


def _warn_if_shared(file: Path) -> None:
    mode = file.stat().st_mode
    if sys.platform != "win32" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        warnings.warn(
            f"the keys of {file} are open to other users ({stat.filemode(mode)}); do this: chmod 600 {file}",
            stacklevel=3,
        )


def _check_keyless(config: ServerConfig) -> None:
    if not is_loopback(config.host) and not config.allow_public:
        raise ParameterError(
            f"--host {config.host} without --api-key-file",
            "an address of this machine alone, such as 127.0.0.1, or keys",
            "give --api-key-file FILE, or --allow-public if everyone who reaches this machine may use it",
        )
    if "*" in config.cors_origin:
        raise ParameterError(
            "--cors-origin '*' without --api-key-file",
            "the origins of your own pages, such as http://localhost:3000",
            "name them, or give --api-key-file FILE",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_memory(memory: str, keys: Sequence[bytes]) -> None:
    """Raises ParameterError where clients with different keys would be shown each other's words, as drafts."""
    if memory == "process" and len(set(keys)) > 1:
        raise ParameterError(
            f"--memory process with {len(set(keys))} keys",
            "--memory request, or one key for all who may see each other's texts",
            "leave out --memory process, or start one server for each key",
        )


def cache_salt(scope: Scope, asked: str) -> bytes:
    """Returns what keeps a request's texts in the key-value cache apart from those of other keys and other salts."""
    key: bytes = scope.get(_KEY, b"")
    return hashlib.sha256(key + asked.encode(errors="replace")).digest() if key or asked else b""


def check_key(hashes: Sequence[bytes]) -> Check:
    """Returns a check that a request for anything but the open paths carries one of the keys, which it then keeps."""

    def check(scope: Scope) -> None:
        if scope["path"] in OPEN_PATHS or scope["path"].startswith(FOLDER):
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        given = _hash(key.strip())
        # Every key is compared, whichever fits, and hashes hide lengths.
        if sum([hmac.compare_digest(given, known) for known in hashes]) == 0 or scheme.lower() != "bearer":
            raise ApiError(
                401,
                "a key is needed: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        scope[_KEY] = given

    return check


def check_host(config: ServerConfig) -> Check:
    """Returns a check that `Host` is an address, localhost or a name that was given."""
    names = {"localhost", config.host.lower(), *(name.lower() for name in config.trusted_host)}

    def check(scope: Scope) -> None:
        host = _host_name(Headers(scope=scope).get("host", ""))
        if host not in names and not _is_address(host):
            raise ApiError(
                403, f"the host name {host[:80]!r}; if it is yours, start with --trusted-host NAME", code="host"
            )

    return check


def check_origin(config: ServerConfig) -> Check:
    """Returns a check that a page which asks is our own or of an allowed origin."""

    def check(scope: Scope) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or origin in config.cors_origin or "*" in config.cors_origin:
            return
        if urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
            raise ApiError(
                403, f"the origin {origin[:80]!r}; if it is yours, start with --cors-origin ORIGIN", code="origin"
            )

    return check


class Gate:
    """Lets a request through to `app` if every check does; answers it otherwise."""

    def __init__(self, app: ASGIApp, checks: Sequence[Check]) -> None:
        self._app = app
        self._checks = checks

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            try:
                for check in self._checks:
                    check(scope)
            except ApiError as error:
                return error_response(error)(scope, receive, send)
        return self._app(scope, receive, send)


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()


def _host_name(host: str) -> str:
    """Returns a Host header without its port; "" for one that is none."""
    match = _HOST.fullmatch(host.strip().lower())
    return match[1] if match else ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
