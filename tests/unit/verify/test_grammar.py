"""Grammars: masks against a brute-force matcher, questions that leave no trace, ends, limits, refusals."""

from __future__ import annotations

import functools
import json
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.config import MAX_GRAMMAR, SamplingParams
from draftgraph.errors import MissingPackageError, ParameterError
from draftgraph.models.tokenizer import Tokenizer, tokenizer_from_gguf
from draftgraph.types import FinishReason
from draftgraph.verify.grammar import GrammarConstraint, Grammars, no_grammars
from support.vocabularies import byte_level_metadata, sentencepiece_metadata

# 128 single characters, 60 longer words, two end tokens and two control tokens.
_RANDOM = random.Random(5)
WORDS = [bytes([i]) for i in range(128)]
WORDS += [bytes(_RANDOM.choice(b'ab1{}":,. ') for _ in range(_RANDOM.randint(2, 4))) for _ in range(60)]
ENDS = (188, 190)
SIZE = 192


def token_bytes(token: int) -> bytes:
    return WORDS[token] if token < len(WORDS) else b""


def spell(text: str) -> list[int]:
    """Greedy: the longest word first."""
    ids, rest = [], text.encode()
    while rest:
        ids.append(max((i for i, word in enumerate(WORDS) if rest.startswith(word)), key=lambda i: len(WORDS[i])))
        rest = rest[len(WORDS[ids[-1]]) :]
    return ids


@functools.cache
def grammars(ends: tuple[int, ...] = ENDS) -> Grammars:
    return Grammars(SIZE, ends, token_bytes, spell)


def constraint(ends: tuple[int, ...] = ENDS, **asked: str) -> GrammarConstraint:
    made = grammars(ends).constrain(SamplingParams(**asked))  # type: ignore[arg-type]
    assert made is not None
    return made


def text_of(tokens: Sequence[int]) -> str:
    return b"".join(map(token_bytes, tokens)).decode()


PERSON = {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["a1", "ab"]}}, "required": ["a", "b"],
    "additionalProperties": False,
}  # fmt: skip
CONSTRAINTS: list[dict[str, str]] = [
    {"regex": "(ab|a1b*)+[.,]"},
    {"json_schema": json.dumps(PERSON)},
    {"json_schema": "{}"},
    {"grammar": 'start: "{" start? "}" | "a"+'},
]


# Masks


@pytest.mark.parametrize("pattern", ["(ab|a1b*)+[.,]", "a{2,5}", '"[^"{]{0,9}"', "(a1|b)*", "[ab]+(: ?[0-9]+)?"])
def test_a_mask_is_what_can_still_become_a_match(pattern: str) -> None:
    """Judged by partial matching of another engine, wherever a random walk leads."""
    for seed in range(15):
        rng = random.Random(seed)
        asked, path = constraint(regex=pattern), []
        for _ in range(12):
            mask = asked.allowed(path)
            if mask is None:
                assert asked.ending(path) is FinishReason.STOP
                assert regex.fullmatch(pattern, text_of(path))
                break
            assert asked.ending(path) is None
            # Where the text is forced, only the tokenizer's own spelling is allowed.
            possible = [t for t in range(188) if regex.fullmatch(pattern, text_of([*path, t]), partial=True)]
            allowed = np.flatnonzero(mask).tolist()
            words = [token for token in allowed if token < 188]
            assert set(words) <= set(possible)
            assert len(words) == 1 or words == possible
            ends = [token for token in allowed if token >= 188]
            assert ends == (list(ENDS) if regex.fullmatch(pattern, text_of(path)) else [])
            path.append(rng.choice(words))


@pytest.mark.parametrize("asked", CONSTRAINTS, ids=str)
def test_random_walks_along_the_masks_end_in_texts_of_the_grammar(asked: dict[str, str]) -> None:
    ended = 0
    for seed in range(30):
        rng, made, path = random.Random(seed), constraint(**asked), []
        while made.ending(path) is None and len(path) < 60:
            mask = made.allowed(path)
            assert mask is not None
            token = int(rng.choice(np.flatnonzero(mask)))
            if token in ENDS:
                break
            path.append(token)
        else:
            if len(path) == 60:
                continue
        ended += 1
        text = text_of(path)
        if "json_schema" in asked:
            value = json.loads(text)
            if asked["json_schema"] != "{}":
                assert list(value) == ["a", "b"]
                assert isinstance(value["a"], int)
                assert value["b"] in ("a1", "ab")
        elif "regex" in asked:
            assert regex.fullmatch(asked["regex"], text)
        else:
            assert regex.fullmatch("({*)(a*)(}*)", text)
            assert text.count("{") == text.count("}")
    assert ended > 10


@settings(max_examples=40, deadline=None, derandomize=True)
@given(which=st.integers(0, len(CONSTRAINTS) - 1), seed=st.integers(0, 10**6), steps=st.integers(1, 12))
def test_no_question_changes_an_answer(which: int, seed: int, steps: int) -> None:
    """After any questions about any paths, and any advances, the answers are those of a fresh constraint."""
    rng, asked, known = random.Random(seed), constraint(**CONSTRAINTS[which]), []
    for _ in range(steps):
        paths = [[rng.randrange(SIZE) for _ in range(rng.randrange(4))] for _ in range(3)]
        good: list[int] = []
        for _ in range(rng.randrange(5)):
            mask = constraint_after(which, known).allowed(good)
            if mask is None:
                break
            good.append(int(rng.choice(np.flatnonzero(mask))))
            paths.append([*good, *[rng.randrange(SIZE)] * rng.randrange(2)])
        rng.shuffle(paths)
        for path in paths:
            question = rng.choice(["allowed", "ending", "permits", "forced"])
            arguments = () if question == "forced" else (path,)
            found = getattr(asked, question)(*arguments)
            expected = getattr(constraint_after(which, known), question)(*arguments)
            assert np.array_equal(found, expected), (question, path)
        keep = good[: rng.randrange(len(good) + 1)]
        fresh = constraint_after(which, known)
        if not ENDS_SET.intersection(keep) and fresh.ending(keep) is None:
            asked.advance(keep)
            known += keep


ENDS_SET = frozenset(ENDS)


def constraint_after(which: int, known: Sequence[int]) -> GrammarConstraint:
    made = constraint(**CONSTRAINTS[which])
    made.advance(known)
    return made


def test_a_path_is_permitted_if_all_of_it_can_be_written() -> None:
    made = constraint(regex="ab1*")
    a, b, one = b"a"[0], b"b"[0], b"1"[0]
    assert made.permits([])
    assert made.permits([a, b, one, one])
    assert made.permits([a, b, ENDS[1]])
    assert not made.permits([a, ENDS[0]])
    assert not made.permits([b])
    assert not made.permits([a, b, one, b])
    assert not made.permits([189])


def test_forced_text_is_spelt_by_the_tokenizer_and_nothing_else_is_allowed() -> None:
    made = constraint(regex='x"abab1111:"[0-9]')
    forced = made.forced()
    assert text_of(forced)
    assert 'x"abab1111:"'.startswith(text_of(forced))
    assert list(forced) == spell('x"abab1111:"')[: len(forced)]
    for i, token in enumerate(forced):
        mask = made.allowed(forced[:i])
        assert mask is not None
        assert np.flatnonzero(mask).tolist() == [token]
    assert constraint(regex="[ab]*").forced() == ()


# Ends


def test_end_tokens_are_allowed_where_the_text_is_complete_and_nowhere_else() -> None:
    made = constraint(regex="(ab)+")
    for path, complete in (([], False), (spell("a"), False), (spell("abab"), True)):
        mask = made.allowed(path)
        assert mask is not None
        assert mask[list(ENDS)].tolist() == [complete] * 2
        assert not mask[[189, 191]].any(), "a control token was allowed"


def test_a_place_where_only_the_end_is_left_is_closed() -> None:
    for ends in (ENDS, (188,), ()):
        made = constraint(ends, regex="ab?")
        assert made.ending(spell("a")) is None
        assert made.ending([b"a"[0], b"b"[0]]) is FinishReason.STOP
        assert made.allowed([b"a"[0], b"b"[0]]) is None


def test_what_follows_an_end_or_is_forbidden_is_closed() -> None:
    made = constraint(regex="a+")
    for path in ([97, ENDS[0]], [97, ENDS[0], 97], [98], [97, 98, 97]):
        assert made.allowed(path) is None
        assert made.ending(path) is FinishReason.GRAMMAR
    assert made.allowed([97, 97]) is not None


def test_a_dead_end_is_not_a_stop() -> None:
    """The grammar wants a control token, which no text has."""
    made = constraint(grammar='start: "a" <[191]>')
    assert made.ending([97]) is FinishReason.GRAMMAR


def test_a_grammar_that_grows_past_the_limits_of_a_step_is_not_a_stop() -> None:
    grows = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}}
    made = constraint(json_schema=json.dumps({"anyOf": [{"type": ["array", "integer", "string"]}, grows]}))
    assert made.ending(spell('{"')) is FinishReason.GRAMMAR


def test_a_request_cannot_advance_along_what_is_forbidden() -> None:
    with pytest.raises(AssertionError, match="forbids"):
        constraint(regex="a+").advance([98])


def test_white_space_between_the_parts_of_json_comes_to_an_end() -> None:
    made, json_text = constraint(json_schema='{"type": "object", "required": ["a"]}'), '{{{}"a":1}}'
    assert made.permits(spell(json_text.format(" " * 64)))
    assert not made.permits(spell(json_text.format(" " * 65)))


# Tokenizers


@pytest.mark.parametrize("metadata", [byte_level_metadata, sentencepiece_metadata])
def test_the_words_of_a_real_tokenizer_spell_texts_as_they_stand_within_one(metadata: Any) -> None:
    """SentencePiece puts a space before a first word; within a text there is none."""
    tokenizer: Tokenizer = tokenizer_from_gguf(metadata())
    end_ids = [tokenizer.eos_id] if tokenizer.eos_id is not None else []
    made = Grammars(tokenizer.size, end_ids, tokenizer.token_bytes, lambda text: tokenizer.encode(text, special=False))
    for literal in ("the other", " the", "name", "été ☃", '{"'):
        asked = made.constrain(SamplingParams(regex=regex.escape(literal, literal_spaces=True) + "[0-9]+"))
        assert asked is not None
        assert literal.encode().startswith(b"".join(map(tokenizer.token_bytes, asked.forced())))
        path: list[int] = []
        while asked.ending(path) is None and len(path) < 40:
            mask = asked.allowed(path)
            assert mask is not None
            assert not mask[sorted(tokenizer.special_ids - set(end_ids))].any()
            path.append(int(np.flatnonzero(mask)[-1]))
        assert regex.match(regex.escape(literal) + "[0-9]", tokenizer.decode(path))


def test_a_schema_within_a_grammar_allows_what_the_schema_alone_does() -> None:
    """The limit of its white space too."""
    alone = constraint(json_schema=json.dumps(PERSON))
    within = constraint(grammar=f'start: "ab" value ":"\nvalue: %json {json.dumps(PERSON)}')
    for text in ("{", "{" + " " * 64, "{" + " " * 65, '{"a":', '{"a": 1, "b": "a', '{"b"', "[", '{"a": 1, "b": "ab"'):
        assert within.permits(spell("ab" + text)) == alone.permits(spell(text)), text
    assert within.ending(spell('ab{"a": 1, "b": "ab"}:')) is FinishReason.STOP


# Refusals


REFUSED: dict[str, dict[str, str]] = {
    "no JSON": {"json_schema": "{"},
    "nothing": {"json_schema": ""},
    "null": {"json_schema": "null"},
    "a list": {"json_schema": "[]"},
    "a string": {"json_schema": '"string"'},
    "an unknown type": {"json_schema": '{"type": "foo"}'},
    "an unknown keyword": {"json_schema": '{"not": {}}'},
    "no such reference": {"json_schema": '{"$ref": "#/nowhere"}'},
    "a reference elsewhere": {"json_schema": '{"$ref": "http://127.0.0.1:9/schema"}'},
    "a file": {"json_schema": '{"$ref": "file:///etc/passwd"}'},
    "itself": {"json_schema": '{"$ref": "#"}'},
    "false": {"json_schema": "false"},
    "two types": {"json_schema": '{"allOf": [{"type": "string"}, {"type": "number"}]}'},
    "no choice": {"json_schema": '{"enum": []}'},
    "an empty range": {"json_schema": '{"type": "integer", "minimum": 5, "maximum": 1}'},
    "half a pair": {"json_schema": '{"const": "\\ud800"}'},
    "half a pair, raw": {"json_schema": '{"const": "\ud800"}'},
    "deep": {"json_schema": '{"items":' * 5000 + "{}" + "}" * 5000},
    "deeper": {"json_schema": '{"enum":[' + "[" * 30_000 + "]" * 30_000 + "]}"},
    "long": {"json_schema": json.dumps({"const": "a" * MAX_GRAMMAR})},
    "many branches": {"json_schema": json.dumps({"allOf": [
        {"anyOf": [{"properties": {f"a{i}": {"type": "string"}}}, {"properties": {f"b{i}": {"type": "integer"}}}]}
        for i in range(18)
    ]})},
    "a multiple": {"json_schema": '{"type": "integer", "multipleOf": 1234567}'},
    "a hidden multiple": {"json_schema": '{"type": "integer", "\\u006dultipleOf": 1234567}'},
    "a multiple twice": {"json_schema": '{"type": "integer", "multipleOf": 1234567, "multipleOf": 1}'},
    "multiples": {"json_schema": '{"allOf": [{"multipleOf": 997}, {"multipleOf": 99.1}]}'},
    "a multiple of nothing": {"json_schema": '{"multipleOf": 0}'},
    "a huge multiple": {"json_schema": '{"multipleOf": 1e99999999}'},
    "a long multiple": {"json_schema": '{"multipleOf": ' + "9" * 5000 + "}"},
    "an open group": {"regex": "("},
    "a back reference": {"regex": "(a)\\1"},
    "an empty text": {"regex": ""},
    "no character": {"regex": "[^\\x00-\\U0010FFFF]"},
    "half a pair in a regex": {"regex": "\ud800"},
    "no grammar": {"grammar": ""},
    "no start": {"grammar": 'x: "y"'},
    "an unknown rule": {"grammar": "start: foo"},
    "no text": {"grammar": "start: start"},
    "a control token": {"grammar": "start: <[191]>"},
    "a schema within": {"grammar": 'start: %json {"multipleOf": 1234567}'},
    "a schema within that is no schema": {"grammar": "start: %json [1]"},
    "a schema within that never ends": {"grammar": 'start: %json {"type":'},
    "a second schema within": {"grammar": 'start: a b\na: %json {}\nb: %json {"not": {}}'},
    "a zero byte": {"grammar": "\0"},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused_in_three_parts_and_in_time(name: str) -> None:
    started = time.perf_counter()
    with pytest.raises(ParameterError) as caught:
        constraint(**REFUSED[name])
    assert time.perf_counter() - started < 3
    assert all(part.strip() for part in (caught.value.given, caught.value.allowed, caught.value.remedy))
    assert len(caught.value.given) < 400
    assert "\n" not in caught.value.given


def test_a_refusal_says_what_is_wrong_with_a_regex() -> None:
    with pytest.raises(ParameterError, match="unclosed group"):
        constraint(regex="(a")


BOMBS: dict[str, dict[str, Any]] = {
    "repeats": {"type": "string", "pattern": "^((((a{1,1000}){1,1000}){1,1000}){1,1000})$"},
    "backtracking": {"type": "string", "pattern": "^(a+)+$"},
    "states": {"type": "string", "pattern": "^(.*a.{200}b.*){10}$"},
    "items": {"type": "array", "items": {"type": "array", "minItems": 100_000}, "minItems": 100_000},
    "length": {"type": "string", "minLength": 10**9},
    "properties": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1800)}},
    "choices": {"enum": [f"value {i}" for i in range(4000)]},
    "doubling": {
        "$defs": {
            **{f"d{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)},
            "d40": {"type": "string"},
        },
        "$ref": "#/$defs/d0",
    },
    "a circle": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_schema_made_to_explode_costs_little_or_is_refused(name: str) -> None:
    started = time.perf_counter()
    try:
        made = constraint(json_schema=json.dumps(BOMBS[name]))
    except ParameterError:
        made = None
    assert time.perf_counter() - started < 3
    path: list[int] = []
    for _ in range(12 if made else 0):
        assert made is not None
        started = time.perf_counter()
        mask = made.allowed(path)
        assert time.perf_counter() - started < 1
        if mask is None:
            break
        path.append(int(np.flatnonzero(mask)[-1]))


def test_a_refused_schema_says_why_and_how_to_relax_it() -> None:
    unique = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    with pytest.raises(ParameterError, match=r"uniqueItems[\s\S]*x-guidance"):
        constraint(json_schema=json.dumps(unique))
    assert constraint(json_schema=json.dumps({**unique, "x-guidance": {"lenient": True}})).permits(spell("[1,1]"))


def test_without_the_package_a_constraint_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    made = Grammars(SIZE, ENDS, token_bytes, spell)
    assert made.constrain(SamplingParams()) is None
    for asked in CONSTRAINTS:
        with pytest.raises(MissingPackageError, match=r"draftgraph\[grammar\]"):
            made.constrain(SamplingParams(**asked))  # type: ignore[arg-type]


def test_without_a_table_of_words_a_constraint_is_refused_and_none_is_fine() -> None:
    no_grammars(SamplingParams())
    with pytest.raises(ParameterError, match="table of words"):
        no_grammars(SamplingParams(regex="a"))
