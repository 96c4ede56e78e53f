"""The steps that a tokenizer.json takes before its merges: what may stand there.

In: the sections `normalizer` and `pre_tokenizer`. Out: nothing, or a `TokenizerError`. The `tokenizers` library runs
them as the file says, in compiled code: a file could make a text grow without end, which ends the process, or name a
step that panics. It must never know vocabularies.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NoReturn

from draftgraph.errors import TokenizerError

_NORMALIZERS = (
    "BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Prepend", "Replace", "Strip",
    "StripAccents",
)  # fmt: skip
_SPLITTERS = (
    "BertPreTokenizer", "ByteLevel", "Delimiter", "Digits", "Metaspace", "Punctuation", "Split", "UnicodeScripts",
    "Whitespace", "WhitespaceSplit",
)  # fmt: skip
_MAX_STEPS = 32
_MAX_GROWTH = 64  # by all replacements together
_MAX_PREPENDED = 16


def check_steps(normalizer: Any, splitter: Any) -> None:
    """Raises TokenizerError for steps that are unknown, too many, or could make a text much longer."""
    first = list(_steps("normalizer", normalizer, "normalizers", _NORMALIZERS))
    list(_steps("pre_tokenizer", splitter, "pretokenizers", _SPLITTERS))
    if prod(map(_growth, first)) > _MAX_GROWTH:
        _refuse("a normalizer whose replacements may make a text longer", f"at most {_MAX_GROWTH} times as long")
    for step in first:
        if step["type"] == "Prepend" and len(str(step.get("prepend"))) > _MAX_PREPENDED:
            _refuse(f"a normalizer that prepends {str(step['prepend'])!r:.40}", f"at most {_MAX_PREPENDED} characters")


def _steps(where: str, section: Any, inner: str, allowed: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yields the steps of a section, those of sequences in their place."""
    left, count = [] if section is None else [section], 0
    while left:
        step, count = left.pop(), count + 1
        if count > _MAX_STEPS:
            _refuse(f"a {where} of more than {_MAX_STEPS} steps", f"at most {_MAX_STEPS}")
        kind = step.get("type") if isinstance(step, dict) else None
        if kind == "Sequence" and isinstance(step.get(inner), list):
            left += reversed(step[inner])
        elif kind in allowed:
            yield step
        else:
            _refuse(f"the {where} {kind!r:.80}", ", ".join(("Sequence", *allowed)))


def _growth(step: dict[str, Any]) -> int:
    """Returns how many times as long a text may become by a step."""
    if step["type"] != "Replace":
        return 1
    pattern = step.get("pattern")
    per_match = len(str(step.get("content")))
    is_text = isinstance(pattern, dict) and bool(pattern.get("String"))
    return max(1, per_match) if is_text else 1 + per_match  # an expression may match between characters


def _refuse(given: str, allowed: str) -> NoReturn:
    raise TokenizerError(f"tokenizer.json: {given}", allowed, "fetch the model again, or use another one")
