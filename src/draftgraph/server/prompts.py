"""Prompts as clients send them, to token ids.

In: a raw text, token ids or the messages of a chat. Out: ids. Text of a message never becomes markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from draftgraph.models.tokenizer import Tokenizer
from draftgraph.server.calls import read_object
from draftgraph.server.errors import ApiError
from draftgraph.server.messages import Message, ToolCall

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]


def encode(
    tokenizer: Tokenizer, prompt: Prompt, *, tools: Sequence[Mapping[str, Any]] = (), note: str = ""
) -> Sequence[int]:
    """Returns the ids of a prompt; ids stay what they are.

    Args:
        tools: what the chat template is told of.
        note: what the system says besides.

    Raises:
        ApiError: 400; a message is at fault.
        PromptError, ChatTemplateError: the model has no chat template, or it refuses these messages.
    """
    if isinstance(prompt, str):
        return tokenizer.encode_prompt(prompt)
    messages = [item for item in prompt if isinstance(item, Message)]
    if not messages:
        return [item for item in prompt if isinstance(item, int)]
    plain = _noted(_plain_messages(messages), note)
    return tokenizer.encode_messages(plain, variables={"tools": list(tools)} if tools else None)


def _plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns messages for the template. Developers speak as the system: few templates know them."""
    plain = []
    names: dict[str, str] = {}  # of the functions called so far, by call
    for i, message in enumerate(messages):
        where = f"messages.{i}"
        _check(where, message, names)
        given = message.model_dump(exclude_none=True)
        if message.role == "developer":
            given["role"] = "system"
        if message.tool_calls:
            calls = enumerate(message.tool_calls)
            given["tool_calls"] = [_plain_call(f"{where}.tool_calls.{j}", call) for j, call in calls]
            names |= {call.id: call.function.name for call in message.tool_calls}
        if message.tool_call_id is not None:
            given.setdefault("name", names[message.tool_call_id])  # some templates show it
        plain.append(given)
    return plain


def _check(where: str, message: Message, calls: Mapping[str, str]) -> None:
    """Raises ApiError, 400, if the fields of a message contradict its role."""
    if message.content is None and not message.tool_calls:
        raise _fault(f"{where}.content", "only a message with tool_calls has none")
    if message.tool_calls and message.role != "assistant":
        raise _fault(f"{where}.tool_calls", "only an assistant's message has them")
    if (message.tool_call_id is not None) != (message.role == "tool"):
        raise _fault(f"{where}.tool_call_id", "a tool's message has one, others have none")
    if message.tool_call_id is not None and message.tool_call_id not in calls:
        raise _fault(f"{where}.tool_call_id", "no message before has a call of this id")


def _plain_call(where: str, call: ToolCall) -> dict[str, Any]:
    arguments = read_object(call.function.arguments)
    if arguments is None:
        raise _fault(f"{where}.function.arguments", "they are not a JSON object")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _noted(messages: list[dict[str, Any]], note: str) -> list[dict[str, Any]]:
    if not note:
        return messages
    first, *others = messages
    if first["role"] != "system":
        return [{"role": "system", "content": note}, *messages]
    content = first["content"] if isinstance(first["content"], list) else [{"type": "text", "text": first["content"]}]
    return [{**first, "content": [*content, {"type": "text", "text": f"\n\n{note}"}]}, *others]


def _fault(where: str, why: str) -> ApiError:
    return ApiError(400, f"{where}: {why}", param=where)
