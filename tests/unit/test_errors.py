"""Errors in three parts, of one family."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from draftgraph import errors
from draftgraph.errors import DraftGraphError

CLASSES = [value for _, value in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_of_the_family_and_says_what_it_means(kind: type[DraftGraphError]) -> None:
    assert issubclass(kind, DraftGraphError)
    assert kind.__doc__
    assert kind.__name__.endswith("Error")


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_keeps_its_three_parts_and_prints_all_of_them(kind: type[DraftGraphError]) -> None:
    error = kind("budget=-1", "a whole number", "raise it")
    assert (error.given, error.allowed, error.remedy) == ("budget=-1", "a whole number", "raise it")
    lines = str(error).splitlines()
    assert lines[0] == "budget=-1"
    assert "a whole number" in lines[1]
    assert "raise it" in lines[2]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_survives_a_copy_and_a_journey_to_another_process(kind: type[DraftGraphError]) -> None:
    error = kind("one", "two", "three")
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is kind
        assert (twin.given, twin.allowed, twin.remedy, str(twin)) == ("one", "two", "three", str(error))


def test_no_part_can_be_left_out() -> None:
    with pytest.raises(TypeError):
        DraftGraphError("one", "two")  # type: ignore[call-arg]
