"""`draftgraph bench` on tiny models: arms, equal texts, batches, files, peers, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from draftgraph.bench import machine
from draftgraph.bench import run as runs
from draftgraph.bench.arms import Arm, open_arms, settings_of
from draftgraph.bench.run import compare
from draftgraph.config import DraftConfig, EngineConfig
from draftgraph.data import DataPrompt
from draftgraph.runner.reference import ReferenceRunner
from draftgraph.types import TargetRows, VerifyBatch
from draftgraph.workshop import Workshop
from support.commands import command, error_of, refusal
from support.rigs import looks_at_neighbours, write_text
from support.tiny import write_gguf

SHORT = ("--max-tokens", "10", "--ignore-eos", "--raw")
ARM = {
    "tokens_per_second", "tokens_per_step", "speedup", "worst", "sign_test", "decode_seconds", "target_passes",
    "pass_seconds", "ms_per_pass", "draft_seconds", "draft_passes", "drafted_nodes", "merged_nodes", "accepted_nodes",
    "mean_budget",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("bench") / "tiny.gguf")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = ['{"id": "a", "task": "talk", "turns": ["hello there"]}', '{"id": "b", "task": "code", "turns": ["x = 1"]}']
    return write_text(tmp_path_factory.mktemp("data") / "prompts.jsonl", "\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def measured(model: Path, data: Path) -> Any:
    """Every arm of two retrieval drafters and the model as its own draft, in one process."""
    drafting = ("--draft", f"ngram,recycle,model:{model}", "--budget", "5")
    options = ("--arms", "all", "--batch", "1,3", "--temperature", "0.8", "--seed", "5")
    outcome = command("bench", model, "--data", data, *SHORT, *drafting, *options, "--json")
    assert outcome.code == 0
    return outcome.json


def test_the_result_says_what_was_measured_where_and_against_which_ceiling(measured: Any, model: Path) -> None:
    assert set(measured) == {
        "model", "draft_models", "runner", "sampling", "repeats", "machine", "commit", "ceiling", "prompts",
        "identical", "mismatches", "arms", "tasks", "batches", "peers",
    }  # fmt: skip
    assert measured["draft_models"] == [str(model)]
    assert measured["sampling"] == {"max_tokens": 10, "seed": 5, "temperature": 0.8, "ignore_eos": True}
    assert set(measured["machine"]) == {"cpu", "cores", "system", "python", "numpy", "draftgraph"}
    assert measured["commit"]
    assert measured["ceiling"]["weight_bytes"] > 0


def test_every_arm_is_there_with_its_work(measured: Any) -> None:
    arms = measured["arms"]
    assert list(arms) == ["plain", "auto", "chain", "tree", "graph", "ngram", "recycle", "model"]
    assert all(set(row) == ARM for row in arms.values())
    assert (measured["identical"], measured["mismatches"], measured["prompts"]) == (True, [], 2)
    plain = arms["plain"]
    assert (plain["speedup"], plain["tokens_per_step"], plain["target_passes"]) == (1.0, 1.0, 18)
    assert plain["drafted_nodes"] == plain["draft_passes"] == plain["mean_budget"] == 0
    assert arms["model"]["tokens_per_step"] >= 3  # it drafts for itself
    assert arms["model"]["draft_passes"] > 0
    assert arms["ngram"]["draft_passes"] == 0
    assert arms["tree"]["merged_nodes"] == 0
    assert all(row["mean_budget"] <= 5 for name, row in arms.items() if name != "auto")
    for row in arms.values():
        assert 0 < row["pass_seconds"] < row["decode_seconds"]
        assert row["pass_seconds"] + row["draft_seconds"] < row["decode_seconds"]
        assert row["worst"]["prompt"] in ("a", "b")
        assert row["sign_test"]["wins"] + row["sign_test"]["losses"] <= 2
    assert set(measured["tasks"]) == {"talk", "code"}
    assert all(list(task["arms"]) == list(arms) for task in measured["tasks"].values())


def test_batches_compare_plain_and_auto(measured: Any) -> None:
    assert [batch["size"] for batch in measured["batches"]] == [1, 3]
    for batch in measured["batches"]:
        assert list(batch["arms"]) == ["plain", "auto"]
        assert batch["arms"]["plain"]["mean_budget"] == 0
        assert all(row["tokens_per_second"] > 0 and row["mismatches"] == 0 for row in batch["arms"].values())


def test_a_chain_has_no_branches_and_a_graph_no_more_drafts_than_its_budget(
    model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: set[tuple[int, bool]] = set()
    honest = ReferenceRunner.extend

    def extend(self: ReferenceRunner, batch: VerifyBatch) -> TargetRows:
        for extension in batch.extensions:
            known = getattr(extension, "num_known", len(extension.tokens))
            parents = extension.parents.tolist()
            shapes.add((len(parents) - known, len(set(parents)) == len(parents)))
        return honest(self, batch)

    monkeypatch.setattr(ReferenceRunner, "extend", extend)
    fixed = ("--runner", "reference", "--draft", "ngram,suffix,recycle", "--budget", "4", "--limit", "1")
    longer = ("--max-tokens", "60", "--ignore-eos", "--raw")
    for arm, branching in (("chain", False), ("graph", True)):
        shapes.clear()
        assert command("bench", model, "--data", data, *longer, *fixed, "--arms", arm, "--json").code == 0
        assert max(drafts for drafts, _ in shapes) == 4
        assert any(not is_chain for _, is_chain in shapes) == branching


def test_a_runner_that_looks_at_its_neighbours_is_caught(
    model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReferenceRunner, "extend", looks_at_neighbours(ReferenceRunner.extend))
    drafting = ("--runner", "reference", "--draft", f"model:{model}", "--budget", "4", "--arms", "tree")
    outcome = command("bench", model, "--data", data, *SHORT, *drafting)
    assert outcome.code == 1
    assert "texts identical: NO" in outcome.out
    assert "tree is not plain: prompt 'a'" in outcome.err
    outcome = command("bench", model, "--data", data, *SHORT, *drafting, "--json")
    assert (outcome.code, outcome.json["identical"], len(outcome.json["mismatches"])) == (1, False, 2)


def test_each_model_file_is_loaded_once(model: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ReferenceRunner] = []
    honest = ReferenceRunner.__init__

    def init(self: ReferenceRunner, *arguments: Any, **options: Any) -> None:
        opened.append(self)
        honest(self, *arguments, **options)

    monkeypatch.setattr(ReferenceRunner, "__init__", init)
    drafting = ("--runner", "reference", "--draft", f"ngram,model:{model}", "--budget", "4", "--arms", "all")
    assert command("bench", model, "--data", data, *SHORT, *drafting, "--limit", "1", "--json").code == 0
    assert len(opened) == 2


def test_no_arm_finds_what_another_one_has_read(model: Path) -> None:
    draft = DraftConfig(draft=f"model:{model}", budget=3)
    shop = Workshop(model, EngineConfig())
    arms = open_arms(shop, draft, settings_of("all", draft))
    trials = compare(arms, [], [DataPrompt("a", "x", "a prompt of many words " * 3)], print, raw=True, max_tokens=8)
    assert {run.completion.stats.reused_tokens for run in trials[0].runs.values()} == {0}
    passes = {name: run.draft_passes for name, run in trials[0].runs.items()}
    assert passes["tree"] == passes["graph"] == passes["model"]  # one arm in three kinds of words
    again = arms[0].llm.generate(trials[0].prompt.text, max_tokens=8)
    assert again.stats.reused_tokens > 0, "without forgetting, the prompt is found again"
    arms[0].forget()
    assert shop.runner.blocks.cached == 0
    shop.runner.check()


def test_tables_have_a_row_per_arm_and_task(model: Path, data: Path) -> None:
    outcome = command("bench", model, "--data", data, *SHORT, "--arms", "auto,suffix", "--limit", "1")
    for word in ("ceiling", "identical: yes", "plain", "auto", "suffix", "tokens/step", "speedup", "worst", "talk"):
        assert word in outcome.out
    for word in ("code", "chain", "requests"):
        assert word not in outcome.out


def test_every_arm_writes_each_prompt_as_often_as_asked(
    model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    honest = runs.write

    def write(arm: Arm, *rest: Any) -> runs.Run:
        written.append(arm.name)
        return honest(arm, *rest)

    monkeypatch.setattr(runs, "write", write)
    options = ("--limit", "1", "--repeats", "3", *SHORT, "--json")
    assert command("bench", model, "--data", data, *options).json["repeats"] == 3
    assert written == ["plain", "auto", "auto", "plain", "auto", "plain"]


def test_several_files_are_limited_one_by_one(model: Path, data: Path, tmp_path: Path) -> None:
    more = write_text(tmp_path / "more.jsonl", '{"task": "more", "turns": ["abc"]}\n' * 3)
    outcome = command("bench", model, "--data", data, "--data", more, "--limit", "2", *SHORT, "--json").json
    assert {task: entry["prompts"] for task, entry in outcome["tasks"].items()} == {"talk": 1, "code": 1, "more": 2}
    assert list(outcome["arms"]) == ["plain", "auto"]


def test_a_folder_gets_json_markdown_and_pictures(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    said = command("bench", model, "--data", data, *SHORT, "--batch", "1,2", "--out", out, "--json").json
    assert sorted(path.name for path in out.iterdir()) == ["batch.svg", "bench.json", "bench.md", "speedup.svg"]
    assert json.loads((out / "bench.json").read_text(encoding="utf-8")) == said
    assert "| auto |" in (out / "bench.md").read_text(encoding="utf-8")
    for name in ("batch.svg", "speedup.svg"):
        ElementTree.fromstring((out / name).read_text(encoding="utf-8"))
    alone = tmp_path / "plain"
    command("bench", model, "--data", data, *SHORT, "--arms", "plain", "--out", alone)
    assert sorted(path.name for path in alone.iterdir()) == ["bench.json", "bench.md"]


def test_the_commit_is_that_of_the_file_and_of_no_other_checkout(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    alien = write_text(tmp_path / "src" / "machine.py", "")
    assert machine.commit(alien) is None

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "x")
    assert machine.commit(alien) is None, "a file that the checkout does not track is not of it"
    git("add", ".")
    git("commit", "-m", "y")
    git("tag", "v7")
    assert machine.commit(alien) == "v7"
    write_text(alien, "changed")
    assert machine.commit(alien) == "v7-dirty"


# peers

FAKE = """
class Llama:
    def __init__(self, model, n_ctx, **_):
        assert model.endswith("tiny.gguf") and n_ctx == 256
    def reset(self):
        pass
    def generate(self, ids, **_):
        while True:
            yield len(ids)
"""


def test_a_peer_runs_beside(model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "llama_cpp.py", FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    row = command("bench", model, "--data", data, *SHORT, "--peer", "llama.cpp", "--json").json["peers"]["llama.cpp"]
    assert row["tokens_per_second"] > 0
    assert set(row["ratio"]) == {"plain", "auto"}
    assert 0 <= row["equal_leading_tokens"] <= 10


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import nothing_that_exists", ("pip install llama-cpp-python", "--peer-python")),
        ("raise ValueError('broken')", ("ended by itself", "peers.py llama.cpp MODEL")),
        (FAKE.replace("yield len(ids)", "raise ValueError"), ("ended by itself",)),
    ],
    ids=["missing", "broken", "breaks later"],
)
def test_a_peer_that_cannot_run_says_what_to_do(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: tuple[str, ...]
) -> None:
    write_text(tmp_path / "llama_cpp.py", source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = command("bench", model, "--data", data, *SHORT, "--peer", "llama.cpp")
    shown = refusal(outcome)
    assert all(word in shown for word in ("MissingPackageError", *words)), shown


# refusals

REFUSED = {
    "an unknown arm": (("--arms", "auto,forest"), "ParameterError", "forest"),
    "an arm of a drafter that is not asked": (("--arms", "suffix", "--draft", "ngram"), "ParameterError", "suffix"),
    "nobody to draft": (("--draft", "off"), "ParameterError", "off"),
    "a batch of none": (("--batch", "1,0"), "ParameterError", "whole numbers"),
    "a batch of words": (("--batch", "many"), "ParameterError", "many"),
    "a batch without end": (("--batch", "1,"), "ParameterError", "whole numbers"),
    "a batch beyond the slots": (("--batch", "4", "--slots", "2"), "ParameterError", "slots"),
    "texts of one token in a batch": (("--batch", "2", "--max-tokens", "1"), "ParameterError", "max-tokens"),
    "an unknown peer": (("--peer", "gpt"), "ParameterError", "llama.cpp"),
    "a Python that is none": (("--peer", "llama.cpp", "--peer-python", "/none"), "MissingPackageError", "/none"),
    "a folder that is a file": (("--out", sys.executable), "ParameterError", "out"),
    "draws that depend on drafts": (("--acceptance", "residual", "--temperature", "1"), "ParameterError", "match"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_measured_is_refused(model: Path, data: Path, name: str) -> None:
    options, kind, word = REFUSED[name]
    outcome = command("bench", model, "--data", data, *SHORT, *options, "--json")
    assert outcome.code == 2
    error = error_of(outcome)
    assert error["type"] == kind
    assert word in error["given"] + error["allowed"] + error["remedy"]
