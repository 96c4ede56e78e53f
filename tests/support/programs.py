"""`draftgraph serve` as a process of its own, which a test may see die."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class ServingProgram:
    """A running server. `log` is the file that its stderr goes to."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            return client.post(path, json=body, **options)

    def assert_alive(self) -> None:
        """Asserts that it answers as ever."""
        assert self.process.poll() is None, f"the server ended by {self.process.returncode}"
        answer = self.post("/v1/completions", {"prompt": "a", "max_tokens": 2})
        assert answer.status_code == 200, answer.text


@contextlib.contextmanager
def serving_program(model: Path | str, folder: Path, *options: str) -> Iterator[ServingProgram]:
    """Runs the command `serve` on a free port while the block runs; it must end in order at SIGTERM, if it is up."""
    log = folder / "serve.log"
    with log.open("w") as errors:
        command = [sys.executable, "-m", "draftgraph", "serve", str(model), "--port", "0", "--json", "--grace", "1"]
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, log.read_text()
        yield ServingProgram(json.loads(line)["url"], process, log)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0, log.read_text()
    finally:
        process.kill()
        process.communicate()
