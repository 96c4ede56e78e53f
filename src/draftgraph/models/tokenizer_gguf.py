"""The tokenizer inside a GGUF file.

In: the file's metadata. Out: `TokenizerParts`. Every inconsistency is a `TokenizerError` that names the key; nothing is
guessed, because a wrong splitter answers nonsense without an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from draftgraph.errors import TokenizerError
from draftgraph.models.byte_pairs import (
    SPLITTERS,
    Encoder,
    TokenizerParts,
    byte_level_encoder,
    check_merges,
    check_scores,
    merges_from_scores,
    score_encoder,
)
from draftgraph.models.chat_templates import DEFAULT
from draftgraph.models.token_table import METASPACE, Kind, Literal, check_lengths, is_hidden, make_table

_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_REMEDY = "convert the model again with a current converter"
# Models whose converter writes no `add_bos_token` begin with one all the same.
_PRE_WITH_BOS = ("llama-bpe", "llama3", "llama-v3")


def read_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Returns the parts of the tokenizer in a GGUF file's metadata. Does not modify `metadata`.

    Raises:
        TokenizerError: a key is missing, of the wrong type or contradicts another, or the kind is not supported.
    """
    model = _value(metadata, "model", str)
    if model not in ("gpt2", "llama"):
        allowed = "'gpt2' (byte-level BPE) or 'llama' (SentencePiece)"
        _refuse("model", f"is {model!r}", allowed, "use a model with such a tokenizer")
    labels, kinds = _tokens(metadata)
    bos_id, eos_id = (_optional_id(metadata, f"{name}_token_id", len(labels)) for name in ("bos", "eos"))
    ends = [_optional_id(metadata, f"{name}_token_id", len(labels)) for name in ("eot", "eom")]
    for token_id in (bos_id, eos_id, *ends):
        if token_id is not None and kinds[token_id] == Kind.USER_DEFINED:  # older converters wrote markup so
            kinds[token_id] = Kind.CONTROL
    byte_level = model == "gpt2"
    encoder = (_byte_level if byte_level else _sentencepiece)(metadata, labels, kinds)
    literals = []
    for token_id in _marked(kinds):
        label, kind = labels[token_id], kinds[token_id]
        if kind in (Kind.CONTROL, Kind.UNKNOWN, Kind.USER_DEFINED):
            text = label if byte_level or kind != Kind.USER_DEFINED else label.replace(METASPACE, " ")
            literals.append(Literal(text, token_id))
    return TokenizerParts(
        table=make_table(labels, kinds, byte_level=byte_level),
        encoder=encoder,
        literals=tuple(literals),
        normalized_literals=(),
        bos_id=bos_id,
        eos_id=eos_id,
        add_bos=_add_bos(metadata, bos_id),
        chat_templates=_templates(metadata),
    )


def count_tokens(metadata: Mapping[str, Any]) -> int | None:
    """Returns how many tokens there are without the unused ones at the end, or None where no sound file says so."""
    numbers = metadata.get(f"{_PREFIX}token_type")
    if not isinstance(numbers, list):
        return None
    count = len(numbers)
    while count and numbers[count - 1] == Kind.UNUSED:
        count -= 1
    return count or None


def _tokens(metadata: Mapping[str, Any]) -> tuple[list[str], list[Kind]]:
    """Returns tokens and kinds, without the unused tokens at the end that only pad the model's rows."""
    labels = _items(metadata, "tokens", str)
    check_lengths(labels)
    numbers = _items(metadata, "token_type", int, length=len(labels))
    by_number = {int(kind): kind for kind in Kind}
    unknown = set(numbers) - set(by_number)
    if unknown:
        _refuse("token_type", f"holds {min(unknown)!r}", "1 to 6", _REMEDY)
    kinds = [by_number[number] for number in numbers]
    kinds = kinds[: count_tokens(metadata)]
    labels = labels[: len(kinds)]
    if kinds[-1:] in ([], [Kind.UNUSED]):
        _refuse("tokens", "holds no token that is used", "at least one token", _REMEDY)
    if len(set(labels)) != len(labels):
        seen: set[str] = set()
        twice = next(label for label in labels if label in seen or seen.add(label))  # type: ignore[func-returns-value]
        _refuse("tokens", f"holds {twice!r} twice", "each token once", _REMEDY)
    return labels, kinds


def _marked(kinds: Sequence[Kind]) -> list[int]:
    """Returns the ids of all but normal tokens: a few of many."""
    return [token_id for token_id, kind in enumerate(kinds) if kind is not Kind.NORMAL]


def _byte_level(metadata: Mapping[str, Any], labels: Sequence[str], kinds: Sequence[Kind]) -> Encoder:
    pre = metadata.get(f"{_PREFIX}pre")
    if not isinstance(pre, str) or pre not in SPLITTERS:
        given = "is missing" if pre is None else f"is {pre!r}"
        _refuse("pre", given, ", ".join(sorted(SPLITTERS)), "convert the model again, or use another model")
    dropped = frozenset(labels[i] for i in _marked(kinds) if is_hidden(kinds[i]))
    ids = {label: i for i, label in enumerate(labels) if label not in dropped}
    return byte_level_encoder(ids, check_merges(_items(metadata, "merges", object), ids, dropped), pre)


def _sentencepiece(metadata: Mapping[str, Any], labels: Sequence[str], kinds: Sequence[Kind]) -> Encoder:
    if _value(metadata, "remove_extra_whitespaces", bool, False):
        _refuse("remove_extra_whitespaces", "is true", "false", "use a model whose tokenizer keeps white space")
    scores = _items(metadata, "scores", object, length=len(metadata[f"{_PREFIX}tokens"]))
    check_scores(scores)
    ids = {label: i for i, label in enumerate(labels) if kinds[i] not in (Kind.CONTROL, Kind.UNUSED)}
    normal = {label: float(scores[i]) for label, i in ids.items() if kinds[i] == Kind.NORMAL}
    unknown = next((label for label, i in ids.items() if kinds[i] == Kind.UNKNOWN), None)
    return score_encoder(
        ids,
        merges_from_scores(normal, ids),
        unknown=unknown,
        byte_fallback=Kind.BYTE in kinds,
        space_prefix=_value(metadata, "add_space_prefix", bool, True),
    )


def _add_bos(metadata: Mapping[str, Any], bos_id: int | None) -> bool:
    by_default = metadata[f"{_PREFIX}model"] == "llama" or metadata.get(f"{_PREFIX}pre") in _PRE_WITH_BOS
    add_bos: bool = _value(metadata, "add_bos_token", bool, by_default and bos_id is not None)
    if add_bos and bos_id is None:
        _refuse("bos_token_id", "is missing, but add_bos_token is true", "a token id", _REMEDY)
    return add_bos


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Returns the chat templates by name: the unnamed one is the default, as llama.cpp writes and reads them."""
    found: dict[str, str] = {}
    for key, value in metadata.items():
        if key == _TEMPLATE or key.startswith(f"{_TEMPLATE}."):
            if not isinstance(value, str):
                raise TokenizerError(f"{key} is a {type(value).__name__}", "text", _REMEDY)
            if value:
                found[DEFAULT if key == _TEMPLATE else key.removeprefix(f"{_TEMPLATE}.")] = value
    return found


def _value(metadata: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = metadata.get(f"{_PREFIX}{name}", default)
    if value is None:
        _refuse(name, "is missing", f"a value of type {kind.__name__}", _REMEDY)
    if not isinstance(value, kind):
        _refuse(name, f"is {value!r:.80}", f"a value of type {kind.__name__}", _REMEDY)
    return value


def _items(metadata: Mapping[str, Any], name: str, kind: type, length: int | None = None) -> list[Any]:
    items = metadata.get(f"{_PREFIX}{name}")
    noun = "a list" if kind is object else f"a list of {kind.__name__}"
    if items is None:
        _refuse(name, "is missing", noun, _REMEDY)
    if not isinstance(items, (list, tuple)):
        _refuse(name, f"is a {type(items).__name__}", noun, _REMEDY)
    if length is not None and len(items) != length:
        _refuse(name, f"has {len(items)} elements", f"{length}, one for each token", _REMEDY)
    if kind is object or set(map(type, items)) <= {kind}:
        return list(items)
    for index, item in enumerate(items):
        if not isinstance(item, kind) or (kind is int and isinstance(item, bool)):
            _refuse(name, f"holds {item!r:.80} at {index}", noun, _REMEDY)
    return list(items)


def _optional_id(metadata: Mapping[str, Any], name: str, size: int) -> int | None:
    value = metadata.get(f"{_PREFIX}{name}")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
        _refuse(name, f"is {value!r:.80}", f"0 to {size - 1}", _REMEDY)
    return value


def _refuse(name: str, given: str, allowed: str, remedy: str) -> NoReturn:
    raise TokenizerError(f"{_PREFIX}{name} {given}", allowed, remedy)
