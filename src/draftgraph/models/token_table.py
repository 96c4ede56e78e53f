"""What every token id means: its bytes, its label, and whether it may appear as text.

In: tokens as a model file writes them. Out: a `TokenTable`, and the `LiteralSplitter` that finds in a text the tokens
that are matched as written. Knows nothing of merges, templates or models.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from draftgraph.errors import ParameterError, TokenizerError

METASPACE = "▁"
# Unicode's White_Space, which str.isspace() and "\s" exceed by the separators U+001C to U+001F.
WHITE_SPACE = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000")
WHITE_SPACE |= frozenset(map(chr, range(0x2000, 0x200B)))
MAX_TOKEN = 1024  # characters; every split of a token is tried, and every beginning of it is looked for in texts
BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


class Kind(IntEnum):
    """What a token is for, by GGUF's numbers."""

    NORMAL = 1
    UNKNOWN = 2  # stands for what cannot be encoded
    CONTROL = 3  # markup; has no text
    USER_DEFINED = 4  # always matched as written
    UNUSED = 5  # never written, never matched
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Literal:
    """A token that is matched as written, before any other splitting.

    Args:
        lstrip, rstrip: whether white space on that side belongs to the token.
    """

    text: str
    token_id: int
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Every id's token. Per model, shared by all requests.

    Args:
        labels: [size] the tokens as the file writes them.
        kinds: [size] what each token is for.
        byte_level: whether labels are written in GPT-2's byte alphabet, or else in SentencePiece's way.
    """

    labels: tuple[str, ...]
    kinds: tuple[Kind, ...]
    byte_level: bool

    @property
    def size(self) -> int:
        return len(self.labels)

    def ids_of(self, *kinds: Kind) -> frozenset[int]:
        """Returns the ids of all tokens of these kinds."""
        return frozenset(token_id for token_id, kind in enumerate(self.kinds) if kind in kinds)

    def piece(self, token_id: int) -> bytes:
        """Returns the bytes that the token adds to a text; computed when asked for, because few of many are."""
        label, kind = self.labels[token_id], self.kinds[token_id]
        if is_hidden(kind):
            return b""
        if kind == Kind.BYTE:
            return _byte(label)
        if not self.byte_level:
            return label.replace(METASPACE, " ").encode()
        if kind == Kind.NORMAL:
            with contextlib.suppress(UnicodeEncodeError):  # a character that stands for no byte
                return label.translate(_BYTES_OF).encode("latin-1")
        return label.encode()  # an added word, as it is

    def check_id(self, token_id: int) -> int:
        """Returns `token_id`, or raises ParameterError: a caller's id must not wrap around or end in IndexError."""
        if not 0 <= token_id < self.size:
            raise ParameterError(f"token id {token_id}", f"0 to {self.size - 1}", "use ids of this model's tokenizer")
        return token_id

    def describe(self, token_id: int) -> str:
        """Returns the token in words, for error messages."""
        if is_hidden(self.kinds[token_id]):
            return f"the control token {self.labels[token_id]!r}"
        return f"the bytes {self.piece(token_id)!r}"

    def first_difference(self, other: TokenTable) -> str | None:
        """Returns a sentence that names the first token, or else the size, in which two vocabularies differ."""
        if self == other:
            return None
        for token_id in range(min(self.size, other.size)):
            hidden, other_hidden = is_hidden(self.kinds[token_id]), is_hidden(other.kinds[token_id])
            label_differs = hidden and self.labels[token_id] != other.labels[token_id]
            if hidden != other_hidden or label_differs or self.piece(token_id) != other.piece(token_id):
                one, two = self.describe(token_id), other.describe(token_id)
                return f"token {token_id} is {one} in one and {two} in the other"
        if self.size != other.size:
            return f"one has {self.size} tokens and the other {other.size}; they agree as far as both go"
        return None


class LiteralSplitter:
    """Finds literals in a text, leftmost first and the longest at each place. Immutable, per model."""

    def __init__(self, literals: Iterable[Literal]) -> None:
        self._literals = {literal.text: literal for literal in literals if literal.text}
        lengths: dict[str, set[int]] = {}
        for text in self._literals:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._first = re.compile("[" + "".join(map(re.escape, self._lengths)) + "]") if self._lengths else None

    def __len__(self) -> int:
        return len(self._literals)

    def find(self, text: str, start: int) -> tuple[int, Literal] | None:
        """Returns where the next literal at or after `start` begins, and the literal."""
        if self._first is None:
            return None
        while match := self._first.search(text, start):
            start = match.start()
            for length in self._lengths[match[0]]:
                literal = self._literals.get(text[start : start + length])
                if literal is not None:
                    return start, literal
            start += 1
        return None

    def split(self, text: str, guard: str = "") -> list[int | str]:
        """Returns ids and the non-empty stretches of text between them, in order.

        A literal directly before the character `guard` is left in the text.
        """
        parts: list[int | str] = []
        done = start = 0  # text[:done] is in `parts`, text[:start] has been searched
        while found := self.find(text, start):
            begin, literal = found
            end = begin + len(literal.text)
            start = end
            if guard and text.startswith(guard, end):
                continue
            while literal.lstrip and begin > done and text[begin - 1] in WHITE_SPACE:
                begin -= 1
            while literal.rstrip and end < len(text) and text[end] in WHITE_SPACE:
                end += 1
            if begin > done:
                parts.append(text[done:begin])
            parts.append(literal.token_id)
            done = start = end
        if done < len(text):
            parts.append(text[done:])
        return parts


_HIDDEN = frozenset((Kind.UNKNOWN, Kind.CONTROL, Kind.UNUSED))


def is_hidden(kind: Kind) -> bool:
    """Returns whether tokens of this kind have no text."""
    return kind in _HIDDEN


def make_table(labels: Sequence[str], kinds: Sequence[Kind], *, byte_level: bool) -> TokenTable:
    """Returns the vocabulary of these tokens, whose text is written in GPT-2's byte alphabet or SentencePiece's way.

    Raises:
        TokenizerError: a token that is not Unicode text.
    """
    try:
        "".join(labels).encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"a token holds half a surrogate pair: {error}", "tokens of Unicode characters", "fetch the model again"
        ) from error
    for label, kind in zip(labels, kinds, strict=True):
        if kind is Kind.BYTE:
            _byte(label)
    return TokenTable(tuple(labels), tuple(kinds), byte_level)


def check_lengths(labels: Iterable[str]) -> None:
    """Raises TokenizerError for a token that is longer than any real one."""
    longest = max(labels, key=len, default="")
    if len(longest) > MAX_TOKEN:
        raise TokenizerError(
            f"a token of {len(longest)} characters, {longest!r:.40}", f"at most {MAX_TOKEN}", "fetch the model again"
        )


def _byte(label: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(label)
    if byte is None:
        raise TokenizerError(f"the byte token {label!r}", "<0x00> to <0xFF>", "convert or fetch the model again")
    return bytes([int(byte[1], 16)])


def byte_alphabet() -> dict[str, int]:
    """Returns GPT-2's alphabet: the byte for each of 256 printable characters."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


# Turns a label into its bytes as Latin-1; characters that stand for none leave Latin-1.
_BYTES_OF = dict.fromkeys(range(256), 256) | {ord(char): byte for char, byte in byte_alphabet().items()}
