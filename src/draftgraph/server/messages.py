"""The parts of a chat as clients send them: messages, functions that may be called, the form of the answer.

In: JSON values. Out: checked parts. What one field means for another is for `prompts.py` and `tools.py` to judge.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from draftgraph.server.fields import Strict, Text

Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
CallId = Annotated[str, Field(min_length=1, max_length=256)]
# NOTE: JSON schemas are for the grammar to judge; it refuses what it does not know.
JsonSchema = dict[str, Any]


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


class Message(Strict):
    """One turn of a chat. Fields that are null stand in the answers of OpenAI's clients, which send them back."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], Field(min_length=1, max_length=1024)] | None = Field(
        None, description="Only an assistant's that calls may be null."
    )
    name: Annotated[str, Field(max_length=1024)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1, max_length=128)] | None = None
    tool_call_id: CallId | None = Field(None, description="Which call a tool's message answers.")
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None


Messages = Annotated[list[Message], Field(min_length=1, max_length=4096)]


class Function(Strict):
    """A function that the model may call."""

    name: Name
    description: Text | None = None
    parameters: JsonSchema | None = Field(None, description="A JSON schema of an object; without one, no arguments.")
    strict: bool | None = Field(None, description="Refuse a schema that cannot be enforced in full.")


class Tool(Strict):
    type: Literal["function"]
    function: Function


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
    Message, TextPart, ToolCall, CalledFunction, Tool, Function, ChosenTool, ChosenFunction, AnswerSchema,
    ResponseFormat,
)  # fmt: skip
