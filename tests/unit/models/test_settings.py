"""Settings to shapes: sizes that agree, RoPE as declared, and a refusal by name for all that is not implemented."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgraph.errors import DraftGraphError, ModelFileError, UnsupportedModelError
from draftgraph.models.base import ModelConfig, ModelWeights
from draftgraph.models.families import end_token_ids, load_weights, open_source, read_config
from support import tiny

ROWS = len(tiny.tiny_tokenizer().tokens)


def loaded(path: Path) -> tuple[ModelConfig, ModelWeights]:
    source = open_source(path)
    config = read_config(source)
    return config, load_weights(source, config)


def gguf_config(folder: Path, **metadata: Any) -> ModelConfig:
    """Reads the config of a llama GGUF file with changed metadata; None drops a key, "__" stands for a dot."""
    changed = {key.replace("__", "."): value for key, value in metadata.items()}
    dropped = [key for key, value in changed.items() if value is None]
    extra = {key: value for key, value in changed.items() if value is not None}
    return loaded(tiny.write_gguf(folder / "model.gguf", extra_metadata=extra, drop_metadata=dropped))[0]


def hf_config(folder: Path, family: str = "llama", **settings: Any) -> ModelConfig:
    return loaded(tiny.write_hf_folder(folder / "model", family, extra_config=settings))[0]


# Heads, sizes and vocabulary


def test_a_head_size_that_is_not_hidden_over_heads_is_taken_as_given(tmp_path: Path) -> None:
    config = tiny.tiny_config(head_dim=24)
    assert loaded(tiny.write_hf_folder(tmp_path / "m", config=config))[0] == config
    gguf = loaded(tiny.write_gguf(tmp_path / "m.gguf", config=config))[0]
    assert gguf == replace(config, rope_interleaved=True)


def test_a_head_size_that_is_not_given_is_hidden_over_heads(tmp_path: Path) -> None:
    assert hf_config(tmp_path, head_dim=None).head_dim == 16
    names = ("llama__attention__key_length", "llama__attention__value_length", "llama__rope__dimension_count")
    assert gguf_config(tmp_path, **dict.fromkeys(names)).head_dim == 16


def test_part_of_a_head_may_be_rotated(tmp_path: Path) -> None:
    assert gguf_config(tmp_path, llama__rope__dimension_count=8).rope_dim == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 7, "num_key_value_heads": 2},
        {"num_attention_heads": 2, "num_key_value_heads": 4},
        {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": None},
        {"head_dim": 15},
        *({name: value} for name, value in {
            "hidden_size": 65, "intermediate_size": 127, "num_attention_heads": 6, "num_key_value_heads": 1,
            "num_hidden_layers": 3, "head_dim": 18, "vocab_size": ROWS + 1,
        }.items()),
    ],
    ids=str,
)  # fmt: skip
def test_sizes_that_disagree_are_refused_with_both_numbers(tmp_path: Path, changes: Mapping[str, Any]) -> None:
    with pytest.raises(ModelFileError) as caught:
        hf_config(tmp_path, **changes)
    assert sum(character.isdigit() for character in caught.value.given + caught.value.allowed) >= 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("embedding_length", 65), ("feed_forward_length", 129), ("attention.head_count", 6), ("block_count", 3),
        ("attention.head_count_kv", 4), ("attention.head_count_kv", 3), ("rope.dimension_count", 17),
        ("rope.dimension_count", 18), ("vocab_size", ROWS + 1), ("block_count", 1),
    ],
)  # fmt: skip
def test_gguf_sizes_that_disagree_are_refused(tmp_path: Path, key: str, value: int) -> None:
    with pytest.raises((ModelFileError, UnsupportedModelError)):
        gguf_config(tmp_path, **{f"llama.{key}": value})


@pytest.mark.parametrize("padding", [1, 64])
def test_more_rows_than_tokens_are_padding(tmp_path: Path, padding: int) -> None:
    config = tiny.tiny_config(padding_rows=padding)
    assert loaded(tiny.write_gguf(tmp_path / "m.gguf", config=config))[0].vocab_rows == ROWS + padding
    assert hf_config(tmp_path, vocab_size=ROWS - padding).vocab_rows == ROWS


@pytest.mark.parametrize("missing", [1, 64])
def test_fewer_rows_than_tokens_are_refused_with_all_numbers(tmp_path: Path, missing: int) -> None:
    config = tiny.tiny_config(padding_rows=-missing)
    words = f"{ROWS - missing} embedding rows, vocabulary size {ROWS - missing}, {ROWS} tokens"
    with pytest.raises(ModelFileError, match=words):
        loaded(tiny.write_gguf(tmp_path / "m.gguf", config=config))


# RoPE


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def reference_llama3(base: float, dim: int) -> list[float]:
    """The factors of each frequency, one by one, by wavelengths."""
    factors = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * base ** (i / dim)
        if wavelength < 64 / 4.0:
            factors.append(1.0)
        elif wavelength > 64 / 1.0:
            factors.append(8.0)
        else:
            smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / 8.0 + smooth))
    return factors


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_scaled_rope_of_a_folder_becomes_factors(tmp_path: Path, key: str) -> None:
    linear = hf_config(tmp_path / "a", **{key: {"rope_type": "linear", "factor": 4.0}}).rope_factors
    np.testing.assert_array_equal(linear, np.full(8, 4, np.float32))
    config = hf_config(tmp_path / "b", **{key: LLAMA3 | {"rope_theta": 500000.0}})
    assert config.rope_base == 500000.0
    assert config.rope_factors is not None
    np.testing.assert_allclose(config.rope_factors, reference_llama3(500000.0, 16), rtol=1e-6)
    assert np.unique(config.rope_factors).size > 1
    assert hf_config(tmp_path / "c", **{key: {"rope_type": "default"}}).rope_factors is None


def test_the_older_key_for_the_rope_type_is_read(tmp_path: Path) -> None:
    factors = hf_config(tmp_path, rope_scaling={"type": "linear", "factor": 2}).rope_factors
    np.testing.assert_array_equal(factors, np.full(8, 2, np.float32))


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": 4.0}, {"type": "dynamic", "factor": 2.0}, {"type": "su"}, {"type": "mrope"},
        {"rope_type": "linear", "factor": 2.0, "attention_factor": 1.5}, {"full_attention": {"rope_type": "default"}},
        {"rope_type": "default", "partial_rotary_factor": 0.5}, {"rope_type": "longrope", "short_factor": [1.0]},
    ],
    ids=str,
)  # fmt: skip
def test_rope_that_is_not_implemented_is_refused_by_name(tmp_path: Path, scaling: Mapping[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"rope_scaling\."):
        hf_config(tmp_path, rope_scaling=scaling)


@pytest.mark.parametrize(
    "scaling",
    [
        7, [], {"rope_type": "linear"}, {"rope_type": "linear", "factor": 0}, {"rope_type": "linear", "factor": "2"},
        {"rope_type": "llama3", "factor": 8.0}, LLAMA3 | {"high_freq_factor": 1.0}, {"rope_type": 3},
        LLAMA3 | {"original_max_position_embeddings": 0}, {"rope_type": "linear", "factor": math.nan},
    ],
    ids=str,
)  # fmt: skip
def test_rope_that_makes_no_sense_is_refused(tmp_path: Path, scaling: Any) -> None:
    with pytest.raises(ModelFileError, match="rope_scaling"):
        hf_config(tmp_path, rope_scaling=scaling)


def test_scaled_rope_of_a_gguf_file_becomes_factors(tmp_path: Path) -> None:
    assert gguf_config(tmp_path, llama__rope__scaling__type="none").rope_factors is None
    linear = gguf_config(tmp_path, llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)
    np.testing.assert_array_equal(linear.rope_factors, np.full(8, 4, np.float32))
    older = gguf_config(tmp_path, llama__rope__scale_linear=2.0)
    np.testing.assert_array_equal(older.rope_factors, np.full(8, 2, np.float32))
    factors = np.array([1, 1, 1, 2, 4, 8, 8, 8], np.float32)
    stored = loaded(tiny.write_gguf(tmp_path / "f.gguf", config=tiny.tiny_config(rope_factors=factors)))[0]
    np.testing.assert_array_equal(stored.rope_factors, factors)


@pytest.mark.parametrize("values", [np.ones(7), np.ones((8, 1)), np.zeros(8), np.full(8, math.nan)], ids=str)
def test_stored_rope_factors_are_checked(tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", extra_tensors={"rope_freqs.weight": values.astype(np.float32)})
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight"):
        loaded(path)


# Settings that change the mathematics


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_act", "gelu"), ("mlp_bias", True), ("partial_rotary_factor", 0.5), ("num_local_experts", 8),
        ("quantization_config", {"quant_method": "awq"}), ("attn_logit_softcapping", 50.0), ("logit_scale", 0.0625),
        ("final_logit_softcapping", 30.0), ("residual_multiplier", 0.22), ("use_qk_norm", True),
        ("sliding_window", 128), ("layer_types", ["full_attention", "sliding_attention"]), ("layer_types", "x"),
        ("rope_interleaved", True), ("model_type", "gpt2"), ("is_encoder_decoder", True),
    ],
)  # fmt: skip
def test_a_setting_that_is_not_implemented_is_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        hf_config(tmp_path, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("llama.expert_count", 8), ("llama.attention.causal", False), ("llama.attention.sliding_window", 128),
        ("llama.rope.scaling.type", "yarn"), ("llama.rope.scaling.attn_factor", 1.5), ("llama.logit_scale", 0.5),
        ("llama.attention.value_length", 8), ("llama.attention.clamp_kqv", 1.0), ("general.type", "adapter"),
        ("llama.something_new", 1),
    ],
)  # fmt: skip
def test_a_gguf_setting_that_is_not_implemented_is_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        gguf_config(tmp_path, **{name: value})


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", extra_metadata={"general.architecture": "mamba"})
    with pytest.raises(UnsupportedModelError, match=r"mamba'\n  allowed: gemma3, llama, qwen2, qwen3"):
        read_config(open_source(path))


def test_a_sliding_window_that_is_off_or_long_enough_changes_nothing(tmp_path: Path) -> None:
    hf_config(tmp_path, sliding_window=256)
    hf_config(tmp_path, sliding_window=None)
    hf_config(tmp_path / "q", "qwen2", sliding_window=128, use_sliding_window=False)
    gguf_config(tmp_path, llama__attention__sliding_window=0)


JUNK = (None, "", "7", [], [1, 2], -1, 0, 2**31 - 1, 0.5, -0.5, True)
KEYS = [key for key in tiny.config_metadata(tiny.tiny_config()) if key.startswith("llama.")]


@pytest.mark.parametrize("key", [*KEYS, "general.architecture", "llama.rope.scaling.type", "llama.expert_count"])
def test_gguf_settings_of_a_wrong_kind_never_escape_as_anything_but_typed_errors(tmp_path: Path, key: str) -> None:
    for value in JUNK:
        message = key
        try:
            gguf_config(tmp_path, **{key: value})
        except DraftGraphError as error:
            message = str(error)
        assert any(word in message for word in (key.removeprefix("llama."), "tensor", "rows")), value


@pytest.mark.parametrize("key", list(tiny.config_json(tiny.tiny_config(), tied=True)))
def test_settings_of_a_wrong_kind_never_escape_as_anything_but_typed_errors(tmp_path: Path, key: str) -> None:
    folder = tiny.write_hf_folder(tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    for value in (*JUNK, {}, 2**70, 1e400):
        tiny.write_json(folder / "config.json", settings | {key: value})
        message = key
        try:
            loaded(folder)
            end_token_ids(open_source(folder))
        except DraftGraphError as error:
            message = str(error)
        assert any(word in message for word in (key, "tensor", "rows")), value


@pytest.mark.parametrize(
    "key",
    ["block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
     "attention.layer_norm_rms_epsilon"],
)  # fmt: skip
def test_a_required_gguf_setting_is_named_where_it_is_missing(tmp_path: Path, key: str) -> None:
    with pytest.raises(ModelFileError, match=rf"has no llama\.{key}"):
        gguf_config(tmp_path, **{f"llama.{key}": None})
