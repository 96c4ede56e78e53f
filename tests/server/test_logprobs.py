"""Log-probabilities in OpenAI's shapes: those of `generate`, one per token, the same streamed, whole and undrafted."""

from __future__ import annotations

from typing import Any

import pytest

from draftgraph import LLM
from draftgraph.llm import Completion
from draftgraph.server.logprobs import Shown, TextLogprobs
from draftgraph.types import TokenLogprobs
from support.serving import CHAT, TEXT, Serving, error_of

ASKED = [{"role": "user", "content": "Why is the sky blue? Why is the sky blue?"}]
PROMPT = "Once upon a time, once upon"
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"max_tokens": 48},
    "sampled": {"temperature": 0.9, "top_p": 0.9, "seed": 5, "max_tokens": 48},
    "hot": {"temperature": 100.0, "seed": 1, "max_tokens": 64},  # stray bytes, and characters in pieces
    "stopped": {"max_tokens": 48, "stop": ["e", "on a", "zz"]},
    "biased to the end": {"max_tokens": 48, "logit_bias": {"298": 12.0}},
}
MODES: list[dict[str, Any]] = [{}, {"draft": "off"}]


@pytest.fixture
def client(shared: Serving) -> Any:
    with shared.openai() as client:
        yield client


def generated(alone: LLM, prompt: Any, sampling: dict[str, Any], count: int) -> Completion:
    options = dict(sampling)
    if "logit_bias" in options:
        options["logit_bias"] = {int(token): bias for token, bias in options["logit_bias"].items()}
    done: Completion = alone.generate(prompt, budget=0, logprobs=count, **options)
    return done


def chat_entries(alone: LLM, done: Completion) -> list[dict[str, Any]]:
    """What must be answered, from what the library says."""
    words = alone.model.tokenizer

    def shown(token: int, logprob: float) -> dict[str, Any]:
        piece = words.token_bytes(token)
        return {"token": words.token_label(token), "logprob": logprob, "bytes": list(piece) or None}

    return [
        {**shown(one.token, one.logprob), "top_logprobs": [shown(*other) for other in one.top]}
        for one in done.logprobs or ()
    ]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_chats_are_those_of_generate_streamed_and_whole(
    client: Any, shared: Serving, alone: LLM, name: str, mode: dict[str, Any]
) -> None:
    """D-SV-10, D-EX-03, D-SV-13."""
    sampling = SAMPLINGS[name]
    done = generated(alone, ASKED, sampling, 3)
    expected = chat_entries(alone, done)
    asked = {
        "model": shared.llm.name, "messages": ASKED, "logprobs": True, "top_logprobs": 3, "extra_body": mode, **sampling
    }  # fmt: skip
    whole = client.chat.completions.create(**asked)
    (choice,) = whole.choices
    assert choice.message.content == done.text
    assert [entry.model_dump() for entry in choice.logprobs.content] == expected
    assert len(expected) == whole.usage.completion_tokens == done.completion_tokens
    found: list[dict[str, Any]] = []
    said = ""
    for chunk in client.chat.completions.create(stream=True, **asked):
        for part in chunk.choices:
            said += part.delta.content or ""
            found += [entry.model_dump() for entry in part.logprobs.content] if part.logprobs else []
    assert (said, found) == (done.text, expected)
    assert (expected[-1]["bytes"] is None) == (name == "biased to the end")


@pytest.mark.parametrize("name", ["greedy", "hot"])
def test_their_bytes_joined_are_the_text(shared: Serving, name: str) -> None:
    reply = shared.post(CHAT, {"messages": ASKED, "logprobs": True, **SAMPLINGS[name]}).json()["choices"][0]
    assert all(entry["top_logprobs"] == [] for entry in reply["logprobs"]["content"])
    joined = b"".join(bytes(entry["bytes"] or ()) for entry in reply["logprobs"]["content"])
    assert joined.decode(errors="replace") == reply["message"]["content"]


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_completions_are_those_of_generate_streamed_and_whole(
    client: Any, shared: Serving, alone: LLM, name: str, mode: dict[str, Any], count: int
) -> None:
    sampling = SAMPLINGS[name]
    done = generated(alone, PROMPT, sampling, count)
    label = alone.model.tokenizer.token_label
    entries = done.logprobs or ()
    asked = {
        "model": shared.llm.name, "prompt": PROMPT, "logprobs": count, "extra_body": mode, **sampling
    }  # fmt: skip
    (choice,) = client.completions.create(**asked).choices
    whole = choice.logprobs.model_dump()
    assert choice.text == done.text
    assert whole["tokens"] == [label(one.token) for one in entries]
    assert whole["token_logprobs"] == [one.logprob for one in entries]
    assert len(whole["tokens"]) == len(whole["text_offset"]) == done.completion_tokens
    for one, top in zip(entries, whole["top_logprobs"], strict=True):
        assert top == {label(token): logprob for token, logprob in (*one.top, (one.token, one.logprob))}
        assert count <= len(top) <= count + 1
    streamed: dict[str, list[Any]] = {key: [] for key in whole}
    said = ""
    for chunk in client.completions.create(stream=True, **asked):
        for part in chunk.choices:
            said += part.text
            for key, values in (part.logprobs.model_dump() if part.logprobs else {}).items():
                streamed[key] += values
    assert (said, streamed) == (done.text, whole)


@pytest.mark.parametrize("name", ["greedy", "stopped"])
def test_offsets_say_where_in_the_text_a_token_stands(shared: Serving, name: str) -> None:
    body = {"prompt": PROMPT, "logprobs": 0, **SAMPLINGS[name]}
    choice = shared.post(TEXT, body).json()["choices"][0]
    text, found = choice["text"], choice["logprobs"]
    inside = [(at, token) for at, token in zip(found["text_offset"], found["tokens"], strict=True) if at < len(text)]
    before = ""
    for at, token in inside:
        if "\\x" not in before + token:  # after a piece of a character, that character is not done
            assert text.startswith(token[: len(text) - at], at), (at, token)
        before = token
    assert found["text_offset"] == sorted(found["text_offset"])
    assert len(inside) == len(found["tokens"]) or name == "stopped"


def test_characters_in_pieces_stand_where_they_begin(shared: Serving) -> None:
    """The four bytes of one character, one token each, then a letter."""
    tokens = shared.post("/tokenize", {"prompt": "🌍x"}).json()["tokens"]
    assert len(tokens) == 5
    found = TextLogprobs(Shown(shared.llm.model.tokenizer)).add(
        [TokenLogprobs(token, float("-inf"), ()) for token in tokens]
    )
    assert found["text_offset"] == [0, 0, 0, 0, 1]
    assert found["token_logprobs"] == [-9999.0] * 5
    assert found["tokens"] == ["\\xf0", "\\x9f", "\\x8c", "\\x8d", "x"]


def test_each_of_n_texts_has_its_own(client: Any, shared: Serving, alone: LLM) -> None:
    asked = {"temperature": 1.0, "max_tokens": 9}
    solo = [chat_entries(alone, generated(alone, ASKED, {"seed": 7 + i, **asked}, 1)) for i in range(2)]
    body = {"messages": ASKED, "n": 2, "seed": 7, "logprobs": True, "top_logprobs": 1, **asked}
    choices = shared.post(CHAT, body).json()["choices"]
    assert [choice["logprobs"]["content"] for choice in choices] == solo
    assert solo[0] != solo[1]


def test_nothing_is_said_of_them_unless_asked(shared: Serving) -> None:
    for more in ({}, {"logprobs": False}, {"logprobs": None, "top_logprobs": None}):
        reply = shared.post(CHAT, {"messages": ASKED, "max_tokens": 3, **more}).json()
        assert reply["choices"][0]["logprobs"] is None
    assert shared.post(TEXT, {"prompt": "a", "max_tokens": 3}).json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("value", [21, 10**9, -1, 1.5, True, "3"])
def test_more_than_twenty_are_refused_before_anything_is_written(shared: Serving, value: Any) -> None:
    """D-SV-07."""
    body = {"messages": ASKED, "logprobs": True, "top_logprobs": value}
    assert error_of(shared.post(CHAT, body), 400)["param"] == "top_logprobs"
    assert error_of(shared.post(TEXT, {"prompt": "a", "logprobs": value}), 400)["param"] == "logprobs"


def test_the_most_that_can_be_asked_for_is_small(shared: Serving) -> None:
    reply = shared.post(CHAT, {"messages": ASKED, "logprobs": True, "top_logprobs": 20, "max_tokens": 8})
    assert all(len(entry["top_logprobs"]) == 20 for entry in reply.json()["choices"][0]["logprobs"]["content"])
    assert len(reply.content) < 8 * 20 * 200


@pytest.mark.parametrize("more", [{}, {"logprobs": False}, {"logprobs": None}])
def test_likeliest_tokens_are_only_given_with_logprobs(shared: Serving, more: dict[str, Any]) -> None:
    for count in (0, 3):
        body = {"messages": ASKED, "top_logprobs": count, **more}
        assert error_of(shared.post(CHAT, body), 400)["param"] == "top_logprobs"
