"""Schemas within what the grammar library computes right: narrowed, never widened, or refused with the reason."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgraph.verify.schemas import read_schema

EDGES = [sign * 2**power + step for power in (31, 53, 63, 64) for step in (-1, 0, 1) for sign in (-1, 1)]
NUMBERS = st.sampled_from(EDGES) | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def read(schema: Any) -> dict[str, Any]:
    return read_schema(json.dumps(schema))[0]


def holds(schema: dict[str, Any], value: float) -> bool:
    """Exactly, where the judge of JSON schemas would round."""
    return (
        ("minimum" not in schema or value >= schema["minimum"])
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("maximum" not in schema or value <= schema["maximum"])
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
    )


@pytest.mark.parametrize("kind", ["integer", "number"])
@given(bounds=st.dictionaries(st.sampled_from(BOUNDS), NUMBERS, min_size=1))
def test_bounds_are_narrowed_to_doubles_and_never_widened(kind: str, bounds: dict[str, Any]) -> None:
    try:
        found = read({"type": kind, **bounds})
    except ValueError:
        return
    values = [found[key] for key in BOUNDS if key in found]
    assert all(int(value) == float(value) for value in values if isinstance(value, int) and value != 2**63 - 1)
    assert all(-(2**63) < value < 2**63 for value in values)
    low, high = found.get("minimum", -(2**63) + 1024), found.get("maximum", 2**63 - 1)
    for value in (low, high, low + 1, high - 1, (low + high) / 2):
        whole = math.floor(value) if kind == "integer" else value
        assert not holds(found, whole) or holds(bounds, whole) or abs(whole) > 2**63


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
         {"minimum": -(2**63) + 1024, "maximum": 2**63 - 1}),
        ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, {"minimum": 0, "maximum": 2**63 - 1}),
        ({"type": "integer", "exclusiveMinimum": 3, "maximum": 7.5}, {"minimum": 4, "maximum": 7}),
        ({"type": "integer", "minimum": 10**18}, {"minimum": 10**18, "maximum": 2**63 - 1}),
        ({"type": "integer", "maximum": 999999999999999999}, {"maximum": 999999999999999872}),
        ({"type": "number", "minimum": -1e308, "maximum": 1e308}, {"minimum": -(10**18), "maximum": 10**18}),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, {"minimum": 1e-9, "maximum": 0.5}),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, {"exclusiveMinimum": 0, "maximum": 1}),
        ({"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 1},
         {"exclusiveMinimum": 0.5, "exclusiveMaximum": 1}),
        ({"minimum": 5}, {"minimum": 5}),
    ],
)  # fmt: skip
def test_bounds_become_these(schema: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert {key: value for key, value in read(schema).items() if key in BOUNDS} == wanted


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"const": -(2**63)}, "not exact"),
        ({"const": 2**53 + 1}, "not exact"),
        ({"enum": ["a", {"b": [1, -(2**63)]}]}, "not exact"),
        ({"items": {"properties": {"x": {"const": 1e300}}}}, "not exact"),
        ({"$ref": "#/a/b", "a": {"b": {"const": 2**60}}}, "not exact"),
        ({"type": "integer", "minimum": 2**63}, "no whole number"),
        ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1}, "no whole number"),
        ({"type": "number", "minimum": 5, "exclusiveMaximum": 5}, "leave nothing"),
        ({"multipleOf": 60_000}, "multipleOf"),
        ({"multipleOf": 10**9}, "multipleOf"),
        ({"multipleOf": 2_000, "minimum": 0}, "multipleOf"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 9.97}]}, "multipleOf"),
        ({"type": "object", "minProperties": 3, "required": ["a", "b"]}, "keys may repeat"),
        ({"properties": {"a": {"minLength": 1001}, "b": {"items": {"pattern": "a"}}}}, "minLength 1001"),
        ([], "not an object"),
    ],
)
def test_what_cannot_be_written_right_is_refused_with_the_reason(schema: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(schema)


@pytest.mark.parametrize("text", ['{"const": 1e999}', '{"const": NaN}', '{"a": 1, "a": 2}', "{", '{"x":' * 9999])
def test_what_is_no_plain_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_schema(text)


def test_constants_and_values_that_only_look_like_schemas_are_left_alone() -> None:
    schema = {
        "enum": [{"minimum": 1e308, "multipleOf": 99}, {"$ref": "#/nowhere"}],
        "default": {"minimum": -(2**63)},
        "properties": {"minimum": {"type": "integer"}, "$ref": {"type": "string"}, "additionalItems": {}},
    }
    with pytest.raises(ValueError, match="not exact"):
        read(schema)
    schema["enum"] = [{"minimum": 5, "multipleOf": 10**9}, {"$ref": "#/nowhere"}]
    assert read(schema) == schema


def test_keywords_of_older_drafts_do_not_replace_those_of_newer_ones() -> None:
    newer = {"prefixItems": [{"type": "boolean"}], "minItems": 1}
    assert read({**newer, "additionalItems": False}) == newer
    older = {"items": [{"type": "boolean"}], "additionalItems": False}
    assert read(older) == older


def chain(count: int, *, circle: bool = False) -> dict[str, Any]:
    last = {"$ref": "#/$defs/d0"} if circle else {"type": "integer"}
    links = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "null"}]} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{count}": last}}


def test_chains_of_references_have_a_longest() -> None:
    read(chain(99))
    read(chain(99, circle=True))
    with pytest.raises(ValueError, match="102 references"):
        read(chain(101))
    read({"$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": {"$ref": "#"}}})


def test_a_schema_without_anything_odd_stays_as_it_is() -> None:
    schema = {
        "type": "object",
        "properties": {
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "price": {"type": "number", "multipleOf": 0.01, "minimum": 0},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 1},
        },
        "required": ["age"],
        "$defs": {"tag": {"enum": ["a", 1, None]}},
    }
    assert read(schema) == schema
    assert jsonschema_rs.is_valid(read(schema), {"age": 3, "price": 0.25, "tags": ["a"]})
