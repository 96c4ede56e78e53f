"""How texts look in OpenAI's two protocols: whole answers and the chunks of a stream.

In: texts, deltas and usage. Out: plain objects, of the shapes in `replies.py`. The two formats have the same methods;
nothing else knows which is which. A format belongs to one request: it remembers what a stream has said so far.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from draftgraph.models.tokenizer import Tokenizer
from draftgraph.server.calls import Call, CallReader, Piece
from draftgraph.server.generation import Written
from draftgraph.server.logprobs import Shown, TextLogprobs, chat_logprobs
from draftgraph.server.replies import Finish, Usage
from draftgraph.types import Delta, FinishReason, TokenLogprobs

# A text that its grammar cut off is no whole one; clients know how to treat those.
_FINISH: Mapping[FinishReason, Finish] = {
    FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.GRAMMAR: "length",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Head:
    """What stands in an answer and in every chunk of it."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Format(Protocol):
    """One of the two protocols."""

    prefix: str  # of an answer's id
    chunk: str  # the object type of a chunk

    def reply(self, head: Head, written: Sequence[Written], usage: Usage) -> dict[str, Any]:
        """Returns a whole answer, whose choices are made one by one while it is written as JSON."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Returns the choice that a stream begins with, if it does."""

    def pieces(self, index: int, delta: Delta) -> list[dict[str, Any]]:
        """Returns choices that say what is new."""

    def silence(self, index: int) -> dict[str, Any]:
        """Returns a choice that says nothing."""

    def ending(self, index: int, written: Written) -> list[dict[str, Any]]:
        """Returns the last choices of a text: what was held back, then why it ended."""


class ChatFormat:
    """Chat completions.

    Args:
        tagged: how calls stand in the texts (see `CallReader`); None if there are none.
    """

    prefix = "chatcmpl-"
    chunk = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, tagged: bool | None = None) -> None:
        self._shown_as = Shown(tokenizer)
        self._new_reader = (lambda: None) if tagged is None else partial(CallReader, tagged)
        self._readers: dict[int, CallReader | None] = {}  # of a stream's texts
        self._num_called: dict[int, int] = defaultdict(int)

    def reply(self, head: Head, written: Sequence[Written], usage: Usage) -> dict[str, Any]:
        choices = (self._whole(index, text) for index, text in enumerate(written))
        return {**head.to_json(), "object": "chat.completion", "choices": choices, "usage": usage.model_dump()}

    def _whole(self, index: int, written: Written) -> dict[str, Any]:
        reader = self._new_reader()
        pieces = [written.text] if reader is None else [*reader.push(written.text), *reader.finish()]
        calls = [_call(piece) for piece in pieces if isinstance(piece, Call)]
        said = "".join(piece for piece in pieces if isinstance(piece, str))
        content = said if said or not calls else None
        message = {"role": "assistant", "content": content, "refusal": None, "tool_calls": calls or None}
        logprobs = self._logprobs(written.logprobs)
        return {"index": index, "message": message, "logprobs": logprobs, **_end(written, reader)}

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._choice(index, {"role": "assistant", "content": ""})

    def pieces(self, index: int, delta: Delta) -> list[dict[str, Any]]:
        reader = self._readers.setdefault(index, self._new_reader())
        pieces: list[Piece] = ([delta.text] if delta.text else []) if reader is None else reader.push(delta.text)
        choices = [self._choice(index, self._said(index, piece)) for piece in pieces]
        if delta.logprobs:
            choices = choices or [self._choice(index, {})]
            choices[0]["logprobs"] = self._logprobs(delta.logprobs)
        return choices

    def silence(self, index: int) -> dict[str, Any]:
        return self._choice(index, {"content": ""})

    def ending(self, index: int, written: Written) -> list[dict[str, Any]]:
        reader = self._readers.get(index)
        held = [] if reader is None else reader.finish()
        last = {**self._choice(index, {}), **_end(written, reader)}
        return [*(self._choice(index, self._said(index, piece)) for piece in held), last]

    def _said(self, index: int, piece: Piece) -> dict[str, Any]:
        if isinstance(piece, str):
            return {"content": piece}
        self._num_called[index] += 1
        return {"tool_calls": [{"index": self._num_called[index] - 1, **_call(piece)}]}

    def _logprobs(self, entries: Sequence[TokenLogprobs] | None) -> Any:
        return None if entries is None else chat_logprobs(self._shown_as, entries)

    def _choice(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


class TextFormat:
    """Completions of raw prompts."""

    prefix = "cmpl-"
    chunk = "text_completion"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._new_logprobs = partial(TextLogprobs, Shown(tokenizer))
        self._logprobs: dict[int, TextLogprobs] = defaultdict(self._new_logprobs)  # of a stream's texts

    def reply(self, head: Head, written: Sequence[Written], usage: Usage) -> dict[str, Any]:
        choices = (self._whole(index, text) for index, text in enumerate(written))
        return {**head.to_json(), "object": self.chunk, "choices": choices, "usage": usage.model_dump()}

    def _whole(self, index: int, written: Written) -> dict[str, Any]:
        logprobs = None if written.logprobs is None else self._new_logprobs().add(written.logprobs)
        return {"index": index, "text": written.text, "logprobs": logprobs, **_end(written, None)}

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def pieces(self, index: int, delta: Delta) -> list[dict[str, Any]]:
        if not delta.text and not delta.logprobs:
            return []
        logprobs = self._logprobs[index].add(delta.logprobs) if delta.logprobs else None
        return [self._choice(index, delta.text, logprobs)]

    def silence(self, index: int) -> dict[str, Any]:
        return self._choice(index, "", None)

    def ending(self, index: int, written: Written) -> list[dict[str, Any]]:
        return [{**self.silence(index), **_end(written, None)}]

    def _choice(self, index: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _end(written: Written, reader: CallReader | None) -> dict[str, Any]:
    """Returns why a text ended, and the seed that writes it again."""
    reason = _FINISH[written.finish_reason]
    called = reader is not None and reader.num_calls > 0
    return {
        "finish_reason": "tool_calls" if called and reason == "stop" else reason,
        "finish_detail": "grammar" if written.finish_reason is FinishReason.GRAMMAR else None,
        "seed": written.seed,
    }
