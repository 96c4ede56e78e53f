"""Several drafters at once, and the table that makes them from `--draft`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from draftgraph.config import DraftConfig
from draftgraph.draft.base import Drafter, NoDrafter, root_graph
from draftgraph.draft.grammar import GrammarDrafter
from draftgraph.draft.mixture import MixtureDrafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.draft.table import DRAFTERS, DraftSetup, build_drafter, check_draft
from draftgraph.errors import ParameterError
from draftgraph.graph.budget import select
from draftgraph.graph.token_graph import merge
from draftgraph.rng import Greedy, SeededNoise
from draftgraph.types import Context, FinishReason, MergeRule, Verdict, Window
from support.rigs import ScriptDrafter, TableRunner, chain, make_engine, mixture, write

VOCAB = 8


def flat_runner(name: str = "") -> TableRunner:
    return TableRunner(lambda text: np.zeros(VOCAB), VOCAB)


def context(tokens: Sequence[int], request: int = 0, *, temperature: float = 0.0) -> Context:
    noise = SeededNoise(1) if temperature else Greedy()
    return Context(request, tokens, noise, temperature, 50, MergeRule())


def build(
    draft: str,
    acceptance: str = "match",
    open_model: Callable[[str], TableRunner] = flat_runner,
    corpus: Sequence[int] = (),
    memory: str = "request",
) -> Drafter:
    return build_drafter(DraftSetup(DraftConfig(draft=draft, memory=memory), acceptance, corpus, open_model))


def test_each_member_proposes_its_own_graph_and_all_of_them_are_merged() -> None:
    one, two = ScriptDrafter(lambda _: chain([1, 2])), ScriptDrafter(lambda _: chain([1, 3]))
    contexts = [context([0], request) for request in range(2)]
    proposals = mixture(one, NoDrafter(), two).propose(contexts, [4, 4])
    assert [[graph.num_drafted for graph in graphs] for graphs in proposals] == [[2, 0, 2], [2, 0, 2]]
    for graph in merge(proposals):
        graph.check()
        assert graph.tokens == [0, 1, 2, 3]


def test_every_member_is_told_what_happened() -> None:
    members = [ScriptDrafter(lambda _: []) for _ in range(3)]
    about = context([0], request=5)
    (tree,) = select([root_graph(about)], [Window(np.zeros(1, np.int32), True, 0, 0, VOCAB)])
    end = Verdict(tree, (1,), (-1,), (0,), FinishReason.STOP, np.zeros((1, 0), np.int32))
    mixture(*members).observe([about], [end])
    assert [member.ended for member in members] == [[5]] * 3


@pytest.mark.parametrize(
    "draft", ["ngram", "suffix", "recycle", "grammar,ngram,suffix,recycle", " ngram , suffix", "model:x,ngram"]
)
def test_what_the_settings_name_is_built_and_writes_what_plain_decoding_writes(draft: str) -> None:
    def logits(text: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng(list(text[-2:])).normal(0, 3, VOCAB)

    drafter = build(draft, open_model=lambda name: TableRunner(logits, VOCAB))
    request = write(make_engine(TableRunner(logits, VOCAB), drafter), [1, 2], max_tokens=60)
    assert request.output == write(make_engine(TableRunner(logits, VOCAB)), [1, 2], max_tokens=60).output
    assert request.stats.accepted_nodes > 0
    names = {name.strip().partition(":")[0] for name in draft.split(",")}
    assert {source for sources in request.sources for source in sources} <= {*names, "target"}


@pytest.mark.parametrize(
    ("draft", "kinds"),
    [
        ("ngram", {"ngram": NgramDrafter}),
        ("suffix", {"suffix": SuffixDrafter}),
        ("recycle", {"recycle": RecycleDrafter}),
        ("model:x", {"model": ModelDrafter}),
        ("model:x,model:a/y.gguf,ngram", {"ngram": NgramDrafter, "model:x": ModelDrafter, "model:y": ModelDrafter}),
        (
            DraftConfig().draft,
            {"grammar": GrammarDrafter, "ngram": NgramDrafter, "suffix": SuffixDrafter, "recycle": RecycleDrafter},
        ),
    ],
)
def test_a_name_gives_its_drafter(draft: str, kinds: dict[str, type]) -> None:
    drafter = build(draft)
    assert isinstance(drafter, MixtureDrafter)
    assert {source: type(member) for source, member in drafter.members.items()} == kinds


@pytest.mark.parametrize("draft", ["off", " off "])
def test_off_proposes_nothing(draft: str) -> None:
    assert isinstance(build(draft), NoDrafter)


def test_the_help_names_every_drafter_of_the_table() -> None:
    help_text = next(field for field in DraftConfig.__dataclass_fields__.values() if field.name == "draft").metadata[
        "help"
    ]
    assert all(name in help_text for name in (*DRAFTERS, "off"))


@pytest.mark.parametrize("name", ["some/folder", "user/repo:file.gguf", "c:/models/x.gguf"])
def test_what_stands_after_the_first_colon_is_opened_as_a_model(name: str) -> None:
    opened: list[str] = []

    def open_model(argument: str) -> TableRunner:
        opened.append(argument)
        return flat_runner()

    build(f"ngram,model:{name}", open_model=open_model)
    assert opened == [name]


@pytest.mark.parametrize(
    "draft",
    ["", ",", "ngram,", "ngrams", "NGRAM", "model", "model:", "ngram:4", "suffix:x", "off,ngram", "ngram,off", "off:1",
     "ngram suffix", "ngram,ngram", "ngram, ngram", "model:x,model:x", "recycle,suffix,recycle"],
)  # fmt: skip
@pytest.mark.parametrize("acceptance", ["match", "residual"])
def test_a_bad_list_is_refused_in_three_parts(draft: str, acceptance: str) -> None:
    with pytest.raises(ParameterError) as error:
        check_draft(draft, acceptance)
    assert error.value.given
    assert error.value.allowed
    assert error.value.remedy


@pytest.mark.parametrize("draft", ["off", "ngram", " ngram , suffix", "model:x", "model:a:b,ngram", "model:x,model:y"])
def test_a_good_list_passes(draft: str) -> None:
    check_draft(draft, "match")
    check_draft(DraftConfig().draft, "residual")


def test_two_draft_models_are_refused_under_residual_and_welcome_under_match() -> None:
    assert type(build("model:x,model:y", "match")) is MixtureDrafter
    with pytest.raises(ParameterError, match="several draft models"):
        check_draft("model:x,model:y", "residual")
    check_draft("model:x", "residual")


@pytest.mark.parametrize(("acceptance", "is_drawn"), [("match", False), ("residual", True)])
def test_the_acceptance_rule_decides_whether_candidates_are_drawn(acceptance: str, is_drawn: bool) -> None:
    ((graph,),) = build("model:x", acceptance).propose([context([1], temperature=1.0)], [4])
    assert graph.num_drafted > 0
    assert all((edge.draw is not None) == is_drawn for edges in graph.children for edge in edges.values())


@pytest.mark.parametrize("memory", ["request", "process"])
@pytest.mark.parametrize("draft", ["suffix", "recycle"])
def test_the_memory_setting_reaches_the_drafters_that_learn(draft: str, memory: str) -> None:
    drafter = build(draft, memory=memory)
    engine = make_engine(TableRunner(lambda text: np.eye(VOCAB)[(text[-1] + 1) % VOCAB], VOCAB), drafter)
    write(engine, [1], max_tokens=5)
    ((graph,),) = drafter.propose([context([7, 2], request=50)], [4])
    assert (3 in graph.tokens) == (memory == "process")


def test_the_corpus_reaches_the_suffix_drafter() -> None:
    ((graph,),) = build("suffix", corpus=[1, 2, 3]).propose([context([7, 2])], [4])
    assert graph.tokens == [2, 3]
