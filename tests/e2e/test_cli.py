"""The commands on tiny models: what stands on stdout, what the JSON holds, what the options are."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from draftgraph import audit as audits
from draftgraph import environment
from draftgraph.cli import console
from draftgraph.config import DraftConfig, EngineConfig, SamplingParams
from draftgraph.runner.reference import ReferenceRunner
from support.commands import command, program
from support.rigs import looks_at_neighbours, write_text
from support.tiny import write_gguf

STATS = {
    "target_passes", "tokens_per_step", "prefill_seconds", "decode_seconds", "decode_tokens_per_second",
    "drafted_nodes", "verified_rows", "merged_nodes", "accepted_nodes", "by_source", "reused_tokens", "preemptions",
    "budgets", "plain_tokens_per_second",
}  # fmt: skip
WRITE = ("--max-tokens", "40", "--seed", "7", "--temperature", "0.8", "--ignore-eos")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = ['{"id": "a", "task": "talk", "turns": ["hello there"]}', '{"id": "b", "task": "code", "turns": ["x = 1"]}']
    return write_text(tmp_path_factory.mktemp("data") / "prompts.jsonl", "\n".join(lines) + "\n")


# generate


def test_generate_writes_its_text_and_says_what_it_cost(model: Path) -> None:
    outcome = command("generate", model, "-p", "hello", *WRITE)
    assert outcome.code == 0
    assert "40 tokens" in outcome.err
    assert "per step" in outcome.err


def test_the_json_of_generate_has_exactly_the_documented_keys(model: Path) -> None:
    result = command("generate", model, "-p", "hello", *WRITE, "--json").json
    assert set(result) == {
        "text", "token_ids", "prompt_tokens", "completion_tokens", "finish_reason", "seed", "stats",
    }  # fmt: skip
    assert set(result["stats"]) == STATS
    assert result["stats"]["by_source"]
    for source in result["stats"]["by_source"].values():
        assert set(source) == {"proposed", "accepted", "asked", "seconds"}
    assert result["completion_tokens"] == len(result["token_ids"]) == 40
    assert (result["seed"], result["finish_reason"]) == (7, "length")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("trace", [(), ("--trace",)], ids=["plain", "trace"])
def test_the_streamed_text_is_the_text_of_the_json(model: Path, trace: tuple[str, ...], seed: int) -> None:
    arguments = ("generate", model, "-p", "hello", "--max-tokens", "120", "--temperature", "1.5", "--seed", seed)
    streamed = command(*map(str, arguments), *trace)
    assert streamed.out == command(*map(str, arguments), "--json").json["text"] + "\n"


@pytest.mark.parametrize("trace", [(), ("--trace",)], ids=["plain", "trace"])
def test_a_text_ends_before_its_stop_string_on_the_terminal_too(model: Path, trace: tuple[str, ...]) -> None:
    text = command("generate", model, "-p", "hello", *WRITE, "--json").json["text"]
    stop = text[9:12]
    streamed = command("generate", model, "-p", "hello", *WRITE, "--stop", stop, *trace)
    assert streamed.out == text[: text.index(stop)] + "\n"


def test_what_looks_like_markup_an_emoji_code_or_a_control_character_is_printed_as_it_is() -> None:
    text = "[bold]no[/bold] :smile: tab\there\r\n\x0b\x07 [/] end  \n  "
    shown = command_output(text)
    assert shown == text


def command_output(text: str) -> str:
    with console.out.capture() as captured:
        console.print_text(text)
    return captured.get()


def test_trace_explains_its_colours(model: Path) -> None:
    outcome = command("generate", model, "-p", "hello", *WRITE, "--trace", "--draft", "ngram,suffix")
    for word in ("target", "ngram", "suffix", "drafts accepted"):
        assert word in outcome.err


def test_a_prompt_comes_from_an_argument_a_file_or_stdin(model: Path, tmp_path: Path) -> None:
    file = write_text(tmp_path / "prompt.txt", "hello wörld\n")
    said = command("generate", model, "-p", "hello wörld\n", *WRITE, "--json").json
    assert command("generate", model, "-f", file, *WRITE, "--json").json["token_ids"] == said["token_ids"]
    piped = command("generate", model, "-f", "-", *WRITE, "--json", stdin="hello wörld\n").json
    assert piped["token_ids"] == said["token_ids"]
    assert command("generate", model, "-p", "hello", *WRITE, "--json").json["token_ids"] != said["token_ids"]


def test_raw_leaves_the_template_out(model: Path) -> None:
    chat = command("generate", model, "-p", "hello", *WRITE, "--json").json
    raw = command("generate", model, "-p", "hello", *WRITE, "--raw", "--json").json
    assert raw["prompt_tokens"] < chat["prompt_tokens"]


def test_options_reach_the_sampler(model: Path) -> None:
    outcome = command("generate", model, "-p", "hello", "--max-tokens", "3", "--logit-bias", "65=1000", "--json")
    assert outcome.json["token_ids"] == [65] * 3


def test_drafts_change_the_cost_and_not_the_text(model: Path) -> None:
    plain = command("generate", model, "-p", "hello", *WRITE, "--budget", "0", "--json").json
    drafting = ("--draft", f"model:{model}", "--budget", "8")
    own = command("generate", model, "-p", "hello", *WRITE, *drafting, "--json").json
    assert plain["token_ids"] == own["token_ids"]
    assert plain["stats"]["tokens_per_step"] == 1
    assert own["stats"]["tokens_per_step"] > 3


def test_the_program_itself_streams_text_and_json(model: Path) -> None:
    streamed = program("generate", str(model), "-p", "hello", *WRITE)
    result = program("generate", str(model), "-p", "hello", *WRITE, "--json")
    assert (streamed.code, result.code) == (0, 0)
    assert streamed.out.encode() == (result.json["text"] + "\n").encode().replace(b"\r\n", b"\n")
    assert result.err == ""


# chat


def test_a_chat_of_two_turns_keeps_what_was_said(model: Path) -> None:
    outcome = command("chat", model, "--max-tokens", "6", "--json", stdin="hello\nand you?\n\nnot read\n")
    messages = outcome.json["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert [message["content"] for message in messages[::2]] == ["hello", "and you?"]
    spoken = command("chat", model, "--max-tokens", "6", stdin="hello\nand you?\n")
    assert spoken.out == "".join(message["content"] + "\n" for message in messages[1::2])
    alone = command("chat", model, "--max-tokens", "6", "--json", stdin="and you?\n").json["messages"]
    assert alone[1]["content"] != messages[3]["content"]


# audit


def test_an_audit_finds_no_mismatch_and_says_how_much_it_compared(model: Path, data: Path) -> None:
    own = ("--raw", "--draft", f"model:{model}", "--budget", "8")
    for options in (("--temperature", "0.8", "--seed", "7"), own):
        outcome = command("audit", model, "--data", data, "--max-tokens", "16", *options, "--json")
        assert outcome.code == 0
        assert set(outcome.json) == {"prompts", "tokens", "mismatches", "tokens_per_step"}
        assert (outcome.json["prompts"], outcome.json["mismatches"]) == (2, 0)
    assert outcome.json["tokens_per_step"] > 3


def test_an_audit_of_a_runner_that_looks_at_its_neighbours_fails_and_shows_where(
    model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReferenceRunner, "extend", looks_at_neighbours(ReferenceRunner.extend))
    drafting = (
        "--draft",
        f"model:{model}",
        "--budget",
        "4",
    )  # a fixed one: the planner may find that drafts do not pay
    arguments = ("audit", model, "--data", data, "--runner", "reference", *drafting)
    outcome = command(*arguments, "--max-tokens", "16", "--limit", "1")
    assert outcome.code == 1
    assert "1 mismatches" in outcome.out
    for word in ("first mismatch", "'a'", "seed", "plain", "drafted"):
        assert word in outcome.err
    outcome = command(*arguments, "--max-tokens", "16", "--json")
    assert (outcome.code, outcome.json["mismatches"]) == (1, 2)


def test_a_mismatch_is_shown_even_if_its_text_looks_like_markup(
    model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = audits.Mismatch("[/a]", 3, "[/red] :smile:", "[bold]")
    monkeypatch.setattr(audits, "audit", lambda *_, **__: audits.Audit(1, 4, (found,), 1.0))
    outcome = command("audit", model, "--data", data)
    assert outcome.code == 1
    for text in (found.prompt, found.plain, found.drafted):
        assert repr(text) in outcome.err


# graph


class Balanced(HTMLParser):
    """Checks that every element that needs an end has one."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("step", [(), ("--step", "3")], ids=["most telling", "third"])
def test_a_picture_is_well_formed_svg(model: Path, tmp_path: Path, step: tuple[str, ...]) -> None:
    out = tmp_path / "a [b].svg"
    outcome = command("graph", model, "-p", "<hello> & [you]", *WRITE, *step, "--out", out)
    assert outcome.code == 0
    assert str(out) in outcome.out
    root = ElementTree.fromstring(out.read_text(encoding="utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert sum(1 for _ in root.iter()) > 20


def test_a_page_is_well_formed_html(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "steps.html"
    result = command("graph", model, "-p", "<hello> & [you]", *WRITE, "--out", out, "--json").json
    assert set(result) == {"out", "step", "drafted_nodes", "merged_nodes", "verified_rows", "accepted_nodes"}
    assert result["out"] == str(out)
    parser = Balanced()
    parser.feed(out.read_text(encoding="utf-8"))
    parser.close()
    assert parser.open == []
    assert {"html", "body", "svg"} <= parser.seen


@pytest.mark.parametrize("page", ["<html><body></html>", "<p><b></p></b>"])
def test_a_page_that_is_not_well_formed_is_caught(page: str) -> None:
    with pytest.raises(AssertionError):
        Balanced().feed(page)


# help, doctor, pull


@pytest.mark.parametrize("name", ["generate", "chat", "audit", "graph", "bench", "plan"])
def test_the_help_of_a_command_has_every_option_of_every_config(name: str) -> None:
    shown = command(name, "--help")
    assert shown.code == 0
    options = set(re.findall(r"--[a-z][a-z-]*", shown.out))
    fields = [
        field.name for config in (SamplingParams, DraftConfig, EngineConfig) for field in dataclasses.fields(config)
    ]
    assert {"--" + field.replace("_", "-") for field in fields} <= options
    assert "--json" in options


def test_the_help_names_every_command() -> None:
    shown = command("--help")
    assert shown.code == 0
    for name in ("generate", "chat", "pull", "doctor", "audit", "graph", "bench", "plan"):
        assert re.search(rf"\b{name}\b", shown.out)
        assert command(name, "--help").code == 0


def test_the_doctor_reports_on_paper_and_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.CACHE, str(tmp_path / "[bold]cache[/x]"))
    outcome = command("doctor")
    assert outcome.code == 0
    for word in ("versions", "machine", "runner", "[bold]cache[/x]", "missing"):
        assert word in "".join(outcome.out.split())  # a long path is folded
    report: dict[str, Any] = command("doctor", "--json").json
    assert {"versions", "cpu", "num_cores", "runner", "cache_dir", "models", "missing"} <= set(report)


def test_pulling_what_is_here_says_where_it_is(model: Path) -> None:
    assert command("pull", model, "--json").json == {"model": str(model), "path": str(model)}
    assert command("pull", model).out == f"{model}\n"
