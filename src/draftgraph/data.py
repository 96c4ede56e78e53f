"""Prompt files: JSON lines with `turns`, or plain text with one prompt a line.

In: a path. Out: prompts in file order. Knows nothing of models.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgraph.errors import DataFileError

_ALLOWED = 'JSON lines such as {"turns": ["…"]}, with an optional "id" and "task", or plain text with one prompt a line'


@dataclass(frozen=True, slots=True)
class DataPrompt:
    """One prompt: the first user turn of a line."""

    id: str
    task: str
    text: str


def read_prompts(path: Path, limit: int | None = None) -> list[DataPrompt]:
    """Returns the prompts of a file, at most `limit`. Blank lines are skipped; of several turns the first is taken.

    Raises:
        DataFileError: the file is missing, empty or not of a supported form.
    """
    lines = [(number, line) for number, line in enumerate(read_text(path).splitlines(), start=1) if line.strip()]
    if not lines:
        raise DataFileError(f"{path} has no prompts", _ALLOWED, "check the file")
    is_json = lines[0][1].lstrip().startswith("{")
    return [_from_json(path, number, line) if is_json else _from_text(number, line) for number, line in lines[:limit]]


def read_text(path: Path) -> str:
    """Returns the text of a UTF-8 file.

    Raises:
        DataFileError: it cannot be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataFileError(
            f"{path} is not UTF-8 text ({error.reason})", "a text file in UTF-8", "convert it"
        ) from error
    except OSError as error:
        raise DataFileError(f"{path}: {error.strerror}", "a file that can be read", "check the path") from error


def _from_text(number: int, line: str) -> DataPrompt:
    return DataPrompt(f"line {number}", "text", line)


def _from_json(path: Path, number: int, line: str) -> DataPrompt:
    try:
        entry: Any = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataFileError(f"{path}, line {number}: not JSON ({error})", _ALLOWED, "mend the line") from error
    turns = entry.get("turns") if isinstance(entry, dict) else None
    if not (isinstance(turns, list) and turns and all(isinstance(turn, str) and turn for turn in turns)):
        raise DataFileError(f"{path}, line {number}: no turns", _ALLOWED, "mend the line")
    return DataPrompt(str(entry.get("id", f"line {number}")), str(entry.get("task", "text")), turns[0])
