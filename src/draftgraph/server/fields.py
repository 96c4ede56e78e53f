"""What all request models are made of: strictness, and fields with the ranges and the help of `SamplingParams`.

In: nothing. Out: types for `messages.py` and `schema.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
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


class Strict(BaseModel):
    """Unknown fields are refused, and "1" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


# NOTE: Literal[False] would take 0 as well, which equals it.
No = Annotated[bool, AfterValidator(_refuse_true), Field(json_schema_extra={"const": False})]
Text = Annotated[str, Field(max_length=2**20)]
TokenIds = list[Annotated[int, Field(ge=0, le=MAX_ID)]]
