"""Streams: whole characters, nothing of a stop string, nothing held back for longer than needed, deltas that add up."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.config import SamplingParams
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Request, State
from draftgraph.engine.text import TextStream
from draftgraph.llm import LLM
from draftgraph.types import Delta, FinishReason
from support.rigs import ScriptDrafter, TableRunner, chain, follow, hashed_logits, make_engine

TEXT = "né 漢字 🙂 👩‍👩‍👧 ﷽ e\u0301 end"
BYTES = TEXT.encode()


def spell(data: bytes) -> TableRunner:
    """R-BYTE: a target that writes these bytes after the prompt (0,), and then zeros."""

    def logits(text: tuple[int, ...]) -> np.ndarray:
        written = len(text) - 1
        return np.eye(256)[data[written] if written < len(data) else 0] * 50

    return TableRunner(logits, 256)


def deliver(engine: Engine, budget: int, **sampling: object) -> tuple[Request, list[Delta]]:
    request = engine.submit((0,), SamplingParams(**sampling), budget)  # type: ignore[arg-type]
    deltas = []
    while request.state is not State.FINISHED:
        deltas += engine.step()
    return request, deltas


@pytest.mark.parametrize("block", range(17))
def test_no_character_is_broken_whatever_the_blocks_are(block: int) -> None:
    """D-TK-01."""
    engine = make_engine(spell(BYTES), ScriptDrafter(follow((0, *BYTES), block)))
    request, deltas = deliver(engine, block, max_tokens=len(BYTES))
    assert request.text == "".join(delta.text for delta in deltas) == TEXT
    assert not any("�" in delta.text for delta in deltas)


@pytest.mark.parametrize("block", [0, 1, 5])
def test_bytes_left_incomplete_at_the_end_become_one_replacement_character(block: int) -> None:
    for cut in range(1, len(BYTES)):
        engine = make_engine(spell(BYTES), ScriptDrafter(follow((0, *BYTES), block)))
        request, deltas = deliver(engine, block, max_tokens=cut)
        assert request.text == "".join(delta.text for delta in deltas) == BYTES[:cut].decode(errors="replace")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(pieces=st.lists(st.one_of(st.binary(max_size=4), st.text(max_size=2).map(str.encode)), max_size=12))
def test_the_parts_join_to_the_decoding_of_the_whole(pieces: list[bytes]) -> None:
    stream = TextStream(lambda token: pieces[token], ())
    text = "".join(stream.push(token)[0] for token in range(len(pieces))) + stream.flush()
    assert text == b"".join(pieces).decode(errors="replace")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    pieces=st.lists(st.text("abé", max_size=3), max_size=14),
    stops=st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_no_more_is_held_back_than_could_become_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    stream = TextStream(lambda token: pieces[token].encode(), stops)
    given_out, seen = "", ""
    for token, piece in enumerate(pieces):
        seen += piece
        released, stopped = stream.push(token)
        given_out += released
        found = [seen.find(stop) for stop in stops if stop in seen]
        assert stopped == bool(found)
        if stopped:
            assert given_out == seen[: min(found)]
            return
        held = seen[len(given_out) :]
        assert seen == given_out + held
        could_stop = [n for n in range(len(seen) + 1) if any(stop.startswith(seen[len(seen) - n :]) for stop in stops)]
        assert len(held) == max(could_stop)
        copy = stream.copy()
        assert given_out + copy.flush() == seen
    assert given_out + stream.flush() == seen


def test_text_that_was_held_back_is_delivered_when_no_stop_string_came() -> None:
    engine = make_engine(spell(b"one tw"))
    _, deltas = deliver(engine, 0, max_tokens=6, stop=("two",))
    assert "".join(delta.text for delta in deltas) == "one tw"
    assert [delta.text for delta in deltas[-2:]] == ["", "tw"]


def test_the_deltas_of_a_cancelled_request_join_to_its_text() -> None:
    engine = make_engine(spell(b"one tw"))
    request = engine.submit((0,), SamplingParams(stop=("two",)), 0)
    text = "".join(delta.text for _ in range(6) for delta in engine.step())
    last = engine.cancel(request)
    assert request.finish_reason is FinishReason.CANCELLED
    assert text + (last.text if last is not None else "") == request.text


def words() -> LLM:
    """An LLM whose tokens are bytes, whatever the model is."""
    tokenizer = SimpleNamespace(encode_prompt=lambda text: list(text.encode()), chat_stop=())
    runner, drafter = TableRunner(hashed_logits(256), 256), ScriptDrafter(lambda context: chain([1, 2]))
    model = SimpleNamespace(tokenizer=tokenizer, name="words")
    return LLM(model, runner, make_engine(runner, drafter), 4)  # type: ignore[arg-type]


def test_a_stream_says_what_generate_says() -> None:
    llm = words()
    options = {"max_tokens": 12, "temperature": 1.0, "seed": 2}
    completion = llm.generate("abc", **options)
    deltas = list(llm.stream("abc", **options))
    assert "".join(delta.text for delta in deltas) == completion.text
    assert tuple(token for delta in deltas for token in delta.token_ids) == completion.token_ids
    assert deltas[-1].finish_reason == completion.finish_reason


def test_a_stream_that_is_closed_early_leaves_no_work() -> None:
    llm = words()
    stream = llm.stream("abc", max_tokens=50)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not llm.engine.scheduler.has_work


def test_a_stream_that_is_closed_before_it_began_leaves_no_work() -> None:
    llm = words()
    llm.stream("abc", max_tokens=50).close()  # type: ignore[attr-defined]
    assert not llm.engine.scheduler.has_work


def test_two_streams_read_in_turns_lose_nothing() -> None:
    llm = words()
    alone = [llm.generate(prompt, max_tokens=9).token_ids for prompt in ("abc", "xyz")]
    streams = [llm.stream(prompt, max_tokens=9) for prompt in ("abc", "xyz")]
    found: list[list[int]] = [[], []]
    for _ in range(10):
        for output, stream in zip(found, streams, strict=True):
            output.extend(token for delta in [next(stream, None)] if delta is not None for token in delta.token_ids)
    assert [tuple(output) for output in found] == alone
