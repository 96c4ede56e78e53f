"""How texts look in OpenAI's two protocols: whole answers and the chunks of a stream.

In: texts, deltas and usage. Out: plain objects. The two formats have the same methods; nothing else knows
which is which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from draftgraph.server.generation import Written
from draftgraph.server.replies import AssistantMessage, ChatChoice, ChatReply, Finish, TextChoice, TextReply, Usage
from draftgraph.types import FinishReason

# A text that its grammar cut off is no whole one.
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
        """Returns a whole answer."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Returns the choice that a stream begins with, if it does."""

    def piece(self, index: int, text: str) -> dict[str, Any]:
        """Returns a choice with more text."""

    def ending(self, index: int, written: Written) -> dict[str, Any]:
        """Returns the last choice of a text."""


class ChatFormat:
    """Chat completions."""

    prefix = "chatcmpl-"
    chunk = "chat.completion.chunk"

    def reply(self, head: Head, written: Sequence[Written], usage: Usage) -> dict[str, Any]:
        choices = [
            ChatChoice(
                index=index,
                message=AssistantMessage(content=text.text),
                finish_reason=_FINISH[text.finish_reason],
                seed=text.seed,
            )
            for index, text in enumerate(written)
        ]
        return ChatReply(**head.to_json(), choices=choices, usage=usage).model_dump()

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._choice(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, text: str) -> dict[str, Any]:
        return self._choice(index, {"content": text})

    def ending(self, index: int, written: Written) -> dict[str, Any]:
        return {**self._choice(index, {}), "finish_reason": _FINISH[written.finish_reason], "seed": written.seed}

    def _choice(self, index: int, delta: dict[str, str]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


class TextFormat:
    """Completions of raw prompts."""

    prefix = "cmpl-"
    chunk = "text_completion"

    def reply(self, head: Head, written: Sequence[Written], usage: Usage) -> dict[str, Any]:
        choices = [
            TextChoice(index=index, text=text.text, finish_reason=_FINISH[text.finish_reason], seed=text.seed)
            for index, text in enumerate(written)
        ]
        return TextReply(**head.to_json(), choices=choices, usage=usage).model_dump()

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def piece(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}

    def ending(self, index: int, written: Written) -> dict[str, Any]:
        return {**self.piece(index, ""), "finish_reason": _FINISH[written.finish_reason], "seed": written.seed}
