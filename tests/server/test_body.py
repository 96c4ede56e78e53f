"""The parser of bodies against `json`, on values it must take and on texts of any bytes."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgraph.server.body import MAX_DEPTH, MAX_VALUES, parse_json
from draftgraph.server.errors import ApiError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN, st.booleans())
def test_plain_values_are_taken(value: Any, ascii_only: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary() | st.text(alphabet='[]{}":\\u,d8001e').map(str.encode))
def test_any_bytes_are_a_value_or_a_400(body: bytes) -> None:
    value: Any = None
    try:
        value = parse_json(body)
    except ApiError as error:
        value = {"status": error.status, **error.to_json()}
        assert value["status"] == 400
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "body",
    ["NaN", "[Infinity]", "-Infinity", "1e400", '{"a": -1e400}', "9" * 21, '"\\ud800"', '["\\udc00\\ud800"]',
     '{"a": 1, "a": 1}', '{"a": {"b": 1, "b": 2}}', "\ufeff1", "[1,]", "'a'", "01", "1 1"],
)  # fmt: skip
def test_what_json_or_python_would_take_is_refused(body: str) -> None:
    with pytest.raises(ApiError):
        parse_json(body.encode())


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_depth_is_counted_outside_strings_only(opening: str, closing: str) -> None:
    deepest = opening * MAX_DEPTH + "1" + closing * MAX_DEPTH
    parse_json(deepest.encode())
    with pytest.raises(ApiError):
        parse_json(f"[{deepest}]".encode())
    brackets = "[{" * 200
    assert parse_json(json.dumps([brackets, '"' + brackets, "\\"]).encode()) == [brackets, '"' + brackets, "\\"]
    parse_json(json.dumps([[1]] * 1_000).encode())


@pytest.mark.parametrize("item", ["[]", "{}", '{"a":[]}'])
def test_arrays_and_objects_are_counted_outside_strings_only(item: str) -> None:
    most = (MAX_VALUES - 1) // (item.count("[") + item.count("{"))
    taken = f"[{','.join([item] * most)}]"
    assert len(parse_json(taken.encode())) == most
    with pytest.raises(ApiError, match="arrays and objects"):
        parse_json(f"[{taken},{item}]".encode())
    assert parse_json(json.dumps(item * MAX_VALUES).encode()) == item * MAX_VALUES


def test_a_key_that_stands_twice_among_many_is_found_in_linear_time() -> None:
    keys = [f'"{number}":1' for number in range(20_000)]
    started = time.perf_counter()
    with pytest.raises(ApiError, match="'19999' stands there twice"):
        parse_json(f"{{{','.join([*keys, keys[-1]])}}}".encode())
    assert time.perf_counter() - started < 1.0


@pytest.mark.parametrize(
    "body", [b"[" * 2**20, b'"' + b'\\"' * 2**19, b'["' + b"[" * 2**20, b"[]" * 2**19, b'{"' + b"\\" * 2**20,
             b'"[' * 2**19, b"9" * 2**20, b"-" * 2**20],
)  # fmt: skip
def test_a_megabyte_of_anything_takes_no_second(body: bytes) -> None:
    started = time.perf_counter()
    with pytest.raises(ApiError):
        parse_json(body)
    assert time.perf_counter() - started < 1.0
