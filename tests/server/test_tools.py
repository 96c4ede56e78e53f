"""Functions: calls that a model writes come out as tool_calls, the same streamed, whole and undrafted."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import openai
import pytest

from draftgraph.server.tools import Abilities
from support.serving import CHAT, Serving, error_of, serving
from support.tools import TOOLS, WEATHER, call_text, script, write_tool_model

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "How is Paris?"}]
ABILITIES = {
    "tags": Abilities(tools=True, calls=True, calls_with_tools=True, tags=True),
    "other": Abilities(tools=True, calls=True, calls_with_tools=True, tags=False),
    "none": Abilities(tools=False, calls=False, calls_with_tools=False, tags=False),
    "two": Abilities(tools=True, calls=False, calls_with_tools=True, tags=True),
}
Served = Callable[[str], Serving]
VALID = jsonschema_rs.validator_for(WEATHER)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for each template that a test asks for."""
    running: dict[str, Serving] = {}
    with contextlib.ExitStack() as stack:

        def serve(template: str) -> Serving:
            if template not in running:
                model = write_tool_model(tmp_path_factory.mktemp(template), template)
                running[template] = stack.enter_context(serving(model, slots=4))
            return running[template]

        yield serve
        for one in running.values():
            one.assert_idle()


def asked(running: Serving, **more: Any) -> dict[str, Any]:
    return {"model": running.llm.name, "messages": ASKED, "tools": TOOLS, "max_tokens": 1500, **more}


def whole(running: Serving, **more: Any) -> tuple[str | None, list[tuple[str, str]], str]:
    """What was said, what was called, and the finish reason."""
    with running.openai() as client:
        (choice,) = client.chat.completions.create(**asked(running, **more)).choices
    calls = choice.message.tool_calls or []
    assert all(call.type == "function" for call in calls)
    assert len({call.id for call in calls}) == len(calls)
    found = [(call.function.name, call.function.arguments) for call in calls]
    return choice.message.content, found, choice.finish_reason


def streamed(running: Serving, **more: Any) -> tuple[str | None, list[tuple[str, str]], str]:
    """The same, put together from a stream as clients do it."""
    said, calls, reasons = "", [], []
    with running.openai() as client:
        for chunk in client.chat.completions.create(stream=True, **asked(running, **more)):
            (choice,) = chunk.choices
            assert not reasons, "nothing follows the finish reason"
            said += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                assert call.index == len(calls), "each call comes whole, in one delta"
                assert call.id
                calls.append((call.function.name, call.function.arguments))
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    assert len(reasons) == 1
    return said if said or not calls else None, calls, reasons[0]


def everywhere(running: Serving, **more: Any) -> tuple[str | None, list[tuple[str, str]], str]:
    first = whole(running, **more)
    assert streamed(running, **more) == first
    assert whole(running, extra_body={"draft": "off"}, **more) == first
    return first


@pytest.mark.parametrize("template", ABILITIES)
def test_a_template_is_known_by_what_it_renders(served: Served, template: str) -> None:
    assert served(template).server._service.abilities == ABILITIES[template]


# Forced


@pytest.mark.parametrize("choice", ["required", "weather"])
@pytest.mark.parametrize("template", ABILITIES)
def test_a_forced_call_is_made_with_arguments_of_its_schema(served: Served, template: str, choice: str) -> None:
    running = served(template)
    named = {"type": "function", "function": {"name": choice}}
    for seed in range(3):
        options = {"tool_choice": choice if choice == "required" else named, "parallel_tool_calls": False}
        said, calls, reason = everywhere(running, temperature=1.0, seed=seed, **options)
        assert (said, len(calls), reason) == (None, 1, "tool_calls")
        ((name, arguments),) = calls
        assert name == "weather" or choice == "required"
        if name == "weather":
            VALID.validate(json.loads(arguments))
        else:
            assert json.loads(arguments) == {}


def test_a_named_function_is_called_whatever_the_model_would_say(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = served("tags")
    script(monkeypatch, running.llm.model.tokenizer.encode(call_text("weather", {"city": "Oslo"}), special=False))
    named = {"type": "function", "function": {"name": "time"}}
    assert everywhere(running, tool_choice=named) == (None, [("time", "{}")], "tool_calls")


def test_a_call_that_the_limit_cuts_off_is_no_call(served: Served) -> None:
    said, calls, reason = everywhere(served("tags"), tool_choice="required", max_tokens=20)
    assert said is not None
    assert said.startswith("<tool_call>\n{")
    assert (calls, reason) == ([], "length")


# Free


SCRIPTS: dict[str, tuple[str, str | None, list[tuple[str, dict[str, Any]]]]] = {
    "a call": (call_text("weather", {"city": "Paris", "days": 3}), None, [("weather", {"city": "Paris", "days": 3})]),
    "words, then a call": (
        "I look.\n" + call_text("weather", {"city": "</tool_call>"}), "I look.", [("weather", {"city": "</tool_call>"})]
    ),
    "two calls": (
        "\n".join(call_text("weather", {"city": city, "days": 3}) for city in ("Paris", "Oslo")), None,
        [("weather", {"city": "Paris", "days": 3}), ("weather", {"city": "Oslo", "days": 3})],
    ),
    "words between two calls": (
        call_text("time", {}) + " and " + call_text("weather", {"city": 'the "City"'}), "and",
        [("time", {}), ("weather", {"city": 'the "City"'})],
    ),
    "words alone": ("It is < 3 <tool> fine. ", "It is < 3 <tool> fine. ", []),
}  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", SCRIPTS)
def test_what_the_model_writes_is_told_apart(
    served: Served, monkeypatch: pytest.MonkeyPatch, name: str, temperature: float
) -> None:
    """D-SV-19, D-EX-18: drafts of several tokens are accepted across the borders of calls."""
    running = served("tags")
    text, said, calls = SCRIPTS[name]
    words = running.llm.model.tokenizer
    script(monkeypatch, [*words.encode(text, special=False), words.eos_id])
    found = everywhere(running, temperature=temperature, seed=1)
    assert found[0] == said
    assert [(name, json.loads(arguments)) for name, arguments in found[1]] == calls
    assert found[2] == ("tool_calls" if calls else "stop")


def test_drafts_are_accepted_within_calls(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    running = served("tags")
    words = running.llm.model.tokenizer
    script(monkeypatch, [*words.encode(SCRIPTS["two calls"][0], special=False), words.eos_id])
    assert running.post(CHAT, asked(running)).json()["usage"]["draft"]["tokens_per_step"] > 1.5


@pytest.mark.parametrize("parallel", [True, False, None])
def test_one_call_ends_the_answer_unless_several_may_come(
    served: Served, monkeypatch: pytest.MonkeyPatch, parallel: bool | None
) -> None:
    running = served("tags")
    words = running.llm.model.tokenizer
    script(monkeypatch, [*words.encode(SCRIPTS["two calls"][0], special=False), words.eos_id])
    for choice in ("auto", "required"):
        options = {} if parallel is None else {"parallel_tool_calls": parallel}
        _, calls, reason = everywhere(running, tool_choice=choice, **options)
        assert (len(calls), reason) == (1 if parallel is False else 2, "tool_calls")


def test_a_call_of_something_else_cannot_be_written(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script is followed wherever the grammar lets it."""
    running = served("tags")
    words = running.llm.model.tokenizer
    script(monkeypatch, words.encode(call_text("weathering", {"city": 5, "days": 12}), special=False))
    _, calls, reason = everywhere(running)
    assert (calls[0][0], reason) in (("weather", "tool_calls"), ("weather", "length"))
    VALID.validate(json.loads(calls[0][1]))


def test_none_means_that_nothing_is_offered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    running = served("tags")
    words = running.llm.model.tokenizer
    text = call_text("weather", {"city": "Paris"})
    plain = running.post(CHAT, {"messages": ASKED, "max_tokens": 3}).json()["usage"]["prompt_tokens"]
    offered = running.post(CHAT, asked(running, max_tokens=3)).json()["usage"]["prompt_tokens"]
    unoffered = running.post(CHAT, asked(running, max_tokens=3, tool_choice="none")).json()["usage"]["prompt_tokens"]
    assert unoffered == plain < offered
    script(monkeypatch, [*words.encode(text, special=False), words.eos_id])
    assert everywhere(running, tool_choice="none") == (text, [], "stop")


def test_an_answer_has_a_call_or_the_form_that_was_asked_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    running = served("tags")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {**schema, "additionalProperties": False}}}
    words = running.llm.model.tokenizer
    for text, said, num_calls in ((call_text("time", {}), None, 1), ('{"ok": true}', '{"ok": true}', 0)):
        with monkeypatch.context() as patch:
            script(patch, [*words.encode(text, special=False), words.eos_id])
            found = everywhere(running, response_format=form)
        assert (found[0], len(found[1])) == (said, num_calls)
    form["json_schema"] |= {"strict": True, "schema": {"not": {}}}
    assert error_of(running.post(CHAT, asked(running, response_format=form)), 400)["param"] == "tools"


def test_logprobs_of_calls_are_those_of_their_tokens(served: Served) -> None:
    running = served("tags")
    body = asked(running, tool_choice="required", logprobs=True, parallel_tool_calls=False)
    reply = running.post(CHAT, body).json()
    entries = reply["choices"][0]["logprobs"]["content"]
    assert len(entries) == reply["usage"]["completion_tokens"]
    assert b"".join(bytes(entry["bytes"] or ()) for entry in entries).startswith(b"<tool_call>\n")
    with running.openai() as client:
        found = []
        for chunk in client.chat.completions.create(stream=True, **{**body, "logprobs": True}):
            (choice,) = chunk.choices
            found += [entry.model_dump() for entry in choice.logprobs.content] if choice.logprobs else []
    assert found == entries


# Histories


def turn(*calls: tuple[str, str, str], content: Any = None) -> dict[str, Any]:
    made = [{"id": i, "type": "function", "function": {"name": name, "arguments": a}} for i, name, a in calls]
    return {"role": "assistant", "content": content, "tool_calls": made}


def result(call: str, content: Any = "sunny") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": content}


def test_calls_and_results_are_in_the_prompt_as_the_template_has_them(served: Served) -> None:
    """D-SV-12: no content, an empty one and a text; results as text and as parts."""
    running = served("tags")

    def prompt(*messages: dict[str, Any]) -> str:
        tokens = running.post("/tokenize", {"messages": [*ASKED, *messages]}).json()["tokens"]
        words = running.llm.model.tokenizer
        return "".join(map(words.token_label, tokens))

    call = ("c1", "weather", '{"city":"Paris",  "days":1}')
    expected = call_text("weather", {"city": "Paris", "days": 1})
    found = prompt(turn(call), result("c1"))
    assert f"<|im_start|>assistant\n\n{expected}<|im_end|>" in found
    assert "<tool_response>\nsunny\n</tool_response>" in found
    assert prompt(turn(call, content=""), result("c1", [{"type": "text", "text": "sunny"}])) == found
    assert f"I look.\n{expected}" in prompt(turn(call, content="I look."), result("c1"))


def test_a_template_for_tools_shows_calls_only_where_there_are_tools(served: Served) -> None:
    running = served("two")
    messages = [*ASKED, turn(("c", "time", "{}")), result("c")]
    with running.openai() as client:
        create = client.chat.completions.create
        body = {**asked(running, messages=messages, max_tokens=2), "logprobs": True}
        with_tools = create(**body).usage.prompt_tokens
        words = running.llm.model.tokenizer
        assert with_tools > len(words.encode(json.dumps(WEATHER), special=False))
        for lacking in ({"tool_choice": "none"}, {"tools": None}):
            error = error_of(running.post(CHAT, {**body, **lacking}), 400)
            assert error["param"] == "messages.1.tool_calls"


def test_control_tokens_in_arguments_and_descriptions_stay_text(served: Served) -> None:
    """D-TK-03."""
    running = served("tags")
    words = running.llm.model.tokenizer

    def controls(text: str) -> int:
        messages = [*ASKED, turn(("c1", "weather", json.dumps({"city": text, text: 1}))), result("c1", text)]
        tokens = running.post("/tokenize", {"messages": messages}).json()["tokens"]
        return sum(token in words.special_ids for token in tokens)

    assert controls("<|im_end|>") == controls("x")
    sizes = []
    for text in ("<|im_end|>", "x"):
        tool = {"type": "function", "function": {"name": "f", "description": text}}
        ids = words.encode_messages(ASKED, variables={"tools": [tool]})
        sizes.append(sum(token in words.special_ids for token in ids))
    assert sizes[0] == sizes[1]


def test_an_answer_with_calls_can_be_sent_back_with_a_result(served: Served) -> None:
    running = served("tags")
    with running.openai() as client:
        create = client.chat.completions.create
        message = create(**asked(running, tool_choice="required")).choices[0].message
        answers = [result(call.id) for call in message.tool_calls]
        again = create(**asked(running, messages=[*ASKED, message.model_dump(), *answers], max_tokens=4))
        assert again.usage.completion_tokens == 4
        again = create(**asked(running, messages=[*ASKED, message, *answers], max_tokens=4))
        assert again.usage.completion_tokens == 4


BROKEN: dict[str, tuple[list[dict[str, Any]], str]] = {
    **{
        f"arguments {text[:9]!r}": ([turn(("c", "f", text)), result("c")], "messages.1.tool_calls.0.function.arguments")
        for text in ("{", "", "[]", "1", '"{}"', "null", '{"a": NaN}', "x" * 500_000, "[" * 100_000)
    },
    "an unknown call": ([turn(("c", "f", "{}")), result("d")], "messages.2.tool_call_id"),
    "a call to come": ([result("c"), turn(("c", "f", "{}"))], "messages.1.tool_call_id"),
    "a result of nothing": ([{"role": "tool", "content": "x"}], "messages.1.tool_call_id"),
    "a result without content": ([turn(("c", "f", "{}")), result("c", None)], "messages.2.content"),
    "a user's result": ([{**ASKED[0], "tool_call_id": "c"}], "messages.1.tool_call_id"),
    "a user's call": ([{**turn(("c", "f", "{}")), "role": "user"}], "messages.1.tool_calls"),
    "no content and no calls": ([{"role": "assistant", "content": None}], "messages.1.content"),
    "no calls": ([{"role": "assistant", "content": "x", "tool_calls": []}], "messages.1.tool_calls"),
    "a bad name": ([turn(("c", "f f", "{}"))], "messages.1.tool_calls.0.function.name"),
    "another type": (
        [{**turn(("c", "f", "{}")), "tool_calls": [turn(("c", "f", "{}"))["tool_calls"][0] | {"type": "custom"}]}],
        "messages.1.tool_calls.0.type",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_histories_are_refused_with_the_place_of_the_fault(served: Served, name: str) -> None:
    """D-SV-20."""
    messages, place = BROKEN[name]
    error = error_of(served("tags").post(CHAT, {"messages": [*ASKED, *messages], "max_tokens": 1}), 400)
    assert str(error["param"]).startswith(place)


# What cannot be done


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no tools": ({"tools": []}, "tools"),
    "too many": ({"tools": [tool(name=f"f{i}") for i in range(129)]}, "tools"),
    "another type": ({"tools": [{"type": "web_search"}]}, "tools.0"),
    "no name": ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
    "a bad name": ({"tools": [tool(name='f", "')]}, "tools.0.function.name"),
    "twice": ({"tools": [tool(), tool()]}, "tools.1.function.name"),
    "no object": ({"tools": [tool(parameters={"type": "array"})]}, "tools.0.function.parameters"),
    "no schema": ({"tools": [tool(parameters={"properties": 5})]}, "tools.0.function.parameters"),
    "strict": (
        {"tools": [tool(strict=True, parameters={"properties": {"a": {"not": {}}}})]}, "tools.0.function.parameters"
    ),
    "one of two": ({"tools": [tool(), tool(name="g", strict=True, parameters={"if": {}})]}, "tools"),
    "multiples": (
        {"tools": [tool(parameters={"properties": {"a": {"multipleOf": 1234567}}})]}, "tools.0.function.parameters"
    ),
    "a choice of nothing": ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    "a choice without tools": ({"tools": None, "tool_choice": "auto"}, "tool_choice"),
    "an unknown choice": (
        {"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"
    ),
    "another choice": ({"tool_choice": "some"}, "tool_choice"),
    "parallel nothing": ({"tools": None, "parallel_tool_calls": True}, "parallel_tool_calls"),
    "not whether": ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    "ends ignored": ({"ignore_eos": True}, "ignore_eos"),
    "functions": ({"functions": []}, "functions"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_functions_that_cannot_be_offered_are_refused_by_name(served: Served, name: str) -> None:
    running = served("tags")
    fields, param = REFUSED[name]
    body = {key: value for key, value in {**asked(running), **fields}.items() if value is not None}
    assert str(error_of(running.post(CHAT, body), 400)["param"]).startswith(param)


def test_what_is_not_enforced_is_left_to_the_model_unless_strict(served: Served) -> None:
    running = served("tags")
    schema = {"type": "object", "properties": {"a": {"type": "boolean", "not": {"const": 1}}}, "required": ["a"]}
    lenient = [tool(parameters={**schema, "additionalProperties": False})]
    _, ((_, arguments),), _ = everywhere(running, tools=lenient, tool_choice="required", parallel_tool_calls=False)
    assert isinstance(json.loads(arguments)["a"], bool)


@pytest.mark.parametrize(("template", "lacks"), [("none", "tell of functions"), ("other", "write calls in")])
def test_a_model_whose_template_cannot_is_not_left_to_choose(served: Served, template: str, lacks: str) -> None:
    running = served(template)
    for choice in ({}, {"tool_choice": "auto"}):
        error = error_of(running.post(CHAT, asked(running, **choice)), 400)
        assert error["param"] == "tool_choice"
        assert lacks in error["message"]
    assert running.post(CHAT, asked(running, tool_choice="none", max_tokens=1)).status_code == 200


def test_histories_that_a_template_would_leave_out_are_refused(served: Served) -> None:
    running = served("none")
    messages = [*ASKED, turn(("c", "f", "{}")), result("c")]
    for path in (CHAT, "/tokenize"):
        assert error_of(running.post(path, {"messages": messages}), 400)["param"] == "messages.1.tool_calls"
    assert running.post("/tokenize", {"messages": messages, "prompt": None}).status_code == 400


def test_a_system_note_tells_of_functions_where_the_template_cannot(served: Served) -> None:
    """After the system's own words, if it has any."""
    running = served("none")
    sizes = {}
    for role in ("system", "developer", "user"):
        first = [{"role": role, "content": "Be short."}, *ASKED]
        body = asked(running, messages=first, max_tokens=1, tool_choice="required")
        sizes[role] = running.post(CHAT, body).json()["usage"]["prompt_tokens"]
        plain = running.post(CHAT, {"messages": first, "max_tokens": 1}).json()["usage"]["prompt_tokens"]
        assert sizes[role] > plain + 100
    assert sizes["system"] == sizes["developer"]


def test_errors_are_the_clients_own(served: Served) -> None:
    running = served("none")
    with running.openai() as client, pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**asked(running))
    assert bad.value.param == "tool_choice"
