"""What clients may send: one model per endpoint, every field that is not in it is refused by name.

In: JSON values. Out: checked requests. Ranges and help come from `SamplingParams`, so both are written once. A field
that is null counts as not given, as OpenAI's clients send it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from draftgraph.server.errors import ApiError
from draftgraph.server.fields import SETTINGS, No, Strict, Text, TokenIds, entries, items, like
from draftgraph.server.messages import MODELS, ChosenTool, Messages, ResponseFormat, Tools

StopText = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
TokenKey = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,8})$")]
Bias = Annotated[float, Field(ge=SETTINGS["logit_bias"]["low"], le=SETTINGS["logit_bias"]["high"])]
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
    max_tokens: Annotated[int, like("max_tokens")] | None = None
    temperature: Annotated[float, like("temperature")] | None = None
    top_k: Annotated[int, like("top_k")] | None = None
    top_p: Annotated[float, like("top_p")] | None = None
    min_p: Annotated[float, like("min_p")] | None = None
    repetition_penalty: Annotated[float, like("repetition_penalty")] | None = None
    presence_penalty: Annotated[float, like("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, like("frequency_penalty")] | None = None
    logit_bias: Annotated[dict[TokenKey, Bias], entries(1024), Field(max_length=1024)] | None = None
    seed: Annotated[int, like("seed")] | None = None
    stop: StopText | Annotated[list[StopText], items(max_length=16)] | None = None
    ignore_eos: bool | None = Field(None, description=SETTINGS["ignore_eos"]["help"])
    n: Annotated[int, Field(ge=1, le=1024, description="Texts to write; text i draws with seed + i.")] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="Only with stream.")
    user: Annotated[str, Field(max_length=1024, description="Has no effect.")] | None = None
    cache_salt: Annotated[str, Field(max_length=1024)] | None = Field(
        None, description="Reuse the start of a prompt only where it was read with the same salt."
    )
    draft: Literal["off"] | None = Field(None, description="'off' decodes this request plainly: the same text.")
    draftgraph: Watching | None = Field(None, description="What else to say in a stream. Only with stream.")
    # Fields that ask for what is done anyway, or for something that is not implemented.
    service_tier: Literal["auto", "default"] | None = None
    store: No | None = None

    def sampling(self) -> dict[str, Any]:
        """Returns the sampling parameters that were given, by name."""
        names = SETTINGS.keys() & type(self).model_fields.keys()
        given = {name: value for name in sorted(names) if (value := getattr(self, name)) is not None}
        if "stop" in given:
            given["stop"] = (given["stop"],) if isinstance(given["stop"], str) else tuple(given["stop"])
        if "logit_bias" in given:
            given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
        return given


class ChatRequest(Generate):
    """A chat to answer."""

    messages: Messages
    max_completion_tokens: Annotated[int, like("max_tokens")] | None = None
    logprobs: bool | None = Field(None, description="Report each token's log-probability.")
    top_logprobs: Annotated[int, like("logprobs")] | None = Field(None, description="Only with logprobs.")
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = Field(None, description="Only with tools.")
    parallel_tool_calls: bool | None = Field(None, description="Only with tools.")

    def sampling(self) -> dict[str, Any]:
        given = super().sampling()
        if self.max_completion_tokens is not None:
            given["max_tokens"] = self.max_completion_tokens
        given.pop("logprobs", None)
        if self.logprobs:
            given["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs is not None:
            raise ApiError(400, "top_logprobs: only with logprobs", param="top_logprobs")
        return given


class CompletionRequest(Generate):
    """A text to continue, or several, as text or as token ids."""

    prompt: (
        Text
        | Annotated[list[Text], items(min_length=1, max_length=1024)]
        | Annotated[TokenIds, items(min_length=1)]
        | Annotated[list[Annotated[TokenIds, items(min_length=1)]], items(min_length=1, max_length=1024)]
    )
    echo: No | None = None
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    logprobs: Annotated[int, like("logprobs")] | None = None
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
    tokens: Annotated[TokenIds, items(max_length=2**20)]


REQUESTS = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
FIELDS = frozenset(
    field.alias or name
    for model in (*REQUESTS, StreamOptions, Watching, *MODELS)
    for name, field in model.model_fields.items()
)
