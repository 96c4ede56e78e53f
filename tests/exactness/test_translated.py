"""A draft model with another vocabulary changes no text: greedy, sampled, in a batch, from engine to model files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import draftgraph as dg
from draftgraph.config import SamplingParams
from draftgraph.draft.mixture import MixtureDrafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.draft.translated import TranslatedDrafter
from draftgraph.models.tokenizer import Tokenizer, tokenizer_from_gguf
from draftgraph.models.translation import TokenTranslation
from support.rigs import Logits, TableRunner, make_engine, run
from support.tiny import tiny_config, write_gguf
from support.vocabularies import byte_level_metadata, sentencepiece_metadata

METADATA = {
    "smollm": byte_level_metadata("smollm", 60),
    "qwen2": byte_level_metadata("qwen2", 150),
    "sentencepiece": sentencepiece_metadata(),
}
TOKENIZERS = {name: tokenizer_from_gguf(metadata) for name, metadata in METADATA.items()}
PROMPTS = ("The quick brown fox", "déjà vue? ", "def add(first, second):\n    return", "人工知能 人")
SAMPLINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "temperature 0.8": {"temperature": 0.8, "seed": 3},
    "temperature 1.5, top-p": {"temperature": 1.5, "top_p": 0.9, "seed": 4, "repetition_penalty": 1.2},
}


def target_logits(tokenizer: Tokenizer) -> Logits:
    """Words of a few letters, cut anywhere, markup and bytes that are no characters included."""

    def logits(text: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng([7, *text[-2:]]).normal(0, 3, tokenizer.size)

    return logits


def echo(target: Tokenizer, there: TokenTranslation, size: int) -> Logits:
    """A draft model that finds likely whatever begins what the target finds likely."""
    firsts = np.array([(there.to_target([token]) or [0])[0] for token in range(size)])
    logits = target_logits(target)
    return lambda text: logits(tuple(there.to_target(text)))[firsts]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("draft_name", "target_name"),
    [("smollm", "qwen2"), ("qwen2", "smollm"), ("sentencepiece", "qwen2"), ("qwen2", "sentencepiece")],
)
@pytest.mark.parametrize("budget", [1, 4, 9])
def test_a_batch_writes_what_plain_decoding_writes(
    draft_name: str, target_name: str, sampling: str, budget: int
) -> None:
    """With fewer draft slots than requests, and a draft context that the texts outgrow."""
    draft, target = TOKENIZERS[draft_name], TOKENIZERS[target_name]
    there = TokenTranslation(draft, target)
    runner = TableRunner(echo(target, there, draft.size), draft.size, num_slots=3, context_length=60)
    drafter = TranslatedDrafter(runner, there, 2, 4)
    params = SamplingParams(max_tokens=30, **SAMPLINGS[sampling])  # type: ignore[arg-type]
    outputs = []
    for drafts, most in ((drafter, budget), (None, 0)):
        engine = make_engine(TableRunner(target_logits(target), target.size), drafts, token_bytes=target.token_bytes)
        requests = [engine.submit(target.encode_prompt(prompt), params, most) for prompt in PROMPTS]
        outputs.append(run(engine, *requests))
        if drafts is not None:
            assert sum(request.stats.accepted_nodes for request in requests) > 5
    assert outputs[0] == outputs[1]
    assert runner.num_free_slots == 3


def test_a_pass_that_fails_in_between_changes_nothing() -> None:
    draft, target = TOKENIZERS["smollm"], TOKENIZERS["qwen2"]
    there = TokenTranslation(draft, target)
    outputs = []
    for failing in (True, False):

        class Failing(TableRunner):
            def extend(self, batch: Any, failing: bool = failing) -> Any:
                rows = super().extend(batch)
                if failing and self.num_passes % 5 == 4:
                    raise MemoryError
                return rows

        runner = Failing(echo(target, there, draft.size), draft.size)
        drafter = MixtureDrafter({"suffix": SuffixDrafter(4), "model": TranslatedDrafter(runner, there, 2, 4)})
        engine = make_engine(TableRunner(target_logits(target), target.size), drafter, token_bytes=target.token_bytes)
        request = engine.submit(target.encode_prompt(PROMPTS[0]), SamplingParams(max_tokens=30), 6)
        failures = 0
        while engine.scheduler.has_work:
            try:
                engine.step()
            except MemoryError:
                failures += 1
        outputs.append(request.output)
        assert (failures > 3) == failing
        assert request.stats.accepted_nodes > 5
    assert outputs[0] == outputs[1]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny models with the vocabularies above, as files."""
    folder = tmp_path_factory.mktemp("pair")
    for name, metadata in METADATA.items():
        config = tiny_config(vocab_rows=TOKENIZERS[name].size)
        write_gguf(folder / f"{name}.gguf", config=config, extra_metadata=metadata)
    return lambda name: folder / f"{name}.gguf"


@pytest.mark.parametrize("budget", [3, "auto"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_model_files_with_two_vocabularies_draft_for_each_other(
    sampling: str, budget: int | str, files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(tmp_path))
    draft = f"suffix,model:{files('smollm')},model:{files('sentencepiece')}"
    params: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, **SAMPLINGS[sampling]}
    with dg.load(files("qwen2"), draft=draft, budget=budget, width=2) as llm:
        drafted = llm.generate(list(PROMPTS), **params)
        plain = llm.generate(list(PROMPTS), budget=0, **params)
    assert [done.token_ids for done in drafted] == [done.token_ids for done in plain]
    if budget != "auto":
        proposed = {source for done in drafted for source in done.stats.by_source}
        assert {"model:smollm", "model:sentencepiece"} <= proposed


@pytest.mark.parametrize(("name", "kind"), [("qwen2", ModelDrafter), ("smollm", TranslatedDrafter)])
def test_only_another_vocabulary_is_translated(name: str, kind: type, files: Callable[[str], Path]) -> None:
    with dg.load(files("qwen2"), draft=f"model:{files(name)}", budget=2) as llm:
        assert isinstance(llm.engine.drafter, MixtureDrafter)
        assert [type(member) for member in llm.engine.drafter.members.values()] == [kind]
