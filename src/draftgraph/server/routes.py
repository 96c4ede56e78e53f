"""The endpoints: what each path takes, does and answers.

In: checked requests. Out: answers. It encodes, submits and formats; it never sees the engine, let alone tensors.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from draftgraph.config import SamplingParams, ServerConfig, from_options
from draftgraph.engine.stats import total_json
from draftgraph.models.tokenizer import Tokenizer
from draftgraph.server.body import strict_route
from draftgraph.server.engine_thread import EngineThread, Places
from draftgraph.server.errors import ApiError, JsonResponse, long_json
from draftgraph.server.formats import ChatFormat, Format, Head, TextFormat
from draftgraph.server.generation import ClientGone, Generation, Order, open_generation, time_limit, unless_gone
from draftgraph.server.metrics import Metrics
from draftgraph.server.prompts import encode
from draftgraph.server.replies import (
    ChatReply,
    Detokenized,
    ErrorReply,
    Health,
    ModelCard,
    ModelList,
    Reply,
    TextReply,
    Tokens,
    Usage,
)
from draftgraph.server.schema import (
    FIELDS,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Generate,
    TokenizeRequest,
)
from draftgraph.server.security import cache_salt
from draftgraph.server.stream import EventStream
from draftgraph.server.tools import Abilities, Plan, check_history, plan
from draftgraph.server.watching import watching

Encoded: TypeAlias = Callable[[], Sequence[int]]  # a prompt's ids
_CLIENT_GONE = 499  # for the metrics; nobody receives it


@dataclass(frozen=True, slots=True)
class Service:
    """What the endpoints work with. Per server.

    Args:
        defaults: the sampling parameters that a request need not give, by name.
        budget: most drafts in one tree, unless a request wants none.
        created: when the server started, in seconds since 1970.
    """

    model: str
    tokenizer: Tokenizer
    abilities: Abilities
    context_length: int
    budget: int
    fingerprint: str
    engine: EngineThread
    metrics: Metrics
    config: ServerConfig
    defaults: dict[str, Any]
    created: int


class Endpoints:
    """The handlers, one method per endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def chat(self, body: ChatRequest, http: Request) -> Response:
        """Answer a chat."""
        service = self._service
        planned = replace(plan(body, service.abilities), stop=service.tokenizer.chat_stop)
        check_history(body.messages, service.abilities, planned.tools)
        encoded = partial(encode, service.tokenizer, body.messages, tools=planned.tools, note=planned.note)
        return await self._generate(http, body, [encoded], ChatFormat(service.tokenizer, planned.tagged), planned)

    async def complete(self, body: CompletionRequest, http: Request) -> Response:
        """Continue a text, or several."""
        tokenizer = self._service.tokenizer
        encoded = [partial(encode, tokenizer, prompt) for prompt in body.prompts()]
        return await self._generate(http, body, encoded, TextFormat(tokenizer), Plan({}))

    async def models(self) -> ModelList:
        """List the one model."""
        return ModelList(data=[self._card()])

    async def model(self, model: str) -> ModelCard:
        """Describe the model."""
        self._check_model(model)
        return self._card()

    async def tokenize(self, body: TokenizeRequest) -> Response:
        """Turn a raw prompt, or a chat, into token ids."""
        self._check_model(body.model)
        prompt = body.messages if body.prompt is None else body.prompt
        if prompt is None or (body.prompt is not None and body.messages is not None):
            raise ApiError(400, "give either prompt or messages", param="prompt")
        if body.messages is not None:
            check_history(body.messages, self._service.abilities)
        tokenizer, longest = self._service.tokenizer, self._service.context_length

        def answer() -> Response:
            ids = list(encode(tokenizer, prompt))
            return long_json({"tokens": ids, "count": len(ids), "max_model_len": longest})

        return await asyncio.to_thread(answer)

    async def detokenize(self, body: DetokenizeRequest) -> Response:
        """Turn token ids into text."""
        self._check_model(body.model)
        tokenizer = self._service.tokenizer
        return await asyncio.to_thread(lambda: long_json({"prompt": tokenizer.decode(body.tokens)}))

    async def health(self) -> Health:
        """Say whether requests are taken."""
        if not self._service.engine.is_up:
            raise ApiError(503, "the server is stopping", code="stopping")
        return Health()

    async def metrics(self) -> Response:
        """Report all counts, for Prometheus."""
        return Response(self._service.metrics.to_text(), headers={"content-type": Metrics.content_type})

    async def _generate(
        self, http: Request, body: Generate, prompts: Sequence[Encoded], form: Format, planned: Plan
    ) -> Response:
        num_choices = self._check(body, len(prompts))
        # NOTE: before this waits for anything. Of many requests that come at once, the gate then refuses the excess.
        with self._service.engine.reserve(num_choices) as places:
            try:
                salt = cache_salt(http.scope, body.cache_salt or "")
                return await unless_gone(http.receive, self._answer(body, places, prompts, form, planned, salt))
            except ClientGone:
                return Response(status_code=_CLIENT_GONE)

    async def _answer(
        self, body: Generate, places: Places, prompts: Sequence[Encoded], form: Format, planned: Plan, salt: bytes
    ) -> Response:
        """Returns the answer, or one that streams it: errors known before the first token are plain ones."""
        service = self._service
        given = {**service.defaults, **body.sampling(), **planned.sampling}
        deadline = asyncio.get_running_loop().time() + service.config.time_limit

        def prepare() -> Order:
            ids = [encoded() for encoded in prompts]
            watch = watching(body.draftgraph, service.tokenizer, service.model)
            return Order(ids, params, body.n or 1, 0 if body.draft == "off" else service.budget, watch, salt)

        with planned.blamed():
            (params,) = from_options(given, SamplingParams)
            params = params.ending_at(planned.stop)
            async with time_limit(deadline):
                generation = await open_generation(service.engine, places, prepare)
        head = Head(f"{form.prefix}{uuid.uuid4().hex}", int(time.time()), service.model, service.fingerprint)
        if body.stream:
            wants_usage = body.stream_options is not None and body.stream_options.include_usage
            return EventStream(generation, form, head, partial(usage_of, generation) if wants_usage else None, deadline)
        try:
            async with time_limit(deadline):
                written = await generation.finish()
        finally:
            generation.cancel()
        usage = usage_of(generation)
        return await asyncio.to_thread(lambda: long_json(form.reply(head, written, usage)))

    def _check(self, body: Generate, num_prompts: int) -> int:
        """Returns how many texts a request asks for, or raises ApiError."""
        self._check_model(body.model)
        for name in ("stream_options", "draftgraph"):
            if getattr(body, name) is not None and not body.stream:
                raise ApiError(400, f"{name}: only with stream", param=name)
        num_choices = num_prompts * (body.n or 1)
        most = min(self._service.config.max_choices, self._service.engine.capacity)
        if num_choices > most:
            raise ApiError(400, f"n: {num_choices} texts; allowed: at most {most} in one request", param="n")
        return num_choices

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._service.model:
            message = f"no model {name[:80]!r}; this server has {self._service.model!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def _card(self) -> ModelCard:
        service = self._service
        return ModelCard(id=service.model, created=service.created, context_length=service.context_length)


def usage_of(generation: Generation) -> Usage:
    """Returns what a generation cost whose choices have all ended."""
    written = [generation.written(index) for index in range(len(generation))]
    num_written = sum(text.num_tokens for text in written)
    return Usage(
        prompt_tokens=generation.num_prompt_tokens,
        completion_tokens=num_written,
        total_tokens=generation.num_prompt_tokens + num_written,
        draft=total_json([text.stats for text in written]),
    )


def build_router(service: Service) -> APIRouter:
    """Returns the router of all endpoints."""
    endpoints = Endpoints(service)
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorReply} for status in (400, 401, 403, 404, 405, 408, 413, 429, 500, 503, 504)
    }
    route = strict_route(service.config.max_body, service.config.body_seconds, FIELDS)
    router = APIRouter(route_class=route, default_response_class=JsonResponse, responses=errors)

    def generated(reply: type[Reply]) -> dict[int | str, dict[str, Any]]:
        # The schema of one event. Its data is a chunk in JSON, or [DONE].
        event = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
        streamed = {"text/event-stream": {"schema": event}}
        return {200: {"model": reply, "content": streamed}}

    add = router.add_api_route
    add("/v1/chat/completions", endpoints.chat, methods=["POST"], response_model=None, responses=generated(ChatReply))
    add("/v1/completions", endpoints.complete, methods=["POST"], response_model=None, responses=generated(TextReply))
    add("/v1/models", endpoints.models, methods=["GET"])
    add("/v1/models/{model:path}", endpoints.model, methods=["GET"])
    add("/tokenize", endpoints.tokenize, methods=["POST"], response_model=Tokens)
    add("/detokenize", endpoints.detokenize, methods=["POST"], response_model=Detokenized)
    add("/health", endpoints.health, methods=["GET"])
    add("/metrics", endpoints.metrics, methods=["GET"], response_class=PlainTextResponse)
    return router
