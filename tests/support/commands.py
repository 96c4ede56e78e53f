"""The command line under test: in this process for speed, or as a program of its own.

In: arguments, and what stdin holds. Out: the exit code, stdout and stderr, on a terminal of 80 columns.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from draftgraph.cli import main

SCREEN_LINES = 24


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The object of stdout's only line."""
        (line,) = self.out.splitlines()
        return json.loads(line)


def command(*arguments: str | Path, stdin: str = "") -> Outcome:
    """Runs `draftgraph` with these arguments in this process."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["draftgraph", *map(str, arguments)]
    code: Any = 0
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        mock.patch.dict(os.environ, COLUMNS="80"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return Outcome(code or 0, out.getvalue(), err.getvalue())


def program(*arguments: str | bytes | Path, stdin: bytes = b"") -> Outcome:
    """Runs `python -m draftgraph` with these arguments, in strict UTF-8."""
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(
        [sys.executable, "-m", "draftgraph", *arguments], input=stdin, capture_output=True, env=environment, check=False
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace"))


def refusal(outcome: Outcome, *, parser: bool = False) -> str:
    """Checks that a command refused its input as it should, and returns its stderr.

    Args:
        parser: whether the option parser refuses, in its own words, rather than a typed error in three parts.
    """
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.out + outcome.err, outcome.err
    assert 0 < len(outcome.err.splitlines()) <= SCREEN_LINES, outcome.err
    for part in ("Error",) if parser else ("given", "allowed", "do this"):
        assert part in outcome.err, f"{part!r} is not in:\n{outcome.err}"
    return " ".join(outcome.err.replace("│", " ").split())


def error_of(outcome: Outcome) -> dict[str, str]:
    """Checks that stdout is one line of JSON with an error in three parts, and returns it."""
    assert set(outcome.json) == {"error"}
    error: dict[str, str] = outcome.json["error"]
    assert set(error) == {"type", "given", "allowed", "remedy"}
    assert all(isinstance(text, str) and text for text in error.values())
    return error


@contextlib.contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Checks that a folder holds the same files, of the same sizes, afterwards."""

    def listing() -> dict[Path, int]:
        return {path: path.stat().st_size for path in folder.rglob("*")}

    before = listing()
    yield
    assert listing() == before, "a file was left behind or changed"
