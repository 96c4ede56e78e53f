"""Every setting of every config: what it takes, what it refuses, and in which words."""

from __future__ import annotations

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgraph.config import DraftConfig, EngineConfig, SamplingParams, describe_range, from_options
from draftgraph.errors import ParameterError

CONFIGS = (SamplingParams, DraftConfig, EngineConfig)
FIELDS = [(config, field) for config in CONFIGS for field in dataclasses.fields(config)]
HUGE = 10**400  # a whole number that no float can hold


def kind(config: type, name: str) -> Any:
    """The field's type without None."""
    hint = typing.get_type_hints(config)[name]
    if typing.get_origin(hint) is types.UnionType:
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return hint


NUMBERS = [(config, field) for config, field in FIELDS if kind(config, field.name) in (int, float)]
ids = {"ids": lambda value: getattr(value, "name", getattr(value, "__name__", None))}


def assert_refused(config: type, name: str, value: Any) -> ParameterError:
    with pytest.raises(ParameterError) as error:
        config(**{name: value})
    found = error.value
    assert found.given.strip()
    assert found.allowed.strip()
    assert found.remedy.strip()
    assert name in found.given
    return found


@pytest.mark.parametrize("config", CONFIGS)
def test_the_defaults_are_allowed(config: type) -> None:
    config()


@pytest.mark.parametrize(("config", "field"), FIELDS, **ids)
def test_every_field_has_a_help_that_is_a_sentence(config: type, field: Any) -> None:
    text = field.metadata["help"]
    assert text[0].isupper()
    assert text.endswith((".", "none."))
    assert "\n" not in text


@pytest.mark.parametrize(("config", "field"), NUMBERS, **ids)
def test_a_number_at_its_border_is_taken_and_one_beyond_it_refused(config: type, field: Any) -> None:
    low, high, above = (field.metadata[key] for key in ("low", "high", "above"))
    whole = kind(config, field.name) is int
    step = 1 if whole else 1e-9
    assert low is not None or above is not None, "a number without a lower bound"
    if low is not None:
        assert getattr(config(**{field.name: low}), field.name) == low
        assert_refused(config, field.name, low - step)
    if above is not None:
        assert_refused(config, field.name, above)
        config(**{field.name: above + step})
    if high is not None:
        assert getattr(config(**{field.name: high}), field.name) == high
        assert_refused(config, field.name, high + 1 if whole else high * (1 + 1e-9))
    assert_refused(config, field.name, -HUGE)
    if high is not None:
        assert_refused(config, field.name, HUGE)
    elif whole:
        assert getattr(config(**{field.name: HUGE}), field.name) == HUGE


@pytest.mark.parametrize(("config", "field"), NUMBERS, **ids)
@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf"), True, False, "1", b"1", [1], (1,), {}, 1j, np.int64(1)],
    ids=repr,
)  # fmt: skip
def test_what_is_not_a_number_in_range_is_refused(config: type, field: Any, value: Any) -> None:
    assert_refused(config, field.name, value)


@pytest.mark.parametrize(("config", "field"), NUMBERS, **ids)
def test_fractions_are_refused_where_whole_numbers_are_meant(config: type, field: Any) -> None:
    if kind(config, field.name) is int:
        assert_refused(config, field.name, 2.5)
        assert_refused(config, field.name, 2.0)
    else:
        config(**{field.name: 1})


@pytest.mark.parametrize(("config", "field"), FIELDS, **ids)
def test_none_is_taken_only_where_it_is_a_choice(config: type, field: Any) -> None:
    hint = typing.get_type_hints(config)[field.name]
    if type(None) in typing.get_args(hint):
        config(**{field.name: None})
    else:
        assert_refused(config, field.name, None)


@pytest.mark.parametrize(("config", "field"), FIELDS, **ids)
def test_strings_switches_and_lists_are_held_to_their_types(config: type, field: Any) -> None:
    hint = kind(config, field.name)
    wrong: dict[Any, list[Any]] = {
        str: [1, b"off", ["off"], Path("off"), True],
        bool: [1, 0, "yes", "False"],
    }
    for value in wrong.get(hint, []):
        assert_refused(config, field.name, value)
    for choice in field.metadata["choices"]:
        assert getattr(config(**{field.name: choice}), field.name) == choice
    if field.metadata["choices"]:
        for value in ("", "Match", "none", field.metadata["choices"][0] + " "):
            assert all(
                choice in assert_refused(config, field.name, value).allowed for choice in field.metadata["choices"]
            )


@pytest.mark.parametrize("value", ["stop", ["stop"], (1,), (b"x",), (None,), ("a", 2), {"a"}, ("",), ("a", "")])
def test_stop_strings_are_a_tuple_of_strings_that_are_not_empty(value: Any) -> None:
    with pytest.raises(ParameterError) as error:
        SamplingParams(stop=value)
    assert error.value.given
    assert error.value.allowed
    assert error.value.remedy


@pytest.mark.parametrize(
    "value",
    [[(1, 2.0)], "1", 5, {"1": 2.0}, {True: 1.0}, {-1: 1.0}, {1.0: 1.0}, {1: "2"}, {1: True}, {1: None},
     {1: float("nan")}, {1: float("inf")}, {1: 1000.5}, {1: -1001}, {1: HUGE}, {None: 1.0}],
)  # fmt: skip
def test_a_logit_bias_maps_token_ids_to_numbers(value: Any) -> None:
    assert_refused(SamplingParams, "logit_bias", value)


def test_what_is_allowed_is_kept_as_it_was_given() -> None:
    params = SamplingParams(stop=("a", "bc"), logit_bias={0: -1000, 7: 2.5}, seed=2**63 - 1, temperature=0)
    assert params.stop == ("a", "bc")
    assert params.logit_bias == {0: -1000, 7: 2.5}
    assert params.seed == 2**63 - 1
    assert SamplingParams().logit_bias is not SamplingParams().logit_bias


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_is_frozen_and_changed_by_making_another(config: type) -> None:
    one = config()
    name, value = next((f.name, f.metadata["low"]) for c, f in NUMBERS if c is config and f.metadata["low"] is not None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, name, value)
    assert getattr(dataclasses.replace(one, **{name: value}), name) == value
    with pytest.raises(ParameterError):
        dataclasses.replace(one, **{name: -HUGE})
    with pytest.raises(TypeError):
        config(value)


def test_options_are_sorted_into_their_configs() -> None:
    options = {"max_tokens": 5, "budget": 3, "slots": 2}
    sampling, draft, engine = from_options(options, *CONFIGS)
    assert (sampling.max_tokens, draft.budget, engine.slots) == (5, 3, 2)
    assert options == {"max_tokens": 5, "budget": 3, "slots": 2}
    assert from_options({}, *CONFIGS) == [SamplingParams(), DraftConfig(), EngineConfig()]


@pytest.mark.parametrize("name", ["budgets", "Budget", "max-tokens", "", "__class__", "help"])
def test_a_name_that_no_config_has_is_refused_and_the_names_are_listed(name: str) -> None:
    with pytest.raises(ParameterError) as error:
        from_options({"budget": 3, name: 1}, *CONFIGS)
    assert repr(name) in error.value.given
    assert all(field.name in error.value.allowed for _, field in FIELDS)
    assert error.value.remedy


def test_a_name_of_another_config_is_unknown_where_that_config_is_not_asked_for() -> None:
    with pytest.raises(ParameterError, match="slots"):
        from_options({"slots": 3}, SamplingParams)
    with pytest.raises(ParameterError, match="budget"):
        from_options({"budget": -1}, *CONFIGS)


def test_no_two_configs_share_a_name() -> None:
    names = [field.name for _, field in FIELDS]
    assert len(set(names)) == len(names)


def test_ranges_are_said_in_words() -> None:
    def words(config: type, name: str) -> str:
        field = next(field for field in dataclasses.fields(config) if field.name == name)
        return describe_range(kind(config, name), field.metadata)

    assert words(SamplingParams, "max_tokens") == "a whole number from 1"
    assert words(SamplingParams, "top_p") == "a finite number above 0 to 1"
    assert words(SamplingParams, "seed") == "a whole number from 0"
    assert words(DraftConfig, "budget") == "a whole number from 0 to 512"
    assert words(SamplingParams, "presence_penalty") == "a finite number from -100 to 100"
