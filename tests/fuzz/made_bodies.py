"""Bodies of requests that are nearly right, for fuzzing: valid ones with something changed, in structure or in bytes.

In: a random generator. Out: a path and the bytes of a body. The same seed makes the same bodies.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from typing import Any

from support.serving import CHAT, TEXT

LARGEST = 2**20

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}
_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": _SCHEMA, "strict": False}}
_ASKED = [{"role": "system", "content": "Be short."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
_CALLED = [
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
    {"role": "tool", "content": "1", "tool_call_id": "1"},
]  # fmt: skip
_SAMPLING = {
    "max_tokens": 3, "temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1,
    "presence_penalty": 0.1, "frequency_penalty": 0.1, "logit_bias": {"5": 1.0}, "seed": 1, "stop": ["zz"], "n": 2,
    "ignore_eos": False, "stream": False, "user": "u", "draft": "off", "service_tier": "auto", "store": False,
}  # fmt: skip
_VALID: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, {"messages": _ASKED, "max_tokens": 2}),
    (CHAT, {"messages": _ASKED, "logprobs": True, "top_logprobs": 2, **_SAMPLING}),
    (CHAT, {"messages": [*_ASKED, *_CALLED], "max_tokens": 1}),
    (CHAT, {"messages": _ASKED, "tools": [_TOOL], "tool_choice": "required", "max_tokens": 4}),
    (CHAT, {"messages": _ASKED, "tools": [_TOOL], "parallel_tool_calls": False, "max_tokens": 4,
            "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    (CHAT, {"messages": _ASKED, "max_tokens": 4, "response_format": {
        "type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA, "strict": True}}}),
    (CHAT, {"messages": _ASKED, "response_format": {"type": "json_object"}, "max_completion_tokens": 4}),
    (CHAT, {"messages": _ASKED, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3,
            "draftgraph": {"sources": True, "graphs": True}}),
    (TEXT, {"prompt": "Once", **_SAMPLING}),
    (TEXT, {"prompt": ["Once", "upon"], "logprobs": 2, "max_tokens": 2}),
    (TEXT, {"prompt": [1, 2, 3], "echo": False, "best_of": 1, "suffix": None, "max_tokens": 1}),
    (TEXT, {"prompt": [[1, 2], [3]], "stream": True, "max_tokens": 2}),
    ("/tokenize", {"prompt": "Once upon a time"}),
    ("/tokenize", {"messages": _ASKED, "model": None}),
    ("/detokenize", {"tokens": [1, 2, 300]}),
)  # fmt: skip

_NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 1.5, -0.0, 1e-320, 1e308, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**19, 1024, 1025
)  # fmt: skip
_TEXTS = (
    "", " ", "\0", "a" * 65, "null", "NaN", "1", "<|im_end|>", "<tool_call>", "\U0001f30d\u200d\U0001f525", "\u202e",
    "e\u0301" * 30, "\ufeff", "\uffff", "../../etc/passwd", "${jndi}", "{{7*7}}", "%s%n", "'; --", "\r\nX: 1",
)  # fmt: skip
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [{}], {"": None}, [None], ["a", 1], {"type": "text"})
_RAW = (
    "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 20, "9" * 21, "9" * 5000, "01", "0x1", "+1", ".5", "1.",
    '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', "'a'", "undefined", "", "tru", "/**/1", '"\x01"', '"\\x41"',
)  # fmt: skip
_NUMBER = re.compile(r"(?<=[:\[, ])-?\d+(?:\.\d+)?(?=[,\]} ])")
_KEY = re.compile(r'"[a-z_]+": ')


def make_body(rng: random.Random) -> tuple[str, bytes]:
    """Returns the next body."""
    path, valid = rng.choice(_VALID)
    value: Any = copy.deepcopy(valid)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 6))):
        value = _changed(value, rng)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.15:
        text = rng.choice((_raw_number, _twice, _deep))(text, rng)
    body = text.encode(errors="surrogatepass")
    if rng.random() < 0.15:
        body = rng.choice((_cut, _flipped, _spliced))(body, rng)
    return path, body[:LARGEST]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Returns every container and key in a value."""
    found: list[tuple[Any, Any]] = []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in entries:
        found += [(value, key), *_places(item)]
        if len(found) > 2_000:
            break
    return found


def _changed(value: Any, rng: random.Random) -> Any:
    """Changes one place of a value. Modifies it."""
    places = _places(value)
    if not places or rng.random() < 0.02:
        return _strange(rng)
    container, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.45:
        container[key] = _strange(rng)
    elif kind < 0.6:
        del container[key]
    elif kind < 0.7:
        other, name = rng.choice(places)
        container[key] = json.loads(json.dumps(other[name]))
    elif kind < 0.85 and isinstance(container, dict):
        _, donor = rng.choice(_VALID)
        name = rng.choice([*donor, "unknown", "", "__class__", "model_config", "sch\u00e9ma"])
        container[name] = _strange(rng) if rng.random() < 0.5 else copy.deepcopy(donor.get(name))
    else:
        _widen(container, key, rng)
    return value


def _strange(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice((rng.choice(_NUMBERS), rng.choice(_TEXTS), rng.choice(_OTHERS))))


def _widen(container: Any, key: Any, rng: random.Random) -> None:
    """Makes something large of a place: many items, many keys, a long text, many levels."""
    item = container[key] if len(json.dumps(container[key])) < 40 else _strange(rng)
    fill = LARGEST // (len(json.dumps(item)) + 12)
    count = rng.choice((17, 129, 1_025, 4_097, fill, fill))
    shape = rng.randrange(4)
    if shape == 0:
        container[key] = [copy.deepcopy(item) for _ in range(count)]
    elif shape == 1:
        container[key] = {f"k{number}": copy.deepcopy(item) for number in range(count)}
    elif shape == 2:
        container[key] = (rng.choice(_TEXTS) or "a") * count
        container[key] = container[key][:LARGEST]
    else:
        for _ in range(rng.choice((3, 60, 70))):
            item = [item] if rng.random() < 0.5 else {"a": item}
        container[key] = item


def _raw_number(text: str, rng: random.Random) -> str:
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    match = rng.choice(found[:500])
    return text[: match.start()] + rng.choice(_RAW) + text[match.end() :]


def _twice(text: str, rng: random.Random) -> str:
    found = list(_KEY.finditer(text))
    if not found:
        return text
    match = rng.choice(found[:500])
    many = "".join(f'"k{number}": 1, ' for number in range(rng.choice((0, 0, 30_000))))
    return text[: match.start()] + many + match[0] + rng.choice(("1", "null", "[]")) + ", " + text[match.start() :]


def _deep(text: str, rng: random.Random) -> str:
    depth, (opening, closing) = rng.choice((65, 1_000, 100_000)), rng.choice((("[", "]"), ('{"a":', "}")))
    return f'{{"unknown": {opening * depth}1{closing * depth}, {text[1:]}'


def _cut(body: bytes, rng: random.Random) -> bytes:
    return body[: rng.randrange(len(body) + 1)]


def _flipped(body: bytes, rng: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.choice((1, 3, 20)) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _spliced(body: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(body) + 1)
    junk: Callable[[], bytes] = lambda: rng.randbytes(rng.choice((1, 4, 100)))  # noqa: E731
    return (
        body[:at] + rng.choice((junk(), b"\xff\xfe", b"\xed\xa0\x80", b"\x00", b"\xef\xbb\xbf", b"}" * 9)) + body[at:]
    )
