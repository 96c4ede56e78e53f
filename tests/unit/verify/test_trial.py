"""Grammars in another process: what kills it there is told here, and the next grammar finds a new one."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Iterator

import llguidance
import pytest

from draftgraph.errors import CapacityError
from draftgraph.verify import trial
from draftgraph.verify.trial import GrammarTrial

WORDS = [*(bytes([i]) for i in range(256)), b"ab", b""]
LIBRARY = os.path.dirname(os.path.dirname(llguidance.__file__))
SMALLEST = json.dumps({"const": -(2**63)})
ENDLESS = json.dumps({"type": "integer", "multipleOf": 10**9, "exclusiveMaximum": 2**53})


def of_schema(text: str) -> str:
    return str(llguidance.LLMatcher.grammar_from_json_schema(text))


def deep(count: int) -> str:
    links = {f"d{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(count)}
    return of_schema(json.dumps({"$ref": "#/$defs/d0", "$defs": {**links, f"d{count}": {"type": "integer"}}}))


@pytest.fixture
def tried() -> Iterator[GrammarTrial]:
    found = GrammarTrial(WORDS, [257], LIBRARY)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (of_schema('{"type": "integer"}'), ""),
        (llguidance.LLMatcher.grammar_from_regex("a+b"), ""),
        (llguidance.LLMatcher.grammar_from_regex("("), "regex parse error"),
        (of_schema('{"type": "what"}'), "what"),
        (of_schema(SMALLEST), "crashes"),
        (of_schema(ENDLESS), "takes more than 2 s"),
        (deep(1500), "crashes"),
        (of_schema('{"type": "string", "minLength": 10000, "pattern": "^.*$"}'), "limits"),
    ],
)
def test_what_is_wrong_with_a_grammar_is_told_and_the_next_one_is_tried(
    source: str, fault: str, tried: GrammarTrial
) -> None:
    for _ in range(2):  # the second time it is remembered
        found = tried.fault(source)
        assert (fault in found) if fault else not found
    assert tried.fault(of_schema('{"type": "boolean"}')) == ""


def test_what_fits_into_half_a_threads_stack_is_not_called_too_deep(tried: GrammarTrial) -> None:
    assert tried.fault(deep(100)) == ""


def test_outcomes_are_remembered_so_many_and_no_more(tried: GrammarTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_MOST_KNOWN", 3)
    sources = [llguidance.LLMatcher.grammar_from_regex("a" * n) for n in range(1, 6)]
    assert [tried.fault(source) for source in sources] == [""] * 5
    assert list(tried._known) == sources[-3:]


def test_one_that_does_nothing_is_not_waited_for_for_ever(tried: GrammarTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_PATIENCE", 0.5)
    assert tried.fault(of_schema("{}")) == ""
    process = tried._process
    assert process is not None
    os.kill(process.pid, 19)  # SIGSTOP
    began = time.monotonic()
    assert "takes more" in tried.fault(of_schema('{"type": "null"}'))
    assert time.monotonic() - began < 5
    assert tried.fault(of_schema('{"type": "string"}')) == ""


@pytest.mark.parametrize("end", [GrammarTrial.close, lambda tried: None])
def test_the_process_ends_with_its_owner(end: Callable[[GrammarTrial], None]) -> None:
    tried = GrammarTrial(WORDS, [257], LIBRARY)
    assert tried.fault(of_schema("{}")) == ""
    process = tried._process
    assert process is not None
    end(tried)
    del tried
    gc.collect()
    assert process.poll() is not None


def test_a_machine_without_room_for_a_process_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(trial.subprocess, "Popen", full)
    with pytest.raises(CapacityError, match="Resource temporarily unavailable"):
        GrammarTrial(WORDS, [257], LIBRARY).fault(of_schema("{}"))
