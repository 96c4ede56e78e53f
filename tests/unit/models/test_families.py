"""From files to models: both formats give one model, and what would change the mathematics is refused by name."""

from __future__ import annotations

import math
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgraph.errors import DraftGraphError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from draftgraph.models.base import LayerWeights, ModelConfig, ModelWeights
from draftgraph.models.families import (
    end_token_ids,
    load_weights,
    model_name,
    open_source,
    read_config,
    weight_names,
)
from support import tiny

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")  # by their GGUF files
FOLDERS = (*FAMILIES, "mistral")
HIDDEN, ROWS = 64, len(tiny.tiny_tokenizer().tokens)


def loaded(path: Path) -> tuple[ModelConfig, ModelWeights]:
    source = open_source(path)
    config = read_config(source)
    return config, load_weights(source, config)


def hf_config(folder: Path, family: str = "llama", **settings: Any) -> ModelConfig:
    return loaded(tiny.write_hf_folder(folder / "model", family, extra_config=settings))[0]


def assert_same_weights(ours: ModelWeights, wanted: ModelWeights) -> None:
    for name in ("embedding", "final_norm", "head"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(wanted, name))
    assert (ours.head is ours.embedding) == (wanted.head is wanted.embedding)
    for layer, wanted_layer in zip(ours.layers, wanted.layers, strict=True):
        for field in fields(LayerWeights):
            np.testing.assert_array_equal(getattr(layer, field.name), getattr(wanted_layer, field.name))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FOLDERS)
@pytest.mark.parametrize(("dtype", "shards"), [("F32", 1), ("F16", 3), ("BF16", 1)])
def test_a_folder_gives_the_model_that_was_written(
    tmp_path: Path, family: str, tied: bool, dtype: str, shards: int
) -> None:
    folder = tiny.write_hf_folder(tmp_path / "m", family, tied=tied, seed=5, dtype=dtype, num_shards=shards)
    config, weights = loaded(folder)
    assert config == tiny.tiny_config(family)
    assert_same_weights(weights, tiny.random_weights(config, seed=5, tied=tied))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_gives_the_same_model_with_its_own_order_of_query_and_key_rows(
    tmp_path: Path, family: str, tied: bool
) -> None:
    config, weights = loaded(tiny.write_gguf(tmp_path / "m.gguf", family, tied=tied, seed=5))
    assert config == replace(tiny.tiny_config(family), rope_interleaved=family == "llama")
    wanted = tiny.random_weights(config, seed=5, tied=tied)
    if family == "llama":
        layers = [
            replace(layer, q=tiny.permute_for_gguf(layer.q, 4), k=tiny.permute_for_gguf(layer.k, 2))
            for layer in wanted.layers
        ]
        wanted = replace(wanted, layers=tuple(layers))
    assert_same_weights(weights, wanted)


def test_a_gguf_file_of_a_mistral_model_is_one_of_a_llama_model(tmp_path: Path) -> None:
    config = tiny.tiny_config("mistral", windows=())
    weights = tiny.random_weights(config)
    found, read = loaded(tiny.write_gguf(tmp_path / "m.gguf", config=config, weights=weights))
    assert found == replace(config, family="llama", rope_interleaved=True)
    np.testing.assert_array_equal(read.layers[1].q, tiny.permute_for_gguf(weights.layers[1].q, 4))


def test_the_four_norms_of_a_gemma3_layer_stand_where_they_are_applied() -> None:
    """ "post_attention_layernorm" is the norm before the feed-forward in other families, and after attention here."""
    names = tiny.hf_names("gemma3")
    places = {
        "attn_norm": "input", "post_attn_norm": "post_attention", "ffn_norm": "pre_feedforward",
        "post_ffn_norm": "post_feedforward",
    }  # fmt: skip
    for field, place in places.items():
        assert names[field] == f"model.layers.{{i}}.{place}_layernorm.weight"
    assert tiny.hf_names("llama")["ffn_norm"] == "model.layers.{i}.post_attention_layernorm.weight"


def test_norms_of_a_gemma3_folder_lack_one_and_those_of_its_gguf_file_do_not(tmp_path: Path) -> None:
    folder = open_source(tiny.write_hf_folder(tmp_path / "m", "gemma3"))
    file = open_source(tiny.write_gguf(tmp_path / "m.gguf", "gemma3"))
    for source, offset in ((folder, 1.0), (file, 0.0)):
        for weight in weight_names(source, read_config(source)):
            assert weight.offset == (offset if len(weight.shape) == 1 else 0)
    np.testing.assert_array_equal(folder.load("model.norm.weight") + 1, file.load("output_norm.weight"))


def test_rotating_pairs_of_permuted_rows_equals_rotating_halves() -> None:
    rows = np.random.default_rng(0).normal(size=(2 * 8, 1)).astype(np.float32)
    angles = np.arange(4) + 0.5
    low, high = rows.reshape(2, 2, 4).swapaxes(0, 1)
    halves = low * np.cos(angles) - high * np.sin(angles), low * np.sin(angles) + high * np.cos(angles)
    even, odd = np.moveaxis(tiny.permute_for_gguf(rows, 2).reshape(2, 4, 2), -1, 0)
    pairs = even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles)
    np.testing.assert_array_equal(halves, pairs)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quant", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_files_give_weights_near_the_original(tmp_path: Path, family: str, quant: str) -> None:
    _, plain = loaded(tiny.write_gguf(tmp_path / "plain.gguf", family))
    _, weights = loaded(tiny.write_gguf(tmp_path / "quant.gguf", family, quant=quant))
    bits = {"F16": 11, "BF16": 8, "Q8_0": 7}.get(quant, 3)
    for ours, wanted in zip(weights.layers, plain.layers, strict=True):
        assert abs(ours.gate - wanted.gate).max() <= abs(wanted.gate).max() * 2.0**-bits
        np.testing.assert_array_equal(ours.attn_norm, wanted.attn_norm)


def test_k_quantised_files_load_with_rows_of_256(tmp_path: Path) -> None:
    config = tiny.tiny_config(hidden_size=256, head_dim=64, intermediate_size=512)
    for quant in ("Q4_K", "Q5_K", "Q6_K"):
        loaded_config, weights = loaded(tiny.write_gguf(tmp_path / f"{quant}.gguf", quant=quant, config=config))
        assert loaded_config.head_dim == 64
        assert weights.layers[1].down.shape == (256, 512)


@pytest.mark.parametrize("family", FAMILIES)
def test_weight_names_lead_to_every_tensor(tmp_path: Path, family: str) -> None:
    for path in (
        tiny.write_gguf(tmp_path / "m.gguf", family),
        tiny.write_hf_folder(tmp_path / "m", family, tied=False),
    ):
        source = open_source(path)
        names = weight_names(source, read_config(source))
        assert {weight.name for weight in names} == set(source.names())
        assert {weight.layer for weight in names} == {-1, 0, 1}
        assert all(source.shape(weight.name) == weight.shape for weight in names)


# Tensors


def hf_tensors(family: str) -> list[str]:
    weights = tiny.random_weights(tiny.tiny_config(family), tied=False)
    return list(tiny.named_tensors(weights, tiny.hf_names(family)))


@pytest.mark.parametrize(
    ("family", "name"),
    [
        *(("llama", name) for name in hf_tensors("llama")),
        *(("gemma3", name) for name in hf_tensors("gemma3") if "norm" in name),
    ],
)
def test_every_tensor_is_needed_and_has_its_shape(tmp_path: Path, family: str, name: str) -> None:
    with pytest.raises(ModelFileError, match=r"is missing|no matrix"):
        loaded(tiny.write_hf_folder(tmp_path / "dropped", family, tied=False, drop_tensors=[name]))
    values = {name: np.zeros((3, 5), np.float32)}
    with pytest.raises(ModelFileError, match=r"\(3, 5\)|3 embedding rows"):
        loaded(tiny.write_hf_folder(tmp_path / "reshaped", family, tied=False, extra_tensors=values))


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q_norm.weight", "blk.1.post_ffw_norm.weight", "blk.2.attn_norm.weight", "output.bias"]
)
def test_a_tensor_the_family_does_not_have_is_refused(tmp_path: Path, name: str) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", extra_tensors={name: np.ones(HIDDEN, np.float32)})
    with pytest.raises(UnsupportedModelError, match=name):
        loaded(path)


def test_rope_tables_are_spare(tmp_path: Path) -> None:
    spare = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    loaded(tiny.write_hf_folder(tmp_path / "m", extra_tensors=spare))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    path = tiny.write_gguf(
        tmp_path / "m.gguf", extra_tensors={"blk.1.ffn_norm.weight": np.full(HIDDEN, value, np.float32)}
    )
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_norm\.weight.* holds 64 values"):
        loaded(path)


def test_a_redundant_head_follows_the_tie_and_warns_where_it_differs(tmp_path: Path) -> None:
    embedding = tiny.random_weights(tiny.tiny_config()).embedding
    same = tiny.write_hf_folder(tmp_path / "same", extra_tensors={"lm_head.weight": embedding})
    other = tiny.write_hf_folder(tmp_path / "other", extra_tensors={"lm_head.weight": embedding + 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, weights = loaded(same)
        assert weights.head is weights.embedding
    with pytest.warns(UserWarning, match=r"lm_head\.weight"):
        _, weights = loaded(other)
    assert weights.head is weights.embedding


def test_an_untied_folder_without_a_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"'lm_head\.weight' is missing"):
        hf_config(tmp_path, tie_word_embeddings=False)


def test_biases_follow_the_settings(tmp_path: Path) -> None:
    biased = tiny.tiny_config(qkv_bias=True)
    config, weights = loaded(tiny.write_hf_folder(tmp_path / "m", config=biased))
    assert config.qkv_bias
    assert weights.layers[0].q_bias is not None
    assert loaded(tiny.write_gguf(tmp_path / "m.gguf", config=biased))[0].qkv_bias
    with pytest.raises(UnsupportedModelError, match=r"q_proj\.bias"):
        loaded(tiny.write_hf_folder(tmp_path / "undeclared", config=biased, extra_config={"attention_bias": False}))
    with pytest.raises(ModelFileError, match=r"q_proj\.bias.* is missing"):
        hf_config(tmp_path / "absent", attention_bias=True)


def test_a_bias_on_the_attention_output_must_be_zero(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.o_proj.bias"
    loaded(tiny.write_hf_folder(tmp_path / "zero", extra_tensors={name: np.zeros(HIDDEN, np.float32)}))
    with pytest.raises(UnsupportedModelError, match=name):
        loaded(tiny.write_hf_folder(tmp_path / "one", extra_tensors={name: np.ones(HIDDEN, np.float32)}))


# Paths, names and ends


def test_the_path_decides_the_format(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        open_source(tmp_path / "missing")
    for name in ("x" * 5000, "nul\0"):
        with pytest.raises((ModelNotFoundError, ModelFileError)):
            open_source(tmp_path / name)
    with pytest.raises(ModelNotFoundError, match=r"without config\.json"):
        open_source(tmp_path)
    tiny.write_gguf(tmp_path / "m.gguf")
    with pytest.raises(ModelNotFoundError, match=r"pass one of the GGUF files in it: m\.gguf"):
        open_source(tmp_path)
    (tmp_path / "m.gguf").rename(tmp_path / "blob")
    assert model_name(open_source(tmp_path / "blob")) == "Tiny llama"
    folder = tiny.write_hf_folder(tmp_path / "folder")
    with pytest.raises(ModelFileError, match="whole folder"):
        open_source(folder / "model.safetensors")


def test_a_model_is_named_by_its_file_where_it_names_itself_nothing(tmp_path: Path) -> None:
    assert model_name(open_source(tiny.write_gguf(tmp_path / "m.gguf", drop_metadata=["general.name"]))) == "m"
    assert model_name(open_source(tiny.write_hf_folder(tmp_path / "My-Model"))) == "My-Model"


@pytest.mark.parametrize("family", FAMILIES)
def test_both_formats_declare_the_same_ends(tmp_path: Path, family: str) -> None:
    ends = tiny.tiny_tokenizer().end_ids
    assert end_token_ids(open_source(tiny.write_gguf(tmp_path / "m.gguf", family))) == ends
    assert end_token_ids(open_source(tiny.write_hf_folder(tmp_path / "m", family))) == ends


def test_the_ends_are_the_union_of_all_that_are_declared(tmp_path: Path) -> None:
    extra = {f"tokenizer.ggml.{key}_token_id": i for key, i in (("eos", 5), ("eot", 11), ("eom", 7))}
    assert end_token_ids(open_source(tiny.write_gguf(tmp_path / "m.gguf", extra_metadata=extra))) == (5, 7, 11)
    folder = tiny.write_hf_folder(tmp_path / "m", extra_config={"eos_token_id": 5})
    tiny.write_json(folder / "generation_config.json", {"eos_token_id": [5, 9]})
    words = {"eos_token": {"content": "x"}, "added_tokens_decoder": {"7": {"content": "x"}, "8": {"content": "y"}}}
    tiny.write_json(folder / "tokenizer_config.json", words)
    assert end_token_ids(open_source(folder)) == (5, 7, 9)
    for name in ("generation_config.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert end_token_ids(open_source(folder)) == (5,)


def test_an_unset_end_is_none(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.eos_token_id": 2**32 - 1}
    path = tiny.write_gguf(tmp_path / "m.gguf", extra_metadata=extra, drop_metadata=["tokenizer.ggml.eot_token_id"])
    assert end_token_ids(open_source(path)) == ()


@pytest.mark.parametrize("value", ["5", 0.5, -2, True, ["5"], {"a": 1}])
def test_an_end_that_is_no_id_is_refused(tmp_path: Path, value: Any) -> None:
    folder = tiny.write_hf_folder(tmp_path / "m", extra_config={"eos_token_id": value})
    with pytest.raises(ModelFileError, match="eos_token_id"):
        end_token_ids(open_source(folder))


def test_a_changed_byte_of_a_model_gives_a_model_or_a_typed_error(tmp_path: Path) -> None:
    content = tiny.write_gguf(tmp_path / "m.gguf").read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.choice(len(content) // 8, 150, replace=False):
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "m.gguf").write_bytes(changed)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                end_token_ids(source := open_source(tmp_path / "m.gguf"))
                load_weights(source, read_config(source))
        except DraftGraphError:
            pass
