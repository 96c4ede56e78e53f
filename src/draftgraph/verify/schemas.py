"""JSON schemas, kept within what the grammar library computes right and in little time.

In: the text of a schema. Out: a schema whose texts all satisfy the given one too, in numbers that the library holds
exactly; or the reason why there is none. llguidance computes with doubles (ranges as wide as int64 or the doubles fail,
and the constant -2**63 ends the process), compiles `multipleOf` without a limit, and follows references by recursion.
Knows nothing of grammars, tokens or requests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any]

_EXACT = 2**53  # whole numbers up to here are doubles, and written as they are
_LOWEST, _HIGHEST = -(2**63) + 1024, 2**63 - 1  # the widest range of whole numbers that the library takes
_UNBOUNDED = 10**18  # the same for numbers; and a whole bound beyond it needs another one on the other side
_TINIEST = 1e-60  # bounds nearer to zero than this make regular expressions that are nested too deeply
_LONGEST_CHAIN = 100  # references, each within what the one before refers to
# NOTE: compiling `multipleOf` takes time and memory in proportion to the product of the numbers, without a limit of its
# own: 50 000 takes 0.2 s, a million 10 s and 0.7 GB. Beside bounds, some thousands run into the limits of a step.
_LARGEST_MULTIPLE = 50_000
_LARGEST_BOUNDED_MULTIPLE = 1_000
_LONGEST_LEAST = 1_000  # characters of `minLength`; where a pattern must hold too, some thousands run into those limits

_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SCHEMAS = (
    "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "additionalItems",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


def read_schema(text: str, begin: int = 0) -> tuple[Schema, int]:
    """Returns the schema that `text` has from `begin` on, within the library's limits, and where it ends.

    Raises:
        ValueError: its message says why there is no such schema.
    """
    try:
        schema, end = _DECODER.raw_decode(text, begin)
        if not isinstance(schema, dict):
            raise ValueError("a schema that is not an object")
        refs: dict[str, Any] = {"#": schema}
        parts = list(_parts(schema, schema, refs))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    bounded = [part for part in parts if _bound_numbers(part)]
    _check_multiples(parts, _LARGEST_BOUNDED_MULTIPLE if bounded else _LARGEST_MULTIPLE)
    _check_lengths(parts)
    _check_references(refs)
    options = schema.get("x-guidance")
    lenient = isinstance(options, dict) and options.get("lenient") is True
    for part in parts:
        if not lenient:
            _check_count(part)
        if not isinstance(part.get("items"), list):  # the library would take the older keyword for the newer ones
            part.pop("additionalItems", None)
    return schema, end


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key {key[:40]!r} stands there twice")
        value[key] = item
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)


def _parts(schema: Any, root: Schema, refs: dict[str, Any]) -> Iterator[Schema]:
    """Yields every schema within `schema` or referred to from it, once. Fills `refs`: reference -> its target."""
    seen: set[int] = set()
    pending = [schema]
    while pending:
        part = pending.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        pending += _inner(part)
        ref = part.get("$ref")
        if isinstance(ref, str) and ref.startswith("#") and ref not in refs:
            refs[ref] = _target(root, ref)
            pending.append(refs[ref])


def _inner(schema: Schema, *, definitions: bool = True) -> list[Any]:
    """Returns the schemas directly within one."""
    found: list[Any] = [schema[key] for key in _SCHEMAS if key in schema]
    for key in _SCHEMAS_BY_NAME:
        if isinstance(schema.get(key), dict) and (definitions or key not in ("$defs", "definitions")):
            found += schema[key].values()
    for key in _SCHEMA_LISTS:
        if isinstance(schema.get(key), list):
            found += schema[key]
    return found


def _target(root: Schema, ref: str) -> Any:
    """Returns what a reference within the document points to; None if nothing is there, which the library refuses."""
    found: Any = root
    for step in ref[1:].split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name[:9]) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            return None
    return found


def _check_references(refs: dict[str, Any]) -> None:
    if (longest := _longest_chain(refs)) > _LONGEST_CHAIN:
        raise ValueError(f"{longest} references, each within the one before; at most {_LONGEST_CHAIN}")


def _longest_chain(refs: dict[str, Any]) -> int:
    """Returns the most references that are followed one within another; what refers to itself is followed once."""
    below = {ref: _refs_within(target) for ref, target in refs.items()}
    longest: dict[str, int] = {}
    path: list[tuple[str, Iterator[str]]] = [("#", iter(below["#"]))]
    active = {"#"}
    while path:
        ref, rest = path[-1]
        following = next(rest, None)
        if following is None:
            longest[ref] = 1 + max((longest.get(other, 0) for other in below[ref]), default=0)
            active.discard(ref)
            path.pop()
        elif following in below and following not in longest and following not in active:
            active.add(following)
            path.append((following, iter(below[following])))
    return longest["#"] - 1


def _refs_within(schema: Any) -> set[str]:
    found: set[str] = set()
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                found.add(part["$ref"])
            pending += _inner(part, definitions=False)
    return found


def _check_multiples(parts: list[Schema], limit: int) -> None:
    """Raises ValueError where the numbers of `multipleOf`, as whole numbers of one unit, make too large a product."""
    given = [part["multipleOf"] for part in parts if _is_number(part.get("multipleOf"))]
    multiples = {abs(Decimal(str(value)).normalize()) for value in given}
    places = max((-int(value.as_tuple().exponent) for value in multiples), default=0)
    product = math.prod(value.scaleb(max(places, 0)) for value in multiples)
    if product > limit:
        raise ValueError(f"the numbers of multipleOf make {product:.6g}, more than {limit}")


def _check_lengths(parts: list[Schema]) -> None:
    least = max((part["minLength"] for part in parts if _is_number(part.get("minLength"))), default=0)
    if least > _LONGEST_LEAST and any("pattern" in part or "format" in part for part in parts):
        raise ValueError(f"minLength {str(least)[:40]} and a pattern or format; at most {_LONGEST_LEAST}")


def _check_count(schema: Schema) -> None:
    """Raises ValueError where an object needs more keys than are named: the library may write one key twice."""
    least, required = schema.get("minProperties"), schema.get("required")
    named = len(set(map(str, required))) if isinstance(required, list) else 0
    if least is not None and _is_number(least) and least > max(named, 1):
        raise ValueError(f"minProperties {str(least)[:40]} with {named} required: keys may repeat")


def _bound_numbers(schema: Schema) -> bool:
    """Narrows the bounds of one schema to what the library holds exactly; refuses constants that it does not. Returns
    whether there are bounds."""
    for constant in (schema.get("const"), schema.get("enum")):
        _check_constant(constant)
    bounds = {key: schema[key] for key in _BOUNDS if _is_number(schema.get(key))}
    if not bounds:
        return False
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    for key in bounds:
        del schema[key]
    schema |= (_whole if "integer" in kinds and "number" not in kinds else _real)(bounds)
    return True


_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def _check_constant(value: Any) -> None:
    """Raises ValueError for a number within a constant that would be written as another one."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        elif _is_number(item) and abs(item) > _EXACT:
            raise ValueError(f"the constant {str(item)[:40]}: numbers beyond ±2**53 are not exact; write it as text")


def _whole(bounds: dict[str, Any]) -> Schema:
    """Returns bounds for whole numbers: inclusive, and doubles that lie within the given ones."""
    low, high = -math.inf, math.inf
    if "minimum" in bounds:
        low = math.ceil(bounds["minimum"])
    if "exclusiveMinimum" in bounds:
        low = max(low, math.floor(bounds["exclusiveMinimum"]) + 1)
    if "maximum" in bounds:
        high = math.floor(bounds["maximum"])
    if "exclusiveMaximum" in bounds:
        high = min(high, math.ceil(bounds["exclusiveMaximum"]) - 1)
    if low > -math.inf:
        low = max(_rounded(low, math.inf), _LOWEST)
        high = min(high, _HIGHEST) if low >= _UNBOUNDED else high
    if high < math.inf:
        high = _HIGHEST if high >= _HIGHEST else _rounded(high, -math.inf)
        low = max(low, _LOWEST) if high <= -_UNBOUNDED else low
    if low > high:
        given = ", ".join(f"{key} {value}" for key, value in bounds.items())
        raise ValueError(f"{given}: no whole number of 64 bits that a double holds lies within")
    return {key: value for key, value in (("minimum", low), ("maximum", high)) if math.isfinite(value)}


def _rounded(value: int | float, towards: float) -> int:
    """Returns the next whole number towards one of the infinities that is a double."""
    value = min(max(int(value), -(2**64)), 2**64)
    near = float(value)
    if (near < value) == (towards > 0) and near != value:
        near = math.nextafter(near, towards)
    return int(near)


def _real(bounds: dict[str, Any]) -> Schema:
    """Returns bounds for numbers, narrowed where they are too wide or too near to zero."""
    narrowed: Schema = {}
    for key, value in bounds.items():
        is_low = key in ("minimum", "exclusiveMinimum")
        if abs(value) > _EXACT:
            value = _rounded(value, math.inf if is_low else -math.inf)
        if (value >= _UNBOUNDED) if is_low else (value <= -_UNBOUNDED):
            raise ValueError(f"{key} {str(value)[:40]}: at most 18 digits before the point")
        if abs(value) >= _UNBOUNDED:
            value = -_UNBOUNDED if is_low else _UNBOUNDED
        elif 0 < abs(value) < _TINIEST:
            value = (_TINIEST if is_low else -_TINIEST) if (value > 0) == is_low else 0
        narrowed[key] = value
    return _without_ends(narrowed)


def _without_ends(bounds: Schema) -> Schema:
    """Returns the bounds with inclusive ones in place of those exclusive ones that the library includes.

    It does so with a whole number from which the other one lies less than one away, further from zero, as in (0, 0.5].
    """
    low = max((bounds[key] for key in ("minimum", "exclusiveMinimum") if key in bounds), default=-math.inf)
    high = min((bounds[key] for key in ("maximum", "exclusiveMaximum") if key in bounds), default=math.inf)
    if high - low >= 1:
        return bounds
    if low > high or (low == high and low in (bounds.get("exclusiveMinimum"), bounds.get("exclusiveMaximum"))):
        raise ValueError(f"bounds that leave nothing between {low} and {high}")
    changed = dict(bounds)
    step = min((high - low) / 2, 1e-9 * max(1, abs(low)))
    if low >= 0 and bounds.get("exclusiveMinimum") == low == int(low):
        del changed["exclusiveMinimum"]
        changed["minimum"] = low + step
    if high <= 0 and bounds.get("exclusiveMaximum") == high == int(high):
        del changed["exclusiveMaximum"]
        changed["maximum"] = high - step
    return changed


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
