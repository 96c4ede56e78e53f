"""Schemas, expressions and grammars that ended or froze a server: a 400 for their client, nothing for anybody else."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.programs import ServingProgram, serving_program
from support.serving import CHAT, error_of, write_model

ENDLESS = {"type": "integer", "multipleOf": 1_000_000_000, "exclusiveMaximum": 2**53}


def chained(count: int, *, within: str = "properties") -> dict[str, Any]:
    """References, each within what the one before refers to."""
    wrap = {
        "properties": lambda ref: {"type": "object", "properties": {"x": ref}, "required": ["x"]},
        "anyOf": lambda ref: {"anyOf": [ref, {"type": "null"}]},
        "allOf": lambda ref: {"allOf": [ref, {"type": "integer"}]},
        "items": lambda ref: {"type": "array", "items": ref},
    }[within]
    chain = {f"d{i}": wrap({"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{count}": {"type": "integer"}}}


HOSTILE: dict[str, dict[str, Any]] = {
    "the smallest int64": {"const": -(2**63)},
    "the smallest int64, all but one": {"const": -(2**63) + 1},
    "the smallest int64 as a double": {"const": -9.223372036854775808e18},
    "among others": {"enum": [1, -(2**63)]},
    "nested": {"type": "object", "properties": {"a": {"const": {"b": [-(2**63)]}}}, "required": ["a"]},
    "behind a reference": {"$ref": "#/elsewhere/x", "elsewhere": {"x": {"const": -(2**63)}}},
    "a range that is a constant": {"type": "integer", "minimum": -(2**63) + 1, "maximum": -(2**63) + 1},
    "multiples without an end": ENDLESS,
    "multiples without an end, apart": {"allOf": [{"multipleOf": 10**9}, {"multipleOf": 10**9 - 1}]},
    **{f"a chain of references in {within}": chained(1050, within=within)
       for within in ("properties", "anyOf", "allOf", "items")},
    "references and depth": {"$defs": {"a": chained(90)}, "$ref": "#/$defs/a"},
    "a tower of allOf": {"allOf": [{"anyOf": [{"properties": {f"{c}{i}": {"type": "string"}}} for c in "abc"]}
                                   for i in range(12)]},
    "a long expression": {"type": "string", "pattern": "^((((a{1,1000}){1,1000}){1,1000}){1,1000})$"},
}  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingProgram]:
    folder = tmp_path_factory.mktemp("serve")
    with serving_program(write_model(folder), folder, "--context", "512") as program:
        yield program


def asked(schema: Any, **more: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    return {"messages": [{"role": "user", "content": "x"}], "response_format": form, "max_tokens": 8, **more}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_that_is_made_to_end_the_server_is_refused_or_harmless(name: str, program: ServingProgram) -> None:
    began = time.monotonic()
    answer = program.post(CHAT, asked(HOSTILE[name]))
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert error_of(answer, 400)["param"].startswith("response_format")
    assert time.monotonic() - began < 15
    program.assert_alive()


@pytest.mark.parametrize("name", HOSTILE)
def test_nor_do_the_parameters_of_a_function(name: str, program: ServingProgram) -> None:
    parameters = {"type": "object", "properties": {"x": HOSTILE[name]}, "required": ["x"]}
    function = {"name": "f", "parameters": parameters, "strict": True}
    body = asked({}, tools=[{"type": "function", "function": function}], tool_choice="required")
    del body["response_format"]
    answer = program.post(CHAT, body)
    assert answer.status_code in (200, 400), answer.text
    program.assert_alive()


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "(" * 20_000 + "a" + ")" * 20_000},
        {"regex": "(a{1,999}){1,999}b|(.{500}a){300}"},
        {"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000},
        {
            "grammar": "\n".join(
                ["start: r0", *(f"r{i}: r{i + 1} r{i + 1} | r{i + 1}" for i in range(900)), 'r900: "a"']
            )
        },
    ],
)
def test_nor_do_expressions_and_grammars(constraint: dict[str, str], program: ServingProgram) -> None:
    (name,) = constraint
    schema = {"grammar": f"start: {json.dumps(constraint['regex'])}"} if name == "regex" else constraint
    pattern = {"type": "string", "pattern": constraint["regex"]} if name == "regex" else {}
    for body in (asked(pattern), {"prompt": "x", "max_tokens": 4, **schema}):
        path = CHAT if "messages" in body else "/v1/completions"
        assert program.post(path, body).status_code in (200, 400)
    program.assert_alive()


def test_while_a_grammar_is_tried_everybody_else_writes_on(program: ServingProgram) -> None:
    """It takes the compiler two seconds to give up on each of these; no two of them are equal."""
    slow = [asked({**ENDLESS, "multipleOf": 1000 - i, "pattern": "(a{1,999}){1,999}b" + "x" * i}) for i in range(3)]
    hard = [asked({"type": "string", "pattern": "^(.*a.{200}b.*){%d}$" % (10 + i)}) for i in range(3)]  # noqa: UP031
    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(program.post, CHAT, body) for body in (*slow, *hard)]
        slowest = 0.0
        for _ in range(10):
            began = time.monotonic()
            program.assert_alive()
            slowest = max(slowest, time.monotonic() - began)
        assert all(other.result().status_code in (200, 400) for other in others)
    assert slowest < 2


WIDE = {
    "int64": ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, int),
    "uint64": ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, int),
    "double": ({"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308}, (int, float)),
    "float": ({"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38}, (int, float)),
    "positive": ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, (int, float)),
    "long": ({"type": ["integer", "null"], "minimum": -(2**63)}, (int, type(None))),
}


@pytest.mark.parametrize("name", WIDE)
def test_the_ranges_that_generated_schemas_hold_are_taken_and_kept(name: str, program: ServingProgram) -> None:
    schema, kinds = WIDE[name]
    for seed in range(3):
        answer = program.post(CHAT, asked(schema, max_tokens=60, temperature=1.0, seed=seed))
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        if choice["finish_reason"] == "stop":
            value = json.loads(choice["message"]["content"])
            assert isinstance(value, kinds)
            assert value is None or schema.get("minimum", 0) <= value <= schema.get("maximum", 2**64)
            assert value != 0 or name != "positive"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_the_process_that_tries_grammars_ends_with_the_server(tmp_path: Path) -> None:
    with serving_program(write_model(tmp_path), tmp_path) as program:
        assert program.post(CHAT, asked({"type": "boolean"})).status_code == 200
        tried = [pid for pid in trials() if parent_of(pid) == program.process.pid]
        assert len(tried) == 1
    assert not set(tried) & set(trials())


def trials() -> list[str]:
    """The processes that try grammars, anybody's."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and "trial_worker" in (folder / "cmdline").read_text():
                found.append(folder.name)
    return found


def parent_of(pid: str) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
