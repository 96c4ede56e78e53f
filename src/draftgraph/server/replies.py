"""What the server answers, in OpenAI's shapes; what is ours alone stands in `usage.draft` and `seed`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Finish = Literal["stop", "length"]


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


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    finish_reason: Finish
    logprobs: None = None
    seed: int = Field(description="The seed that writes this text again.")


class TextChoice(BaseModel):
    index: int
    text: str
    finish_reason: Finish
    logprobs: None = None
    seed: int = Field(description="The seed that writes this text again.")


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
