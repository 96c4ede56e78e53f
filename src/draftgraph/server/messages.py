"""The parts of a chat as clients send them: messages, functions that may be called, the form of the answer.

In: JSON values. Out: checked parts. What one field means for another is for `prompts.py` and `tools.py` to judge.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag
from pydantic_core import PydanticCustomError

from draftgraph.config import MAX_GRAMMAR
from draftgraph.server.fields import Strict, Text, items

Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
CallId = Annotated[str, Field(min_length=1, max_length=256)]
_ENCODER = json.JSONEncoder()


def _check_length(value: Any) -> None:
    """Raises if a value is longer than any grammar may be, as soon as that is known."""
    left = MAX_GRAMMAR
    for piece in _ENCODER.iterencode(value):
        left -= len(piece)
        if left < 0:
            raise PydanticCustomError("too_long", "more than {most} characters of JSON schema", {"most": MAX_GRAMMAR})


def _short(schema: dict[str, Any]) -> dict[str, Any]:
    _check_length(schema)
    return schema


# NOTE: what stands in a JSON schema is for the grammar to judge; it refuses what it does not know.
JsonSchema = Annotated[dict[str, Any], AfterValidator(_short)]


class TextPart(Strict):
    """A piece of a message."""

    type: Literal["text"]
    text: Text


class CalledFunction(Strict):
    """What was called, and with what."""

    name: Name
    arguments: Text = Field(description="A JSON object, as text.")


class ToolCall(Strict):
    """A call that the assistant made."""

    id: CallId
    type: Literal["function"]
    function: CalledFunction


Content = Text | Annotated[list[TextPart], items(min_length=1, max_length=1024)]


class Turn(Strict):
    """One turn of a chat: what all have in common."""

    role: str
    content: Content | None
    name: Annotated[str, Field(max_length=1024)] | None = None


class SystemTurn(Turn):
    role: Literal["system", "developer"]
    content: Content


class UserTurn(Turn):
    role: Literal["user"]
    content: Content


class AssistantTurn(Turn):
    """Fields that are null stand in the answers of OpenAI's clients, which send them back."""

    role: Literal["assistant"]
    content: Content | None = Field(None, description="Only one with tool_calls may have none.")
    tool_calls: Annotated[list[ToolCall], items(min_length=1, max_length=128)] | None = None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None


class ToolTurn(Turn):
    """What a call gave."""

    role: Literal["tool"]
    content: Content
    tool_call_id: CallId


# NOTE: they stand in the locations of errors; no field has such a name, so they are left out there.
_KINDS = {
    "system": "the system's", "developer": "the system's", "user": "a user's", "assistant": "an assistant's",
    "tool": "a tool's",
}  # fmt: skip


def _kind(message: Any) -> str | None:
    role = message.get("role") if isinstance(message, dict) else None
    return _KINDS.get(role) if isinstance(role, str) else None


Message = Annotated[
    Annotated[SystemTurn, Tag(_KINDS["system"])]
    | Annotated[UserTurn, Tag(_KINDS["user"])]
    | Annotated[AssistantTurn, Tag(_KINDS["assistant"])]
    | Annotated[ToolTurn, Tag(_KINDS["tool"])],
    Discriminator(_kind, custom_error_type="role", custom_error_message=f"role: allowed: {', '.join(_KINDS)}"),
]
Messages = Annotated[list[Message], items(min_length=1, max_length=4096)]


class Function(Strict):
    """A function that the model may call."""

    name: Name
    description: Text | None = None
    parameters: JsonSchema | None = Field(None, description="A JSON schema of an object; without one, no arguments.")
    strict: bool | None = Field(None, description="Refuse a schema that cannot be enforced in full.")


class Tool(Strict):
    type: Literal["function"]
    function: Function


def _short_together(tools: list[Tool]) -> list[Tool]:
    _check_length([tool.function.parameters for tool in tools])
    return tools


Tools = Annotated[list[Tool], items(min_length=1, max_length=128), AfterValidator(_short_together)]


class ChosenFunction(Strict):
    name: Name


class ChosenTool(Strict):
    """The function that must be called."""

    type: Literal["function"]
    function: ChosenFunction


class AnswerSchema(Strict):
    """The JSON schema of an answer."""

    name: Name
    description: Text | None = Field(None, description="Has no effect.")
    schema_: JsonSchema | None = Field(None, alias="schema", description="Without one, any object.")
    strict: bool | None = Field(None, description="Refuse a schema that cannot be enforced in full.")


class ResponseFormat(Strict):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: AnswerSchema | None = Field(None, description="With type json_schema, and only then.")


MODELS = (
    SystemTurn, UserTurn, AssistantTurn, ToolTurn, TextPart, ToolCall, CalledFunction,
    Tool, Function, ChosenTool, ChosenFunction, AnswerSchema, ResponseFormat,
)  # fmt: skip
