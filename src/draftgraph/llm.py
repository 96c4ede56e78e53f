"""The offline API: load a model, generate text.

    import draftgraph as dg

    with dg.load("smollm2-135m") as llm:
        print(llm.generate([{"role": "user", "content": "Why is the sky blue?"}]).text)

In: model arguments, prompts, parameters. Out: typed results. It wires models, runner, drafter and engine together; it
never sees tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from draftgraph.config import DraftConfig, EngineConfig, SamplingParams, from_options
from draftgraph.draft.base import Drafter
from draftgraph.draft.table import check_draft
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Request, State
from draftgraph.engine.stats import RequestStats
from draftgraph.errors import ClosedError, DraftGraphError, ParameterError, PromptError
from draftgraph.extension import core
from draftgraph.models.catalog import Progress, ignore_progress
from draftgraph.models.loader import Model
from draftgraph.plan.planner import Planner
from draftgraph.runner.paged import PagedRunner
from draftgraph.types import Delta, FinishReason, TokenLogprobs
from draftgraph.workshop import Workshop, most_drafts

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[Message]  # a text to continue as it is, or the messages of a chat
_PROMPTS = "a string, a list of messages, or a list of these"


@dataclass(frozen=True, slots=True)
class Completion:
    """What one prompt became.

    Args:
        text: the text, without end tokens and without a stop string.
        token_ids: the ids written, up to and including the one that ended the request.
        sources: [len(token_ids)] who proposed each token: drafter names, or ("target",).
        prompt_tokens: length of the prompt in tokens.
        seed: the seed that repeats this text.
        stats: what it cost and what drafting brought.
        logprobs: [len(token_ids)] how likely the model alone found each token; None unless `logprobs` was asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[tuple[str, ...], ...]
    prompt_tokens: int
    finish_reason: FinishReason
    seed: int
    stats: RequestStats
    logprobs: tuple[TokenLogprobs, ...] | None = None

    @property
    def completion_tokens(self) -> int:
        return len(self.token_ids)

    def to_json(self) -> dict[str, Any]:
        """Returns the published form; `logprobs` is in it where it was asked for."""
        form = {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "finish_reason": str(self.finish_reason),
            "seed": self.seed,
            "stats": self.stats.to_json(),
        }
        return form if self.logprobs is None else form | {"logprobs": [_logprobs_json(one) for one in self.logprobs]}


class LLM:
    """A loaded model with its engine. One thread uses it at a time; close it, or use it as a context manager."""

    def __init__(self, model: Model, runner: PagedRunner, engine: Engine, budget: int, name: str = "") -> None:
        self.name = name or model.name
        self.budget = budget
        self._loaded: tuple[Model, PagedRunner, Engine] | None = (model, runner, engine)

    @property
    def model(self) -> Model:
        return self._open[0]

    @property
    def runner(self) -> PagedRunner:
        return self._open[1]

    @property
    def engine(self) -> Engine:
        return self._open[2]

    @property
    def _open(self) -> tuple[Model, PagedRunner, Engine]:
        if self._loaded is None:
            raise ClosedError("a model that was closed", "a model that is open", "load it again")
        return self._loaded

    @property
    def is_closed(self) -> bool:
        return self._loaded is None

    def generate(self, prompts: Prompt | Sequence[Prompt], *, budget: int | str | None = None, **sampling: Any) -> Any:
        """Writes the continuation of one prompt, or of several together.

        A string is continued as it is; a list of messages is put through the model's chat template. Several prompts
        share the engine's steps, and each text is what it would be alone.

        Args:
            prompts: one prompt, or a list of strings or of message lists.
            budget: most drafts checked in one target pass; the default is the model's. 0 is plain decoding, "auto" no
                limit but what pays.
            sampling: fields of `SamplingParams`; `json_schema` may also be a dict.

        Returns:
            A `Completion`, or a list of them if a list of prompts was given.

        Raises:
            ParameterError, PromptError, ChatTemplateError: see their messages; nothing was generated.
        """
        several = is_several(prompts)
        streams = self._submit(cast(Sequence[Prompt], prompts if several else [prompts]), budget, sampling)
        try:
            completions = [stream.finish() for stream in streams]
        finally:
            for stream in streams:
                stream.close()
        return completions if several else completions[0]

    def stream(self, prompt: Prompt, *, budget: int | str | None = None, **sampling: Any) -> Stream:
        """Returns an iterator over what each step adds to one prompt's continuation; arguments as for `generate`.

        Several streams may be read in turns; their requests share the engine's steps.
        """
        return self._submit([prompt], budget, sampling)[0]

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Returns the token ids of a prompt.

        Raises:
            PromptError, ChatTemplateError: the prompt is of an unknown form, or no chat template takes it.
        """
        tokenizer = self.model.tokenizer
        return tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else tokenizer.encode_messages(prompt)

    def close(self) -> None:
        """Frees the weights and the cache, draft models' too. Further use raises ClosedError, also of its streams."""
        if self._loaded is not None:
            self._loaded = None
            if core is not None:
                core.release_memory()

    def __enter__(self) -> LLM:
        self._open  # noqa: B018  it is refused here rather than at the first use
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, prompts: Sequence[Prompt], budget: int | str | None, sampling: Mapping[str, Any]) -> list[Stream]:
        options = dict(sampling)
        if isinstance(options.get("stop"), (str, list)):
            stop = options["stop"]
            options["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
        if isinstance(options.get("json_schema"), dict):
            options["json_schema"] = _schema_text(options["json_schema"])
        (params,) = from_options(options, SamplingParams)
        most = self.budget if budget is None else most_drafts(DraftConfig(budget=budget))
        encoded = [self.prompt_ids(prompt) for prompt in prompts]
        in_chat = params.ending_at(self.model.tokenizer.chat_stop)
        ends = [params if isinstance(prompt, str) else in_chat for prompt in prompts]
        streams: list[Stream] = []
        try:
            for ids, ending in zip(encoded, ends, strict=True):
                streams.append(Stream(self, self.engine.submit(ids, ending, most)))
        except DraftGraphError:
            for stream in streams:
                stream.close()
            raise
        return streams


class Stream(Iterator[Delta]):
    """One request's deltas, as they are written. Closing it cancels what is left of the request; dropping it does so
    before the next step."""

    def __init__(self, llm: LLM, request: Request) -> None:
        self.request = request
        self._llm = llm

    def __next__(self) -> Delta:
        while not self.request.deltas:
            if self.request.state is State.FINISHED:
                raise StopIteration
            self._llm.engine.step()
        return self.request.deltas.popleft()

    def finish(self) -> Completion:
        """Returns the result, after running to the end of the request."""
        for _ in self:
            pass
        request = self.request
        assert request.finish_reason is not None, "a finished request has a reason"
        return Completion(
            request.text,
            tuple(request.output),
            tuple(request.sources),
            request.num_prompt,
            request.finish_reason,
            request.seed,
            request.stats,
            None if request.logprobs is None else tuple(request.logprobs),
        )

    def close(self) -> None:
        """Cancels the request unless it is finished."""
        if not self._llm.is_closed:
            self._llm.engine.cancel(self.request)

    def __del__(self) -> None:
        if not self._llm.is_closed:
            self._llm.engine.abandon(self.request)


def load(
    model: str | Path, *, drafter: Drafter | None = None, progress: Progress = ignore_progress, **options: Any
) -> LLM:
    """Loads a model.

    Args:
        model: a catalogue name, a .gguf file, a folder with config.json and safetensors, or a Hub name
            `owner/name[:file]`.
        drafter: a drafter of your own, instead of those that `draft=` names: `propose` and `observe` of
            `draftgraph.draft.base.Drafter`; its attribute `name`, if it has one, names its drafts. With the budget
            "auto" it is asked where that pays. It is put aside, with a warning, if it raises or returns no graphs.
        progress: told how far the download is, if there is one.
        options: fields of `DraftConfig` and `EngineConfig`.

    Raises:
        DraftGraphError: a subclass says what was given, what is allowed and what to do.
    """
    draft_config, engine_config = from_options(options, DraftConfig, EngineConfig)
    if drafter is not None and "draft" in options:
        raise ParameterError("both drafter= and draft=", "one of them", "remove one")
    check_draft(draft_config.draft, engine_config.acceptance)
    return llm_of(Workshop(model, engine_config, progress), draft_config, drafter)


def llm_of(shop: Workshop, draft: DraftConfig, drafter: Drafter | None = None, planner: Planner | None = None) -> LLM:
    """Returns an LLM over an opened target; arguments as for `Workshop.engine`."""
    return LLM(shop.target, shop.runner, shop.engine(draft, drafter, planner), most_drafts(draft), shop.name)


def is_several(prompts: Any) -> bool:
    """Whether `prompts` is a list of prompts rather than one.

    Raises:
        PromptError: it is neither.
    """
    if isinstance(prompts, str):
        return False
    if isinstance(prompts, bytes) or not isinstance(prompts, Sequence) or not prompts:
        raise PromptError(repr(prompts)[:80], _PROMPTS, "pass one of them")
    if any(isinstance(item, int) for item in prompts):
        raise PromptError(f"{repr(prompts)[:80]}, token ids", _PROMPTS, "pass the text that they stand for")
    return not all(isinstance(item, Mapping) for item in prompts)


def _schema_text(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError(f"json_schema={schema!r:.80}: {error}", "a JSON schema", "use what JSON has") from error


def _logprobs_json(one: TokenLogprobs) -> dict[str, Any]:
    top = [{"token_id": token, "logprob": logprob} for token, logprob in one.top]
    return {"token_id": one.token, "logprob": one.logprob, "top": top}
