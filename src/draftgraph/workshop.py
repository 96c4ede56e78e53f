"""From settings to engines: opens a target and its draft models once, and puts engines together over them.

In: a model argument and settings. Out: engines. It knows every part of an engine and runs none.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from draftgraph.config import AUTO, MAX_BUDGET, DraftConfig, EngineConfig
from draftgraph.data import read_text
from draftgraph.draft.base import Drafter, Growth
from draftgraph.draft.model import PREFILL_CHUNK
from draftgraph.draft.own import among_ours
from draftgraph.draft.table import OFF, DraftSetup, build_drafter
from draftgraph.draft.translated import Translation
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Vocabulary
from draftgraph.errors import ParameterError, VocabularyMismatchError
from draftgraph.models.catalog import CATALOG, Progress, ignore_progress, resolve
from draftgraph.models.loader import Model, ModelFiles, count_words, load_model, open_files, read_words
from draftgraph.models.translation import TokenTranslation
from draftgraph.plan.cost import PassCost
from draftgraph.plan.growth import ModelGrowth
from draftgraph.plan.measure import cost_table
from draftgraph.plan.planner import AutoPlanner, FixedPlanner, Planner
from draftgraph.runner.base import Runner
from draftgraph.runner.choose import cost_file, frequent_head, is_heavy, open_runner
from draftgraph.runner.paged import PagedRunner
from draftgraph.verify.accept import RULES
from draftgraph.verify.grammar import Grammars

_DEFAULT_CONTEXT = 4096
_BUDGET_OF_RESIDUAL = 3


class Workshop:
    """One loaded target, from which any number of engines are made. Each file is loaded once; each engine learns alone.

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
            words = pool.submit(read_words, files, config.chat_template)
            vocab_size = count_words(files) or words.result().tokenizer.size
            self.runner = open_runner(files, vocab_size, config, self.context, most)
            self.target = words.result()
        self.name = str(model) if str(model) in CATALOG else self.target.name
        self.drafts: dict[str, tuple[PagedRunner, Model]] = {}  # draft models opened so far, by argument

    def engine(self, draft: DraftConfig, drafter: Drafter | None = None, planner: Planner | None = None) -> Engine:
        """Returns an engine with these draft settings, which have passed `check_draft`; a drafter or a planner that is
        given takes the place of theirs. Like ours, a drafter is asked where it pays."""
        target, config = self.target, self.config
        planner = planner or _planner(target, self.runner, draft, config)
        if drafter is None:
            drafters = build_drafter(_setup(self, draft, planner))
        else:
            drafters = among_ours(drafter, planner if isinstance(planner, AutoPlanner) else None)
        tokenizer = target.tokenizer
        encode = functools.partial(tokenizer.encode, special=False)
        grammars = Grammars(tokenizer.size, target.end_ids, tokenizer.token_bytes, encode)
        return Engine(
            self.runner,
            drafters,
            RULES[config.acceptance],
            Vocabulary(tokenizer.size, frozenset(target.end_ids), tokenizer.token_bytes, grammars.constrain),
            planner=planner,
            merge_length=draft.merge,
            prefill_chunk=config.prefill_chunk,
        )

    def pass_cost(self, argument: str | None = None) -> PassCost:
        """Returns what a pass of the target, or of the draft model `argument`, was measured to cost on this machine."""
        runner, model = (self.runner, self.target) if argument is None else self.drafts[argument]
        return PassCost(cost_table(runner, cost_file(model, self.config, runner.weight_bytes)))


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


def most_drafts(config: DraftConfig) -> int:
    """Returns how many drafts the budget allows in one tree."""
    return config.budget if isinstance(config.budget, int) else MAX_BUDGET


def _planner(target: Model, runner: PagedRunner, draft: DraftConfig, engine: EngineConfig) -> Planner:
    """Returns the planner that the budget asks for.

    Under `residual` a text depends on how much was drafted, which must not depend on the clock.
    """
    if draft.budget != AUTO or draft.draft.strip() == OFF:
        return FixedPlanner()
    if engine.acceptance == "residual":
        return FixedPlanner(_BUDGET_OF_RESIDUAL)
    return AutoPlanner(PassCost(cost_table(runner, cost_file(target, engine, runner.weight_bytes))))


def _setup(shop: Workshop, draft: DraftConfig, planner: Planner) -> DraftSetup:
    target, engine = shop.target, shop.config

    def open_model(argument: str) -> Runner:
        if argument not in shop.drafts:
            shop.drafts[argument] = _open_draft(shop, argument)
        return shop.drafts[argument][0]

    def translation(argument: str) -> Translation | None:
        tokenizer = shop.drafts[argument][1].tokenizer
        same = target.tokenizer.first_difference(tokenizer) is None
        return None if same else TokenTranslation(tokenizer, target.tokenizer)

    corpus = _corpus(target, draft.corpus)
    if not isinstance(planner, AutoPlanner):
        return DraftSetup(draft, engine.acceptance, corpus, open_model, translation)

    def growth(source: str, argument: str) -> Growth:
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
    only_drafts = model is not shop.target
    reduced = frequent_head(model) if only_drafts else None
    coarse = only_drafts and is_heavy(model, shop.runner.weight_bytes)
    most = PREFILL_CHUNK + MAX_BUDGET + ModelGrowth.most_guesses + 1
    return open_runner(model, model.tokenizer.size, shop.config, longest, most, reduced=reduced, coarse=coarse), model


def _corpus(model: Model, file: str | None) -> list[int]:
    return [] if file is None else model.tokenizer.encode(read_text(Path(file)), special=False)
