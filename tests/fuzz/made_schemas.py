"""JSON schemas for the fuzzer: sound ones with numbers at every edge, and ones that were damaged.

In: a random generator. Out: the text of a schema. Nothing here knows what is done with it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

EDGES = [
    *(sign * (2**power + step) for power in (0, 7, 8, 31, 32, 53, 63, 64) for step in (-1, 0, 1) for sign in (-1, 1)),
    *(sign * 10**power for power in (1, 9, 15, 18, 19, 30, 308) for sign in (-1, 1)),
    0.1, -0.1, 0.5, 0.25, 1e-7, 1e-15, 5e-324, -5e-324, 1e-300, 1e15, 1e16, 1e22,
    1.7976931348623157e308, -1.7976931348623157e308, 3.4028235e38, 1.1754943508222875e-38, 0.0, -0.0, 1.5, 123456.789,
]  # fmt: skip
PATTERNS = [
    "^[a-z]+$", "a{2,5}", "^(a|b)*$", "^\\d{3}-\\d{4}$", "^(?=a)a", "(", "^.*$", "^[^\\x00-\\x7f]$", "^(a+)+$",
    "\\p{L}+", "^(((a{1,99}){1,99}){1,99})$", "^.{0,2000}$", "[", "^$", "a|", "\\bword\\b", "^x{5,3}$",
]  # fmt: skip
FORMATS = [
    "date",
    "time",
    "date-time",
    "email",
    "uuid",
    "ipv4",
    "ipv6",
    "uri",
    "hostname",
    "duration",
    "regex",
    "made-up",
]
NAMES = ["a", "b", "id", "name", "ä", "", "$ref", "x y", '"', "\\", "a\nb", "constructor", "__proto__", "\u2028"]
TYPES = ["string", "integer", "number", "boolean", "null", "array", "object"]


def schema_text(random: random.Random) -> str:
    """Returns the text of a schema, or of something that only looks like one."""
    schema = _rooted(random)
    while random.random() < 0.15:
        schema = _damaged(random, schema)
    text = json.dumps(schema, ensure_ascii=random.random() < 0.5)
    if random.random() < 0.03:
        place = random.randrange(len(text))
        text = (
            text[:place]
            + random.choice(["", "{", "]", ",", "\\", '"', "9", "e9", "\x00", "\ud800"])
            + text[place + 1 :]
        )
    return text


def _rooted(random: random.Random) -> dict[str, Any]:
    if random.random() < 0.15:
        return _referring(random)
    schema = _schema(random, random.randint(0, 4))
    return schema if isinstance(schema, dict) else {"anyOf": [schema]}


def _referring(random: random.Random) -> dict[str, Any]:
    """Definitions that refer to each other: in chains, trees and circles."""
    count = random.choice([1, 2, 5, 20, 99, 101, 400, 1100])
    shapes: list[Callable[[Any], Any]] = [
        lambda ref: ref,
        lambda ref: {"type": "object", "properties": {"x": ref}, "additionalProperties": False},
        lambda ref: {"type": "object", "properties": {"x": ref}, "required": ["x"]},
        lambda ref: {"anyOf": [ref, {"type": "null"}]},
        lambda ref: {"allOf": [ref]},
        lambda ref: {"allOf": [ref, ref]},
        lambda ref: {"type": "array", "items": ref, "maxItems": 2},
        lambda ref: {"type": "array", "prefixItems": [ref, ref]},
        lambda ref: {"oneOf": [ref, {"type": "string"}]},
    ]
    shape = random.choice(shapes)
    definitions = {f"d{i}": shape({"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    circle = {"$ref": f"#/$defs/d{random.randrange(count)}"}
    definitions[f"d{count}"] = circle if random.random() < 0.3 else _schema(random, 1)
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def _schema(random: random.Random, depth: int) -> Any:
    if random.random() < 0.04:
        return random.choice([True, {}, False])
    makers = [_string, _number, _number, _constant, lambda random, depth: {"type": random.choice(["boolean", "null"])}]
    if depth:
        makers += [_array, _object, _object, _combined]
    made: dict[str, Any] = random.choice(makers)(random, depth)
    if random.random() < 0.05:
        made[random.choice(["title", "description", "default", "$comment", "examples", "deprecated"])] = "x"
    return made


def _some(random: random.Random, choices: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    return {key: make() for key, make in choices.items() if random.random() < 0.3}


def _string(random: random.Random, depth: int) -> dict[str, Any]:
    size = lambda: random.choice([0, 1, 2, 5, 100, 10_000, 2**31, 2**63])  # noqa: E731
    return {"type": "string"} | _some(
        random,
        {
            "minLength": lambda: min(size(), 5) if random.random() < 0.8 else size(),
            "maxLength": size,
            "pattern": lambda: random.choice(PATTERNS),
            "format": lambda: random.choice(FORMATS),
        },
    )


def _number(random: random.Random, depth: int) -> dict[str, Any]:
    edge = lambda: random.choice(EDGES) if random.random() < 0.7 else random.randint(-(10**6), 10**6)  # noqa: E731
    multiples = [1, 2, 3, 7, 10, 97, 1000, 10**9, 0.1, 0.01, 1e-9, 0, -3, 0.5, 12345, 2**53, 1e300, 9973, 10_000, 0.7]
    kinds = ["integer", "number", ["integer", "null"], ["number", "integer"], None]
    kind = random.choice(kinds)
    bounds = _some(random, dict.fromkeys(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"], edge))
    multiple = {"multipleOf": random.choice(multiples)} if random.random() < 0.1 else {}
    return ({} if kind is None else {"type": kind}) | bounds | multiple


def _constant(random: random.Random, depth: int) -> dict[str, Any]:
    def value(depth: int) -> Any:
        made = [
            None,
            True,
            False,
            "",
            "a",
            'ä\n"\\',
            "x" * 50,
            random.choice(EDGES),
            random.choice(EDGES),
            random.randint(-99, 99),
        ]
        if depth:
            made += [[value(depth - 1)], {random.choice(NAMES): value(depth - 1)}, [], {}]
        return random.choice(made)

    if random.random() < 0.5:
        return {"const": value(2)}
    return {"enum": [value(1) for _ in range(random.choice([1, 2, 3, 30]))]}


def _array(random: random.Random, depth: int) -> dict[str, Any]:
    size = lambda: random.choice([0, 1, 2, 3, 50, 10_000, 2**31])  # noqa: E731
    return {"type": "array"} | _some(
        random,
        {
            "items": lambda: _schema(random, depth - 1),
            "prefixItems": lambda: [_schema(random, depth - 1) for _ in range(random.randint(1, 3))],
            "minItems": lambda: min(size(), 3) if random.random() < 0.9 else size(),
            "maxItems": size,
            "additionalItems": lambda: random.choice([False, True, {}]),
        },
    )


def _object(random: random.Random, depth: int) -> dict[str, Any]:
    names = random.sample(NAMES, random.randint(0, 4))
    return {"type": "object", "properties": {name: _schema(random, depth - 1) for name in names}} | _some(
        random,
        {
            "required": lambda: (
                random.sample(names, random.randint(0, len(names))) + ["other"] * (random.random() < 0.1)
            ),
            "additionalProperties": lambda: random.choice([False, False, True, {"type": "integer"}]),
            "patternProperties": lambda: {random.choice(PATTERNS): _schema(random, depth - 1)},
            "minProperties": lambda: random.choice([0, 1, 2]),
            "maxProperties": lambda: random.choice([0, 1, 5]),
            "propertyNames": lambda: {"pattern": random.choice(PATTERNS)},
        },
    )


def _combined(random: random.Random, depth: int) -> dict[str, Any]:
    parts = [_schema(random, depth - 1) for _ in range(random.randint(1, 3))]
    return {random.choice(["anyOf", "oneOf", "allOf"]): parts} | (
        {"x-guidance": {"lenient": True, "coerce_one_of": True}} if random.random() < 0.3 else {}
    )


def _damaged(random: random.Random, schema: Any) -> Any:
    """Returns a copy with one value or key somewhere replaced by something that does not belong there."""
    copied = json.loads(json.dumps(schema))
    places: list[tuple[Any, Any]] = []
    pending = [copied]
    while pending:
        item = pending.pop()
        for key in list(item) if isinstance(item, dict) else range(len(item)):
            places.append((item, key))
            if isinstance(item[key], (dict, list)):
                pending.append(item[key])
    if places:
        item, key = random.choice(places)
        odd = [
            None,
            True,
            -1,
            2**64,
            1e308,
            "x",
            "#",
            "#/x",
            "#/$defs/d1",
            [],
            {},
            [[]],
            "x" * 1000,
            random.choice(TYPES),
            [1, "a"],
        ]
        item[key] = random.choice(odd)
    return copied
