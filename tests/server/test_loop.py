"""Nothing that a client sends or asks for holds up the event loop: everybody else is answered meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from draftgraph.server.body import parse_json
from draftgraph.server.errors import ApiError
from draftgraph.server.messages import AssistantTurn, ToolCall
from draftgraph.server.prompts import encode
from draftgraph.server.schema import REQUESTS, CompletionRequest
from support.bodies import LARGEST, large_bodies, long_texts
from support.heartbeat import MOST, heartbeat, longest_hold
from support.serving import Serving, serving

JSON_TYPE = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[Serving]:
    with serving(model_path, slots=4) as running:
        yield running


def holds(running: Serving, bodies: Mapping[str, tuple[str, bytes]]) -> dict[str, float]:
    """Sends each body. Returns those that held up the loop, and for how long."""
    held: dict[str, float] = {}
    beat = heartbeat(running)
    with running.http() as client:
        for name, (path, body) in bodies.items():
            assert len(body) <= LARGEST, name
            held[name], answer = longest_hold(beat, partial(client.post, path, content=body, headers=JSON_TYPE))
            assert answer.status_code in (200, 400, 404), (name, answer.text[:300])
    return {name: round(seconds, 3) for name, seconds in held.items() if seconds >= MOST}


def test_no_body_however_it_is_made_holds_up_the_loop(running: Serving) -> None:
    """Refused or not: at most a fifth of a second for each."""
    assert not holds(running, large_bodies())
    running.assert_idle(10)


def test_no_long_text_holds_up_the_loop(running: Serving) -> None:
    assert not holds(running, long_texts())
    running.assert_idle(10)


def lists_that_go_on(schema: object) -> list[object]:
    """Returns the lists of a pydantic schema whose check goes on after the first wrong item."""
    if isinstance(schema, dict):
        found = [inner for value in schema.values() for inner in lists_that_go_on(value)]
        return [schema, *found] if schema.get("type") == "list" and not schema.get("fail_fast") else found
    if isinstance(schema, list | tuple):
        return [inner for value in schema for inner in lists_that_go_on(value)]
    return []


@pytest.mark.parametrize("model", REQUESTS)
def test_the_check_of_every_list_of_a_request_ends_at_its_first_wrong_item(model: type[BaseModel]) -> None:
    """Pydantic keeps an error for each otherwise, and for each branch of a union: 320 MB for a body of 1 MB."""
    assert not lists_that_go_on(model.__pydantic_core_schema__)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":[' + b",".join([b"[]"] * 60_000) + b"]}", b'{"prompt":[' + b",".join([b"-1"] * 300_000) + b"]}",
        b"{" + b",".join(b'"%d":1' % number for number in range(60_000)) + b"}",
        b'{"prompt":"a","logit_bias":{' + b",".join(b'"a%d":"1"' % number for number in range(60_000)) + b"}}",
    ],
    ids=["empty lists", "negative ids", "unknown fields", "biases of no token"],
)  # fmt: skip
def test_a_refusal_costs_no_more_than_the_body_itself(body: bytes) -> None:
    value = parse_json(body)
    started = time.perf_counter()
    with pytest.raises(ValidationError) as refused:
        CompletionRequest.model_validate(value)
    assert time.perf_counter() - started < 0.1
    assert refused.value.error_count() < 100


@pytest.mark.parametrize(("inner", "fault"), [("[]", "arrays and objects"), ("[" * 70 + "]" * 70, "levels")])
def test_arguments_of_a_call_are_no_way_around_the_limits_of_bodies(running: Serving, inner: str, fault: str) -> None:
    arguments = f'{{"a":[{",".join([inner] * (2**19 // len(inner)))}]}}'
    function = {"name": "f", "arguments": arguments}
    call = ToolCall.model_validate({"id": "1", "type": "function", "function": function})
    with pytest.raises(ApiError, match=fault):
        encode(running.llm.model.tokenizer, [AssistantTurn(role="assistant", tool_calls=[call])])
