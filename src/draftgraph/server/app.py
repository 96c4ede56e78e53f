"""The application: endpoints, and around them what every request passes.

In: a loaded model and its settings. Out: an ASGI application. From outside to inside: count, check host and origin,
CORS, check key and room, route.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftgraph.config import ServerConfig
from draftgraph.engine.request import State
from draftgraph.llm import LLM
from draftgraph.server import errors
from draftgraph.server.body import check_framing
from draftgraph.server.engine_thread import EngineThread
from draftgraph.server.metrics import Metrics
from draftgraph.server.playground import build_playground
from draftgraph.server.routes import Service, build_router
from draftgraph.server.schema import REQUESTS
from draftgraph.server.security import Check, Gate, check_host, check_key, check_origin
from draftgraph.server.tools import abilities

_GENERATING = frozenset({"/v1/chat/completions", "/v1/completions"})
_ENCODERS = 2  # threads that turn texts into ids and back: the memory that a long text takes is taken so often at most


def build_app(llm: LLM, config: ServerConfig, keys: Sequence[bytes], defaults: Mapping[str, Any]) -> FastAPI:
    """Returns the application for `llm`, which nobody else uses from its start to its end.

    Args:
        keys: of `read_keys`.
        defaults: sampling parameters of requests that do not give them, by name.
    """
    version = importlib.metadata.version("draftgraph")
    metrics = Metrics()
    engine = EngineThread(llm.engine, llm.runner.num_free_slots + config.queue, metrics)
    _watch(metrics, engine, llm)
    service = Service(
        model=llm.name,
        tokenizer=llm.model.tokenizer,
        abilities=abilities(llm.model.tokenizer),
        context_length=llm.runner.context_length,
        budget=llm.budget,
        fingerprint=f"draftgraph-{version}",
        engine=engine,
        metrics=metrics,
        config=config,
        defaults=dict(defaults),
        created=int(time.time()),
    )
    app = FastAPI(title="DraftGraph", version=version, docs_url=None, redoc_url=None, lifespan=_lifespan(engine))
    app.state.service = service
    app.include_router(build_router(service))
    app.include_router(build_playground())
    _name_model(app.openapi(), llm.name)
    errors.install(app)
    _wrap(app, service, [check_key(keys)] if keys else [], [] if keys else [check_host(config), check_origin(config)])
    return app


def _name_model(document: dict[str, Any], name: str) -> None:
    """Says in the OpenAPI document which model there is."""
    schemas = document["components"]["schemas"]
    for request in REQUESTS:
        schemas[request.__name__]["properties"]["model"] = {
            "enum": [name, None], "title": "Model", "description": "The served model; the default.",
        }  # fmt: skip


def _lifespan(engine: EngineThread) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(_ENCODERS, "encoder"))
        engine.start(loop)
        try:
            yield
        finally:
            await asyncio.to_thread(engine.stop)

    return lifespan


def _wrap(app: FastAPI, service: Service, inner: list[Check], outer: list[Check]) -> None:
    """Adds what every request passes; the last added stands outermost."""

    def check_room(scope: Scope) -> None:
        if scope["method"] == "POST" and scope["path"] in _GENERATING:
            service.engine.check_open()

    app.add_middleware(Gate, checks=[*inner, check_room])
    if service.config.cors_origin:
        # No credentials: keys are sent by the page itself, never by the browser.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.config.cors_origin,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("retry-after",),
        )
    app.add_middleware(Gate, checks=[check_framing, *outer])
    app.add_middleware(_Count, metrics=service.metrics, paths=frozenset(app.openapi()["paths"]))


class _Count:
    """Counts answers by path and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app = app
        self._requests = metrics.requests
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("route")  # set where a path with a parameter in it was found
                path = scope["path"] if scope["path"] in self._paths else getattr(route, "path_format", "other")
                self._requests.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)


def _watch(metrics: Metrics, engine: EngineThread, llm: LLM) -> None:
    runner, scheduler, num_slots = llm.runner, llm.engine.scheduler, llm.runner.num_free_slots
    metrics.gauges(
        {
            "requests_running": ("Texts in a slot.", lambda: engine.count(State.PREFILL, State.DECODE)),
            "requests_waiting": ("Texts that wait for a slot.", lambda: engine.count(State.WAITING)),
            "places": ("Texts that are taken at once, in slots and in the queue.", lambda: engine.capacity),
            "places_taken": ("Texts in the engine or on their way to it.", lambda: engine.num_reserved),
            "slots": ("Texts that can advance together.", lambda: num_slots),
            "slots_free": ("Slots that nobody holds.", lambda: runner.num_free_slots),
            "kv_blocks": ("Blocks of the key-value cache.", lambda: runner.blocks.total),
            "kv_blocks_used": ("Blocks that texts hold.", lambda: runner.blocks.used),
            "kv_blocks_cached": ("Blocks kept for prompts to come.", lambda: runner.blocks.cached),
            "preemptions": ("Times a text gave up its slot for others.", lambda: scheduler.load().preemptions),
            "reused_tokens": ("Tokens found in memory, not read.", lambda: scheduler.load().reused_tokens),
        }
    )
