"""Functions that a model may call: how it is told of them, and the grammar that holds it to them.

In: a checked chat, and what the model's chat template can do. Out: a `Plan` for its answer. A template is judged by
what it renders. With functions on offer the answer is under a grammar, so a call is always one of a function on offer
with arguments of its schema; free text is free up to the tag that opens a call. Never sees tokens or the engine.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftgraph.errors import DraftGraphError
from draftgraph.models.tokenizer import Tokenizer
from draftgraph.server.calls import CLOSE, OPEN
from draftgraph.server.errors import ApiError, bad_request
from draftgraph.server.messages import AssistantTurn, ChosenTool, Function, JsonSchema, ToolTurn, Turn
from draftgraph.server.schema import ChatRequest

_PROBE, _USED, _RESULT = "probe_7f3a", "used_7f3a", "result_7f3a"
_CALL = {"id": "c", "type": "function", "function": {"name": _USED, "arguments": {"x": 1}}}
_WRITTEN = f'{OPEN}\n{{"name": "{_USED}", "arguments": {{"x": 1}}}}\n{CLOSE}'
# The fixed parts of a call, as literals of a grammar.
_CALLED, _CALL_END, _LINE, _END, _OPEN, _NEXT = map(
    json.dumps, ('{"name": "', "}", "\n", f"\n{CLOSE}", OPEN, f"\n{OPEN}")
)
_ARGUMENTS = json.dumps('", "arguments": ')[1:]  # after a name


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a model's chat templates do with functions: there may be one of its own for chats with tools.

    Args:
        tools: the model is told of them.
        calls: without tools, calls made before are shown, and their results.
        calls_with_tools: with tools, they are.
        tags: with tools, calls are written as this server reads them.
    """

    tools: bool
    calls: bool
    calls_with_tools: bool
    tags: bool


def abilities(tokenizer: Tokenizer) -> Abilities:
    """Returns what the model's chat template can do, by trying it."""
    asked = {"role": "user", "content": "x"}
    tools = [{"type": "function", "function": {"name": _PROBE, "description": "x", "parameters": {"type": "object"}}}]
    called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    history: list[dict[str, Any]] = [
        asked,
        called,
        {"role": "tool", "content": _RESULT, "tool_call_id": "c", "name": _USED},
    ]
    alone, beside = _rendered(tokenizer, history, {}), _rendered(tokenizer, history, {"tools": tools})
    return Abilities(
        tools=_PROBE in _rendered(tokenizer, [asked], {"tools": tools}),
        calls=_USED in alone and _RESULT in alone,
        calls_with_tools=_USED in beside and _RESULT in beside,
        tags=_WRITTEN in beside,
    )


def _rendered(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
    try:
        return tokenizer.render_messages(messages, variables=variables).plain
    except DraftGraphError:
        return ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the functions and the form that a chat asks for mean for its answer.

    Args:
        sampling: sampling parameters that follow from them.
        fields: the request's fields that these came from, for errors.
        tools: what the template is told of.
        note: what the system says besides, where the template cannot tell.
        tagged: how calls stand in the answer (see `CallReader`); None if there can be none.
        stop: texts before which the answer ends.
    """

    sampling: Mapping[str, Any]
    fields: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    note: str = ""
    tagged: bool | None = None
    stop: tuple[str, ...] = ()

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """Makes errors about the grammar of the block errors about the fields that it came from."""
        try:
            yield
        except DraftGraphError as error:
            raise self._blame(bad_request(error)) from error
        except ApiError as error:
            self._blame(error)
            raise

    def _blame(self, error: ApiError) -> ApiError:
        if error.param in self.sampling:
            error.message, error.param = f"{self.fields}: {error.message}", self.fields
        return error


def plan(body: ChatRequest, able: Abilities) -> Plan:
    """Returns the plan for a chat.

    Raises:
        ApiError: 400; the fields contradict each other, or the model's template cannot do what they ask for.
    """
    form = _form(body)
    if not body.tools:
        for name in ("tool_choice", "parallel_tool_calls"):
            if getattr(body, name) is not None:
                raise ApiError(400, f"{name}: only with tools", param=name)
    if not body.tools or body.tool_choice == "none":
        return Plan({} if form is None else _only(json_schema=json.dumps(form)), "response_format.json_schema.schema")
    functions = _functions(body)
    forced = body.tool_choice not in (None, "auto")
    if not forced and not (able.tools and able.tags):
        lacks = "tell of functions" if not able.tools else f"write calls in {OPEN} tags"
        message = f"this model's chat template does not {lacks}; allowed: none, required, or a function by name"
        raise ApiError(400, f"tool_choice: auto, but {message}", param="tool_choice")
    many = body.parallel_tool_calls is not False and not isinstance(body.tool_choice, ChosenTool)
    tagged = able.tools and able.tags
    offered = [_plain(tool.function) for tool in body.tools]
    return Plan(
        _only(grammar=_grammar(functions, tagged=tagged, may_answer=not forced, many=many, form=form)),
        "tools.0.function.parameters" if len(body.tools) == 1 and form is None else "tools",
        offered if able.tools else (),
        "" if able.tools else _note(offered),
        tagged,
    )


def check_history(messages: Sequence[Turn], able: Abilities, tools: Sequence[Mapping[str, Any]] = ()) -> None:
    """Raises ApiError, 400, if messages have calls or results that the template would leave out.

    Args:
        tools: what the template is told of.
    """
    shown = able.calls_with_tools if tools else able.calls
    for i, message in enumerate(messages):
        has_calls = isinstance(message, AssistantTurn) and message.tool_calls
        if not shown and (has_calls or isinstance(message, ToolTurn)):
            where = f"messages.{i}.{'tool_calls' if has_calls else 'role'}"
            why = "this model's chat template has no place for calls and their results; say them as text"
            raise ApiError(400, f"{where}: {why}", param=where)


def _only(**constraint: str) -> dict[str, str | None]:
    """Returns the sampling parameters of this constraint and no other, whatever the server's defaults."""
    return {"json_schema": None, "regex": None, "grammar": None, **constraint}


def _form(body: ChatRequest) -> JsonSchema | None:
    """Returns the schema of the answer; None where it is free."""
    form = body.response_format
    if form is not None and (form.json_schema is None) != (form.type != "json_schema"):
        where = "response_format.json_schema"
        raise ApiError(400, f"{where}: with type json_schema, and only then", param=where)
    if form is None or form.type == "text":
        return None
    if form.json_schema is None or form.json_schema.schema_ is None:
        return {"type": "object"}
    return _bounded(form.json_schema.schema_, form.json_schema.strict)


def _bounded(schema: JsonSchema, strict: bool | None) -> JsonSchema:
    """Returns the schema, lenient unless it is strict: what cannot be enforced is then left to the model."""
    return schema if strict else {"x-guidance": {"lenient": True, "coerce_one_of": True}, **schema}


def _functions(body: ChatRequest) -> dict[str, JsonSchema]:
    """Returns the schemas of the functions that may be called now, by name."""
    found: dict[str, JsonSchema] = {}
    for i, tool in enumerate(body.tools or ()):
        where, function = f"tools.{i}.function", tool.function
        if function.name in found:
            raise ApiError(400, f"{where}.name: {function.name!r} stands there twice", param=f"{where}.name")
        nothing = {"properties": {}, "additionalProperties": False}
        schema = {"type": "object", **(nothing if function.parameters is None else function.parameters)}
        if schema["type"] != "object":
            raise ApiError(400, f"{where}.parameters: allowed: a schema of type object", param=f"{where}.parameters")
        found[function.name] = _bounded(schema, function.strict)
    if isinstance(body.tool_choice, ChosenTool):
        name, where = body.tool_choice.function.name, "tool_choice.function.name"
        if name not in found:
            raise ApiError(400, f"{where}: {name!r} is not among the tools", param=where)
        return {name: found[name]}
    return found


def _plain(function: Function) -> dict[str, Any]:
    """Returns a function as templates know them."""
    return {"type": "function", "function": function.model_dump(exclude={"strict"}, exclude_none=True)}


def _note(tools: Sequence[Mapping[str, Any]]) -> str:
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return f'You can call these functions:\n{lines}\nA call is {{"name": NAME, "arguments": OBJECT}}.'


def _grammar(
    functions: Mapping[str, JsonSchema], *, tagged: bool, may_answer: bool, many: bool, form: JsonSchema | None
) -> str:
    """Returns the grammar of the answer, in llguidance's dialect of Lark, whose literals are JSON's.

    Each schema is a %json of its own, so references within it are to its own root. `opened` ends, and a call begins,
    wherever the tag appears, so there is no tag in a text.
    """
    names = [f"{json.dumps(name)[:-1]}{_ARGUMENTS} arguments_{i}" for i, name in enumerate(functions)]
    rules = [f"call: {_CALLED} function {_CALL_END}", f"function: {' | '.join(names)}"]
    rules += [f"arguments_{i}: %json {json.dumps(schema)}" for i, schema in enumerate(functions.values())]
    if not tagged:
        return "\n".join(["start: call", *rules])
    calls = f"{_OPEN} tagged ({_NEXT} tagged)*" if many else f"{_OPEN} tagged"
    rules += [f"tagged: {_LINE} call {_END}"]
    if not may_answer:
        return "\n".join([f"start: {calls}", *rules])
    if form is not None:
        return "\n".join([f"start: answer | {calls}", f"answer: %json {json.dumps(form)}", *rules])
    start = "start: (opened tagged)* TEXT" if many else "start: TEXT | opened tagged"
    return "\n".join([start, f"opened[lazy]: TEXT {_OPEN}", "TEXT: /(?s:.*)/", *rules])
