"""Token ids compared with two encoders written here from the published algorithms.

Byte pairs: Sennrich et al. 2016 (arXiv 1508.07909) over the bytes of each word, as in GPT-2. SentencePiece: Kudo and
Richardson 2018 (arXiv 1808.06226), its byte-pair mode. The oracles share no code with the package.
"""

from __future__ import annotations

import itertools
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import regex

from draftgraph.models.gguf import GgufFile
from draftgraph.models.tokenizer import tokenizer_from_gguf
from support.vocabularies import byte_letters, byte_level_metadata, join_pair, sample_texts, sentencepiece_metadata

# White space is Unicode's property; `regex`'s own \s also takes U+001C to U+001F.
_GPT2 = (
    r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+"
    r"|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+"
)
_NEWER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\p{White_Space}\p{L}\p{N}]+[\r\n]*"
    r"|\p{White_Space}*[\r\n]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+"
)


def split_words(text: str, pre: str) -> list[str]:
    """Returns the words that merges never cross."""
    if pre == "gpt-2":
        return regex.findall(_GPT2, text)
    if pre == "smollm":
        runs = regex.findall(r"\p{N}|\P{N}+", text)
        return [word for run in runs for word in regex.findall(_GPT2, run)]
    digits = {"qwen2": r"\p{N}", "llama-bpe": r"\p{N}{1,3}"}[pre]
    text = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
    return regex.findall(_NEWER.replace("DIGITS", digits), text)


class BytePairOracle:
    """Merges the best-ranked adjacent pair, all its occurrences, until no pair has a rank."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.pre = metadata["tokenizer.ggml.pre"]
        self.ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
        merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        kinds = metadata["tokenizer.ggml.token_type"]
        literals = [token for token, kind in zip(self.ids, kinds, strict=True) if kind == 4]
        self.literals = regex.compile("(" + "|".join(map(regex.escape, literals)) + ")") if literals else None
        self.letters = byte_letters()

    def encode(self, text: str) -> list[int]:
        if self.literals is None:
            return self._encode_plain(text)
        found: list[int] = []
        for part in self.literals.split(text):
            found += [self.ids[part]] if self.literals.fullmatch(part) else self._encode_plain(part)
        return found

    def _encode_plain(self, text: str) -> list[int]:
        return [token for word in split_words(text, self.pre) for token in self._encode_word(word)]

    def _encode_word(self, word: str) -> list[int]:
        symbols = tuple(self.letters[byte] for byte in word.encode())
        if self.pre == "llama-bpe" and "".join(symbols) in self.ids:
            return [self.ids["".join(symbols)]]
        symbols = tuple(symbol for symbol in symbols if symbol in self.ids)  # a byte without a token is lost
        while len(symbols) > 1:
            best = min(itertools.pairwise(symbols), key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            symbols = join_pair(symbols, best)
        return [self.ids[symbol] for symbol in symbols]


class SentencePieceOracle:
    """Joins the adjacent pair whose whole has the best score, the leftmost of equals, one at a time."""

    def __init__(self, metadata: dict[str, Any], *, space_prefix: bool = True) -> None:
        tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        self.ids = {token: i for i, token in enumerate(tokens)}
        scores = metadata["tokenizer.ggml.scores"]
        self.scores = {token: scores[i] for token, i in self.ids.items() if kinds[i] == 1}
        literals = [token for token, i in self.ids.items() if kinds[i] == 4]
        self.literals = regex.compile("(" + "|".join(map(regex.escape, literals)) + ")")
        self.prefix = "▁" if space_prefix else ""

    def encode(self, text: str) -> list[int]:
        found: list[int] = []
        for part in self.literals.split(text):
            if part:
                found += [self.ids[part]] if self.literals.fullmatch(part) else self._encode_plain(part)
        return found

    def _encode_plain(self, text: str) -> list[int]:
        symbols = list(self.prefix + text.replace(" ", "▁"))
        while True:
            wholes = [left + right for left, right in itertools.pairwise(symbols)]
            joins = [(self.scores[whole], -i) for i, whole in enumerate(wholes) if whole in self.scores]
            if not joins:
                break
            at = -max(joins)[1]
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        found: list[int] = []
        for symbol in symbols:
            names = [symbol] if symbol in self.scores else [f"<0x{byte:02X}>" for byte in symbol.encode()]
            found += [self.ids[name] for name in names]
        return found


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_byte_level_ids_equal_the_published_algorithm_for_every_splitter(pre: str) -> None:
    metadata = byte_level_metadata(pre)
    tokenizer, oracle = tokenizer_from_gguf(metadata), BytePairOracle(metadata)
    for text in sample_texts(800, seed=1):
        ids = tokenizer.encode(text, special=False)
        assert ids == oracle.encode(text), repr(text)
        expected = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        assert tokenizer.decode(ids) == expected, repr(text)


@pytest.mark.parametrize("space_prefix", [True, False])
def test_sentencepiece_ids_equal_the_published_algorithm(space_prefix: bool) -> None:
    metadata = sentencepiece_metadata() | {"tokenizer.ggml.add_space_prefix": space_prefix}
    tokenizer, oracle = tokenizer_from_gguf(metadata), SentencePieceOracle(metadata, space_prefix=space_prefix)
    for text in [text[:400] for text in sample_texts(800, seed=2)]:
        assert tokenizer.encode(text, special=False) == oracle.encode(text), repr(text)


def test_a_splitter_is_told_apart_from_the_others_by_these_texts() -> None:
    """The comparison above proves something only if a wrong splitter would fail it."""
    texts = sample_texts(800, seed=1)
    encoded = {}
    for pre in ("gpt-2", "smollm", "qwen2", "llama-bpe"):
        tokenizer = tokenizer_from_gguf(byte_level_metadata(pre))
        encoded[pre] = [tokenizer.encode(text, special=False) for text in texts]
    for one, other in itertools.combinations(encoded, 2):
        num_different = sum(a != b for a, b in zip(encoded[one], encoded[other], strict=True))
        assert num_different >= 10, (one, other)


@pytest.mark.model
def test_ids_of_a_published_model_equal_the_published_algorithm(smollm2_path: Path) -> None:
    metadata = dict(GgufFile(smollm2_path).metadata)
    tokenizer, oracle = tokenizer_from_gguf(metadata), BytePairOracle(metadata)
    for text in sample_texts(800, seed=3):
        ids = tokenizer.encode(text, special=False)
        assert ids == oracle.encode(text), repr(text)
        if not set(text.encode()) & MISSING_BYTES:
            assert tokenizer.decode(ids) == text, repr(text)


# The published vocabulary has no token for these bytes; its own tokenizer leaves them out too.
MISSING_BYTES = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
