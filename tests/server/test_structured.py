"""`response_format`: answers parse and fit their schema, drafts change nothing, and bad schemas are 400s by name."""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
from typing import Any

import jsonschema_rs
import openai
import pytest

from draftgraph import LLM
from draftgraph.config import SamplingParams
from draftgraph.types import FinishReason
from draftgraph.verify.grammar import GrammarConstraint, Grammars
from support.serving import CHAT, Serving, error_of

SCHEMAS: dict[str, dict[str, Any]] = {
    "choices": {
        "type": "object",
        "properties": {"kind": {"enum": ["bat", "bird"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["kind", "n"],
        "additionalProperties": False,
    },
    "references": {
        "type": "object",
        "properties": {"pair": {"type": "array", "items": {"$ref": "#/$defs/bit"}, "minItems": 2, "maxItems": 2}},
        "required": ["pair"],
        "additionalProperties": False,
        "$defs": {"bit": {"type": "boolean"}},
    },
    "a number alone": {"type": "integer", "minimum": -5, "maximum": 5},
}
BAIT = [{"role": "user", "content": '{"kind": bird, "n": x}, {"kind": bird, "n": x}, {"pair": [yes, no]}'}]


def as_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def test_grammars_are_compiled_on_a_thread_of_their_own(shared: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the engine's, which all texts wait for, nor on those that encode prompts; once for a request's texts."""
    threads: list[str] = []
    compiled = Grammars.constrain

    def watched(self: Grammars, sampling: SamplingParams) -> GrammarConstraint | None:
        if sampling.constraint is not None:
            threads.append(threading.current_thread().name)
        return compiled(self, sampling)

    vocabulary = shared.llm.engine._vocabulary
    bound = functools.partial(watched, vocabulary.constrain.__self__)
    monkeypatch.setattr(shared.llm.engine, "_vocabulary", dataclasses.replace(vocabulary, constrain=bound))
    body = {"messages": BAIT, "response_format": as_format(SCHEMAS["a number alone"]), "n": 3, "temperature": 1.0}
    answer = shared.post(CHAT, body).json()
    assert len(answer["choices"]) == 3
    assert [name.partition("_")[0] for name in threads] == ["grammar"]


@pytest.fixture
def client(shared: Serving) -> Any:
    with shared.openai() as client:
        yield client


@pytest.mark.parametrize("strict", [True, False, None])
@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_fit_their_schema_streamed_whole_and_undrafted(
    client: Any, shared: Serving, name: str, strict: bool | None
) -> None:
    """D-EX-19: the prompt repeats what would not fit, for the drafters to propose."""
    form = as_format(SCHEMAS[name], strict=strict)
    validator = jsonschema_rs.validator_for(SCHEMAS[name])
    for seed, temperature in ((0, 0.0), (1, 1.0), (2, 1.5), (3, 1.0)):
        asked = {
            "model": shared.llm.name, "messages": BAIT, "response_format": form, "max_tokens": 1000,
            "temperature": temperature, "seed": seed,
        }  # fmt: skip
        (choice,) = client.chat.completions.create(**asked).choices
        assert choice.finish_reason == "stop"
        validator.validate(json.loads(choice.message.content))
        plain = client.chat.completions.create(**asked, extra_body={"draft": "off"}).choices[0]
        assert plain.message.content == choice.message.content
        stream = client.chat.completions.create(stream=True, **asked)
        said = "".join(part.delta.content or "" for chunk in stream for part in chunk.choices)
        assert said == choice.message.content


def test_it_is_the_text_that_generate_writes_with_the_schema(shared: Serving, alone: LLM) -> None:
    schema = SCHEMAS["choices"]
    body = {"messages": BAIT, "response_format": as_format(schema, strict=True), "max_tokens": 300}
    reply = shared.post(CHAT, body).json()["choices"][0]
    assert reply["message"]["content"] == alone.generate(BAIT, json_schema=schema, max_tokens=300).text


def test_json_objects_are_objects(shared: Serving) -> None:
    """Whatever the model would write: what is cut by the limit begins one."""
    ended = 0
    for seed in range(6):
        body = {
            "messages": BAIT, "response_format": {"type": "json_object"}, "max_tokens": 400, "temperature": 1.0,
            "seed": seed, "logit_bias": {"92": 6.0},
        }  # fmt: skip
        choice = shared.post(CHAT, body).json()["choices"][0]
        assert choice["message"]["content"].startswith("{")
        if choice["finish_reason"] == "stop":
            ended += 1
            assert isinstance(json.loads(choice["message"]["content"]), dict)
    assert ended


@pytest.mark.parametrize("form", [{"type": "text"}, None])
def test_text_is_what_is_written_without_a_form(shared: Serving, alone: LLM, form: Any) -> None:
    reply = shared.post(CHAT, {"messages": BAIT, "response_format": form, "max_tokens": 12}).json()
    assert reply["choices"][0]["message"]["content"] == alone.generate(BAIT, max_tokens=12).text


UNSUPPORTED = {
    "not": {"type": "object", "properties": {"a": {"not": {"type": "string"}}}, "required": ["a"]},
    "one of": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]},
    "unique": {"type": "array", "uniqueItems": True, "maxItems": 2, "items": {"type": "boolean"}},
    "format": {"type": "string", "format": "colour", "maxLength": 4},
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_be_enforced_is_refused_if_strict_and_left_to_the_model_if_not(
    client: Any, shared: Serving, name: str
) -> None:
    create = client.chat.completions.create
    asked = {"model": shared.llm.name, "messages": BAIT, "max_tokens": 3}
    with pytest.raises(openai.BadRequestError) as refused:
        create(**asked, response_format=as_format(UNSUPPORTED[name], strict=True))
    assert refused.value.param == "response_format.json_schema.schema"
    assert refused.value.message.count("x-guidance") == 1
    for strict in (False, None):
        assert create(**asked, response_format=as_format(UNSUPPORTED[name], strict=strict)).choices
    own = {**UNSUPPORTED[name], "x-guidance": {"lenient": True, "coerce_one_of": True}}
    assert create(**asked, response_format=as_format(own, strict=True)).choices


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strng"}, {"$ref": "http://127.0.0.1:9/x"}, {"$ref": "file:///etc/passwd"}, {"$ref": "#/nowhere"},
        {"enum": []}, {"type": "integer", "minimum": 5, "maximum": 1}, {"multipleOf": 1234567}, {"pattern": "("},
        {"type": 5}, {"const": "a" * 70_000}, {"x-guidance": {"nothing": 1}},
    ],
    ids=lambda schema: str(schema)[:40],
)  # fmt: skip
def test_schemas_that_are_none_are_refused_in_any_case(shared: Serving, schema: Any, strict: bool) -> None:
    body = {"messages": BAIT, "response_format": as_format(schema, strict=strict), "stream": True}
    assert error_of(shared.post(CHAT, body), 400)["param"] == "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({}, "response_format.type"), ("json_object", "response_format"), ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_object", "json_schema": {"name": "x"}}, "response_format.json_schema"),
        ({"type": "text", "json_schema": {"name": "x"}}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a b"}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": []}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "a", "strict": 1}}, "response_format.json_schema.strict"),
        ({"type": "json_object", "more": 1}, "response_format.more"),
    ],
)  # fmt: skip
def test_forms_of_no_known_shape_are_refused_by_name(shared: Serving, form: Any, param: str) -> None:
    assert error_of(shared.post(CHAT, {"messages": BAIT, "response_format": form}), 400)["param"] == param


def test_a_form_and_ignored_ends_contradict_each_other(shared: Serving) -> None:
    body = {"messages": BAIT, "response_format": {"type": "json_object"}, "ignore_eos": True}
    assert error_of(shared.post(CHAT, body), 400)["param"] == "ignore_eos"


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_that_its_grammar_cuts_off_says_so(
    shared: Serving, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """It is no whole one, so its finish reason is "length"; only `finish_detail` knows of grammars."""

    def ending(self: GrammarConstraint, path: Any) -> FinishReason | None:
        return FinishReason.GRAMMAR

    monkeypatch.setattr(GrammarConstraint, "ending", ending)
    body = {"messages": BAIT, "response_format": {"type": "json_object"}, "max_tokens": 9, "stream": stream}
    if stream:
        text = shared.post(CHAT, body).text
        choice = json.loads(text.split("data: ")[-2])["choices"][0]
    else:
        choice = shared.post(CHAT, body).json()["choices"][0]
    assert (choice["finish_reason"], choice["finish_detail"]) == ("length", "grammar")
    body = {"messages": BAIT, "max_tokens": 2}
    choice = shared.post(CHAT, body).json()["choices"][0]
    assert (choice["finish_reason"], choice["finish_detail"]) == ("length", None)
