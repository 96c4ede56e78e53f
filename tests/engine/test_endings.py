"""Where a request ends: end ids, stop strings, max_tokens, the context, wherever in a block of drafts they fall."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.config import SamplingParams
from draftgraph.draft.base import Drafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.engine.request import Request, State
from draftgraph.types import Delta, FinishReason
from support.rigs import (
    ScriptDrafter,
    TableRunner,
    chain,
    follow,
    hashed_logits,
    make_engine,
    mixture,
    run,
    scripts,
    small_model,
    tiny_runner,
    write,
)

VOCAB = 26
LETTERS = [bytes([ord("a") + i]) for i in range(VOCAB)]
PROMPT = (1, 2, 3)
RUNNER = functools.partial(TableRunner, hashed_logits(VOCAB), VOCAB)
TEXT = (*PROMPT, *write(make_engine(RUNNER()), PROMPT, 0, max_tokens=60).output)
DRAFTERS = {
    **{name: lambda name=name: ScriptDrafter(scripts(TEXT, VOCAB)[name]) for name in scripts(TEXT, VOCAB)},
    "oracle of 16": lambda: ScriptDrafter(follow(TEXT, 16)),
    "ngram": lambda: NgramDrafter(8),
    "suffix": lambda: SuffixDrafter(8, TEXT),
    "recycle": lambda: RecycleDrafter(8),
    "model": lambda: ModelDrafter(RUNNER(), 3, 8),
}


def deliver(
    drafter: Drafter,
    budget: int,
    *,
    end_ids: tuple[int, ...] = (),
    prompt: tuple[int, ...] = PROMPT,
    **sampling: object,
) -> tuple[Request, list[Delta]]:
    """Runs one request; returns it with its deltas."""
    engine = make_engine(RUNNER(), drafter, end_ids=end_ids, token_bytes=lambda token: LETTERS[token])
    request = engine.submit(prompt, SamplingParams(**sampling), budget)  # type: ignore[arg-type]
    deltas = []
    while request.state is not State.FINISHED:
        deltas += engine.step()
    assert not engine.scheduler.has_work
    return request, deltas


def account(request: Request, deltas: list[Delta]) -> tuple[list[int], str, FinishReason | None]:
    """P-ACCT: whatever counts the output counts the same. Returns the output."""
    ids = [token for delta in deltas for token in delta.token_ids]
    assert ids == request.output
    assert "".join(delta.text for delta in deltas) == request.text
    assert [source for delta in deltas for source in delta.sources] == request.sources
    assert len(ids) == len(request.sources) == request.stats.completion_tokens == request.num_written
    assert len(ids) <= request.sampling.max_tokens
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == request.finish_reason
    assert request.stats.accepted_nodes == sum(source != ("target",) for source in request.sources)
    return ids, request.text, request.finish_reason


@functools.cache
def plain(**options: object) -> tuple[list[int], str, FinishReason | None]:
    return account(*deliver(ScriptDrafter(lambda context: ()), 0, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("offset", range(1, 12))
def test_an_end_id_ends_the_text_at_every_place_in_a_block(offset: int) -> None:
    """D-EX-01. Blocks of eight begin behind the first token."""
    end = next(i for i in itertools.count(offset) if TEXT[3 + i] not in TEXT[3 : 3 + i])
    wanted = plain(end_ids=(TEXT[3 + end],), max_tokens=40)
    assert (wanted[0], wanted[2]) == (list(TEXT[3 : 4 + end]), FinishReason.STOP)
    for name, drafter in DRAFTERS.items():
        for budget in (8, offset):
            assert account(*deliver(drafter(), budget, end_ids=(TEXT[3 + end],), max_tokens=40)) == wanted, name


def test_any_of_several_end_ids_ends_the_text_and_ignore_eos_none() -> None:
    """D-EX-15."""
    seen = list(dict.fromkeys(TEXT[3:30]))
    for first, second in itertools.permutations(seen[2:8:2], 2):
        wanted = plain(end_ids=(first, second), max_tokens=40)
        assert wanted[0][-1] in (first, second)
        assert not {first, second} & set(wanted[0][:-1])
        assert account(*deliver(DRAFTERS["oracle of 16"](), 16, end_ids=(first, second), max_tokens=40)) == wanted
    ignored = deliver(DRAFTERS["oracle of 16"](), 16, end_ids=tuple(seen), max_tokens=40, ignore_eos=True)
    assert account(*ignored)[0] == list(TEXT[3:43])


def test_the_bytes_of_an_end_token_are_not_part_of_the_text() -> None:
    """Some files name an ordinary token as an end; its bytes could even complete a stop string."""
    output, text, reason = plain(end_ids=(TEXT[8],), max_tokens=40)
    assert reason is FinishReason.STOP
    assert text == "".join(LETTERS[token].decode() for token in output[:-1])


WORDS = "".join(LETTERS[token].decode() for token in TEXT[3:])


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_a_stop_string_ends_the_text_wherever_it_stands(length: int) -> None:
    """D-EX-02, D-EX-03: at the second token of a block, at its end, across blocks; ids end where it is complete."""
    for start in range(18):
        stop = WORDS[start : start + length]
        at = WORDS.index(stop)
        wanted = plain(stop=(stop,), max_tokens=40)
        assert wanted == (list(TEXT[3 : 3 + at + length]), WORDS[:at], FinishReason.STOP)
        for name in ("oracle of 16", "half right", "random graphs", "model"):
            assert account(*deliver(DRAFTERS[name](), 16, stop=(stop,), max_tokens=40)) == wanted, name


def test_of_several_stop_strings_the_earliest_ends_the_text() -> None:
    late, early, never = WORDS[12:15], WORDS[6:8], "!"
    for stop in itertools.permutations((late, early, never)):
        for budget in (0, 1, 5, 16):
            request = deliver(DRAFTERS["oracle of 16"](), budget, stop=stop, max_tokens=40)
            assert account(*request) == (list(TEXT[3 : 3 + 8]), WORDS[:6], FinishReason.STOP)
    # Two that are complete with the same token: the text ends before the one that began first.
    for stop in itertools.permutations((WORDS[5:9], WORDS[7:9])):
        assert account(*deliver(DRAFTERS["oracle of 16"](), 16, stop=stop, max_tokens=40))[1] == WORDS[:5]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 9, 10, 11])
def test_no_block_writes_more_than_max_tokens(max_tokens: int) -> None:
    """D-EX-04."""
    for name, drafter in DRAFTERS.items():
        for budget in (0, 4, 8):
            found = account(*deliver(drafter(), budget, max_tokens=max_tokens))
            assert found == (list(TEXT[3 : 3 + max_tokens]), WORDS[:max_tokens], FinishReason.LENGTH), name


def test_a_stop_at_the_last_allowed_token_is_a_stop() -> None:
    for options in ({"stop": (WORDS[6:8],)}, {"end_ids": (TEXT[3 + 7],)}):
        if TEXT[10] in TEXT[3:10]:
            continue
        assert plain(max_tokens=8, **options)[2] is FinishReason.STOP
        assert account(*deliver(DRAFTERS["oracle of 16"](), 16, max_tokens=8, **options)) == plain(
            max_tokens=8, **options
        )


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    end_ids=st.sets(st.integers(0, 5), max_size=1),
    max_tokens=st.integers(1, 25),
    budget=st.integers(1, 12),
    offset=st.integers(0, 3),
    seed=st.integers(0, 2**20),
)
def test_every_combination_ends_as_plain_decoding_does(
    stops: list[str], end_ids: set[int], max_tokens: int, budget: int, offset: int, seed: int
) -> None:
    """Six tokens that spell pieces of "ab": a stop may begin and end inside a token, and overlap itself."""
    pieces = [b"a", b"b", b"ab", b"ba", b"aab", b""]
    runner = functools.partial(TableRunner, hashed_logits(6, spread=1.0), 6)
    options = {"max_tokens": max_tokens, "stop": tuple(stops), "temperature": 1.0, "seed": seed}
    endless = (0, *write(make_engine(runner()), (0,), 0, max_tokens=40, temperature=1.0, seed=seed).output)
    found = []
    for rows, drafter in ((0, None), (budget, ScriptDrafter(lambda c: chain(endless[len(c.tokens) :][: 3 + offset])))):
        engine = make_engine(runner(), drafter, end_ids=tuple(end_ids), token_bytes=lambda token: pieces[token])
        request = engine.submit((0,), SamplingParams(**options), rows)  # type: ignore[arg-type]
        deltas = []
        while request.state is not State.FINISHED:
            deltas += engine.step()
        found.append(account(request, deltas))
        assert not any(stop in request.text for stop in stops)
    assert found[0] == found[1]


SMALL = small_model("llama", seed=1)


def every_drafter(context: int) -> list[Drafter]:
    return [
        NgramDrafter(8),
        mixture(SuffixDrafter(8), RecycleDrafter(8), ModelDrafter(tiny_runner(SMALL, context_length=context), 2, 8)),
        *(ScriptDrafter(script) for script in scripts([7] * 70, 96).values()),
    ]


@pytest.mark.parametrize("length", [1, 55, 60, 62, 63])
def test_the_context_ends_a_text_with_every_drafter(length: int) -> None:
    """D-KV-04: a context of 64, prompts close to it, and a prompt of one token that fills it."""
    prompt = tuple(int(token) for token in np.random.default_rng(length).integers(0, 96, length))
    wanted = write(make_engine(tiny_runner(SMALL, context_length=64)), prompt, 0, max_tokens=100)
    assert len(wanted.tokens) == 64
    assert wanted.finish_reason is FinishReason.LENGTH
    for i, drafter in enumerate(every_drafter(64)):
        runner = tiny_runner(SMALL, context_length=64)
        found = write(make_engine(runner, drafter), prompt, 1 + i * 3 % 16, max_tokens=100)
        assert (found.tokens, found.finish_reason) == (wanted.tokens, wanted.finish_reason)
        runner.check()


@pytest.mark.parametrize("length", [1, 20, 31, 32, 33, 50])
def test_a_draft_model_with_a_shorter_context_stops_drafting_and_changes_nothing(length: int) -> None:
    """D-KV-05: target 80, draft 32; the limit is behind the prompt, at it, and crossed while writing."""
    prompt = tuple(int(token) for token in np.random.default_rng(length).integers(0, 96, length))
    wanted = write(make_engine(tiny_runner(SMALL, context_length=80)), prompt, 0, max_tokens=25).output
    draft_runner = tiny_runner(SMALL, context_length=32)
    drafter = ModelDrafter(draft_runner, 2, 6)
    for _ in range(2):
        found = write(make_engine(tiny_runner(SMALL, context_length=80), drafter), prompt, 8, max_tokens=25)
        assert found.output == wanted
        assert (found.stats.drafted_nodes > 0) == (length < 32)
        draft_runner.check()
        assert draft_runner.num_free_slots == 8


@pytest.mark.parametrize("max_tokens", [1, 2, 20])
def test_a_prompt_of_one_token_is_continued_alike_by_every_drafter(max_tokens: int) -> None:
    """D-BA-05."""
    wanted = write(make_engine(tiny_runner(SMALL)), (7,), 0, max_tokens=max_tokens).output
    for drafter in every_drafter(256):
        assert write(make_engine(tiny_runner(SMALL), drafter), (7,), 8, max_tokens=max_tokens).output == wanted


def test_a_step_without_work_does_nothing() -> None:
    for runner in (tiny_runner(SMALL), RUNNER()):
        engine = make_engine(runner)
        assert engine.step() == []
        run(engine)
