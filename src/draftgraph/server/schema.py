"""What clients may send: one model per endpoint, every field that is not in it is refused by name.

In: JSON values. Out: checked requests. Ranges and help come from `SamplingParams`, so both are written once. A field
that is null counts as not given, as OpenAI's clients send it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from draftgraph.config import SamplingParams

_MAX_ID = 2**31 - 1  # no whole number needs more
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    field.name: field.metadata for field in dataclasses.fields(SamplingParams)
}


def _like(name: str) -> Any:
    """Returns the pydantic field that has the range and the help of the sampling parameter `name`."""
    setting = _SETTINGS[name]
    limits = {
        "ge": setting["low"],
        "gt": setting["above"],
        "le": _MAX_ID if setting["high"] is None else setting["high"],
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
TokenIds = list[Annotated[int, Field(ge=0, le=_MAX_ID)]]
StopText = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
TokenKey = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,8})$")]
Bias = Annotated[float, Field(ge=_SETTINGS["logit_bias"]["low"], le=_SETTINGS["logit_bias"]["high"])]
ModelName = str  # the OpenAPI document has the one name there is


class StreamOptions(Strict):
    """How a stream ends."""

    include_usage: bool | None = Field(None, description="Send the usage in a last chunk without choices.")


class Watching(Strict):
    """What the `draftgraph` object of a stream's events holds."""

    sources: bool = Field(False, description="Each token's text and who proposed it.")
    graphs: bool = Field(False, description="Each step's token graph, its tree, what was accepted and what it cost.")


class Generate(Strict):
    """What both ways to generate have in common."""

    model: ModelName | None = None
    max_tokens: Annotated[int, _like("max_tokens")] | None = None
    temperature: Annotated[float, _like("temperature")] | None = None
    top_k: Annotated[int, _like("top_k")] | None = None
    top_p: Annotated[float, _like("top_p")] | None = None
    min_p: Annotated[float, _like("min_p")] | None = None
    repetition_penalty: Annotated[float, _like("repetition_penalty")] | None = None
    presence_penalty: Annotated[float, _like("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, _like("frequency_penalty")] | None = None
    logit_bias: Annotated[dict[TokenKey, Bias], Field(max_length=1024)] | None = None
    seed: Annotated[int, _like("seed")] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    ignore_eos: bool | None = Field(None, description=_SETTINGS["ignore_eos"]["help"])
    n: Annotated[int, Field(ge=1, le=1024, description="Texts to write; text i draws with seed + i.")] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="Only with stream.")
    user: Annotated[str, Field(max_length=1024, description="Has no effect.")] | None = None
    draft: Literal["off"] | None = Field(None, description="'off' decodes this request plainly: the same text.")
    draftgraph: Watching | None = Field(None, description="What else to say in a stream. Only with stream.")
    # Fields that ask for what is done anyway, or for something that is not implemented.
    service_tier: Literal["auto", "default"] | None = None
    store: No | None = None

    def sampling(self) -> dict[str, Any]:
        """Returns the sampling parameters that were given, by name."""
        names = _SETTINGS.keys() & Generate.model_fields.keys()
        given = {name: value for name in sorted(names) if (value := getattr(self, name)) is not None}
        if "stop" in given:
            given["stop"] = (given["stop"],) if isinstance(given["stop"], str) else tuple(given["stop"])
        if "logit_bias" in given:
            given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
        return given


class TextPart(Strict):
    """A piece of a message."""

    type: Literal["text"]
    text: Text


class Message(Strict):
    """One turn of a chat. Fields that are null stand in the answers of OpenAI's clients, which send them back."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(min_length=1, max_length=1024)]
    name: Annotated[str, Field(max_length=1024)] | None = None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None


Messages = Annotated[list[Message], Field(min_length=1, max_length=4096)]


class ChatRequest(Generate):
    """A chat to answer."""

    messages: Messages
    max_completion_tokens: Annotated[int, _like("max_tokens")] | None = None
    logprobs: No | None = None
    top_logprobs: None = None
    response_format: None = None
    tools: None = None
    tool_choice: None = None
    parallel_tool_calls: None = None

    def sampling(self) -> dict[str, Any]:
        given = super().sampling()
        if self.max_completion_tokens is not None:
            given["max_tokens"] = self.max_completion_tokens
        return given


class CompletionRequest(Generate):
    """A text to continue, or several, as text or as token ids."""

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=1024)]
        | Annotated[TokenIds, Field(min_length=1)]
        | Annotated[list[Annotated[TokenIds, Field(min_length=1)]], Field(min_length=1, max_length=1024)]
    )
    echo: No | None = None
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    logprobs: None = None
    suffix: None = None

    def prompts(self) -> list[str | list[int]]:
        """Returns the prompts one by one."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [item for item in self.prompt if not isinstance(item, int)]


class TokenizeRequest(Strict):
    """A raw prompt, or a chat to put through the model's template."""

    model: ModelName | None = None
    prompt: Text | None = None
    messages: Messages | None = None


class DetokenizeRequest(Strict):
    """Token ids to turn into text."""

    model: ModelName | None = None
    tokens: Annotated[TokenIds, Field(max_length=2**20)]


FIELDS = frozenset().union(
    *(
        model.model_fields
        for model in (
            ChatRequest,
            CompletionRequest,
            TokenizeRequest,
            DetokenizeRequest,
            Message,
            TextPart,
            StreamOptions,
            Watching,
        )
    )
)
