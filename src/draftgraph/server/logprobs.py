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


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Returns the `logprobs` of a chat's choice."""

    def shown(token: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.token_bytes(token)
        label = tokenizer.token_label(token)
        return {"token": label, "logprob": max(logprob, _LOWEST), "bytes": list(text) or None}

    content = [
        {**shown(entry.token, entry.logprob), "top_logprobs": [shown(token, logprob) for token, logprob in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


class TextLogprobs:
    """The `logprobs` of one completion, piece by piece.

    `text_offset` counts the whole characters before a token; tokens of a stop string stand beyond the text's end.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def add(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Returns those of the next tokens."""
        label = self._tokenizer.token_label
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(entry.token)))
        return {
            "tokens": [label(entry.token) for entry in entries],
            "token_logprobs": [max(entry.logprob, _LOWEST) for entry in entries],
            # Up to one more than asked for: the token itself is always among them.
            "top_logprobs": [
                {label(token): max(logprob, _LOWEST) for token, logprob in (*entry.top, (entry.token, entry.logprob))}
                for entry in entries
            ],
            "text_offset": offsets,
        }
