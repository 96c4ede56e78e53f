"""Messages to one prompt text, by a model's own chat template.

In: messages as clients send them, and a template from a model file. Out: a `RenderedChat`, in which text from the
messages cannot be taken for markup. Knows nothing of vocabularies or models, and trusts neither side.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from draftgraph.errors import PromptError
from draftgraph.models.template import render
from draftgraph.models.token_table import Literal, LiteralSplitter

ROLES = ("system", "developer", "user", "assistant", "tool")
_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
_RESERVED = ("messages", "bos_token", "eos_token", "add_generation_prompt")
# Unicode's noncharacters: they mean nothing in any text.
_NONCHARACTERS = [*range(0xFDD0, 0xFDF0), *(plane << 16 | last for plane in range(17) for last in (0xFFFE, 0xFFFF))]


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """One prompt, as text.

    Args:
        text: the prompt. `guard` stands after the first character of every control literal that a message wrote, and
            nowhere else.
        guard: a character that neither the messages nor the template contain.
    """

    text: str
    guard: str

    @property
    def plain(self) -> str:
        """The prompt as people read it."""
        return self.text.replace(self.guard, "")


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    bos: str,
    eos: str,
    control_literals: Collection[str],
    variables: Mapping[str, Any] | None = None,
    now: datetime | None = None,
) -> RenderedChat:
    """Returns `messages` rendered by `template`, up to the point where the assistant speaks. Modifies nothing.

    Args:
        messages: each with a `role` of ROLES, a `content` that is text or a list of text parts, and perhaps a `name`.
            An assistant's may have `tool_calls`, each {"function": {"name": TEXT, "arguments": OBJECT}} and perhaps
            more, and then no content; a tool's answers the call `tool_call_id`.
        control_literals: the texts of the model's control tokens.
        variables: further variables of the template, such as tools: JSON values.
        now: the time for templates that ask for it; the default is the present.

    Raises:
        PromptError: the messages or variables are not of that form.
        ChatTemplateError: the template is malformed, refuses the messages or never ends.
    """
    checked = check_messages(messages)
    extra = check_variables(variables or {})
    guard = _choose_guard([template, bos, eos, *_strings([checked, extra])])
    mark = _marker(control_literals, guard)
    values = {
        **{name: _map_strings(value, mark) for name, value in extra.items()},
        "messages": [
            {key: value if key == "role" else _map_strings(value, mark) for key, value in message.items()}
            for message in checked
        ],
        "bos_token": bos,
        "eos_token": eos,
        "add_generation_prompt": True,
    }
    return RenderedChat(render(template, values, guard=guard, now=now), guard)


def check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages with plain text contents: text parts are joined, so both forms give one prompt.

    Raises:
        PromptError: no messages, or one that is not of the supported form.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        _refuse(f"messages={messages!r:.80}", "a list of at least one message", "send the conversation as a list")
    return [_check_message(index, message) for index, message in enumerate(messages)]


def _check_message(index: int, message: Any) -> dict[str, Any]:
    where = f"message {index}"
    if not isinstance(message, Mapping):
        _refuse(f"{where} is {message!r:.80}", "an object with role and content", "send each message as an object")
    for key in message:
        if key not in _KEYS:
            _refuse(f"{where} has the key {key!r:.80}", ", ".join(_KEYS), "remove the key")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        _refuse(f"{where} has role={role!r:.80}", ", ".join(ROLES), "choose one of these roles")
    calls = _check_calls(where, role, message["tool_calls"]) if "tool_calls" in message else {}
    content = message.get("content")
    checked = {"role": role, "content": "" if calls and content is None else _check_content(where, content), **calls}
    for key in ("name", "tool_call_id"):
        if key in message:
            if not isinstance(message[key], str):
                _refuse(f"{where} has {key}={message[key]!r:.80}", "text", f"send the {key} as text or leave it out")
            checked[key] = message[key]
    return checked


def _check_calls(where: str, role: str, calls: Any) -> dict[str, Any]:
    if role != "assistant" or not isinstance(calls, (list, tuple)) or not calls:
        _refuse(f"{where} has tool_calls={calls!r:.80}", "a list of calls, of an assistant", "leave tool_calls out")
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if (
            not isinstance(function, Mapping)
            or not isinstance(function.get("name"), str)
            or not isinstance(function.get("arguments"), Mapping)
        ):
            allowed = '{"function": {"name": TEXT, "arguments": OBJECT}}'
            _refuse(f"{where} has the call {call!r:.80}", allowed, "send each call in this form")
    return {"tool_calls": _as_json(f"{where} has tool_calls", list(calls))}


def _check_content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)) or not content:
        _refuse(f"{where} has content={content!r:.80}", "text or a list of text parts", "send the content as text")
    for part in content:
        is_text = isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        if not is_text or len(part) != 2:
            _refuse(f"{where} has the content part {part!r:.80}", '{"type": "text", "text": …}', "send text parts only")
    return "".join(part["text"] for part in content)


def check_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the template variables as plain JSON values, or raises PromptError."""
    if not isinstance(variables, Mapping):
        _refuse(f"template variables {variables!r:.80}", "an object", "send them by name")
    for name in variables:
        if not isinstance(name, str) or name in _RESERVED:
            _refuse(f"the template variable {name!r:.80}", f"a name other than {', '.join(_RESERVED)}", "rename it")
    copied: dict[str, Any] = _as_json("template variables", dict(variables))
    return copied


def _as_json(what: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise PromptError(f"{what}: {error}", "JSON values", "send text, numbers or objects") from error


def _strings(value: Any) -> Iterator[str]:
    """Yields every string in nested lists and dicts, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Returns nested lists and dicts with every string changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    return value


def _choose_guard(texts: Sequence[str]) -> str:
    used = set().union(*texts)
    guard = next((chr(code) for code in _NONCHARACTERS if chr(code) not in used), None)
    if guard is None:
        _refuse("text with all of Unicode's noncharacters", "text that leaves one out", "remove one of them")
    return guard


def _marker(control_literals: Collection[str], guard: str) -> Callable[[str], str]:
    """Returns a function that breaks control literals, whole or begun at the text's end, after their first character.

    A literal that is only begun could be completed by what the template puts after the text.
    """
    splitter = LiteralSplitter(Literal(text, 0) for text in control_literals)
    longest = max(map(len, control_literals), default=0)

    def mark(text: str) -> str:
        starts = []
        found = splitter.find(text, 0)
        while found:
            starts.append(found[0])
            found = splitter.find(text, found[0] + 1)
        ends = range(max(0, len(text) - longest + 1), len(text))
        starts += [start for start in ends if any(literal.startswith(text[start:]) for literal in control_literals)]
        pieces, done = [], 0
        for start in sorted(set(starts)):
            pieces += [text[done : start + 1], guard]
            done = start + 1
        return "".join([*pieces, text[done:]])

    return mark


def _refuse(given: str, allowed: str, remedy: str) -> NoReturn:
    raise PromptError(given, allowed, remedy)
