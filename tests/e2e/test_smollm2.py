"""The default model, for real: its file, its first words, the audit of every drafter, and its own drafts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import draftgraph as dg
from draftgraph.audit import as_chat, audit
from draftgraph.config import EngineConfig
from draftgraph.draft.translated import TranslatedDrafter
from draftgraph.environment import cache_dir
from draftgraph.llm import LLM
from draftgraph.models.catalog import CATALOG
from draftgraph.models.loader import load_model
from draftgraph.models.translation import TokenTranslation
from draftgraph.runner import native
from draftgraph.runner.choose import open_runner
from draftgraph.runner.native import NativeRunner
from draftgraph.runner.reference import ReferenceRunner
from support.commands import command
from support.tiny import write_gguf

pytestmark = pytest.mark.model
needs_native = pytest.mark.skipif(native.core is None, reason="the C++ core is not built")
RUNNERS = [pytest.param("native", marks=needs_native), "reference"]

SKY = as_chat("Why is the sky blue?")
PROMPTS = [
    ("sky", SKY),
    ("list", as_chat("Repeat this list twice: red, green, blue, red, green, yellow.")),
]
# The first tokens of the greedy answer. The runners round differently and may part; each is held to its own.
FIRST_TOKENS = {
    "native": ([504, 6376, 4541, 4461, 975, 282, 253, 980], "The sky appears blue because of a process"),
    "reference": ([504, 2988, 288, 451, 1962, 5721], "The answer to this question lies"),
}


@pytest.fixture(scope="module", params=RUNNERS)
def plain(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[tuple[str, LLM]]:
    """The model on each runner, with no drafter."""
    with dg.load(smollm2_path, runner=request.param, draft="off") as llm:
        yield request.param, llm


def test_the_pulled_file_is_the_one_in_the_catalogue(smollm2_path: Path) -> None:
    entry = CATALOG["smollm2-135m"]
    with smollm2_path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    assert smollm2_path.stat().st_size == entry.bytes
    assert smollm2_path.is_relative_to(cache_dir())


def test_each_runner_answers_with_the_words_it_always_had(plain: tuple[str, LLM]) -> None:
    name, llm = plain
    assert type(llm.runner) is {"native": NativeRunner, "reference": ReferenceRunner}[name]
    tokens, text = FIRST_TOKENS[name]
    done = llm.generate(SKY, max_tokens=len(tokens))
    assert list(done.token_ids) == tokens
    assert done.text.startswith(text)


@needs_native
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("draft", ["ngram,suffix,recycle", "own"])
def test_the_native_runner_passes_the_audit(draft: str, sampling: dict[str, float], smollm2_path: Path) -> None:
    draft = f"model:{smollm2_path}" if draft == "own" else draft
    with dg.load(smollm2_path, runner="native", draft=draft, budget=8) as llm:
        report = audit(llm, PROMPTS, lambda line: None, max_tokens=48, **sampling)
    assert report.mismatches == ()
    assert report.tokens > 48
    assert report.tokens_per_step > (2 if draft.startswith("model:") else 1)


def test_the_reference_runner_passes_the_audit(smollm2_path: Path) -> None:
    with dg.load(smollm2_path, runner="reference") as llm:
        report = audit(llm, PROMPTS[1:], lambda line: None, max_tokens=16)
    assert report.mismatches == ()
    assert report.tokens > 8


@pytest.mark.parametrize(("runner", "num_tokens"), [pytest.param("native", 101, marks=needs_native), ("reference", 26)])
def test_a_model_that_drafts_for_itself_is_always_right(runner: str, num_tokens: int, smollm2_path: Path) -> None:
    own = {"draft": f"model:{smollm2_path}", "width": 1, "budget": 4, "depth": 4}
    with dg.load(smollm2_path, runner=runner, **own) as llm:
        done = llm.generate("Why is the sky blue?", max_tokens=num_tokens, ignore_eos=True)
    assert done.completion_tokens == num_tokens
    assert done.stats.tokens_per_step >= 4.9


@needs_native
def test_translated_into_its_own_vocabulary_it_is_nearly_always_right(smollm2_path: Path) -> None:
    """Only words of several tokens, cut by the end of a step, are guessed less well."""
    model = load_model(smollm2_path)
    runner = open_runner(model, model.tokenizer.size, EngineConfig(runner="native"), 512, 128)
    drafter = TranslatedDrafter(runner, TokenTranslation(model.tokenizer, model.tokenizer), 1, 4)
    with dg.load(smollm2_path, runner="native", drafter=drafter, budget=4) as llm:
        done = llm.generate(SKY, max_tokens=101, ignore_eos=True)
        drawn = llm.generate(SKY, max_tokens=101, ignore_eos=True, temperature=0.8, seed=3)
        assert done.token_ids == llm.generate(SKY, max_tokens=101, ignore_eos=True, budget=0).token_ids
    assert done.stats.tokens_per_step >= 4.4
    assert drawn.stats.tokens_per_step >= 3.5


@needs_native
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "drawn"])
def test_it_drafts_for_a_model_with_other_words(sampling: dict[str, float], smollm2_path: Path, tmp_path: Path) -> None:
    target = write_gguf(tmp_path / "tiny.gguf", "qwen2")
    with dg.load(target, draft=f"model:{smollm2_path}", budget=4) as llm:
        prompts = ["Why is the sky", "été 👍🏽 ", [{"role": "user", "content": "hello"}]]
        drafted = llm.generate(prompts, max_tokens=40, **sampling)
        plain = llm.generate(prompts, max_tokens=40, budget=0, **sampling)
    assert [done.token_ids for done in drafted] == [done.token_ids for done in plain]
    assert all(done.stats.by_source["model"].proposed > 20 for done in drafted)


@pytest.mark.qwen
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "drawn"])
def test_it_drafts_for_qwen(sampling: dict[str, float], smollm2_path: Path, qwen_path: Path) -> None:
    with dg.load(qwen_path, draft=f"model:{smollm2_path}", budget=4, context=512) as llm:
        report = audit(llm, PROMPTS, lambda line: None, max_tokens=48, **sampling)
    assert report.mismatches == ()
    assert report.tokens_per_step > 1.7


def test_the_command_finds_the_model_by_its_name(smollm2_path: Path) -> None:
    result = command("generate", "smollm2-135m", "-p", "Why is the sky blue?", "--max-tokens", "1", "--json").json
    assert result["token_ids"] == [504]
    assert command("pull", "smollm2-135m", "--json").json["path"] == str(smollm2_path)
