"""The arms by name: what each changes, and which there are."""

from __future__ import annotations

import pytest

from draftgraph.bench.arms import settings_of
from draftgraph.cli.bench import _with_slots
from draftgraph.cli.options import Options
from draftgraph.config import DraftConfig
from draftgraph.errors import ParameterError
from draftgraph.plan.chain import ChainPlanner

TWO_MODELS = "model:some/a.gguf,ngram,model:b.gguf"


def test_every_arm_says_how_it_differs() -> None:
    arms = settings_of("all", DraftConfig(draft="recycle,ngram", budget=6))
    assert {name: dict(arm.options) for name, arm in arms.items()} == {
        "plain": {"draft": "off", "budget": 0},
        "auto": {"budget": "auto"},
        "chain": {"budget": 6, "width": 1, "merge": 0},
        "tree": {"budget": 6, "merge": 0},
        "graph": {"budget": 6, "merge": 2},
        "ngram": {"budget": 6, "draft": "ngram"},
        "recycle": {"budget": 6, "draft": "recycle"},
    }
    assert {name: arm.planner for name, arm in arms.items() if arm.planner} == {"chain": ChainPlanner}


def test_without_a_budget_the_fixed_shapes_share_one_and_a_graph_always_merges() -> None:
    arms = settings_of("all", DraftConfig(merge=0))
    budgets = {name: arm.options["budget"] for name, arm in arms.items()}
    assert (budgets.pop("plain"), budgets.pop("auto")) == (0, "auto")
    assert len(set(budgets.values())) == 1
    assert arms["graph"].options["merge"] > 0
    assert settings_of("graph", DraftConfig(merge=5))["graph"].options["merge"] == 5


def test_draft_models_are_named_as_their_statistics_name_them() -> None:
    assert list(settings_of("model", DraftConfig(draft="model:x/y.gguf"))) == ["plain", "model"]
    arms = settings_of("all", DraftConfig(draft=TWO_MODELS))
    assert list(arms)[5:] == ["ngram", "model:a", "model:b"]
    assert arms["model:a"].options["draft"] == "model:some/a.gguf"


@pytest.mark.parametrize(
    ("names", "chosen"),
    [("plain", ["plain"]), ("auto,plain,auto", ["plain", "auto"]), (" tree , chain", ["plain", "tree", "chain"])],
)
def test_plain_is_always_first_and_nothing_is_there_twice(names: str, chosen: list[str]) -> None:
    assert list(settings_of(names, DraftConfig())) == chosen


@pytest.mark.parametrize(("names", "draft"), [("", "ngram"), ("model", "ngram"), ("auto", "off")])
def test_what_is_no_arm_is_refused(names: str, draft: str) -> None:
    with pytest.raises(ParameterError):
        settings_of(names, DraftConfig(draft=draft))


def test_the_largest_batch_has_a_slot_for_each_request() -> None:
    assert _with_slots(Options({}, {}), [1, 12]).load == {"slots": 12}
    assert _with_slots(Options({}, {}), []).load == {"slots": 8}
    assert _with_slots(Options({}, {"slots": 3}), [3]).load == {"slots": 3}
