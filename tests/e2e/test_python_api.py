"""The Python API on a tiny model: one prompt or several, streams, seeds, stops, closing, wrong use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import draftgraph as dg
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.engine.stats import RequestStats
from draftgraph.errors import ClosedError, DraftGraphError, ParameterError, PromptError
from draftgraph.llm import LLM, Completion
from draftgraph.runner.kv import BLOCK
from draftgraph.types import Delta, FinishReason
from support.rigs import ScriptDrafter, follow
from support.tiny import tiny_config, write_gguf

HELLO = [{"role": "user", "content": "hello"}]
DRAWN = {"max_tokens": 24, "temperature": 0.8, "seed": 7, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def llm(model: Path) -> Iterator[LLM]:
    with dg.load(model, threads=1) as llm:
        yield llm
        if not llm.is_closed:
            assert not llm.engine.scheduler.has_work, "a request was left behind"
            llm.engine.scheduler.check()


def test_one_prompt_becomes_one_typed_completion(llm: LLM) -> None:
    done = llm.generate("hello", **DRAWN)
    assert isinstance(done, Completion)
    assert isinstance(done.stats, RequestStats)
    assert done.finish_reason is FinishReason.LENGTH
    assert done.completion_tokens == len(done.token_ids) == len(done.sources) == 24
    assert done.prompt_tokens == len(llm.prompt_ids("hello"))
    assert done.text == llm.model.tokenizer.decode(done.token_ids)
    assert done.seed == 7
    assert done.to_json()["token_ids"] == list(done.token_ids)


def test_several_prompts_of_both_forms_are_what_each_is_alone(llm: LLM) -> None:
    prompts = ["hello", HELLO, "the other one", *(["more than there are slots"] * 9)]
    together = llm.generate(prompts, **DRAWN)
    assert [done.token_ids for done in together] == [llm.generate(prompt, **DRAWN).token_ids for prompt in prompts]
    assert len({done.token_ids for done in together}) == 4


def test_a_list_of_one_prompt_becomes_a_list_of_one_completion(llm: LLM) -> None:
    (text,) = llm.generate(["hello"], **DRAWN)
    (chat,) = llm.generate([HELLO], **DRAWN)
    assert text.token_ids == llm.generate("hello", **DRAWN).token_ids
    assert chat.token_ids == llm.generate(HELLO, **DRAWN).token_ids


def test_a_stream_adds_up_to_the_completion(llm: LLM) -> None:
    done = llm.generate(HELLO, **DRAWN)
    deltas = list(llm.stream(HELLO, **DRAWN))
    assert all(isinstance(delta, Delta) for delta in deltas)
    assert "".join(delta.text for delta in deltas) == done.text
    assert tuple(token for delta in deltas for token in delta.token_ids) == done.token_ids
    assert tuple(source for delta in deltas for source in delta.sources) == done.sources
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [done.finish_reason]


def test_streams_read_in_turns_write_what_each_writes_alone(llm: LLM) -> None:
    prompts = ["hello", HELLO, "another"]
    streams = [llm.stream(prompt, **DRAWN) for prompt in prompts]
    texts = [""] * 3
    running = {0, 1, 2}
    while running:
        for i in sorted(running):
            delta = next(streams[i], None)
            if delta is None:
                running.discard(i)
            else:
                texts[i] += delta.text
    assert texts == [llm.generate(prompt, **DRAWN).text for prompt in prompts]


def test_a_stream_that_is_closed_or_dropped_frees_its_place(llm: LLM) -> None:
    first, second = llm.stream("hello", **DRAWN), llm.stream("hello", **DRAWN)
    next(first)
    first.close()
    first.close()
    assert first.request.finish_reason is FinishReason.CANCELLED
    del second
    llm.engine.step()
    assert not llm.engine.scheduler.has_work
    assert llm.generate("hello", **DRAWN).completion_tokens == 24


def test_a_seed_repeats_a_text_and_no_seed_does_not(llm: LLM) -> None:
    unseeded = {key: value for key, value in DRAWN.items() if key != "seed"}
    first, second = llm.generate("hello", **unseeded), llm.generate("hello", **unseeded)
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    assert llm.generate("hello", **{**DRAWN, "seed": first.seed}).token_ids == first.token_ids
    one, other = llm.generate(["hello", "hello"], **unseeded)
    assert one.token_ids != other.token_ids


def test_a_stop_is_a_string_a_list_or_a_tuple(llm: LLM) -> None:
    text = llm.generate("hello", **DRAWN).text
    stop = text[6:8]
    for given in (stop, [stop], (stop,), ["not in there", stop]):
        done = llm.generate("hello", stop=given, **DRAWN)
        assert done.text == text[: text.index(stop)]
        assert done.finish_reason is FinishReason.STOP


def test_a_budget_changes_the_cost_and_not_the_text(model: Path) -> None:
    with dg.load(model, threads=1, draft=f"model:{model}", budget=8) as llm:
        drafted, plain = llm.generate("hello", **DRAWN), llm.generate("hello", budget=0, **DRAWN)
    assert drafted.token_ids == plain.token_ids
    assert (plain.stats.tokens_per_step, plain.stats.drafted_nodes) == (1, 0)
    assert drafted.stats.tokens_per_step > 3


def test_a_drafter_of_your_own_is_used(model: Path) -> None:
    with dg.load(model, draft="off") as llm:
        plain = llm.generate("hello", **DRAWN)
        text = [*llm.prompt_ids("hello"), *plain.token_ids]
    drafter = ScriptDrafter(follow(text, 6))
    with dg.load(model, drafter=drafter, budget=8) as llm:
        drafted = llm.generate("hello", **DRAWN)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.target_passes == 4  # seven tokens each, the last ones fewer
    assert drafted.sources[1] == ("script",)
    assert drafter.ended


def test_a_drafter_of_your_own_and_names_of_drafters_are_refused_together(model: Path) -> None:
    with pytest.raises(ParameterError, match="both drafter= and draft="):
        dg.load(model, drafter=NgramDrafter(4), draft="ngram")


def test_a_closed_model_refuses_everything_and_closes_again(model: Path) -> None:
    llm = dg.load(model)
    with llm as same:
        assert same is llm
        stream = llm.stream("hello", **DRAWN)
        next(stream)
    llm.close()
    for use in (lambda: llm.generate("hello"), lambda: llm.stream("hello"), lambda: llm.engine):
        with pytest.raises(ClosedError, match="load it again"):
            use()


def test_an_error_inside_the_context_closes_the_model(model: Path) -> None:
    with pytest.raises(KeyError), dg.load(model) as llm:
        raise KeyError
    with pytest.raises(ClosedError):
        llm.generate("hello")


def test_an_unknown_option_is_refused_with_the_names_that_there_are(llm: LLM, model: Path) -> None:
    with pytest.raises(ParameterError) as refused:
        llm.generate("hello", temprature=1)
    assert "'temprature'" in refused.value.given
    assert {"temperature", "max_tokens", "seed"} <= set(refused.value.allowed.split(", "))
    with pytest.raises(ParameterError) as refused:
        dg.load(model, bugdet=4)
    assert {"budget", "draft", "threads"} <= set(refused.value.allowed.split(", "))


@pytest.mark.parametrize(
    "prompts",
    [
        [], (), None, 7, b"hello", {"role": "user"}, [7], [None], [[]], [["hello"]], ["hello", HELLO[0]],
        ["hello", []], ["hello", 7], [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": 7}],
        "", ["hello", ""],
    ],
    ids=repr,
)  # fmt: skip
def test_a_prompt_of_no_known_form_is_refused_and_nothing_is_left_running(llm: LLM, prompts: Any) -> None:
    with pytest.raises(DraftGraphError) as refused:
        llm.generate(prompts, max_tokens=2)
    assert all((refused.value.given, refused.value.allowed, refused.value.remedy))
    assert not llm.engine.scheduler.has_work


def test_what_was_taken_for_a_prompt_or_a_schema_is_named(llm: LLM) -> None:
    with pytest.raises(PromptError, match="token ids"):
        llm.generate([1, 2, 3])  # type: ignore[list-item]
    with pytest.raises(PromptError, match="b'hello'"):
        llm.generate(b"hello")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"json_schema.*not JSON serializable"):
        llm.generate("hello", json_schema={"type": {1}})


@pytest.mark.parametrize("prompt", [[], None, 7, [["hello"]], ["hello"]], ids=repr)
def test_a_stream_refuses_a_prompt_of_no_known_form(llm: LLM, prompt: Any) -> None:
    with pytest.raises(DraftGraphError):
        llm.stream(prompt, max_tokens=2)


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 0}, {"max_tokens": 1.5}, {"max_tokens": True}, {"temperature": float("nan")},
        {"temperature": "hot"}, {"seed": "x"}, {"stop": [""]}, {"stop": 7}, {"stop": [7]}, {"logit_bias": [1]},
        {"logit_bias": {"1": 1}}, {"logit_bias": {10_000: 1}}, {"ignore_eos": 1}, {"budget": -1}, {"budget": 1.5},
    ],
    ids=repr,
)  # fmt: skip
def test_an_option_out_of_range_is_refused_before_anything_is_written(llm: LLM, options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        llm.generate("hello", **options)


def test_a_prompt_too_long_is_refused_with_both_lengths(llm: LLM) -> None:
    with pytest.raises(PromptError, match="256"):
        llm.generate("word " * 300)


def test_two_models_do_not_disturb_each_other(model: Path, tmp_path: Path) -> None:
    other = write_gguf(tmp_path / "other.gguf", seed=1, config=tiny_config())
    with dg.load(model) as one, dg.load(other) as two:
        streams: Sequence[Iterator[Delta]] = [one.stream("hello", **DRAWN), two.stream("hello", **DRAWN)]
        texts = ["".join(delta.text for delta in stream) for stream in streams]
        assert texts == [one.generate("hello", **DRAWN).text, two.generate("hello", **DRAWN).text]
    assert texts[0] != texts[1]


def test_a_small_cache_changes_no_text(model: Path) -> None:
    """Eight slots, and memory for two of these texts: requests wait, lose their slots and start from each other's."""
    prompts = ["hello, this is a longer prompt of many words, and it goes on", HELLO, "the other one", "hello, this is"]
    options = {**DRAWN, "max_tokens": 60}
    with dg.load(model, threads=1) as roomy:
        wanted = [roomy.generate(prompt, **options).token_ids for prompt in prompts]
    with dg.load(model, threads=1, kv_tokens=160, prefill_chunk=8) as small:
        for _ in range(2):
            assert [done.token_ids for done in small.generate(prompts, **options)] == wanted
        load = small.engine.scheduler.load()
    assert (load.blocks_total, load.blocks_used) == (160 // BLOCK, 0)
    assert load.preemptions > 0
    assert load.reused_tokens > 0


def test_the_context_is_what_the_cache_can_hold(model: Path) -> None:
    with dg.load(model, kv_tokens=50) as llm:
        assert llm.runner.context_length == 50
        with pytest.raises(PromptError, match="50") as error:
            llm.generate("a b " * 50)
        assert "--kv-tokens" in error.value.remedy
    with pytest.raises(ParameterError, match="kv_tokens=50") as refused:
        dg.load(model, kv_tokens=50, context=51)
    assert "--kv-tokens" in refused.value.remedy
