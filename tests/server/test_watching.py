"""What a stream says beside its text: the source of every token, the graph of every step, and nothing unasked."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from draftgraph.config import SamplingParams
from draftgraph.server import watching
from draftgraph.server.engine_thread import EngineThread, Job, Places
from draftgraph.server.generation import Generation, Order
from draftgraph.types import Delta
from support.serving import CHAT, TEXT, Serving, error_of, read_events

BOTH = {"sources": True, "graphs": True}
PROMPT = "the cat sat on the mat and the cat sat on the mat and"
BODY = {"prompt": PROMPT, "max_tokens": 48, "seed": 3, "stream": True, "stream_options": {"include_usage": True}}


def events_of(serving: Serving, **fields: Any) -> list[Any]:
    with serving.http() as client, client.stream("POST", TEXT, json={**BODY, **fields}) as response:
        assert response.status_code == 200, response.read()
        *events, done = read_events(response)
    assert done == "[DONE]"
    return events


def text_of(events: list[Any], index: int = 0) -> str:
    return "".join(choice["text"] for event in events for choice in event["choices"] if choice["index"] == index)


def seen_of(events: list[Any], index: int = 0) -> list[Any]:
    return [e["draftgraph"] for e in events if "draftgraph" in e and e["choices"][0]["index"] == index]


def pieces_of(seen: list[Any]) -> str:
    return "".join(token["text"] for step in seen for token in step["tokens"])


def test_steps_add_up_to_the_usage(shared: Serving) -> None:
    events = events_of(shared, draftgraph=BOTH)
    seen, usage = seen_of(events), events[-1]["usage"]
    steps = [step["step"] for step in seen if "step" in step]
    draft = usage["draft"]
    assert draft["accepted_nodes"] > 0, "nothing was accepted: the test shows nothing"
    for total, field in (("drafted_nodes", "num_drafted"), ("merged_nodes", "num_merged"),
                         ("verified_rows", "num_rows"), ("accepted_nodes", "num_accepted")):  # fmt: skip
        assert sum(step[field] for step in steps) == draft[total], field
    assert sum(len(step["emitted"]) for step in steps) == usage["completion_tokens"] - 1
    assert [step["step"] for step in steps] == list(range(1, draft["target_passes"] + 1))
    assert all(step["seconds"] > 0 for step in steps)
    so_far = seen[-1]["so_far"]
    assert (so_far["tokens"], so_far["steps"]) == (usage["completion_tokens"], draft["target_passes"])
    assert so_far["seconds"] == pytest.approx(draft["decode_seconds"], abs=1e-3)


def test_a_step_shows_its_graph_its_tree_and_the_way_taken(shared: Serving) -> None:
    seen = [step for step in seen_of(events_of(shared, draftgraph=BOTH)) if "step" in step]
    num_apart, known = 0, ""
    for each in seen:
        step = each["step"]
        written = [text for text, _ in step["emitted"]]
        before = step["prompt_tail"] + step["nodes"][0]["token"]
        assert before.endswith(known)
        known = "".join(written)
        texts = [token["text"] for token in each["tokens"]]
        if "".join(texts) == known:  # no character lies across two steps
            assert texts == written
            num_apart += len(texts) > 1
        tokens = {node["id"]: node["token"] for node in step["nodes"]}
        taken = [row for row in step["tree"] if row["accepted"]]
        assert [tokens[row["node"]] for row in taken[1:]] == [text for text, by in step["emitted"] if by != "target"]
        assert {node["id"] for node in step["nodes"] if node["in_tree"]} == {row["node"] for row in step["tree"]}
        assert len(step["nodes"]) == 1 + step["num_drafted"]
        assert len(step["tree"]) == step["num_rows"]
        # The two ways to say who wrote a token agree.
        for token, (_, source) in zip(each["tokens"], step["emitted"], strict=False):
            assert token["sources"][0] == source
    assert num_apart > 0, "no step wrote several whole tokens: the test shows less than it should"


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.9}, {"stop": ["e", "a"]}, {"draft": "off"}])
def test_the_tokens_texts_are_the_text_which_is_that_of_a_plain_stream(shared: Serving, fields: dict[str, Any]) -> None:
    events = events_of(shared, draftgraph={"sources": True}, **fields)
    seen = seen_of(events)
    assert pieces_of(seen) == text_of(events) == text_of(events_of(shared, **fields))
    assert not any("step" in step for step in seen)


@pytest.mark.parametrize(("fields", "is_drafted"), [({}, True), ({"draft": "off"}, False)])
def test_only_drafters_that_were_asked_are_named(shared: Serving, fields: dict[str, Any], is_drafted: bool) -> None:
    seen = seen_of(events_of(shared, draftgraph=BOTH, **fields))
    named = {source for step in seen for token in step["tokens"] for source in token["sources"]}
    assert (named > {"target"}) is is_drafted
    assert any(len(step["step"]["nodes"]) > 1 for step in seen if "step" in step) is is_drafted


def test_each_choice_has_its_own(shared: Serving) -> None:
    events = events_of(shared, draftgraph=BOTH, n=3, temperature=1.0)
    texts = [text_of(events, index) for index in range(3)]
    assert len(set(texts)) == 3, "the choices do not differ: the test shows nothing"
    for index, text in enumerate(texts):
        assert pieces_of(seen_of(events, index)) == text


@pytest.mark.parametrize("fields", [{}, {"draftgraph": None}, {"draftgraph": {}}, {"draftgraph": {"graphs": False}}])
def test_nothing_is_said_unasked(shared: Serving, fields: dict[str, Any]) -> None:
    assert seen_of(events_of(shared, **fields)) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"draftgraph": BOTH, "stream": False, "stream_options": None}, "draftgraph"),
        ({"draftgraph": {"sources": "certainly"}}, "draftgraph.sources"),
        ({"draftgraph": {"pictures": True}}, "draftgraph.pictures"),
    ],
)
def test_what_is_not_understood_is_refused(shared: Serving, fields: dict[str, Any], param: str) -> None:
    assert error_of(shared.post(TEXT, {**BODY, **fields}), 400)["param"] == param


def test_a_chat_can_be_watched_too(shared: Serving) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "stream": True, "draftgraph": BOTH}
    with shared.http() as client, client.stream("POST", CHAT, json=body) as response:
        *events, _ = read_events(response)
    text = "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])
    assert pieces_of(seen_of(events)) == text


def test_graphs_do_not_pile_up_before_a_client_that_does_not_read() -> None:
    """A text is no longer than it may be, but a graph is a thousand times a token."""
    jobs: list[Job] = []
    engine = cast(EngineThread, SimpleNamespace(submit=lambda job, places: jobs.append(job)))
    generation = Generation(engine, Places(1), Order([[1]], SamplingParams(), 1, 3))
    for number in range(1000):
        jobs[0].put(Delta(0, "a", (number,), (("target",),), None), {"tokens": [], "step": {}})
    kept = [generation._events.get_nowait()[2] or {} for _ in range(1000)]
    assert 0 < sum("step" in view for view in kept) <= 256
    assert all("tokens" in view for view in kept)


def test_a_text_goes_on_where_it_cannot_be_shown(
    shared: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = text_of(events_of(shared))

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(watching, "step_view", fail)
    with caplog.at_level(logging.CRITICAL, "draftgraph.server"):
        assert text_of(events_of(shared, draftgraph=BOTH)) == plain
    shared.assert_idle()
