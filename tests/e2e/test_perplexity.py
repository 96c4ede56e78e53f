"""`draftgraph perplexity`: the documented number, checked against the whole text's own logits, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

import draftgraph as dg
from draftgraph.models.tokenizer import Tokenizer
from draftgraph.perplexity import first_ids, perplexity
from draftgraph.types import Extension, VerifyBatch
from support.commands import command, refusal
from support.tiny import write_gguf

TEXT = "the sky is blue because of the way light is scattered by the air. " * 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("perplexity") / "model.gguf")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.mark.parametrize(("tokens", "window"), [(40, 256), (150, 100), (101, 100)])
def test_the_number_is_that_of_the_models_own_probabilities(model: Path, data: Path, tokens: int, window: int) -> None:
    outcome = command("perplexity", model, "--data", data, "--tokens", f"{tokens}", "--window", f"{window}", "--json")
    assert outcome.code == 0
    assert set(outcome.json) == {"perplexity", "tokens", "seconds"}
    assert outcome.json["tokens"] == tokens
    losses = []
    with dg.load(model, draft="off") as llm:
        ids = np.array(llm.model.tokenizer.encode(TEXT, special=False)[:tokens], np.int32)
        for start in range(0, tokens, window):
            part = ids[start : start + window]
            slot = llm.runner.open()
            chain = Extension(part, np.arange(-1, len(part) - 1, dtype=np.int32), 0)
            rows = llm.runner.extend(VerifyBatch((slot,), [chain])).rows[0].astype(np.float64)
            llm.runner.release(slot)
            for row, token in zip(rows, part[1:], strict=False):
                losses.append(np.log(np.exp(row).sum()) - row[token])
    assert outcome.json["perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)


def test_a_fair_coin_has_a_perplexity_of_two() -> None:
    assert perplexity(lambda ids: [np.log(2.0)] * (len(ids) - 1), list(range(10)), 4).perplexity == pytest.approx(2)


class LongTokens:
    """A tokenizer whose tokens are 100 characters each; an id is its token's length."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        return [len(text[start : start + 100]) for start in range(0, len(text), 100)]


@pytest.mark.parametrize("count", [2, 17, 49, None])
def test_the_first_ids_of_a_text_are_those_of_the_whole(count: int | None) -> None:
    tokenizer = cast(Tokenizer, LongTokens())
    for length in (0, 1, 250, 4950, 20_010):
        assert first_ids(tokenizer, "a" * length, count) == LongTokens().encode("a" * length, special=False)[:count]


@pytest.mark.parametrize(
    "options", [["--window", "300"], ["--context", "8"], ["--window", "1"], ["--tokens", "1"], ["--tokens", "x"]]
)
def test_bad_options_are_refused(model: Path, data: Path, options: list[str]) -> None:
    refusal(command("perplexity", model, "--data", data, *options), parser=options[0] != "--window" or "1" in options)


def test_a_text_without_two_tokens_is_refused(model: Path, tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("one", b"a"), ("bytes", b"\xff\xfe")):
        (tmp_path / name).write_bytes(content)
        refusal(command("perplexity", model, "--data", tmp_path / name))
    refusal(command("perplexity", model, "--data", tmp_path / "missing"))
