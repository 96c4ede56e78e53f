"""Grammars: which tokens a JSON schema, a regular expression or a grammar allows, at any place of a tree.

In: a model's words, a request's parameters, then the request's tokens as they are committed. Out: for each path of
drafts what may follow it. A request's `GrammarConstraint` stands after its known tokens; for a path it walks a copy, so
nothing that is asked about drafts leaves a trace. Masks come from llguidance (Earley parsing over regex derivatives,
https://github.com/guidance-ai/llguidance), an optional package. Never sees logits, models or drafters.

What is allowed is a function of the text alone. A place is open while the text can go on; it is closed where the
grammar allows nothing but the end (the request stops there, no end token is needed) or nothing at all.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from draftgraph.config import SamplingParams
from draftgraph.errors import MissingPackageError, ParameterError
from draftgraph.types import FinishReason, Mask
from draftgraph.verify.schemas import read_schema
from draftgraph.verify.trial import GrammarTrial

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_WHITESPACE = (
    r"[\x20\x0A\x0D\x09]{1,64}"  # between the parts of a JSON text; without an end, some models never leave it
)
_SPACE = re.compile(r"\s*")
_MARK = "\x02"  # a character that no word merges with


class Grammars:
    """Compiles the grammars of requests for one model. Per model; builds its table of words at the first use.

    Args:
        size: ids lie in [0, size).
        end_ids: ids that end a text; they are allowed where the grammar is satisfied.
        token_bytes: what a token adds to a text; nothing for control tokens, which no grammar allows.
        encode: a text's ids, as the model would write it.
    """

    def __init__(
        self,
        size: int,
        end_ids: Collection[int],
        token_bytes: Callable[[int], bytes],
        encode: Callable[[str], list[int]],
    ) -> None:
        self.size = size
        self.end_ids = frozenset(end_ids)
        self._token_bytes = token_bytes
        self._encode = encode

    def constrain(self, sampling: SamplingParams) -> GrammarConstraint | None:
        """Returns the constraint of one request, at its start; None if it asks for none.

        Raises:
            ParameterError: it cannot be compiled within the limits, or no text but the empty one satisfies it.
            MissingPackageError: `llguidance` is not installed.
        """
        if sampling.constraint is None:
            return None
        name, text = sampling.constraint
        llguidance = _llguidance(name)
        source = _SOURCES[name](llguidance, text)
        if fault := self._trial.fault(source):
            raise _refused(name, _reason(fault))
        limits = llguidance.LLParserLimits(verbose_errors=False)
        matcher = llguidance.LLMatcher(self.words, source, log_level=0, limits=limits)
        constraint = GrammarConstraint(matcher, self)
        if matcher.is_error() or constraint.allowed(()) is None:
            raise _refused(name, _reason(matcher.get_error()))
        return constraint

    @functools.cached_property
    def words(self) -> LLTokenizer:
        """The model's words as llguidance wants them."""
        llguidance = _llguidance("grammar")
        wrapped = llguidance.TokenizerWrapper(_Words(self._pieces, self._ends, self._encode))
        words: LLTokenizer = llguidance.LLTokenizer(wrapped, n_vocab=len(self._pieces), eos_token=self._ends)
        return words

    @functools.cached_property
    def _trial(self) -> GrammarTrial:
        library = os.path.dirname(os.path.dirname(_llguidance("grammar").__file__))
        return GrammarTrial(self._pieces, self._ends, library)

    @property
    def _pieces(self) -> list[bytes]:
        return [*(self._token_bytes(token) for token in range(self.size)), b""]

    @property
    def _ends(self) -> list[int]:
        """The end tokens. A model without any gets one that it cannot write."""
        return sorted(self.end_ids or {self.size})

    @functools.cached_property
    def speakable(self) -> Mask:
        """[size]: tokens that add to a text, and those that end it."""
        return np.array([bool(self._token_bytes(token)) or token in self.end_ids for token in range(self.size)])


@dataclass(frozen=True, slots=True)
class _Place:
    """What may follow a text: the mask [size] while it is open, the reason why the request ends there otherwise."""

    mask: Mask | None
    ending: FinishReason | None


class GrammarConstraint:
    """What one request may write (see `Constraint`). Owned by its request, which advances it.

    `_matcher` stands after the known tokens and moves in `advance` alone. `_cursor`, a copy, stands after the path that
    was asked about last.
    """

    def __init__(self, matcher: LLMatcher, grammars: Grammars) -> None:
        self._matcher = matcher
        self._grammars = grammars
        self._cursor: tuple[tuple[int, ...], LLMatcher] | None = None
        self._places: dict[tuple[int, ...], _Place] = {}

    def allowed(self, path: Sequence[int]) -> Mask | None:
        """Returns [vocabulary]: tokens that may follow `path`; None where the request has ended before."""
        return self._place(tuple(path)).mask

    def ending(self, path: Sequence[int]) -> FinishReason | None:
        """Returns why a request that wrote `path` ends there; None if it can go on."""
        return self._place(tuple(path)).ending

    def permits(self, path: Sequence[int]) -> bool:
        """Whether the text may go on by all of `path`. Cheap: computes no mask."""
        return self._matcher.validate_tokens(list(path)) == len(path)

    def forced(self) -> tuple[int, ...]:
        """Returns tokens that follow without a choice."""
        return tuple(self._matcher.compute_ff_tokens())

    def advance(self, tokens: Sequence[int]) -> None:
        """Takes in tokens that the request has written and that do not end it."""
        path = tuple(tokens)
        matcher = self._walk(path)
        assert matcher is not None, "the request wrote what its grammar forbids"
        kept = self._places.get(path)
        self._matcher, self._cursor = matcher, None
        self._places = {} if kept is None else {(): kept}

    def copy(self) -> GrammarConstraint:
        """Returns an independent one that stands at the same place."""
        return GrammarConstraint(self._matcher.deep_copy(), self._grammars)

    def checkpoint(self) -> Callable[[], None]:
        """Returns a function that takes it back to where it stands now, whatever was asked or interrupted since."""
        matcher = self._matcher  # never moved: `advance` puts another one in its place

        def restore() -> None:
            self._matcher, self._cursor, self._places = matcher, None, {}

        return restore

    def _place(self, path: tuple[int, ...]) -> _Place:
        if path not in self._places:
            self._places[path] = self._look(path)
        return self._places[path]

    def _look(self, path: tuple[int, ...]) -> _Place:
        matcher = self._walk(path)
        if matcher is None:
            return _Place(None, FinishReason.GRAMMAR)
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        mask = np.unpackbits(bits, count=self._grammars.size, bitorder="little").astype(np.bool_)
        mask &= self._grammars.speakable
        num_ends = sum(bool(mask[token]) for token in self._grammars.end_ids)
        if np.count_nonzero(mask) > num_ends:
            return _Place(mask, None)
        # NOTE: a matcher that has failed, on a limit or at a dead end, allows the end tokens too, and accepts nothing.
        return _Place(None, FinishReason.STOP if matcher.is_accepting() else FinishReason.GRAMMAR)

    def _walk(self, path: tuple[int, ...]) -> LLMatcher | None:
        """Returns a matcher that stands after `path`; None if the text cannot go on so, or has ended within."""
        if not path:
            return self._matcher
        if self._grammars.end_ids.intersection(path):
            return None
        walked, cursor = self._cursor or ((), self._matcher)
        if path[: len(walked)] != walked:
            walked, cursor = (), self._matcher
        if cursor is self._matcher:
            cursor = cursor.deep_copy()
        rest = list(path[len(walked) :])
        if cursor.try_consume_tokens(rest) != len(rest):
            self._cursor = None
            return None
        self._cursor = path, cursor
        return cursor


def no_grammars(sampling: SamplingParams) -> None:
    """Stands for `Grammars.constrain` where there is no table of words."""
    if sampling.constraint is not None:
        raise _refused(sampling.constraint[0], "this engine was made without a table of words")


def _reason(error: str) -> str:
    """Returns in one line what llguidance says in many: the first, and what is wrong with a regular expression."""
    if not error or error.startswith("NoExtension"):
        return "no text satisfies it, except an empty one"
    lines = [line.strip() for line in error.strip().split("\n")]
    wrong = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
    return f"{lines[0]} {wrong}".strip()


def _refused(name: str, reason: str) -> ParameterError:
    return ParameterError(f"a {name} that cannot be used: {reason[:200]}", _ALLOWED[name], _REMEDY[name])


class _Words:
    """The tokenizer that llguidance asks to write out forced text. Its form is `TokenizerWrapper`'s."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], end_ids: Collection[int], encode: Callable[[str], list[int]]) -> None:
        self.tokens = tokens
        self.eos_token_id = min(end_ids)
        self.special_token_ids = [token for token, piece in enumerate(tokens) if not piece or token in end_ids]
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        """Returns the ids of `text` within a longer one: without the space that some put before a first word."""
        if isinstance(text, bytes):
            raise TypeError("texts are str")
        ids = self._encode(text)
        if self._bytes(ids) == text.encode():
            return ids
        ids = self._encode(_MARK + text)
        start = next((i for i, token in enumerate(ids, start=1) if self.tokens[token].endswith(b"\x02")), 0)
        assert self._bytes(ids[start:]) == text.encode(), "the tokenizer changes the text"
        return ids[start:]

    def _bytes(self, ids: list[int]) -> bytes:
        return b"".join(self.tokens[token] for token in ids)


def _json_schema(llguidance: Any, text: str) -> str:
    schema, end = _read_schema("json_schema", text)
    if text[end:].strip():
        raise _refused("json_schema", f"text behind the schema: {text[end:].strip()[:40]!r}")
    try:
        return str(llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=_defaults(schema)))
    except ValueError as error:
        raise _refused("json_schema", str(error)) from error


def _regex(llguidance: Any, text: str) -> str:
    return str(llguidance.LLMatcher.grammar_from_regex(text))


def _grammar(llguidance: Any, text: str) -> str:
    """Each `%json SCHEMA` in it stands for a text of that schema, with the limits and the defaults of json_schema."""
    pieces, done = [], 0
    while (found := text.find("%json", done)) >= 0:
        begin = found + len("%json")
        schema, end = _read_schema("grammar", text, begin)
        options = schema.get("x-guidance", {})
        options = _defaults(schema) | options if isinstance(options, dict) else options
        pieces += [text[done:begin], " ", json.dumps(schema | {"x-guidance": options})]
        done = end
    return str(llguidance.LLMatcher.grammar_from_lark("".join([*pieces, text[done:]])))


def _read_schema(name: str, text: str, begin: int = 0) -> tuple[dict[str, Any], int]:
    """Returns the schema in `text` from `begin` on, within limits, and where it ends."""
    begin = _SPACE.match(text, begin).end()  # type: ignore[union-attr]
    try:
        return read_schema(text, begin)
    except (ValueError, ArithmeticError) as error:
        raise _refused(name, str(error)) from error


def _defaults(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns llguidance's options where the schema has none of its own."""
    asked = schema.get("x-guidance")
    chosen = isinstance(asked, dict) and "whitespace_flexible" in asked  # NOTE: a pattern would overrule it
    return {} if chosen else {"whitespace_pattern": _WHITESPACE}


_SOURCES: dict[str, Callable[[Any, str], str]] = {"json_schema": _json_schema, "regex": _regex, "grammar": _grammar}
_ALLOWED = {
    "json_schema": "a JSON schema in the keywords that llguidance implements, which some text satisfies",
    "regex": "a regular expression in Rust's syntax, which some text satisfies",
    "grammar": "a grammar in llguidance's dialect of Lark, with a rule `start`, which some text satisfies",
}
_REMEDY = {
    "json_schema": 'change json_schema, or relax it: "x-guidance": {"lenient": true, "coerce_one_of": true} within it',
    "regex": "change regex",
    "grammar": "change grammar",
}


def _llguidance(name: str) -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise MissingPackageError(
            f"{name} without the package llguidance", f"no {name}, or llguidance", "pip install 'draftgraph[grammar]'"
        ) from error
    return llguidance
