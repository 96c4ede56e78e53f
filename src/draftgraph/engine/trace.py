"""Who wrote each character of a stream.

In: a request's deltas. Out: their texts, token by token, each with its sources. Never sees requests or tensors.
"""

from __future__ import annotations

import codecs
import itertools
from collections import deque
from collections.abc import Callable, Iterator

from draftgraph.types import TARGET, Delta

Sources = tuple[str, ...]


class Tracer:
    """Says who wrote each character of a stream. Per stream.

    A character whose bytes come from several tokens belongs to the last of them.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_tokens = 0
        self._waiting: deque[tuple[str, int, Sources]] = deque()  # (character, token's number, sources), not shown yet

    def pieces(self, delta: Delta) -> Iterator[tuple[str, Sources]]:
        """Yields (characters of one token, its sources); the characters together are the delta's text."""
        for token, sources in zip(delta.token_ids, delta.sources, strict=True):
            self._hold(self._decoder.decode(self._token_bytes(token)), sources)
        if delta.finish_reason is not None:
            self._hold(self._decoder.decode(b"", final=True), (TARGET,))
        shown = [self._waiting.popleft() for _ in delta.text]
        for (_, sources), group in itertools.groupby(shown, key=lambda held: held[1:]):
            yield "".join(char for char, _, _ in group), sources

    def _hold(self, text: str, sources: Sources) -> None:
        self._waiting.extend((char, self._num_tokens, sources) for char in text)
        self._num_tokens += 1
