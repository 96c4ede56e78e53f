"""What comes with an answer, or shapes it, through the Python API and the command line: log-probabilities, grammars."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import regex

import draftgraph as dg
from draftgraph.audit import as_chat
from draftgraph.errors import MissingPackageError, ParameterError
from draftgraph.llm import LLM
from draftgraph.types import FinishReason
from support.commands import command, error_of, refusal
from support.rigs import write_text
from support.tiny import write_gguf

CODE = "[A-Z]{2}-[0-9]{3,6}"
PET = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "tags": {"type": "array", "items": {"enum": ["small", "loud", "soft"]}, "minItems": 1, "maxItems": 3},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "tags", "kind"],
    "additionalProperties": False,
}
COMPACT = {**PET, "x-guidance": {"whitespace_flexible": False}}  # a random model would not leave its white space
ASK = as_chat("Describe a pet as JSON with the keys name, age, tags and kind.")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with dg.load(model, threads=1) as llm:
        yield llm


# Log-probabilities


def test_a_completion_carries_them_where_they_are_asked_for(llm: LLM) -> None:
    drawn = {"max_tokens": 12, "temperature": 0.8, "seed": 7, "ignore_eos": True}
    done = llm.generate("hello", **drawn, logprobs=3)
    assert done.logprobs is not None
    assert [one.token for one in done.logprobs] == list(done.token_ids)
    assert all(len(one.top) == 3 and one.logprob <= one.top[0][1] <= 0 for one in done.logprobs)
    without = llm.generate("hello", **drawn)
    assert without.token_ids == done.token_ids
    assert without.logprobs is None
    assert "logprobs" not in without.to_json()


def test_a_token_that_a_bias_forced_shows_how_unlikely_it_was(llm: LLM) -> None:
    done = llm.generate("hello", max_tokens=2, logit_bias={65: 1000.0}, logprobs=1)
    for one in done.logprobs:
        assert one.token == 65 != one.top[0][0]
        assert one.logprob < one.top[0][1]


def test_deltas_carry_them_with_their_tokens(llm: LLM) -> None:
    stream = llm.stream("hello", max_tokens=20, logprobs=0, ignore_eos=True)
    deltas = list(stream)
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
    assert tuple(one for delta in deltas for one in delta.logprobs) == stream.finish().logprobs


@pytest.mark.parametrize("logprobs", [-1, 21, 10**9, 1.5, True, "3"])
def test_a_number_of_alternatives_out_of_range_is_refused(llm: LLM, logprobs: Any) -> None:
    with pytest.raises(ParameterError, match="20"):
        llm.generate("hello", logprobs=logprobs)
    assert not llm.engine.scheduler.has_work


def test_the_json_of_the_command_line_shows_them(model: Path) -> None:
    shown = command(
        "generate", model, "-p", "hello", "--max-tokens", "5", "--ignore-eos", "--logprobs", "2", "--json"
    ).json
    assert [one["token_id"] for one in shown["logprobs"]] == shown["token_ids"]
    for one in shown["logprobs"]:
        assert set(one) == {"token_id", "logprob", "top"}
        assert one["top"][0] == {"token_id": one["token_id"], "logprob": one["logprob"]}  # greedy
        assert sum(math.exp(other["logprob"]) for other in one["top"]) < 1
    assert "logprobs" not in command("generate", model, "-p", "hello", "--max-tokens", "5", "--json").json


# Grammars


def test_a_regex_shapes_the_text_and_drafts_do_not(llm: LLM) -> None:
    for sampling in ({}, {"temperature": 1.0, "seed": 3}):
        done = [llm.generate("hello", budget=budget, regex=CODE, **sampling) for budget in (0, 3, 16)]
        assert regex.fullmatch(CODE, done[0].text)
        assert done[0].finish_reason is FinishReason.STOP
        assert len({(one.text, one.token_ids) for one in done}) == 1


def test_a_schema_is_a_text_or_a_dict(llm: LLM) -> None:
    as_dict = llm.generate("hello", json_schema=COMPACT, max_tokens=150)
    assert set(json.loads(as_dict.text)) == set(PET["properties"])  # type: ignore[arg-type]
    assert llm.generate("hello", json_schema=json.dumps(COMPACT), max_tokens=150).token_ids == as_dict.token_ids


@pytest.mark.parametrize(
    "options",
    [
        {"json_schema": "{"}, {"json_schema": {"type": "foo"}}, {"json_schema": 5}, {"regex": "("}, {"regex": ["a"]},
        {"grammar": "start: foo"}, {"regex": "a", "grammar": 'start: "a"'}, {"regex": "a", "ignore_eos": True},
        {"regex": "a" * 70_000},
    ],
    ids=lambda options: repr(options)[:40],
)  # fmt: skip
def test_a_bad_constraint_is_refused_and_nothing_is_left_running(llm: LLM, options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        llm.generate(["hello", "there"], **options)
    assert not llm.engine.scheduler.has_work
    assert llm.runner.num_free_slots == 8


def test_without_the_package_the_rest_works(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with dg.load(model) as llm:
        with pytest.raises(MissingPackageError, match="pip install"):
            llm.generate("hello", regex="a+")
        assert llm.generate("hello", max_tokens=3).completion_tokens > 0


def test_the_command_line_takes_a_schema_and_a_grammar_from_files_and_a_regex_as_it_is(
    model: Path, tmp_path: Path
) -> None:
    schema = write_text(tmp_path / "pet.json", json.dumps(COMPACT))
    lark = write_text(tmp_path / "code.lark", 'start: "code " /[0-9]{3}/ ["!"]')
    written = command("generate", model, "-p", "hello", "--json-schema", schema, "--max-tokens", "150")
    assert set(json.loads(written.out)) == set(PET["properties"])  # type: ignore[arg-type]
    assert regex.fullmatch("code [0-9]{3}!?\n", command("generate", model, "-p", "hello", "--grammar", lark).out)
    assert regex.fullmatch(f"{CODE}\n", command("generate", model, "-p", "hello", "--regex", CODE).out)


def test_the_command_line_refuses_in_three_parts(model: Path, tmp_path: Path) -> None:
    bad = write_text(tmp_path / "bad.json", '{"type": "foo"}')
    assert "Invalid type: foo" in refusal(command("generate", model, "-p", "hello", "--json-schema", bad))
    assert "a file that can be read" in refusal(
        command("generate", model, "-p", "hello", "--json-schema", tmp_path / "none.json")
    )
    shown = error_of(command("generate", model, "-p", "hello", "--regex", "(", "--json"))
    assert shown["type"] == "ParameterError"


# The default model


@pytest.mark.model
def test_the_default_model_writes_valid_json_and_the_same_at_any_budget_and_in_any_company(smollm2_path: Path) -> None:
    samplings = [{}, {"temperature": 1.2, "top_p": 0.95, "seed": 2}]
    options = {"json_schema": PET, "max_tokens": 120, "logprobs": 2}
    with dg.load(smollm2_path, draft="grammar,ngram,suffix,recycle", budget=12) as llm:
        company = llm.stream(as_chat("Count to fifty."), max_tokens=60)
        next(company)
        for sampling in samplings:
            plain = llm.generate(ASK, budget=0, **options, **sampling)
            value = json.loads(plain.text)
            assert isinstance(value["name"], str)
            assert 0 <= value["age"] <= 30
            assert value["kind"] in ("cat", "dog")
            assert set(value["tags"]) <= {"small", "loud", "soft"}
            for budget in (3, 12):
                drafted = llm.generate(ASK, budget=budget, **options, **sampling)
                assert (drafted.token_ids, drafted.text, drafted.logprobs) == (
                    plain.token_ids, plain.text, plain.logprobs,
                )  # fmt: skip
                assert drafted.stats.tokens_per_step > 1.1
