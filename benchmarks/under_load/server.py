"""A server under test: `draftgraph serve` as a process of its own, seen only from outside.

In: a model and options. Out: its address, its /metrics, and what the system says about the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

_PATIENCE = 30.0  # seconds until a server that does not come to rest is given up


@dataclass(frozen=True, slots=True)
class Process:
    """What the system says about the server's process."""

    resident_bytes: int
    threads: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    url: str
    pid: int
    log: Path

    async def metrics(self) -> dict[str, float]:
        """Returns the values of /metrics by name, without their prefix; those of one name are added up."""
        async with httpx.AsyncClient(timeout=30) as client:
            answer = await client.get(f"{self.url}/metrics")
        values: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                values[sample.name.removeprefix("draftgraph_")] += sample.value
        return values

    async def seconds_to_rest(self) -> float:
        """Waits until no text holds a place, a slot or a block. Returns how long that took; infinity if too long."""
        started = time.perf_counter()
        while time.perf_counter() - started < _PATIENCE:
            if is_at_rest(await self.metrics()):
                return time.perf_counter() - started
            await asyncio.sleep(0.02)
        return float("inf")

    async def is_healthy(self) -> bool:
        """Whether /health says so."""
        async with httpx.AsyncClient(timeout=5) as client:
            return (await client.get(f"{self.url}/health")).status_code == 200

    def process(self) -> Process:
        """Returns what the system says now."""
        folder = Path("/proc") / str(self.pid)
        fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        resident = int(fields["VmRSS"].split()[0]) * 1024
        return Process(resident, int(fields["Threads"]), len(os.listdir(folder / "fd")))

    def logged_errors(self) -> list[str]:
        """Returns the lines of the log that tell of an error."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if " ERROR " in line or line.startswith("Traceback")]


def is_at_rest(metrics: dict[str, float]) -> bool:
    """Whether nobody holds a place, a slot or a block."""
    held = ("requests_running", "requests_waiting", "places_taken", "kv_blocks_used")
    return not any(metrics[name] for name in held) and metrics["slots_free"] == metrics["slots"]


@contextlib.contextmanager
def serving(subject: Sequence[str], *options: str) -> Iterator[Served]:
    """Runs `draftgraph serve` on a free port while the block runs.

    Args:
        subject: the model, with options that all measurements share.
        options: of this one.

    Raises:
        RuntimeError: it did not start; the message has its log.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "draftgraph", "serve", *subject, "--port", "0", "--json", *options]
        with log.open("w") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
            try:
                assert process.stdout is not None, "asked for above"
                line = process.stdout.readline()
                said = json.loads(line or "{}")
                if "url" not in said:
                    raise RuntimeError(f"the server did not start: {said}\n{log.read_text(errors='replace')}")
                yield Served(said["url"], process.pid, log)
            finally:
                process.terminate()
                try:
                    process.wait(_PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
