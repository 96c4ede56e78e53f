"""The table of drafters: from `--draft ngram,suffix,model:PATH` to one drafter.

Adding a drafter is one file and one line in `DRAFTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftgraph.config import DraftConfig
from draftgraph.draft.base import Advice, EngineDrafter, Growth, NoDrafter
from draftgraph.draft.grammar import GrammarDrafter
from draftgraph.draft.mixture import MixtureDrafter
from draftgraph.draft.model import NAME as MODEL_NAME
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.ranking import coupled, drawn
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.draft.translated import TranslatedDrafter, Translation
from draftgraph.errors import ParameterError
from draftgraph.runner.base import Runner

OFF = "off"


@dataclass(frozen=True, slots=True)
class DraftSetup:
    """What a drafter may be built from.

    Args:
        config: the settings.
        acceptance: the acceptance rule that drafts are made for, "match" or "residual".
        corpus: token ids of the corpus file; empty without one.
        open_model: opens a model argument as a runner.
        translation: model argument, once opened -> how its vocabulary translates to the target's; None: it is the same.
        advice: which sources to ask; None asks all.
        growth: (source, its model argument) -> how far it grows its graphs; None: to the budget.
    """

    config: DraftConfig
    acceptance: str
    corpus: Sequence[int]
    open_model: Callable[[str], Runner]
    translation: Callable[[str], Translation | None] = lambda argument: None
    advice: Advice | None = None
    growth: Callable[[str, str], Growth] | None = None

    @property
    def keep_requests(self) -> bool:
        return self.config.memory == "process"


def _model(setup: DraftSetup, source: str, argument: str) -> EngineDrafter:
    ranking = {"match": coupled, "residual": drawn}[setup.acceptance]
    runner = setup.open_model(argument)
    growth = setup.growth(source, argument) if setup.growth else None
    translation = setup.translation(argument)
    width, depth = setup.config.width, setup.config.depth
    if translation is None:
        return ModelDrafter(runner, width, depth, ranking, growth, source)
    return TranslatedDrafter(runner, translation, width, depth, growth, source)


# name -> how to build it from the setup, the name under which it proposes, and what stands after "name:". Cheap first.
DRAFTERS: Mapping[str, Callable[[DraftSetup, str, str], EngineDrafter]] = {
    "grammar": lambda setup, *_: GrammarDrafter(setup.config.depth),
    "ngram": lambda setup, *_: NgramDrafter(setup.config.depth),
    "suffix": lambda setup, *_: SuffixDrafter(setup.config.depth, setup.corpus, setup.keep_requests),
    "recycle": lambda setup, *_: RecycleDrafter(setup.config.depth, setup.keep_requests),
    MODEL_NAME: _model,
}


def build_drafter(setup: DraftSetup) -> EngineDrafter:
    """Returns the drafter that the settings name; they have passed `check_draft`."""
    names = _names(setup.config.draft)
    if names == [OFF]:
        return NoDrafter()
    members = {}
    for source, item in named_sources(setup.config.draft).items():
        name, _, argument = item.partition(":")
        members[source] = DRAFTERS[name](setup, source, argument)
    return MixtureDrafter(members, setup.advice)


def named_sources(draft: str) -> dict[str, str]:
    """Returns the sources of `--draft`, the name under which each proposes -> its item; cheap ones first."""
    pairs = [item.partition(":") for item in _names(draft) if item != OFF]
    only = sum(name == MODEL_NAME for name, _, _ in pairs) == 1
    sources: dict[str, str] = {}
    for name, colon, argument in sorted(pairs, key=lambda parts: list(DRAFTERS).index(parts[0])):
        source = name if only or not argument else name + colon + Path(argument).stem
        source = name + colon + argument if source in sources else source
        sources[source] = name + colon + argument
    return sources


def check_draft(draft: str, acceptance: str) -> None:
    """Checks the names of drafters, before anything is loaded.

    Raises:
        ParameterError: an unknown name, an argument too many or too few, or two drawing drafters under `residual`.
    """
    names = _names(draft)
    if names == [OFF]:
        return
    allowed = ", ".join("model:MODEL" if name == MODEL_NAME else name for name in DRAFTERS) + f", or {OFF} alone"
    for item in names:
        name, _, argument = item.partition(":")
        if name not in DRAFTERS or (name == MODEL_NAME) != bool(argument):
            raise ParameterError(f"drafter {item!r}", allowed, "change --draft")
    if len(set(names)) < len(names):
        raise ParameterError(f"--draft {','.join(names)}", "each drafter once", "remove the repeated one")
    if acceptance == "residual" and sum(item.startswith(f"{MODEL_NAME}:") for item in names) > 1:
        raise ParameterError(
            "several draft models with --acceptance residual",
            "one draft model, whose draws can be accounted for",
            "keep one, or use --acceptance match",
        )


def _names(draft: str) -> list[str]:
    return [name.strip() for name in draft.split(",")]
