"""Log-probabilities in OpenAI's two shapes.

In: what the engine found at each token. Out: plain objects, one entry per token that was written, the one that ended
the text included: the same streamed and whole, whatever of the text is held back or cut off. A token that is part of a
character shows its bytes as escapes, a control token its literal.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from draftgraph.models.tokenizer import Tokenizer
from draftgraph.types import TokenLogprobs

_LOWEST = -9999.0  # JSON has no infinity


class Shown(dict[int, tuple[str, list[int] | None]]):
    """How tokens look, label and bytes: looked up once for each token of a request."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> tuple[str, list[int] | None]:
        look = self._tokenizer.token_label(token), list(self._tokenizer.token_bytes(token)) or None
        self[token] = look
        return look


def chat_logprobs(shown_as: Shown, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Returns the `logprobs` of a chat's choice."""

    def shown(token: int, logprob: float) -> dict[str, Any]:
        label, text = shown_as[token]
        return {"token": label, "logprob": max(logprob, _LOWEST), "bytes": text}

    content = [
        {**shown(entry.token, entry.logprob), "top_logprobs": [shown(token, logprob) for token, logprob in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


class TextLogprobs:
    """The `logprobs` of one completion, piece by piece.

    `text_offset` counts the whole characters before a token; tokens of a stop string stand beyond the text's end.
    """

    def __init__(self, shown_as: Shown) -> None:
        self._shown_as = shown_as
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def add(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Returns those of the next tokens."""
        shown_as = self._shown_as
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(bytes(shown_as[entry.token][1] or ())))
        return {
            "tokens": [shown_as[entry.token][0] for entry in entries],
            "token_logprobs": [max(entry.logprob, _LOWEST) for entry in entries],
            # Up to one more than asked for: the token itself is always among them.
            "top_logprobs": [
                {
                    shown_as[token][0]: max(logprob, _LOWEST)
                    for token, logprob in (*entry.top, (entry.token, entry.logprob))
                }
                for entry in entries
            ],
            "text_offset": offsets,
        }
