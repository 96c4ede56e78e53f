"""The byte-pair encoders of the `tokenizers` library, built so that it cannot fail later.

In: a vocabulary, merges or scores, and the name of a splitter. Out: an `Encoder`. The library panics on merges that
name unknown tokens, so all are checked here. Control tokens never enter an encoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers

from draftgraph.errors import TokenizerError
from draftgraph.models.token_table import METASPACE, Literal, TokenTable

# The published splitting expressions: Llama 3 takes up to three digits together, Qwen 2 takes digits one by one.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2, _SMOLLM, _QWEN2, _LLAMA3 = "gpt-2", "smollm", "qwen2", "llama-bpe"
# The values of `tokenizer.ggml.pre` that are supported, and which splitter each names.
SPLITTERS: Mapping[str, str] = {
    "gpt-2": _GPT2, "phi-2": _GPT2, "smollm": _SMOLLM, "starcoder": _SMOLLM, "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2, "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3,
}  # fmt: skip

_NO_PAIR = "is not two tokens with one space between"

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Encoder:
    """Turns plain text into ids. Immutable, per model.

    Args:
        normalizer: applied to each stretch of text between literals, or None.
        first: encodes the beginning of a text; it may put a space in front.
        rest: encodes a stretch that follows a literal. Often the same object.
    """

    normalizer: Any
    first: tokenizers.Tokenizer
    rest: tokenizers.Tokenizer

    def normalize(self, text: str) -> str:
        """Returns the text as it is encoded."""
        return text if self.normalizer is None else str(without_panic(self.normalizer.normalize_str, text))

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """Returns the ids of a normalised text.

        Raises:
            TokenizerError: the file's own splitter gave up, as an expression does that takes too long.
        """
        chosen = self.first if at_start else self.rest
        # NOTE: `encode` would hold the interpreter's lock meanwhile, for most of a second at a megabyte.
        (found,) = without_panic(chosen.encode_batch_fast, [text], add_special_tokens=False)
        return list(found.ids)


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """What a tokenizer is made of, whatever file it came from.

    Args:
        literals: tokens matched as written in any text: user-defined, and control tokens where markup is allowed.
        normalized_literals: the same, matched in normalised text.
        chat_templates: by name; a single one is named "default".
    """

    table: TokenTable
    encoder: Encoder
    literals: tuple[Literal, ...]
    normalized_literals: tuple[Literal, ...]
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    chat_templates: Mapping[str, str]


def without_panic(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Calls the library. Its panics, which are no `Exception`, become a TokenizerError."""
    try:
        return function(*args, **options)
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise TokenizerError(
            f"the tokenizer failed: {error!s:.200}", "a tokenizer that can encode any text", "use another model"
        ) from None


def byte_level_encoder(ids: Mapping[str, int], merges: Iterable[Pair], pre: str) -> Encoder:
    """Returns the encoder of a byte-level vocabulary; `pre` is a key of SPLITTERS.

    NOTE: Qwen 2 composes characters (NFC) first. Its published tokenizer does so; llama.cpp does not.
    """
    splitter = SPLITTERS[pre]
    model = models.BPE(dict(ids), list(merges), ignore_merges=splitter == _LLAMA3)
    encoder = tokenizers.Tokenizer(model)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitter in (_GPT2, _SMOLLM))
    steps: list[Any] = [byte_level]
    if splitter == _SMOLLM:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    elif splitter != _GPT2:
        digits = r"\p{N}" if splitter == _QWEN2 else r"\p{N}{1,3}"
        steps.insert(0, pre_tokenizers.Split(Regex(_SPLIT.replace("DIGITS", digits)), behavior="isolated"))
    encoder.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return Encoder(normalizers.NFC() if splitter == _QWEN2 else None, encoder, encoder)


def score_encoder(
    ids: Mapping[str, int], merges: Iterable[Pair], *, unknown: str | None, byte_fallback: bool, space_prefix: bool
) -> Encoder:
    """Returns the encoder of a SentencePiece vocabulary.

    With `space_prefix` every stretch of text, also after a literal, gets a space in front.
    """
    model = models.BPE(dict(ids), list(merges), unk_token=unknown, fuse_unk=True, byte_fallback=byte_fallback)
    encoder = tokenizers.Tokenizer(model)
    steps: list[Any] = [normalizers.Prepend(METASPACE)] if space_prefix else []
    return Encoder(normalizers.Sequence([*steps, normalizers.Replace(" ", METASPACE)]), encoder, encoder)


def merges_from_scores(scores: Mapping[str, float], ids: Mapping[str, int]) -> list[Pair]:
    """Returns the merges that build each piece from two others, best score first.

    SentencePiece merges the adjacent pair whose joined piece scores best; as ranked merges that is every split of every
    piece into two known halves, in order of the whole's score. Does not modify its arguments.
    """
    merges: list[Pair] = []
    for piece in sorted(scores, key=lambda piece: (-scores[piece], ids[piece])):
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [split for split in splits if split[0] in scores and split[1] in scores]
        merges += sorted(known, key=lambda split: (ids[split[0]], ids[split[1]]))
    return merges


def check_scores(scores: Sequence[Any]) -> None:
    """Raises TokenizerError unless all scores are finite numbers."""
    for token_id, score in enumerate(scores):
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
            raise TokenizerError(
                f"the score of token {token_id} is {score!r}", "finite numbers", "convert or fetch the model again"
            )


def check_merges(merges: Iterable[Any], ids: Mapping[str, int], dropped: frozenset[str]) -> list[Pair]:
    """Returns the merges as pairs, without those that make a token of `dropped`.

    Raises:
        TokenizerError: a merge that is not two tokens, or names a token that `ids` does not have.
    """
    pairs: list[Pair] = []
    for rank, merge in enumerate(merges):  # 150,000 of them: the inner loop of opening a model
        halves = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(halves, (list, tuple)) or len(halves) != 2:
            _refuse_merge(rank, merge, _NO_PAIR)
        left, right = halves
        if not (isinstance(left, str) and isinstance(right, str) and left and right):
            _refuse_merge(rank, merge, _NO_PAIR)
        joined = left + right
        if joined in dropped:
            continue
        if not (joined in ids and left in ids and right in ids):
            missing = next(token for token in (left, right, joined) if token not in ids)
            _refuse_merge(rank, merge, f"names {missing!r}, which is not in the vocabulary")
        pairs.append((left, right))
    return pairs


def _refuse_merge(rank: int, merge: Any, reason: str) -> NoReturn:
    raise TokenizerError(
        f"merge {rank}, {merge!r:.200}, {reason}",
        "two tokens whose joined text is a token",
        "convert or fetch the model again",
    )
