"""Whose characters a stream shows: token by token, also where characters and tokens do not match."""

from __future__ import annotations

from draftgraph.engine.trace import Tracer
from draftgraph.types import Delta, FinishReason

EURO = "€".encode()
BYTES = [b" the", b" cat", EURO[:1], EURO[1:] + b"!", b""]
A, B, OWN = ("ngram",), ("suffix", "recycle"), ("target",)


def delta(text: str, *tokens: tuple[int, tuple[str, ...]], finish: FinishReason | None = None) -> Delta:
    return Delta(0, text, tuple(token for token, _ in tokens), tuple(sources for _, sources in tokens), finish)


def pieces(*deltas: Delta) -> list[list[tuple[str, tuple[str, ...]]]]:
    tracer = Tracer(lambda token: BYTES[token])
    return [list(tracer.pieces(each)) for each in deltas]


def test_tokens_of_one_source_stay_apart() -> None:
    assert pieces(delta(" the cat cat", (0, A), (1, A), (1, B))) == [[(" the", A), (" cat", A), (" cat", B)]]


def test_a_character_of_two_tokens_belongs_to_the_last() -> None:
    assert pieces(delta(" the", (0, A), (2, A)), delta("€!", (3, B))) == [[(" the", A)], [("€!", B)]]


def test_characters_held_back_keep_their_sources() -> None:
    assert pieces(delta(" t", (0, A)), delta("he ca", (1, B)), delta("t", (4, OWN))) == [
        [(" t", A)], [("he", A), (" ca", B)], [("t", B)],
    ]  # fmt: skip


def test_the_rest_of_a_broken_character_is_the_models_own() -> None:
    assert pieces(delta("", (2, A)), delta("\ufffd", finish=FinishReason.LENGTH)) == [[], [("\ufffd", OWN)]]
