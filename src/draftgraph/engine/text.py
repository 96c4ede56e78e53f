"""From tokens to text that may be shown: whole characters, and nothing of a stop string.

In: one token at a time. Out: the text that is certain. A character whose bytes are not complete is held back, and so
is the longest end of the text that could still become a stop string, and never more. Never sees requests or tensors.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class TextStream:
    """One request's text so far, as far as it is not released yet.

    Bytes that are not UTF-8, and those of a character left incomplete at the end, become U+FFFD, as in Python's
    "replace" decoding of the whole.

    Args:
        token_bytes: the bytes a token stands for; empty for control tokens.
        stops: the text ends before the earliest of these.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stops: Sequence[str]) -> None:
        self._token_bytes = token_bytes
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def copy(self) -> TextStream:
        """Returns an independent stream in the same state."""
        twin = TextStream(self._token_bytes, self._stops)
        twin._decoder.setstate(self._decoder.getstate())
        twin._held = self._held
        return twin

    def push(self, token: int) -> tuple[str, bool]:
        """Adds a token. Returns the text this releases, and whether a stop string is complete."""
        self._held += self._decoder.decode(self._token_bytes(token))
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            released, self._held = self._held[: min(found)], ""
            self._decoder.reset()
            return released, True
        keep = max((overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        released, self._held = self._held[:cut], self._held[cut:]
        return released, False

    def flush(self) -> str:
        """Returns what is held back, at the end of a text that no stop string ended."""
        released, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return released


def overlap(text: str, stop: str) -> int:
    """Returns the length of the longest end of `text` that `stop` begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
