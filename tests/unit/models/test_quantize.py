"""Quantising at load: rounded to nearest, within half a step, in blocks that the reference dequantisers read."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

import draftgraph as dg
from draftgraph.errors import ParameterError
from draftgraph.models.quantize import QuantizedFolder, quantize_q4_k, quantize_q8_0
from support.tiny import tiny_config, write_gguf, write_hf_folder

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "rope_dim": 64}


def matrices() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((6, 512)).astype(np.float32)
    lone = np.zeros((2, 512), np.float32)
    lone[0, 300], lone[1, 5] = -3.5, 2.0
    return {"normal": normal, "all positive": np.abs(normal), "all negative": -np.abs(normal), "zeros and one": lone}


@pytest.mark.parametrize("name", matrices())
def test_q8_0_is_within_half_a_step(name: str) -> None:
    values = matrices()[name]
    found = gguf.quants.dequantize(quantize_q8_0(values), gguf.GGMLQuantizationType.Q8_0)
    step = np.abs(values.reshape(-1, 32)).max(-1, keepdims=True) / 127
    assert (np.abs(found - values).reshape(-1, 32) <= 0.51 * step + 1e-6).all()


def test_q8_0_is_the_known_quantiser() -> None:
    values = matrices()["normal"]
    assert (quantize_q8_0(values) == gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)).mean() > 0.99


@pytest.mark.parametrize("name", matrices())
def test_q4_k_is_within_a_step_of_its_neighbours_range(name: str) -> None:
    values = matrices()[name]
    found = gguf.quants.dequantize(quantize_q4_k(values), gguf.GGMLQuantizationType.Q4_K)
    parts = values.reshape(-1, 32)
    step = (np.maximum(parts.max(-1), 0) - np.minimum(parts.min(-1), 0)) / 15
    widest = np.repeat(step.reshape(-1, 8).max(-1), 8)  # scales are rounded to 1/63 of the widest
    bound = 0.5 * step + 0.5 * widest / 63 * 15 + 0.01 * widest + 1e-6
    assert (np.abs(found - values).reshape(-1, 32).max(-1) <= bound).all()


@pytest.mark.parametrize("kind", ["q8_0", "q4_k"])
@pytest.mark.parametrize("runner", ["reference", "auto"])
def test_a_quantised_folder_runs_and_drafts_do_not_change_it(tmp_path: Path, kind: str, runner: str) -> None:
    folder = write_hf_folder(tmp_path / "model", "llama", dtype="BF16", config=tiny_config("llama", **WIDE))
    with dg.load(folder, quantize=kind, runner=runner) as llm:
        plain = llm.generate("abc", budget=0, max_tokens=20)
        assert llm.generate("abc", max_tokens=20).token_ids == plain.token_ids


def test_only_matrices_are_quantised_and_by_what_their_rows_allow(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "model", "llama", config=tiny_config("llama", **WIDE))
    source = QuantizedFolder(folder, "q4_k")
    assert source.type_name("model.layers.0.mlp.up_proj.weight") == "Q4_K"
    assert source.type_name("model.norm.weight") == "F32"
    narrow = QuantizedFolder(write_hf_folder(tmp_path / "narrow", "llama"), "q4_k")
    assert narrow.type_name("model.layers.0.mlp.up_proj.weight") == "Q8_0"


def test_a_gguf_file_is_not_quantised_again(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="safetensors folder"):
        dg.load(write_gguf(tmp_path / "model.gguf"), quantize="q8_0")
