"""What the server answers, in OpenAI's shapes; what is ours alone stands in `usage.draft`, `seed` and
`finish_detail`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Finish = Literal["stop", "length", "tool_calls"]


class Usage(BaseModel):
    """What a request cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    draft: dict[str, Any] = Field(description="What drafting brought, over all choices; times are the slowest's.")


class ErrorDetail(BaseModel):
    """Why there is no answer."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """Every answer with a status of 400 or more."""

    error: ErrorDetail


class CalledFunction(BaseModel):
    name: str
    arguments: str = Field(description="A JSON object, as text.")


class ToolCall(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | None = None


class TokenLogprob(BaseModel):
    """A token; `bytes` is null where it has no text."""

    token: str
    logprob: float
    bytes: list[int] | None


class WrittenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    content: list[WrittenLogprob]
    refusal: None = None


class TextLogprobs(BaseModel):
    """By token: `text_offset` counts characters of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Choice(BaseModel):
    index: int
    finish_reason: Finish
    finish_detail: Literal["grammar"] | None = Field(description="Why a text was cut that reached no limit of length.")
    seed: int = Field(description="The seed that writes this text again.")


class ChatChoice(Choice):
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None


class TextChoice(Choice):
    text: str
    logprobs: TextLogprobs | None = None


class Reply(BaseModel):
    """What all answers that were generated have in common."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage


class ChatReply(Reply):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class TextReply(Reply):
    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["draftgraph"] = "draftgraph"
    context_length: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokens(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(BaseModel):
    prompt: str


class Health(BaseModel):
    status: Literal["ok"] = "ok"
