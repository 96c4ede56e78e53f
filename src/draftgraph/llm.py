"""The offline API: load a model, generate text.

    import draftgraph as dg

    with dg.load("smollm2-135m") as llm:
        print(llm.generate([{"role": "user", "content": "Why is the sky blue?"}]).text)

In: model arguments, prompts, parameters. Out: typed results. It wires models, runner, drafter and engine together; it
never sees tensors.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from draftgraph.config import AUTO, MAX_BUDGET, DraftConfig, EngineConfig, SamplingParams, from_options
from draftgraph.data import read_text
from draftgraph.draft.base import Drafter, Growth
from draftgraph.draft.table import OFF, DraftSetup, build_drafter, check_draft
from draftgraph.draft.translated import Translation
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Request, State, Vocabulary
from draftgraph.engine.stats import RequestStats
from draftgraph.errors import ClosedError, ParameterError, PromptError, VocabularyMismatchError
from draftgraph.models.catalog import CATALOG, Progress, ignore_progress, resolve
from draftgraph.models.loader import Model, ModelFiles, count_words, load_model, open_files, read_words
from draftgraph.models.translation import TokenTranslation
from draftgraph.plan.cost import PassCost
from draftgraph.plan.growth import ModelGrowth
from draftgraph.plan.measure import cost_table
from draftgraph.plan.planner import AutoPlanner, FixedPlanner, Planner
from draftgraph.runner.base import Runner
from draftgraph.runner.choose import cost_file, frequent_head, open_runner
from draftgraph.runner.paged import PagedRunner
from draftgraph.types import Delta, FinishReason, TokenLogprobs
from draftgraph.verify.accept import RULES
from draftgraph.verify.grammar import Grammars

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[Message]  # a text to continue as it is, or the messages of a chat

_DEFAULT_CONTEXT = 4096
_DRAFT_CHUNK = 64
_GUESSES = 8  # nodes of a draft model's first pass beyond its graph, the root included
_BUDGET_OF_RESIDUAL = 3


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
        self.model = model
        self.name = name or model.name
        self.runner = runner
        self.budget = budget
        self._engine: Engine | None = engine

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise ClosedError("a model that was closed", "a model that is open", "load it again")
        return self._engine

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
            PromptError, ChatTemplateError: the prompt is of an unknown form, or the model has no chat template.
        """
        tokenizer = self.model.tokenizer
        return tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else tokenizer.encode_messages(prompt)

    def close(self) -> None:
        """Frees the weights and the cache. Further use raises ClosedError."""
        self._engine = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, prompts: Sequence[Prompt], budget: int | str | None, sampling: Mapping[str, Any]) -> list[Stream]:
        options = dict(sampling)
        if isinstance(options.get("stop"), (str, list)):
            stop = options["stop"]
            options["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
        if isinstance(options.get("json_schema"), dict):
            options["json_schema"] = json.dumps(options["json_schema"])
        (params,) = from_options(options, SamplingParams)
        most = self.budget if budget is None else _most_drafts(DraftConfig(budget=budget))
        encoded = [self.prompt_ids(prompt) for prompt in prompts]
        # If one prompt is refused, the streams of those before it are dropped, which cancels them.
        return [Stream(self.engine, self.engine.submit(ids, params, most)) for ids in encoded]


class Stream(Iterator[Delta]):
    """One request's deltas, as they are written. Closing it, or dropping it, cancels what is left of the request."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self.request = request
        self._engine = engine

    def __next__(self) -> Delta:
        while not self.request.deltas:
            if self.request.state is State.FINISHED:
                raise StopIteration
            self._engine.step()
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
        self._engine.cancel(self.request)

    def __del__(self) -> None:
        self.close()


def load(
    model: str | Path, *, drafter: Drafter | None = None, progress: Progress = ignore_progress, **options: Any
) -> LLM:
    """Loads a model.

    Args:
        model: a catalogue name, a .gguf file, a folder with config.json and safetensors, or a Hub name
        `owner/name[:file]`. drafter: a drafter of your own, instead of those that `draft=` names. progress: told how
        far the download is, if there is one. options: fields of `DraftConfig` and `EngineConfig`.

    Raises:
        DraftGraphError: a subclass says what was given, what is allowed and what to do.
    """
    draft_config, engine_config = from_options(options, DraftConfig, EngineConfig)
    if drafter is not None and "draft" in options:
        raise ParameterError("both drafter= and draft=", "one of them", "remove one")
    check_draft(draft_config.draft, engine_config.acceptance)
    return Workshop(model, engine_config, progress).llm(draft_config, drafter)


class Workshop:
    """One loaded target, from which any number of LLMs are made: each model file is loaded once, each LLM learns alone.

    All of them take their requests' slots from one runner, so each can be used while the others have nothing to do.

    Args:
        model, progress: see `load`.
        config: how the target and all draft models run.
    """

    def __init__(self, model: str | Path, config: EngineConfig, progress: Progress = ignore_progress) -> None:
        files = open_files(resolve(str(model), progress=progress))
        self.config = config
        self.context = _context_length(files, config)
        most = config.prefill_chunk + MAX_BUDGET
        with ThreadPoolExecutor(1) as pool:  # the native runner reads its weights without the interpreter's lock
            words = pool.submit(read_words, files)
            vocab_size = count_words(files) or words.result().tokenizer.size
            self.runner = open_runner(files, vocab_size, config, self.context, most)
            self.target = words.result()
        self.name = str(model) if str(model) in CATALOG else self.target.name
        self.drafts: dict[str, tuple[PagedRunner, Model]] = {}  # draft models opened so far, by argument

    def llm(self, draft: DraftConfig, drafter: Drafter | None = None, planner: Planner | None = None) -> LLM:
        """Returns an LLM with these draft settings, which have passed `check_draft`; a drafter or a planner that is
        given takes the place of theirs."""
        target, config = self.target, self.config
        planner = planner or _planner(target, self.runner, draft, config)
        if drafter is None:
            drafter = build_drafter(_setup(self, draft, planner))
        tokenizer = target.tokenizer
        encode = functools.partial(tokenizer.encode, special=False)
        grammars = Grammars(tokenizer.size, target.end_ids, tokenizer.token_bytes, encode)
        engine = Engine(
            self.runner,
            drafter,
            RULES[config.acceptance],
            Vocabulary(tokenizer.size, frozenset(target.end_ids), tokenizer.token_bytes, grammars.constrain),
            planner=planner,
            merge_length=draft.merge,
            prefill_chunk=config.prefill_chunk,
        )
        return LLM(target, self.runner, engine, _most_drafts(draft), self.name)

    def pass_cost(self, argument: str | None = None) -> PassCost:
        """Returns what a pass of the target, or of the draft model `argument`, was measured to cost on this machine."""
        runner, model = (self.runner, self.target) if argument is None else self.drafts[argument]
        return PassCost(cost_table(runner, cost_file(model, self.config, coarse=model is not self.target)))


def is_several(prompts: Any) -> bool:
    """Whether `prompts` is a list of prompts rather than one.

    Raises:
        PromptError: it is neither.
    """
    if isinstance(prompts, str):
        return False
    if not isinstance(prompts, Sequence) or not prompts:
        raise PromptError(repr(prompts)[:80], "a string, a list of messages, or a list of these", "pass one of them")
    return not all(isinstance(item, Mapping) for item in prompts)


def _logprobs_json(one: TokenLogprobs) -> dict[str, Any]:
    top = [{"token_id": token, "logprob": logprob} for token, logprob in one.top]
    return {"token_id": one.token, "logprob": one.logprob, "top": top}


def _context_length(model: ModelFiles, config: EngineConfig) -> int:
    longest = model.config.context_length
    if config.context is None:
        return min(longest, _DEFAULT_CONTEXT, config.kv_tokens or longest)
    if config.context > longest:
        raise ParameterError(f"context={config.context}", f"at most {longest}, the model's own", "lower --context")
    if config.kv_tokens is not None and config.context > config.kv_tokens:
        raise ParameterError(
            f"context={config.context} with kv_tokens={config.kv_tokens}",
            "a context that the key-value cache can hold",
            "lower --context or raise --kv-tokens",
        )
    return config.context


def _most_drafts(config: DraftConfig) -> int:
    return config.budget if isinstance(config.budget, int) else MAX_BUDGET


def _planner(target: Model, runner: Runner, draft: DraftConfig, engine: EngineConfig) -> Planner:
    """Returns the planner that the budget asks for.

    Under `residual` a text depends on how much was drafted, which must not depend on the clock.
    """
    if draft.budget != AUTO or draft.draft.strip() == OFF:
        return FixedPlanner()
    if engine.acceptance == "residual":
        return FixedPlanner(_BUDGET_OF_RESIDUAL)
    return AutoPlanner(PassCost(cost_table(runner, cost_file(target, engine))))


def _setup(shop: Workshop, draft: DraftConfig, planner: Planner) -> DraftSetup:
    target, engine = shop.target, shop.config

    def open_model(argument: str) -> Runner:
        if argument not in shop.drafts:
            shop.drafts[argument] = _open_draft(shop, argument)
        return shop.drafts[argument][0]

    def translation(runner: Runner) -> Translation | None:
        tokenizer = next(model for opened, model in shop.drafts.values() if opened is runner).tokenizer
        same = target.tokenizer.first_difference(tokenizer) is None
        return None if same else TokenTranslation(tokenizer, target.tokenizer)

    corpus = _corpus(target, draft.corpus)
    if not isinstance(planner, AutoPlanner):
        return DraftSetup(draft, engine.acceptance, corpus, open_model, translation)

    def growth(source: str, runner: Runner) -> Growth:
        argument = next(argument for argument, (opened, _) in shop.drafts.items() if opened is runner)
        return ModelGrowth(planner, source, shop.pass_cost(argument), draft.depth)

    return DraftSetup(draft, engine.acceptance, corpus, open_model, translation, planner, growth)


def _open_draft(shop: Workshop, argument: str) -> tuple[PagedRunner, Model]:
    path = resolve(argument)
    model = shop.target if path == shop.target.path else load_model(path)
    difference = shop.target.tokenizer.first_difference(model.tokenizer)
    if difference is not None and shop.config.acceptance == "residual":
        raise VocabularyMismatchError(
            f"draft model {argument} with --acceptance residual: {difference}",
            "a draft model with the target's vocabulary, whose draws can be accounted for",
            "choose one of the same family, or use --acceptance match",
        )
    longest = min(shop.context, model.config.context_length)
    # A model that drafts for itself shows what drafting does, and stays as it is.
    reduced = frequent_head(model) if model is not shop.target else None
    most = _DRAFT_CHUNK + MAX_BUDGET + _GUESSES
    return open_runner(model, model.tokenizer.size, shop.config, longest, most, reduced=reduced), model


def _corpus(model: Model, file: str | None) -> list[int]:
    return [] if file is None else model.tokenizer.encode(read_text(Path(file)), special=False)
