"""`draftgraph plan` and `generate --explain` on tiny models."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from draftgraph.config import DraftConfig, EngineConfig
from draftgraph.llm import Workshop
from draftgraph.static_plan import RankCount, static_plan
from support.commands import command, error_of
from support.rigs import write_text
from support.tiny import write_gguf

WRITE = ("--max-tokens", "40", "--seed", "7", "--ignore-eos", "--raw")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("plan") / "tiny.gguf")


# plan


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_a_draft_that_is_the_target_is_always_right_at_rank_one(model: Path, temperature: str) -> None:
    drafting = ("--draft", f"model:{model}", "--most", "6", "--temperature", temperature)
    found = command("plan", model, *drafting, *WRITE, "--json").json
    assert set(found) == {
        "model", "draft", "acceptance_by_rank", "nodes", "context", "plain_tokens_per_second", "best", "sizes",
    }  # fmt: skip
    assert found["acceptance_by_rank"] == [1.0]
    assert found["nodes"] > 60  # of three texts of 40 tokens: all but the last few of each step
    assert [size["drafts"] for size in found["sizes"]] == list(range(7))
    assert [size["tokens_per_step"] for size in found["sizes"]] == [1, 2, 3, 4, 5, 6, 7]
    best = found["best"]
    assert best["parents"] == list(range(-1, best["drafts"] - 1))
    assert set(best["ranks"]) <= {0}
    rates = [size["tokens_per_second"] for size in found["sizes"]]
    assert best["tokens_per_second"] == max(rates)
    assert best["speedup"] == pytest.approx(max(rates) / rates[0], rel=0.01)
    assert found["plain_tokens_per_second"] == rates[0]


def test_retrieval_is_planned_for_too_and_drawn(model: Path, tmp_path: Path) -> None:
    data = write_text(tmp_path / "prompts.txt", "one two one two one two\nabc\n")
    out = tmp_path / "tree.svg"
    outcome = command("plan", model, *WRITE, "--data", data, "--limit", "1", "--out", out)
    assert outcome.code == 0
    for word in ("right candidate, by rank", "tokens/step", "over plain", "best"):
        assert word in outcome.out
    ElementTree.fromstring(out.read_text(encoding="utf-8"))


def test_ranks_are_counted_along_what_was_written(model: Path) -> None:
    """Against a count of our own: the shares of a draft with other weights, from its graphs."""
    other = write_gguf(model.parent / "other.gguf", seed=3)
    shop = Workshop(model, EngineConfig(runner="reference"))
    counted: list[RankCount] = []
    honest = RankCount.count

    def spied(self: RankCount, verdict: object) -> None:
        before = (self.nodes, sum(self.right))
        honest(self, verdict)  # type: ignore[arg-type]
        graph, tokens = verdict.tree.graph, verdict.tokens  # type: ignore[attr-defined]
        first = sorted(graph.children[0].values(), key=lambda edge: -edge.acceptance)
        hit = any(graph.tokens[edge.child] == tokens[0] for edge in first)
        assert self.nodes - before[0] >= 1
        assert (sum(self.right) - before[1] >= 1) == hit
        assert self.nodes - before[0] - (sum(self.right) - before[1]) in (0, 1)  # at most the last one is wrong
        counted.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RankCount, "count", spied)
        draft = DraftConfig(draft=f"model:{other}")
        plan = static_plan(shop, draft, ["hello"], 4, lambda _: None, max_tokens=40, ignore_eos=True)
    ranks = counted[-1]
    assert len(counted) > 5
    assert plan.nodes == ranks.nodes
    assert plan.acceptances == tuple(count / ranks.nodes for count in ranks.right[: len(plan.acceptances)])
    assert sum(plan.acceptances) <= 1.0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--draft", "off"), "name some"),
        (("--out", "tree.png"), ".svg"),
        (("--out", "/no/such/folder/tree.svg"), "folder"),
        (("--max-tokens", "1"), "max-tokens"),
    ],
)
def test_what_cannot_be_planned_is_refused(model: Path, options: tuple[str, ...], word: str) -> None:
    outcome = command("plan", model, *WRITE, *options, "--json")
    assert outcome.code == 2
    assert word in "".join(error_of(outcome).values())


# explain


def test_an_explanation_is_complete_in_json(model: Path) -> None:
    drafting = ("--draft", f"ngram,model:{model}")
    outcome = command("generate", model, "-p", "hello", *WRITE, *drafting, "--explain", "--json").json
    stats, found = outcome["stats"], outcome["explain"]
    assert set(found) == {
        "budgets", "share_without_drafts", "tokens_per_second", "plain_tokens_per_second", "sources", "pass_ms",
    }  # fmt: skip
    assert sum(found["budgets"].values()) == stats["target_passes"]
    assert found["share_without_drafts"] == pytest.approx(
        found["budgets"].get("0", 0) / stats["target_passes"], abs=1e-4
    )
    assert found["plain_tokens_per_second"] > 0
    assert list(found["pass_ms"]) == ["1", "4", "8"]
    assert any(source["asked"] for source in found["sources"].values())
    for name, source in found["sources"].items():
        counts = stats["by_source"][name]
        assert (source["proposed"], source["accepted"]) == (counts["proposed"], counts["accepted"])
        assert 0 <= source["asked"] <= stats["target_passes"]
        if source["asked"]:
            assert source["ms_per_step"] == pytest.approx(1e3 * counts["seconds"] / counts["asked"], abs=0.1)


def test_nothing_is_explained_unasked(model: Path) -> None:
    assert "explain" not in command("generate", model, "-p", "hello", *WRITE, "--json").json
    assert "checked" not in command("generate", model, "-p", "hello", *WRITE).err


def test_an_explanation_is_short_and_leaves_the_text_alone(model: Path) -> None:
    outcome = command("generate", model, "-p", "hello", *WRITE, "--explain")
    assert outcome.out == command("generate", model, "-p", "hello", *WRITE).out
    for word in ("checked", "passes", "sources", "drafts accepted", "8 rows", "would have been", "as fast"):
        assert word in outcome.err
    assert len(outcome.err.splitlines()) <= 16


def test_without_a_planner_prices_are_measured_and_plain_speed_is_not_known(model: Path) -> None:
    fixed = ("generate", model, "-p", "hello", *WRITE, "--budget", "3", "--explain")
    found = command(*fixed, "--json").json["explain"]
    assert max(map(int, found["budgets"])) <= 3
    assert found["plain_tokens_per_second"] == 0
    assert all(ms > 0 for ms in found["pass_ms"].values())
    assert {source["ms_per_step"] for source in found["sources"].values()} == {None}
    assert "not known" in command(*fixed).err


def test_a_text_of_one_token_has_nothing_to_explain_and_says_so(model: Path) -> None:
    found = command("generate", model, "-p", "hello", "--max-tokens", "1", "--explain", "--json").json["explain"]
    assert (found["budgets"], found["share_without_drafts"], found["sources"]) == ({}, 0.0, {})
    assert command("generate", model, "-p", "hello", "--max-tokens", "1", "--explain").code == 0
