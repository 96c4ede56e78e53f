"""The settings of Gemma 3 and Qwen3 that other families do not have."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgraph.errors import DraftGraphError, ModelFileError, UnsupportedModelError
from draftgraph.models.base import ModelConfig
from draftgraph.models.families import is_tied, load_weights, open_source, read_config
from support import tiny

PLAIN = tiny.tiny_config("gemma3")


def folder_config(folder: Path, *drop: str, config: ModelConfig = PLAIN, **settings: Any) -> ModelConfig:
    path = tiny.write_hf_folder(folder / "m", config=config, extra_config=settings, drop_config=drop)
    return read_config(open_source(path))


def gguf_config(folder: Path, config: ModelConfig = PLAIN, **metadata: Any) -> ModelConfig:
    extra = {key.replace("__", "."): value for key, value in metadata.items()}
    return read_config(open_source(tiny.write_gguf(folder / "m.gguf", config=config, extra_metadata=extra)))


def test_a_folder_means_the_family_s_defaults_where_it_is_silent(tmp_path: Path) -> None:
    silent = ("query_pre_attn_scalar", "rope_theta", "rope_local_base_freq", "hidden_activation", "rms_norm_eps")
    config = folder_config(tmp_path, *silent, "sliding_window", "tie_word_embeddings")
    assert config == replace(
        PLAIN, attention_scale=1 / 16, windows=(4096, 0), norm_eps=float(np.float32(1e-6)), rope_base=1e6
    )
    assert is_tied(open_source(tmp_path / "m"))
    wide = tiny.tiny_config("gemma3", head_dim=256)
    assert folder_config(tmp_path, "head_dim", config=wide).head_dim == 256
    wide = tiny.tiny_config("qwen3", head_dim=128)
    assert folder_config(tmp_path, "head_dim", config=wide).head_dim == 128


def test_scores_are_scaled_by_the_head_size_or_by_what_the_settings_say(tmp_path: Path) -> None:
    assert folder_config(tmp_path, query_pre_attn_scalar=16).attention_scale == 0
    assert folder_config(tmp_path, query_pre_attn_scalar=100).score_scale == pytest.approx(0.1)
    with pytest.raises(ModelFileError, match="query_pre_attn_scalar"):
        folder_config(tmp_path, query_pre_attn_scalar=0)


def test_the_27b_model_s_gguf_file_is_known_by_its_layers(tmp_path: Path) -> None:
    """Its scores are scaled by hidden size over heads, 5376 / 32 = 168, and not by its head size, 128."""
    small = {"hidden_size": 24, "intermediate_size": 8, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
    found = gguf_config(tmp_path, tiny.tiny_config("gemma3", num_layers=62, **small))
    assert found.score_scale == pytest.approx(12**-0.5)
    assert gguf_config(tmp_path, tiny.tiny_config("gemma3", num_layers=61, **small)).score_scale == 8**-0.5


def test_only_global_layers_have_scaled_rope(tmp_path: Path) -> None:
    scaled = folder_config(tmp_path, rope_scaling={"rope_type": "linear", "factor": 8.0}, rope_local_base_freq=5000.0)
    assert (scaled.rope_base, scaled.local_rope_base) == (1e6, 5000.0)
    np.testing.assert_array_equal(scaled.rope_factors, np.full(8, 8, np.float32))
    scaling = {"gemma3__rope__scaling__type": "linear", "gemma3__rope__scaling__factor": 8.0}
    scaled = gguf_config(tmp_path, **scaling, gemma3__rope__freq_base_swa=5000.0)
    assert (scaled.rope_base, scaled.local_rope_base) == (1e6, 5000.0)
    np.testing.assert_array_equal(scaled.rope_factors, np.full(8, 8, np.float32))


def test_newer_folders_have_two_objects_for_rope(tmp_path: Path) -> None:
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0},
    }
    config = folder_config(tmp_path, "rope_theta", "rope_local_base_freq", rope_parameters=rope)
    assert (config.rope_base, config.local_rope_base) == (2e6, 3000.0)
    np.testing.assert_array_equal(config.rope_factors, np.full(8, 4, np.float32))
    silent = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}
    config = folder_config(tmp_path, "rope_theta", "rope_local_base_freq", rope_parameters=silent)
    assert (config.rope_base, config.local_rope_base) == (1e6, 10000.0)
    assert config.rope_factors is None


@pytest.mark.parametrize(
    "local",
    [{"rope_type": "linear", "factor": 2.0}, {"factor": 2.0}, {"rope_theta": 0}, {"rope_theta": "x"}, 7, [7]],
    ids=str,
)
def test_scaled_rope_in_local_layers_is_refused(tmp_path: Path, local: Any) -> None:
    rope = {"full_attention": {"rope_type": "default"}, "sliding_attention": local}
    with pytest.raises(DraftGraphError, match=r"rope_parameters\.sliding_attention"):
        folder_config(tmp_path, rope_parameters=rope)


@pytest.mark.parametrize(
    "rope",
    [{"sliding_attention": {"rope_type": "default"}}, {"full_attention": 7}, {"full_attention": {}, "others": {}},
     {"full_attention": {"rope_type": "yarn"}}],
    ids=str,
)  # fmt: skip
def test_other_objects_for_rope_are_refused(tmp_path: Path, rope: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="rope_parameters"):
        folder_config(tmp_path, rope_parameters=rope)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0), ("hidden_activation", "gelu"),
        ("hidden_activation", "silu"), ("hidden_act", "silu"), ("use_bidirectional_attention", True),
        ("model_type", "gemma3"), ("model_type", "gemma2"), ("quantization_config", {"quant_method": "awq"}),
    ],
)  # fmt: skip
def test_a_setting_that_is_not_implemented_is_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        folder_config(tmp_path, **{name: value})


@pytest.mark.parametrize(
    "key", ["attn_logit_softcapping", "final_logit_softcapping", "attention.scale", "rope.dimension_count_swa"]
)
def test_a_gguf_setting_that_is_not_implemented_is_refused_by_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(UnsupportedModelError, match=key):
        gguf_config(tmp_path, **{f"gemma3.{key}": 30.0})


@pytest.mark.parametrize("family", ["qwen3", "llama", "mistral"])
@pytest.mark.parametrize(
    ("name", "value"),
    [("query_pre_attn_scalar", 64), ("rope_local_base_freq", 1e4), ("hidden_activation", "gelu_pytorch_tanh")],
)
def test_settings_of_gemma3_are_refused_in_other_families(tmp_path: Path, family: str, name: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        folder_config(tmp_path, config=tiny.tiny_config(family), **{name: value})


JUNK = (None, "", "7", [], [1, 2], -1, 0, 2**31 - 1, 0.5, -0.5, True, {}, {"full_attention": {}}, 2**70, 1e400)
KEYS = [
    *tiny.config_json(PLAIN, tied=True), "sliding_window_pattern", "_sliding_window_pattern", "rope_parameters",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_settings_of_a_wrong_kind_never_escape_as_anything_but_typed_errors(tmp_path: Path, key: str) -> None:
    folder = tiny.write_hf_folder(tmp_path / "model", "gemma3")
    settings = json.loads((folder / "config.json").read_text())
    for value in JUNK:
        tiny.write_json(folder / "config.json", settings | {key: value})
        message = key
        try:
            source = open_source(folder)
            load_weights(source, read_config(source))
        except DraftGraphError as error:
            message = str(error)
        assert any(word in message for word in (key, "tensor", "rows", "layer_types")), value
