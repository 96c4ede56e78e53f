"""Prompts as clients send them, to token ids.

In: a raw text, token ids or the messages of a chat. Out: ids. Text of a message never becomes markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from draftgraph.models.tokenizer import Tokenizer
from draftgraph.server.body import fault_of_shape
from draftgraph.server.calls import read_object
from draftgraph.server.errors import ApiError
from draftgraph.server.messages import AssistantTurn, ToolCall, ToolTurn, Turn

Prompt: TypeAlias = str | Sequence[int] | Sequence[Turn]


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
    messages = [item for item in prompt if isinstance(item, Turn)]
    if not messages:
        return [item for item in prompt if isinstance(item, int)]
    plain = _noted(_plain_messages(messages), note)
    return tokenizer.encode_messages(plain, variables={"tools": list(tools)} if tools else None)


def _plain_messages(messages: Sequence[Turn]) -> list[dict[str, Any]]:
    """Returns messages for the template. Developers speak as the system: few templates know them."""
    plain = []
    names: dict[str, str] = {}  # of the functions called so far, by call
    for i, message in enumerate(messages):
        where = f"messages.{i}"
        given = message.model_dump(exclude_none=True)
        if message.role == "developer":
            given["role"] = "system"
        if isinstance(message, AssistantTurn) and message.tool_calls:
            calls = enumerate(message.tool_calls)
            given["tool_calls"] = [_plain_call(f"{where}.tool_calls.{j}", call) for j, call in calls]
            names |= {call.id: call.function.name for call in message.tool_calls}
        elif message.content is None:
            raise _fault(f"{where}.content", "only a message with tool_calls has none")
        if isinstance(message, ToolTurn):
            if message.tool_call_id not in names:
                raise _fault(f"{where}.tool_call_id", "no message before has a call of this id")
            given.setdefault("name", names[message.tool_call_id])  # some templates show it
        plain.append(given)
    return plain


def _plain_call(where: str, call: ToolCall) -> dict[str, Any]:
    if fault := fault_of_shape(call.function.arguments.encode()):
        raise _fault(f"{where}.function.arguments", f"they have {fault}")
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
