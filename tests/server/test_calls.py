"""Calls in a text: the same ones however the text is cut, and whatever is no call stays text."""

from __future__ import annotations

import json
import random

import pytest

from draftgraph.server.calls import Call, CallReader, Piece
from support.tools import call_text

TEXTS: dict[str, tuple[str, list[object]]] = {
    "nothing": ("", []),
    "text": ("Hello < there <tool ", ["Hello < there <tool "]),
    "white space alone": (" \n", [" \n"]),
    "a call": (call_text("f", {"a": 1}), [("f", {"a": 1})]),
    "text, two calls, text": (
        f"Look: \n{call_text('f', {})}\n{call_text('g', {'b': [1, {}]})}\n done ",
        ["Look:", ("f", {}), ("g", {"b": [1, {}]}), "done "],
    ),
    "two calls side by side": (call_text("f", {}) + call_text("g", {}), [("f", {}), ("g", {})]),
    "white space after the last": (call_text("f", {}) + "\n \n", [("f", {})]),
    "the end's tag in a string": (
        call_text("f", {"a": 'x"</tool_call>\\', "é": "<tool_call>"}),
        [("f", {"a": 'x"</tool_call>\\', "é": "<tool_call>"})],
    ),
    "no end": (call_text("f", {"a": 1}).removesuffix("</tool_call>"), [("f", {"a": 1})]),
    "cut off": (call_text("f", {"a": 1})[:-20], [call_text("f", {"a": 1})[:-20]]),
    "no JSON, then a call": (
        f"<tool_call>{{f(1)}}</tool_call> {call_text('f', {})}",
        ["<tool_call>{f(1)}</tool_call>", ("f", {})],
    ),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', ['<tool_call>{"name": "f"}</tool_call>']),
    "a list": ("<tool_call>[1]</tool_call> a", ["<tool_call>[1]</tool_call> a"]),
    "NaN": (call_text("f", {"a": float("nan")}), [call_text("f", {"a": float("nan")})]),
    "infinite": ('<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>', [
        '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>',
    ]),
    "deep": (f"<tool_call>{'[' * 9999}</tool_call>", [f"<tool_call>{'[' * 9999}</tool_call>"]),
}  # fmt: skip


def read(pieces: list[str], tagged: bool = True) -> list[object]:
    """Calls as (name, arguments), and between them what was said."""
    reader = CallReader(tagged)
    found: list[Piece] = [piece for text in pieces for piece in reader.push(text)] + reader.finish()
    assert reader.num_calls == sum(isinstance(piece, Call) for piece in found)
    joined: list[object] = []
    for piece in found:
        if isinstance(piece, Call):
            assert piece.id.startswith("call_")
            joined.append((piece.name, json.loads(piece.arguments)))
        elif joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_read_the_same_however_it_is_cut(name: str) -> None:
    """D-SV-19."""
    text, expected = TEXTS[name]
    assert read([text]) == expected
    few = len(text) > 1000
    for cut in range(0, len(text), 997 if few else 1):
        assert read([text[:cut], text[cut:]]) == expected
    for size in (97,) if few else range(1, 17):
        assert read([text[i : i + size] for i in range(0, len(text), size)]) == expected
    rng = random.Random(1)
    cuts = sorted(rng.choices(range(len(text) + 1), k=9))
    assert read([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]) == expected


def test_text_is_said_as_soon_as_it_cannot_belong_to_a_call() -> None:
    reader = CallReader(tagged=True)
    assert [reader.push(text) for text in ("Look ", "<tool", "_box> ", "a")] == [["Look"], [], [" <tool_box>"], [" a"]]


def test_calls_have_ids_of_their_own() -> None:
    reader = CallReader(tagged=True)
    calls = reader.push(call_text("f", {}) * 9)
    assert len({call.id for call in calls if isinstance(call, Call)}) == 9


def test_without_tags_the_whole_text_is_the_call() -> None:
    text = '{"name": "f", "arguments": {"a": 1}}'
    assert read([text[:9], text[9:]], tagged=False) == [("f", {"a": 1})]
    assert read([text[:-2]], tagged=False) == [text[:-2]]
    assert read([""], tagged=False) == []


def test_ids_of_blocks_that_are_long_cost_no_more_than_their_length() -> None:
    """No pattern here backtracks."""
    reader = CallReader(tagged=True)
    for text in ("<tool_call>" * 1000, '"' * 1001, "</tool_call>" * 1000):
        reader.push(text)
    assert reader.finish()
