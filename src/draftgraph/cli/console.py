"""What the commands print, and how: text and tables for people, one last line of JSON for programs.

Anything said along the way goes to stderr, so that stdout holds the answer alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from draftgraph.draw.style import LIGHT_SOURCES
from draftgraph.draw.view import KNOWN_SOURCES
from draftgraph.errors import DataFileError, DraftGraphError
from draftgraph.types import TARGET

# One colour per source, those of the drawings.
_STYLES = {TARGET: "default"} | dict(zip(KNOWN_SOURCES, LIGHT_SOURCES, strict=False))
_OTHER = LIGHT_SOURCES[-1]
_MOST_SHOWN = 320  # characters of one part of an error: all three and the frame fit one screen

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False)


def style_of(source: str) -> str:
    """Returns the colour of a source."""
    return _STYLES.get(source.partition(":")[0], _OTHER)


def print_json(value: Any) -> None:
    """Prints one line with one JSON object, the last of a command."""
    # NOTE: escapes, because a file name may hold bytes, and a terminal an encoding, that fit no other way.
    print(json.dumps(value, allow_nan=False), flush=True)


def print_error(error: DraftGraphError) -> None:
    """Prints a typed error's three parts on stderr."""
    body = Table.grid(padding=(0, 2))
    for part, text in (("given", error.given), ("allowed", error.allowed), ("do this", error.remedy)):
        shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}… ({len(text)} characters)"
        body.add_row(Text(part, "bold"), Text(shown))
    err.print(Panel(body, title=type(error).__name__, title_align="left", border_style="red", expand=False))


def error_json(error: DraftGraphError) -> dict[str, Any]:
    """Returns the JSON form of a typed error."""
    return {
        "error": {
            "type": type(error).__name__,
            "given": error.given,
            "allowed": error.allowed,
            "remedy": error.remedy,
        }
    }


def print_text(text: str, source: str = TARGET) -> None:
    """Prints a model's text as it is, in the colour of its source: no markup, no emoji codes, tabs stay tabs."""
    out.print(Segments([Segment(text, out.get_style(style_of(source)))]))


def read_stdin(read: Callable[[], str]) -> str:
    """Returns what `read` reads from stdin.

    Raises:
        DataFileError: it is not in the terminal's encoding.
    """
    try:
        return read()
    except UnicodeDecodeError as error:
        raise DataFileError(f"stdin is not {error.encoding} text ({error.reason})", "text", "convert it") from error


def legend(sources: Sequence[str]) -> Text:
    """Returns the key to the colours."""
    return Text("  ").join(Text(f"■ {name}", style_of(name)) for name in (TARGET, *sources))


class DownloadBar:
    """A progress bar on stderr, shown while bytes arrive. A context manager."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=err,
            transient=True,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> DownloadBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tasks:
            self._progress.stop()

    def update(self, done_bytes: int, total_bytes: int, label: str) -> None:
        if not self._tasks:
            self._progress.start()
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=total_bytes)
        self._progress.update(self._tasks[label], completed=done_bytes, total=total_bytes)
