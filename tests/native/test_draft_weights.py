"""A draft model's weights: repacked to fewer bits where its passes weigh beside the target's, else as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftgraph.config import DraftConfig, EngineConfig
from draftgraph.workshop import Workshop
from support.tiny import tiny_config, write_gguf

pytest.importorskip("draftgraph._native", reason="the extension is not built")


@pytest.mark.parametrize(("layers", "quant", "share"), [(2, "Q8_0", 0.55), (48, "Q8_0", 1.0), (2, "Q4_1", 0.9)])
def test_weights_are_repacked_where_passes_weigh_beside_the_target(
    tmp_path: Path, layers: int, quant: str, share: float
) -> None:
    large, small = tiny_config(num_layers=layers), tiny_config(num_layers=2)
    target = write_gguf(tmp_path / "target.gguf", config=large, quant="Q8_0")
    draft = write_gguf(tmp_path / "draft.gguf", config=small, quant=quant, seed=1)
    shop = Workshop(target, EngineConfig(runner="native"))
    shop.engine(DraftConfig(draft=f"model:{draft}", budget=4))
    (runner, _), as_it_is = shop.drafts[str(draft)], Workshop(draft, EngineConfig(runner="native")).runner
    assert runner.weight_bytes / as_it_is.weight_bytes == pytest.approx(share, abs=0.05)


def test_a_model_that_drafts_for_itself_stays_as_it_is(tmp_path: Path) -> None:
    target = write_gguf(tmp_path / "target.gguf", quant="Q8_0")
    shop = Workshop(target, EngineConfig(runner="native"))
    shop.engine(DraftConfig(draft=f"model:{target}", budget=4))
    assert shop.drafts[str(target)][0].weight_bytes == shop.runner.weight_bytes
