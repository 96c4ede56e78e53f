"""Two vocabularies matched by text, so that a model can draft for a target that cuts its text otherwise.

In: the tokenizers of both. Out: a `TokenTranslation`, immutable, per pair of models: ids of one as ids of the other.
Control tokens match by name. Knows nothing of drafters, noise or runners.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from draftgraph.models.token_table import WHITE_SPACE
from draftgraph.models.tokenizer import Tokenizer
from draftgraph.types import IntArray

_SPACE = frozenset({b"", *(char.encode() for char in WHITE_SPACE if char.isascii())})
# Where bytes are no UTF-8, Python decodes each to one of these characters.
_STRETCHES = re.compile("[\udc80-\udcff]+|[^\udc80-\udcff]+")
_WORDS = re.compile(r"(?<=\S)(?= \S)")


class _Words:
    """One vocabulary as byte strings."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.size)]
        self.by_piece = {piece: token for token, piece in enumerate(self.pieces) if piece}
        self._longest = max(map(len, self.by_piece), default=0)

    def ids_of(self, data: bytes) -> list[int]:
        """Returns the ids of a stretch of text, incomplete characters included. Their bytes are `data`, less those that
        no token holds."""
        ids: list[int] = []
        for stretch in _STRETCHES.findall(data.decode(errors="surrogateescape")):
            ids += self._encode(stretch, stretch.encode(errors="surrogateescape"))
        return ids

    def _encode(self, text: str, data: bytes) -> list[int]:
        if "\udc80" <= text[0] <= "\udcff":
            return self._cut(data)
        for written in (text, text.removeprefix(" ")):  # some tokenizers put a space before every text
            ids = self._tokenizer.encode(written, special=False)
            joined = b"".join(self.pieces[token] for token in ids)
            if joined == data:
                return ids
        if joined == b" " + data:
            return [*self._cut(self.pieces[ids[0]][1:]), *ids[1:]]
        words = _WORDS.split(text)  # the tokenizer changes some of them
        return self._cut(data) if len(words) == 1 else [i for word in words for i in self._encode(word, word.encode())]

    def _cut(self, data: bytes) -> list[int]:
        """Cuts off the longest token again and again."""
        ids, start = [], 0
        while start < len(data):
            for end in range(min(len(data), start + self._longest), start, -1):
                token = self.by_piece.get(data[start:end])
                if token is not None:
                    ids.append(token)
                    break
            start = end
        return ids


class TokenTranslation:
    """Implements `draft.translated.Translation`.

    Args:
        draft, target: the tokenizers of the two models.
    """

    def __init__(self, draft: Tokenizer, target: Tokenizer) -> None:
        self._draft, self._target = _Words(draft), _Words(target)
        self._to_target = _namesakes(draft, target)
        namesakes = _namesakes(target, draft)
        self._to_draft = {
            t: found or self._draft.ids_of(target.token_label(t).encode()) for t, found in namesakes.items()
        }
        self.opening = [draft.bos_id] if draft.add_bos and draft.bos_id is not None else []
        if target.add_bos and target.bos_id is not None and (self.opening or not namesakes.get(target.bos_id)):
            self._to_draft[target.bos_id] = []  # a begin token of the draft model's own stands there, or none
        pairs = {d: ids[0] for d in range(draft.size) if (ids := self._twin(d))}
        self.pairs: tuple[IntArray, IntArray] = np.array([*pairs], np.int32), np.array([*pairs.values()], np.int32)
        mute = [d for d, piece in enumerate(self._draft.pieces) if not piece and d not in pairs]
        self.mute: IntArray = np.array(mute, np.int32)

    def to_draft(self, tokens: Sequence[int]) -> list[int]:
        return _translate(tokens, self._target, self._draft, self._to_draft)

    def to_target(self, tokens: Sequence[int]) -> list[int]:
        return _translate(tokens, self._draft, self._target, self._to_target)

    def is_border(self, before: int, after: int) -> bool:
        if before in self._to_draft or after in self._to_draft:
            return True
        one, two = self._target.pieces[before], self._target.pieces[after]
        return two[:1] == b" " and two[1:2] not in _SPACE and one[-1:] not in _SPACE

    def _twin(self, token: int) -> Sequence[int]:
        """Returns the target token with the very text of a draft token, if there is one."""
        twin = self._target.by_piece.get(self._draft.pieces[token])
        return self._to_target.get(token, ()) if twin is None else [twin]


def _namesakes(one: Tokenizer, other: Tokenizer) -> dict[int, list[int]]:
    """Returns for each token of `one` without a text the token of `other` that is written like it, or nothing."""
    named = {other.token_label(token): token for token in other.special_ids}
    return {t: [named[label]] if (label := one.token_label(t)) in named else [] for t in one.special_ids}


def _translate(tokens: Sequence[int], one: _Words, other: _Words, markup: Mapping[int, Sequence[int]]) -> list[int]:
    """Returns ids of `other` for ids of `one`: stretches of text encoded anew, and what `markup` says for the rest."""
    ids: list[int] = []
    data = b""
    for token in tokens:
        if token in markup:
            ids += other.ids_of(data)
            ids += markup[token]
            data = b""
        else:
            data += one.pieces[token]
    return ids + other.ids_of(data)
