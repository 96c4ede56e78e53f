"""Calls of functions in a text, found while it is written.

In: the pieces of one text, cut anywhere. Out: what is said and what is called, the same however the text was cut. Knows
nothing of prompts, grammars or protocols.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from draftgraph.engine.text import overlap

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# A block, up to the first end that stands in no string.
_BLOCK = re.compile(r'<tool_call>((?:[^"<]++|"(?:[^"\\]++|\\.)*+"|<(?!/tool_call>))*+)</tool_call>', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `arguments` is a JSON object, as text."""

    id: str
    name: str
    arguments: str


Piece: TypeAlias = str | Call


class CallReader:
    """Reads one text. A call is `{"name": …, "arguments": {…}}`; what is not one stays text.

    White space around calls is left out.

    Args:
        tagged: calls stand between OPEN and CLOSE; otherwise the whole text is one call.
    """

    def __init__(self, tagged: bool) -> None:
        self.num_calls = 0
        self._tagged = tagged
        self._held = ""
        self._has_called = False  # and said nothing since

    def push(self, text: str) -> list[Piece]:
        """Adds text; returns what is certain now."""
        self._held += text
        if not self._tagged:
            return []
        found: list[Piece] = []
        while CLOSE in self._held and (block := _BLOCK.search(self._held)):
            found += self._take(self._held[: block.start()], block[0], block[1])
            self._held = self._held[block.end() :]
        self._held = self._trimmed(self._held)
        opened = self._held.find(OPEN)
        certain = self._held[: len(self._held) - overlap(self._held, OPEN) if opened < 0 else opened].rstrip()
        self._held = self._held[len(certain) :]
        return found + self._say(certain)

    def finish(self) -> list[Piece]:
        """Returns what is left, at the text's end. A call that lacks no more than its tag is one."""
        held, self._held = self._held, ""
        before, opening, body = held.partition(OPEN) if self._tagged else ("", "", held)
        is_said = self._tagged and not opening
        return self._say(self._trimmed(before)) if is_said else self._take(before, opening + body, body)

    def _take(self, before: str, block: str, body: str) -> list[Piece]:
        before, call = self._trimmed(before), _read(body)
        if call is None:
            return self._say(before + block)
        said = self._say(before.rstrip())
        self.num_calls += 1
        self._has_called = True
        return [*said, call]

    def _say(self, text: str) -> list[Piece]:
        self._has_called = self._has_called and not text
        return [text] if text else []

    def _trimmed(self, text: str) -> str:
        """Returns `text` as it is after what came before."""
        return text.lstrip() if self._has_called else text


def read_object(text: str) -> dict[str, object] | None:
    """Returns the JSON object that `text` is, or None."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _read(body: str) -> Call | None:
    value = read_object(body)
    name, arguments = (value or {}).get("name"), (value or {}).get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return Call(f"call_{uuid.uuid4().hex[:24]}", name, json.dumps(arguments, ensure_ascii=False))


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)
