"""The text stream: whatever the tokens are cut like, the text is the whole's, and nothing of a stop string is shown."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.engine.text import TextStream

FAMILY, FLAG = "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308"  # joined emoji
TEXTS = ["a", "é", "€", "😀", "aé€😀", "a😀b", FAMILY, "e\u0301", "\u0000\uffff", "\ufeffx", FLAG, "日本"]
INVALID = [
    b"\xff", b"a\x80b", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2(\xa1", b"\xf0\x9f\x98", b"\xf0\x9fa",
    b"\xf0\x28\x8c\xbc", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80",
    b"\xe2\x82\xe2\x82\xac", b"\x80\x80\xc3\xa9",
]  # fmt: skip
bounded = settings(max_examples=300, deadline=None, derandomize=True, database=None)


def stream(pieces: Sequence[bytes], stops: Sequence[str] = ()) -> TextStream:
    return TextStream(lambda token: pieces[token], stops)


def splits(data: bytes) -> list[list[bytes]]:
    """Every way to cut the bytes into pieces, for up to 9 bytes; beyond, every way in two and one by one."""
    inner = range(1, len(data))
    cuts = (
        [cut for n in range(len(data)) for cut in itertools.combinations(inner, n)]
        if len(data) <= 9
        else [(), *((at,) for at in inner), tuple(inner)]
    )
    return [[data[a:b] for a, b in itertools.pairwise((0, *cut, len(data)))] for cut in cuts]


def shown(pieces: Sequence[bytes], stops: Sequence[str] = ()) -> tuple[list[str], bool]:
    """What each piece releases and, unless a stop string ended the text, what the end of the text does."""
    text = stream(pieces, stops)
    released = []
    for token in range(len(pieces)):
        new, stopped = text.push(token)
        released.append(new)
        if stopped:
            return released, True
    return [*released, text.flush()], False


@pytest.mark.parametrize("data", [text.encode() for text in TEXTS] + INVALID, ids=repr)
def test_every_split_gives_the_text_of_the_whole(data: bytes) -> None:
    for pieces in splits(data):
        assert "".join(shown(pieces)[0]) == data.decode("utf-8", "replace")


@bounded
@given(st.binary(max_size=24), st.lists(st.integers(0, 24)))
def test_any_bytes_in_any_pieces_give_the_text_of_the_whole(data: bytes, cuts: list[int]) -> None:
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(borders)]
    assert "".join(shown(pieces)[0]) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_is_shown_with_its_last_byte_and_not_before(text: str) -> None:
    data = text.encode()
    released, _ = shown([data[at : at + 1] for at in range(len(data))])
    assert all("\ufffd" not in part for part in released)
    expected = [""] * (len(data) + 1)
    end = 0
    for character in text:
        end += len(character.encode())
        expected[end - 1] = character
    assert released == expected


def test_tokens_without_bytes_release_nothing_and_do_no_harm() -> None:
    assert shown([b"\xe2", b"", b"\x82", b"", b"\xac", b""]) == (["", "", "", "", "€", "", ""], False)


def naive(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[str, bool]:
    """Reads the whole text again after each piece and cuts it at the earliest stop string."""
    whole = b""
    for piece in pieces:
        whole += piece
        text = certain(whole)
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            return text[: min(found)], True
    return whole.decode("utf-8", "replace"), False


def certain(data: bytes) -> str:
    """The decoded bytes without what may still become another character."""
    for cut in range(min(3, len(data)), 0, -1):
        tail = data[-cut:]
        lead = tail[0]
        length = 2 if 0xC2 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4 if 0xF0 <= lead < 0xF5 else 1
        if length > cut and len(tail.decode("utf-8", "replace")) == 1:
            return data[:-cut].decode("utf-8", "replace")
    return data.decode("utf-8", "replace")


STOPS: list[list[str]] = [
    ["ab"], ["aab"], ["abab"], ["aaa"], ["ab", "b"], ["abc", "b"], ["ba", "abb"], ["é"], ["😀"], ["€a", "a€"], ["a"],
    ["bab", "abba", "bb"], ["\n\n"], ["abcabd"],
]  # fmt: skip


@pytest.mark.parametrize("stops", STOPS, ids=repr)
def test_the_text_ends_where_a_cut_of_the_whole_would_end_it(stops: list[str]) -> None:
    rng = random.Random(repr(stops))
    words = sorted({stop[:end] for stop in stops for end in range(1, len(stop) + 1)} | {*stops, *"abc"})
    num_stopped = 0
    for _ in range(300):
        data = "".join(rng.choices(words, k=rng.randint(1, 6))).encode()
        borders = sorted({0, len(data), *(rng.randint(0, len(data)) for _ in range(rng.randint(0, 8)))})
        pieces = [data[a:b] for a, b in itertools.pairwise(borders)]
        released, stopped = shown(pieces, stops)
        expected, expected_stop = naive(pieces, stops)
        assert ("".join(released), stopped) == (expected, expected_stop)
        num_stopped += stopped
        # At no time is more shown than the end will keep, nor less than what cannot become a stop string any more.
        whole, total = b"", ""
        for piece, new in zip(pieces, released, strict=False):
            whole += piece
            total += new
            assert expected.startswith(total)
            text = certain(whole)
            if any(stop in text for stop in stops):
                break
            longest = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
            assert total == text[: len(text) - longest]
    assert num_stopped > 20


def test_of_two_stop_strings_the_earliest_in_the_text_ends_it() -> None:
    assert shown([b"xxabcyy"], ["cy", "b", "abcy"]) == (["xx"], True)


def test_what_follows_a_stop_string_in_its_token_is_not_shown_later() -> None:
    text = stream([b"one STOP two \xe2\x82", b"\xac"], ["STOP"])
    assert text.push(0) == ("one ", True)
    assert text.flush() == ""


def test_a_held_back_end_is_shown_when_the_text_ends_there() -> None:
    assert shown([b"one ST", b"O"], ["STOP"]) == (["one ", "", "STO"], False)
    assert shown([b"one ST\xe2\x82"], ["STOP"]) == (["one ", "ST\ufffd"], False)


def test_a_false_alarm_is_released_at_once() -> None:
    assert shown([b"S", b"T", b"Ox", b"y"], ["STOP"]) == (["", "", "STOx", "y", ""], False)


def test_a_copy_goes_its_own_way() -> None:
    pieces = [b"a\xe2\x82", b"\xac", b"ST", b"OP", b"\xac!"]
    text = stream(pieces, ["STOP"])
    assert text.push(0) == ("a", False)
    twin = text.copy()
    assert text.push(1) == ("€", False)
    assert text.push(2) == ("", False)
    again = text.copy()
    assert text.push(3) == ("", True)
    assert twin.push(4) == ("€!", False)
    assert twin.flush() == ""
    assert again.push(4) == ("ST\ufffd!", False)
    assert again.flush() == ""


@bounded
@given(st.lists(st.sampled_from([b"a", b"b", b"\xe2", b"\x82", b"\xac", b"ab"]), max_size=8), st.data())
def test_looking_ahead_with_a_copy_changes_nothing(pieces: list[bytes], data: st.DataObject) -> None:
    expected = shown(pieces, ["aab", "€b"])
    text = stream(pieces, ["aab", "€b"])
    released = []
    for token in range(len(pieces)):
        twin = text.copy()
        for other in data.draw(st.lists(st.integers(0, len(pieces) - 1), max_size=3)):
            twin.push(other)
        twin.flush()
        new, stopped = text.push(token)
        released.append(new)
        if stopped:
            break
    else:
        released.append(text.flush())
    assert released == expected[0]
