"""What a benchmark publishes, from runs made up so that every number is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from draftgraph.bench.peer import PeerRun
from draftgraph.bench.report import results
from draftgraph.bench.run import BatchRun, Run, Trial, rotated
from draftgraph.bench.tables import Table, markdown
from draftgraph.data import DataPrompt
from draftgraph.engine.stats import RequestStats
from draftgraph.llm import Completion
from draftgraph.types import FinishReason

IDS = tuple(range(11))  # ten tokens after the first


def run(seconds: float, ids: tuple[int, ...] = IDS, passes: int = 10, draft: float = 0.0) -> Run:
    """A run whose ten later tokens took `seconds`; half of its passes checked four drafts."""
    stats = RequestStats(
        first_token=1.0, last_token=1.0 + seconds, completion_tokens=len(ids), target_passes=passes, drafted_nodes=30,
        merged_nodes=3, accepted_nodes=7, budgets={0: passes - passes // 2, 4: passes // 2},
    )  # fmt: skip
    completion = Completion("", ids, (), 5, FinishReason.LENGTH, 0, stats)
    return Run(completion, seconds / 2, draft, 6)


def trial(name: str, task: str, plain: float, auto: float, **auto_options: Any) -> Trial:
    return Trial(DataPrompt(name, task, ""), [{"plain": run(plain), "auto": run(auto, passes=5, **auto_options)}])


TRIALS = (
    trial("a", "code", 1.0, 0.5), trial("b", "code", 1.0, 0.25), trial("c", "talk", 2.0, 4.0),
    trial("d", "talk", 2.0, 2.0), trial("e", "talk", 1.0, 0.4),
)  # fmt: skip


def test_the_numbers_of_an_arm_are_medians_and_sums() -> None:
    row = results(TRIALS, {})["arms"]["auto"]
    assert row["speedup"] == 2.0  # of 2, 4, 0.5, 1 and 2.5
    assert row["tokens_per_second"] == 20.0  # of 20, 40, 2.5, 5 and 25
    assert row["tokens_per_step"] == 2.0
    assert row["worst"] == {"prompt": "c", "speedup": 0.5}
    assert row["sign_test"] == {"wins": 3, "losses": 1, "p": 0.625}  # the tie is left out
    assert row["target_passes"] == 25
    assert row["pass_seconds"] == pytest.approx(7.15 / 2)
    assert row["ms_per_pass"] == pytest.approx(1e3 * 7.15 / 2 / 25)
    assert (row["draft_passes"], row["drafted_nodes"], row["merged_nodes"], row["accepted_nodes"]) == (30, 150, 15, 35)
    assert row["mean_budget"] == pytest.approx(4 * 2 / 5)


def test_a_median_of_two_lies_between_them() -> None:
    tasks = results(TRIALS, {})["tasks"]
    assert tasks["code"]["prompts"] == 2
    assert tasks["code"]["arms"]["auto"]["speedup"] == 3.0
    assert tasks["talk"]["arms"]["auto"]["speedup"] == 1.0


def test_plain_compared_with_itself_neither_wins_nor_loses() -> None:
    row = results(TRIALS, {})["arms"]["plain"]
    assert (row["speedup"], row["sign_test"]) == (1.0, {"wins": 0, "losses": 0, "p": 1.0})


def test_a_text_of_one_token_counts_as_neither_faster_nor_slower() -> None:
    short = Trial(TRIALS[0].prompt, [{arm: run(0.0, (1,), passes=0) for arm in ("plain", "auto")}])
    row = results([short], {})["arms"]["auto"]
    assert (row["speedup"], row["ms_per_pass"], row["mean_budget"]) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("ids", "position"), [((*IDS[:4], 99, *IDS[5:]), 4), (IDS[:7], 7), ((*IDS, 3), 11)], ids=["other", "short", "long"]
)
def test_ids_that_differ_are_reported_with_their_place(ids: tuple[int, ...], position: int) -> None:
    assert results(TRIALS, {})["identical"] is True
    wrong = trial("x", "code", 1.0, 0.5, ids=ids)
    result = results([*TRIALS, wrong], {})
    assert result["identical"] is False
    assert result["mismatches"] == [{"prompt": "x", "arm": "auto", "position": position}]


def batch(arm: str, rate: float, mismatches: int = 0) -> BatchRun:
    return BatchRun(arm, 4, 100, 100 / rate, 0.0 if arm == "plain" else 1.5, mismatches)


def rounds(*rates: tuple[float, float], mismatches: int = 0) -> Sequence[Mapping[str, BatchRun]]:
    return [{"plain": batch("plain", one), "auto": batch("auto", other, mismatches)} for one, other in rates]


def test_a_batch_has_medians_of_its_rounds_and_of_their_ratios() -> None:
    (row,) = results(TRIALS, {4: rounds((10.0, 20.0), (10.0, 30.0), (20.0, 30.0))})["batches"]
    assert row["size"] == 4
    assert row["arms"]["plain"]["tokens_per_second"] == 10.0
    assert row["arms"]["auto"] == {"tokens_per_second": 30.0, "speedup": 2.0, "mean_budget": 1.5, "mismatches": 0}


def test_a_batch_whose_texts_are_not_those_of_requests_alone_is_not_identical() -> None:
    assert results(TRIALS, {4: rounds((10.0, 20.0))})["identical"] is True
    assert results(TRIALS, {4: rounds((10.0, 20.0), mismatches=1)})["identical"] is False


def test_a_peer_is_compared_by_rate_prompt_by_prompt() -> None:
    beside = [replace(one, peers={"other": PeerRun((*IDS[:3], 99), 0.6)}) for one in TRIALS]  # 5 tokens/s
    row = results(beside, {})["peers"]["other"]
    assert row == {"tokens_per_second": 5.0, "ratio": {"plain": 2.0, "auto": 4.0}, "equal_leading_tokens": 3}


def test_every_arm_is_once_first_and_none_always_follows_the_same_other() -> None:
    orders = [rotated("abc", turn) for turn in range(6)]
    assert {order[0] for order in orders[:3]} == {"a", "b", "c"}
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert {order[order.index("a") - 1] for order in orders if order[0] != "a"} == {"b", "c"}


def in_turns(*turns: tuple[Run, Run]) -> Trial:
    return Trial(TRIALS[0].prompt, [{"plain": plain, "auto": auto} for plain, auto in turns])


def test_of_several_runs_the_median_counts_unless_one_wrote_another_text() -> None:
    runs = [run(seconds) for seconds in (5.0, 1.0, 2.0, 30.0, 4.0)]
    assert in_turns(*((one, one) for one in runs)).runs == {"plain": runs[4], "auto": runs[4]}
    other = run(1.0, ids=(*IDS[:-1], 99))
    assert in_turns(*((one, one) for one in runs), (run(1.0), other)).runs["auto"] is other


def test_speeds_are_compared_within_a_turn() -> None:
    """The machine was three times as fast in one turn, and for the second half of another."""
    trial = in_turns((run(6.0), run(6.0)), (run(6.0), run(2.0)), (run(2.0), run(2.0)))
    assert trial.speedup("auto") == 1.0
    assert trial.rate("auto") / trial.rate("plain") == 3.0


def test_the_markdown_has_every_arm_task_and_fact() -> None:
    result = {
        **results(TRIALS, {4: rounds((10.0, 20.0))}),
        "model": "tiny", "commit": "v1-2-gabc", "sampling": {"max_tokens": 11, "seed": 3}, "repeats": 3,
        "machine": {"cpu": "a CPU", "cores": 2},
        "ceiling": {"weight_bytes": 1e6, "memory_bytes_per_second": 2e9, "plain_tokens_per_second": 2000.0},
    }  # fmt: skip
    page = markdown(result)
    for word in (
        "# draftgraph bench: tiny",
        "a CPU",
        "v1-2-gabc",
        "seed 3",
        "the median of 3 turns",
        "identical: yes",
        "2000.0 tokens/s",
    ):
        assert word in page
    assert "| auto | 20.00 | 2.00 | 2.000 | 0.500 | 3:1 | 0.62 |" in page
    assert "| code | 10.00 | 3.000 |" in page
    assert "| 4 | 10.00 | 20.00 | 2.000 | 1.50 |" in page
    assert "identical: NO" in markdown(result | {"identical": False})


def test_a_cell_cannot_break_its_table() -> None:
    assert Table(("a", "b"), (("x|y", "1"),)).markdown().splitlines() == [
        "| a | b |",
        "| --- | ---: |",
        "| x\\|y | 1 |",
    ]
