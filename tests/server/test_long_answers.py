"""Answers of many log-probabilities: of the documented shape, and nobody else waits while they are written."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgraph.server.errors import json_bytes, long_json
from draftgraph.server.generation import Generation, Written
from draftgraph.server.replies import ChatReply, TextReply
from draftgraph.types import Delta, TokenLogprobs
from support.heartbeat import MOST, heartbeat, longest_hold
from support.serving import CHAT, TEXT, Serving, serving

ASKED = [{"role": "user", "content": "Hi"}]
TOP = tuple((token, -math.sqrt(token)) for token in range(20))
ORDERS = [
    (CHAT, {"messages": ASKED, "n": 16, "max_tokens": 1, "logprobs": True, "top_logprobs": 20}),
    (TEXT, {"prompt": "a", "n": 16, "max_tokens": 1, "logprobs": 20}),
]


def entries(count: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(number % 200, -1.25, TOP) for number in range(count)]


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[Serving]:
    with serving(model_path, slots=8) as running:
        yield running


@pytest.mark.parametrize(("path", "body"), ORDERS)
def test_a_whole_answer_does_not_hold_up_the_loop(
    running: Serving, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen texts of 400 tokens with 20 alternatives each: 134,400 log-probabilities."""
    written = Generation.written

    def much(self: Generation, index: int, text: str = "") -> Written:
        return replace(written(self, index, text), logprobs=entries(400))

    monkeypatch.setattr(Generation, "written", much)
    held, answer = longest_hold(heartbeat(running), partial(running.post, path, body))
    assert held < MOST
    assert len(answer.json()["choices"]) == 16
    assert answer.text.count("-1.25") >= 16 * 400


@pytest.mark.parametrize(("path", "body"), ORDERS)
def test_a_stream_does_not_hold_up_the_loop(
    running: Serving, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step may write as many tokens as a tree is deep, of many texts at once."""
    deltas = Generation.deltas

    async def much(self: Generation) -> AsyncIterator[tuple[int, Delta, dict[str, Any] | None]]:
        for index, delta, view in [item async for item in deltas(self)]:
            yield index, replace(delta, logprobs=entries(400)), view

    monkeypatch.setattr(Generation, "deltas", much)
    held, answer = longest_hold(heartbeat(running), partial(running.post, path, {**body, "stream": True}))
    assert held < MOST
    assert answer.text.endswith("data: [DONE]\n\n")
    assert answer.text.count("-1.25") >= 16 * 400


@pytest.mark.parametrize(("path", "body"), ORDERS)
@pytest.mark.parametrize("more", [{}, {"logprobs": None, "top_logprobs": None}])
def test_an_answer_is_exactly_what_its_model_says(
    running: Serving, path: str, body: dict[str, Any], more: dict[str, Any]
) -> None:
    """It is put together without its model, which takes ten times as long."""
    body = {**body, **{name: value for name, value in more.items() if name in body}, "max_tokens": 12}
    answer = running.post(path, body).json()
    model = ChatReply if path == CHAT else TextReply
    assert model.model_validate(answer).model_dump() == answer


def test_an_answer_with_calls_is_exactly_what_its_model_says(running: Serving) -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"enum": [1]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    body = {"messages": ASKED, "tools": tools, "tool_choice": "required", "max_tokens": 100}
    answer = running.post(CHAT, body).json()
    assert answer["choices"][0]["message"]["tool_calls"], answer
    assert ChatReply.model_validate(answer).model_dump() == answer


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=30,
    )
)
def test_json_in_parts_is_the_same_json(value: Any) -> None:
    assert long_json(value).body == json_bytes(value)
    if isinstance(value, list):
        assert long_json({"a": iter(value)}).body == json_bytes({"a": value})


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 5000])
def test_long_lists_are_the_same_json(count: int) -> None:
    value = {"numbers": list(range(count)), "lists": [[number] for number in range(count)], "more": [{}] * count}
    assert json.loads(bytes(long_json(value).body)) == value
    assert long_json(value).body == json_bytes(value)
