"""The official client, endpoint by endpoint: streamed text, whole text and `LLM.generate` are one."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from draftgraph import LLM
from support.serving import CHAT, TEXT, Serving, error_of, serving

ASKED = [{"role": "user", "content": "Why is the sky blue?"}]
SAMPLED = {"temperature": 0.9, "seed": 11, "max_tokens": 40}


@pytest.fixture
def client(shared: Serving) -> Any:
    with shared.openai() as client:
        yield client


def streamed(stream: Any) -> tuple[dict[int, str], dict[int, str], list[Any]]:
    """Texts and finish reasons by choice, and all chunks."""
    chunks = list(stream)
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            text = choice.text if hasattr(choice, "text") else choice.delta.content
            assert choice.index not in reasons, "nothing follows the finish reason of a choice"
            texts[choice.index] = texts.get(choice.index, "") + (text or "")
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, chunks


@pytest.mark.parametrize("sampling", [SAMPLED, {"max_tokens": 40}, {"temperature": 1.3, "seed": 5, "max_tokens": 1}])
def test_chat_streamed_and_whole_is_the_text_of_generate(
    client: Any, shared: Serving, alone: LLM, sampling: dict[str, Any]
) -> None:
    expected = alone.generate(ASKED, **sampling)
    reply = client.chat.completions.create(model=shared.llm.name, messages=ASKED, **sampling)
    (choice,) = reply.choices
    assert choice.message.content == expected.text
    assert choice.message.role == "assistant"
    assert choice.finish_reason == expected.finish_reason
    assert choice.seed == expected.seed or "seed" not in sampling
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (
        expected.prompt_tokens,
        expected.completion_tokens,
    )
    stream = client.chat.completions.create(model=shared.llm.name, messages=ASKED, stream=True, **sampling)
    texts, reasons, chunks = streamed(stream)
    assert texts == {0: expected.text}
    assert reasons == {0: str(expected.finish_reason)}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1


def test_completions_streamed_and_whole_is_the_text_of_generate(client: Any, shared: Serving, alone: LLM) -> None:
    expected = alone.generate("Once upon a time", **SAMPLED)
    whole = client.completions.create(model=shared.llm.name, prompt="Once upon a time", **SAMPLED)
    assert whole.choices[0].text == expected.text
    stream = client.completions.create(model=shared.llm.name, prompt="Once upon a time", stream=True, **SAMPLED)
    assert streamed(stream)[0] == {0: expected.text}


def test_a_stream_has_one_event_for_every_step(shared: Serving) -> None:
    body = {"prompt": "Once", "max_tokens": 30, "stream": True, "stream_options": {"include_usage": True}}
    with shared.openai() as client:
        _, _, chunks = streamed(client.completions.create(model=shared.llm.name, **body))
    texts = [chunk.choices[0].text for chunk in chunks if chunk.choices and chunk.choices[0].text]
    passes = 1 + chunks[-1].usage.draft["target_passes"]
    assert passes / 2 < len(texts) <= passes  # a step that ends within a character has no text yet


@pytest.mark.parametrize("form", ["texts", "ids", "many ids"])
def test_prompts_come_as_text_or_ids_one_or_many(client: Any, shared: Serving, alone: LLM, form: str) -> None:
    texts = ["The first", "Another one", "x"]
    ids = [alone.prompt_ids(text) for text in texts]
    prompt: Any = {"texts": texts, "ids": ids[0], "many ids": ids}[form]
    reply = client.completions.create(model=shared.llm.name, prompt=prompt, **SAMPLED)
    asked = texts[:1] if form == "ids" else texts
    assert [choice.index for choice in reply.choices] == list(range(len(asked)))
    assert [choice.text for choice in reply.choices] == [alone.generate(text, **SAMPLED).text for text in asked]
    assert reply.usage.prompt_tokens == sum(map(len, ids[: len(asked)]))


@pytest.mark.parametrize("stream", [False, True])
def test_n_texts_are_those_of_n_seeds_each_with_its_index(
    client: Any, shared: Serving, alone: LLM, stream: bool
) -> None:
    """D-BA-07: choices end at different times; every index has one finish reason; the usage is the sum."""
    options = {"temperature": 1.0, "max_tokens": 48, "stop": ["e", "in"]}
    solo = [alone.generate(ASKED, seed=7 + i, **options) for i in range(3)]
    assert len({len(text.token_ids) for text in solo}) > 1, "the test wants texts of different lengths"
    create = client.chat.completions.create
    asked = {"model": shared.llm.name, "messages": ASKED, "n": 3, "seed": 7, **options}
    if stream:
        texts, reasons, chunks = streamed(create(stream=True, stream_options={"include_usage": True}, **asked))
        usage = chunks[-1].usage
    else:
        reply = create(**asked)
        texts = {choice.index: choice.message.content for choice in reply.choices}
        reasons = {choice.index: choice.finish_reason for choice in reply.choices}
        usage = reply.usage
    assert texts == {i: text.text for i, text in enumerate(solo)}
    assert reasons == {i: str(text.finish_reason) for i, text in enumerate(solo)}
    assert usage.prompt_tokens == solo[0].prompt_tokens
    assert usage.completion_tokens == sum(text.completion_tokens for text in solo)
    assert usage.draft["target_passes"] == sum(text.stats.target_passes for text in solo)


@pytest.mark.parametrize("asked", [None, False, True])
def test_usage_comes_last_and_only_when_asked_for(shared: Serving, asked: bool | None) -> None:
    """D-SV-09."""
    options = {} if asked is None else {"stream_options": {"include_usage": asked}}
    with shared.openai() as client:
        stream = client.chat.completions.create(
            model=shared.llm.name, messages=ASKED, stream=True, max_tokens=5, **options
        )
        *chunks, last = list(stream)
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert (last.choices == [] and last.usage.completion_tokens == 5) if asked else last.usage is None


def test_usage_options_without_a_stream_are_refused(shared: Serving) -> None:
    body = {"messages": ASKED, "stream_options": {"include_usage": True}}
    assert error_of(shared.post(CHAT, body), 400)["param"] == "stream_options"


@pytest.mark.parametrize("endpoint", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("stop", "is_accepted"),
    [
        ("e", True), (["e"], True), (["q", "zz", "e", "the"], True), (["a", "b", "c", "d", "e"], True), (None, True),
        ([], True), (["x" * 1000], True), ("", False), ([""], False), ([None], False), (123, False),
        (["a"] * 17, False), ("x" * 10_000, False),
    ],
)  # fmt: skip
def test_stop_is_a_text_or_up_to_sixteen(
    shared: Serving, alone: LLM, endpoint: str, stop: Any, is_accepted: bool
) -> None:
    """D-SV-08: one table for both endpoints."""
    body = {"messages": ASKED} if endpoint == CHAT else {"prompt": "Why"}
    reply = shared.post(endpoint, {**body, "stop": stop, "max_tokens": 40})
    if not is_accepted:
        assert str(error_of(reply, 400)["param"]).startswith("stop")
        return
    choice = reply.json()["choices"][0]
    expected = alone.generate(ASKED if endpoint == CHAT else "Why", stop=stop or [], max_tokens=40)
    assert (choice["message"]["content"] if endpoint == CHAT else choice["text"]) == expected.text


def test_every_sampling_parameter_does_what_it_does_in_generate(client: Any, shared: Serving, alone: LLM) -> None:
    base = {"temperature": 1.2, "seed": 3, "max_tokens": 32}
    plain = alone.generate(ASKED, **base).text
    for name, value in {
        "top_p": 0.5, "top_k": 3, "min_p": 0.3, "repetition_penalty": 1.8, "presence_penalty": 1.5,
        "frequency_penalty": 1.5, "logit_bias": {70: 20.0},
    }.items():  # fmt: skip
        expected = alone.generate(ASKED, **base, **{name: value}).text
        assert expected != plain, f"{name} must matter here"
        sent = {"70": 20.0} if name == "logit_bias" else value
        reply = client.chat.completions.create(model=shared.llm.name, messages=ASKED, extra_body={**base, name: sent})
        assert reply.choices[0].message.content == expected, name


def test_the_two_names_of_the_limit(shared: Serving) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        assert shared.post(CHAT, {"messages": ASKED, name: 3}).json()["usage"]["completion_tokens"] == 3


def test_null_is_not_given(shared: Serving) -> None:
    with_nulls = dict.fromkeys(["temperature", "seed", "stop", "n", "stream", "tools", "response_format", "logprobs"])
    bodies = [{"messages": ASKED, "max_tokens": 12}, {"messages": ASKED, "max_tokens": 12, **with_nulls}]
    first, second = (shared.post(CHAT, body).json()["choices"] for body in bodies)
    assert first[0]["message"] == second[0]["message"]


def test_drafts_can_be_switched_off_for_one_request(client: Any, shared: Serving) -> None:
    create = client.chat.completions.create
    asked = {"model": shared.llm.name, "messages": ASKED, **SAMPLED, "temperature": 0.0}
    drafted, plain = create(**asked), create(**asked, extra_body={"draft": "off"})
    assert drafted.choices[0].message.content == plain.choices[0].message.content
    assert plain.usage.draft["target_passes"] == plain.usage.completion_tokens - 1
    assert plain.usage.draft["drafted_nodes"] == 0 < drafted.usage.draft["drafted_nodes"]


def test_contents_as_parts_and_as_text_are_one_prompt(shared: Serving) -> None:
    """D-SV-12."""
    parts = [{"type": "text", "text": "Why is "}, {"type": "text", "text": "the sky blue?"}]
    forms: list[Any] = ["Why is the sky blue?", parts]
    replies = [shared.post("/tokenize", {"messages": [{"role": "user", "content": form}]}).json() for form in forms]
    assert replies[0] == replies[1]


def test_developers_speak_as_the_system(shared: Serving) -> None:
    replies = [
        shared.post("/tokenize", {"messages": [{"role": role, "content": "Be short."}, *ASKED]}).json()
        for role in ("system", "developer")
    ]
    assert replies[0] == replies[1]


def test_an_answer_can_be_sent_back_as_the_client_has_it(client: Any, shared: Serving) -> None:
    create = client.chat.completions.create
    answer = create(model=shared.llm.name, messages=ASKED, max_tokens=8).choices[0].message
    again = [*ASKED, answer.model_dump(), {"role": "user", "content": "More."}]
    assert create(model=shared.llm.name, messages=again, max_tokens=8).usage.completion_tokens == 8


def test_models_are_listed_and_described(client: Any, shared: Serving) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(shared.llm.name).id == model.id == shared.llm.name
    assert model.context_length == shared.llm.runner.context_length
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_text_and_ids_are_inverse(shared: Serving, alone: LLM) -> None:
    text = "Grüße, 世界 🌍 <|im_end|>"
    tokens = shared.post("/tokenize", {"prompt": text}).json()
    assert tokens["tokens"] == alone.prompt_ids(text)
    assert tokens["count"] == len(tokens["tokens"])
    back = shared.post("/detokenize", {"tokens": tokens["tokens"]}).json()["prompt"]
    assert back == alone.model.tokenizer.decode(tokens["tokens"])
    assert shared.post("/tokenize", {"messages": ASKED}).json()["tokens"] == alone.prompt_ids(ASKED)


def test_errors_are_the_clients_own(client: Any, shared: Serving) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        create(model=shared.llm.name, messages=ASKED, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError):
        create(model=shared.llm.name, messages=ASKED, temperature=-1, stream=True)
    with pytest.raises(openai.NotFoundError) as unknown:
        create(model="gpt-4", messages=ASKED)
    assert unknown.value.code == "model_not_found"


def test_defaults_of_the_command_line_are_those_of_requests(model_path: Any, alone: LLM) -> None:
    with serving(model_path, defaults={"max_tokens": 9, "temperature": 1.0, "seed": 4}) as running:
        choice = running.post(CHAT, {"messages": ASKED}).json()["choices"][0]
        colder = running.post(CHAT, {"messages": ASKED, "temperature": 0.0}).json()["choices"][0]
    assert choice["message"]["content"] == alone.generate(ASKED, max_tokens=9, temperature=1.0, seed=4).text
    assert colder["message"]["content"] == alone.generate(ASKED, max_tokens=9).text
