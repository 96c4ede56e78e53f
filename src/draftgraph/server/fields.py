"""What all request models are made of: strictness, and fields with the ranges and the help of `SamplingParams`.

In: nothing. Out: types for `messages.py` and `schema.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from draftgraph.config import SamplingParams

MAX_ID = 2**31 - 1  # no whole number needs more
SETTINGS: Mapping[str, Mapping[str, Any]] = {field.name: field.metadata for field in dataclasses.fields(SamplingParams)}


def like(name: str) -> Any:
    """Returns the pydantic field that has the range and the help of the sampling parameter `name`."""
    setting = SETTINGS[name]
    limits = {
        "ge": setting["low"],
        "gt": setting["above"],
        "le": MAX_ID if setting["high"] is None else setting["high"],
    }
    return Field(description=setting["help"], **{key: limit for key, limit in limits.items() if limit is not None})


def _refuse_true(value: bool) -> bool:
    if value:
        raise PydanticCustomError("none_required", "true is not implemented")
    return value


def items(*, min_length: int | None = None, max_length: int | None = None) -> Any:
    """Returns the pydantic field of a list whose check ends at its first wrong item, so that a refusal is cheap."""
    return Field(fail_fast=True, min_length=min_length, max_length=max_length)


def entries(most: int) -> Any:
    """Returns the validator of an object that has too many entries before any of them is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise PydanticCustomError("too_long", "at most {most} entries", {"most": most})
        return value

    return BeforeValidator(check)


class Strict(BaseModel):
    """Unknown fields are refused, and "1" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        """Of more keys than there are fields, some of the first are unknown: the others need no error of their own."""
        most = len(cls.model_fields)
        return dict(islice(value.items(), most + 1)) if isinstance(value, dict) and len(value) > most else value


# NOTE: Literal[False] would take 0 as well, which equals it.
No = Annotated[bool, AfterValidator(_refuse_true), Field(json_schema_extra={"const": False})]
Text = Annotated[str, Field(max_length=2**20)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=MAX_ID)]], items()]
