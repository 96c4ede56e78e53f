"""Prompts as clients send them, to token ids.

In: a raw text, token ids or the messages of a chat. Out: ids. Text of a message never becomes markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from draftgraph.models.tokenizer import Tokenizer
from draftgraph.server.schema import Message

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]


def encode(tokenizer: Tokenizer, prompt: Prompt) -> Sequence[int]:
    """Returns the ids of a prompt; ids stay what they are.

    Raises:
        PromptError, ChatTemplateError: the model has no chat template, or it refuses these messages.
    """
    if isinstance(prompt, str):
        return tokenizer.encode_prompt(prompt)
    messages = [_plain(item) for item in prompt if isinstance(item, Message)]
    return tokenizer.encode_messages(messages) if messages else [item for item in prompt if isinstance(item, int)]


def _plain(message: Message) -> Mapping[str, Any]:
    """Returns a message for the template. Developers speak as the system: few templates know them."""
    plain = message.model_dump(exclude_none=True)
    return {**plain, "role": "system"} if message.role == "developer" else plain
