"""Tiny seeded models and their tokenizer, written as GGUF files and as folders with config.json.

In: a family, a seed and what to change. Out: files that are valid in every way, each written in well under a second.
The same seed gives the same mathematical model in both formats and in every unquantised type: weights have 8
significant bits, which F32, F16 and BF16 all hold exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

from draftgraph.models.base import LayerWeights, ModelConfig, ModelWeights
from draftgraph.models.blocks import GGUF_NAMES, HF_NAMES
from draftgraph.models.gemma3 import GEMMA3
from draftgraph.types import FloatArray
from support.tiny_words import (
    CHAT_TEMPLATE,
    CONTROL_TOKENS,
    END_OF_TEXT,
    IM_END,
    IM_START,
    TinyTokenizer,
    byte_characters,
    tiny_tokenizer,
    tokenizer_config,
    tokenizer_json,
    tokenizer_metadata,
)

__all__ = [
    "CHAT_TEMPLATE",
    "CONTROL_TOKENS",
    "END_OF_TEXT",
    "IM_END",
    "IM_START",
    "TinyTokenizer",
    "add_metadata",
    "byte_characters",
    "config_json",
    "config_metadata",
    "encode_floats",
    "gguf_names",
    "hf_names",
    "named_tensors",
    "permute_for_gguf",
    "random_blocks",
    "random_weights",
    "tiny_config",
    "tiny_tokenizer",
    "tokenizer_config",
    "tokenizer_json",
    "tokenizer_metadata",
    "write_gguf",
    "write_hf_folder",
    "write_json",
    "write_safetensors",
]


WINDOW = 8  # of the tiny models that have one
# How families differ from Llama, in the fields of `ModelConfig`.
_FEATURES: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "gemma3": {
        "qk_norm": True, "post_norms": True, "activation": "gelu", "rope_base": 1e6, "local_rope_base": 10000.0,
    },
}  # fmt: skip
_MODEL_TYPES = {"gemma3": "gemma3_text"}
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM", "gemma3": "Gemma3ForCausalLM",
}  # fmt: skip


def gguf_names(family: str) -> Mapping[str, str]:
    """Returns the family's names of tensors in a GGUF file."""
    return GEMMA3.gguf_names if family == "gemma3" else GGUF_NAMES


def hf_names(family: str) -> Mapping[str, str]:
    """Returns the family's names of tensors in a folder."""
    return GEMMA3.hf_names if family == "gemma3" else HF_NAMES


def tiny_config(family: str = "llama", *, padding_rows: int = 0, **overrides: Any) -> ModelConfig:
    """Returns the shape of a 2-layer model over the tiny tokenizer, as a config.json folder has it (RoPE in halves).

    A mistral model has a window in every layer, a gemma3 model in every other one.

    Args:
        padding_rows: rows of the embedding beyond the tokenizer's size.
        overrides: fields of `ModelConfig` to replace.
    """
    config = ModelConfig(
        family=family,
        num_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_rows=len(tiny_tokenizer().tokens) + padding_rows,
        context_length=256,
        norm_eps=float(np.float32(1e-5)),
        rope_base=10000.0,
        rope_interleaved=False,
        rope_dim=16,
        rope_factors=None,
        qkv_bias=False,
    )
    config = replace(config, **{**_FEATURES.get(family, {}), **overrides})
    implied: dict[str, Any] = {"rope_dim": config.head_dim}
    if family == "mistral":
        implied["windows"] = (WINDOW,) * config.num_layers
    if family == "gemma3":
        implied["windows"] = tuple(0 if layer % 2 else WINDOW for layer in range(config.num_layers))
        implied["embedding_scale"] = float(np.sqrt(np.float32(config.hidden_size)))
    return replace(config, **{name: value for name, value in implied.items() if name not in overrides})


def random_weights(config: ModelConfig, *, seed: int = 0, tied: bool = True) -> ModelWeights:
    """Returns weights whose greedy text is varied: layers outweigh the embedding, heads attend to few tokens."""
    rng = np.random.default_rng([seed, config.hidden_size, config.vocab_rows])
    hidden, heads, kv = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def draw(std: float, *shape: int) -> FloatArray:
        grid = 2.0 ** np.round(np.log2(std / 32))
        return np.asarray(np.clip(np.round(rng.normal(0, std, shape) / grid), -255, 255) * grid, np.float32)

    def linear(gain: float, outputs: int, inputs: int) -> FloatArray:
        return draw(gain / np.sqrt(inputs), outputs, inputs)

    def norm(size: int = hidden) -> FloatArray:
        return np.asarray(np.clip(np.round(rng.normal(1, 0.2, size) * 128), 32, 255) / 128, np.float32)

    def bias(size: int) -> FloatArray | None:
        return draw(0.5, size) if config.qkv_bias else None

    def more_norms() -> dict[str, FloatArray]:
        heads = {name: norm(config.head_dim) for name in ("q_norm", "k_norm") if config.qk_norm}
        return heads | {name: norm() for name in ("post_attn_norm", "post_ffn_norm") if config.post_norms}

    embedding = draw(0.4 / config.embedding_scale, config.vocab_rows, hidden)
    layers = tuple(
        LayerWeights(
            attn_norm=norm(), q=linear(2.0, heads, hidden), k=linear(2.0, kv, hidden), v=linear(1.0, kv, hidden),
            q_bias=bias(heads), k_bias=bias(kv), v_bias=bias(kv), o=linear(2.0, hidden, heads),
            ffn_norm=norm(), gate=linear(2.0, config.intermediate_size, hidden),
            up=linear(1.0, config.intermediate_size, hidden), down=linear(2.0, hidden, config.intermediate_size),
            **more_norms(),
        )
        for _ in range(config.num_layers)
    )  # fmt: skip
    final_norm = norm()
    head = embedding if tied else draw(0.4, config.vocab_rows, hidden)
    return ModelWeights(embedding=embedding, layers=layers, final_norm=final_norm, head=head)


def permute_for_gguf(rows: FloatArray, num_heads: int) -> FloatArray:
    """Reorders query or key rows, or a bias, so that RoPE over neighbouring pairs equals RoPE over halves."""
    halves = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def named_tensors(weights: ModelWeights, names: Mapping[str, str]) -> dict[str, FloatArray]:
    """Returns {tensor name: values}; the head is left out where it is the embedding."""
    tensors = {names["embedding"]: weights.embedding, names["final_norm"]: weights.final_norm}
    if weights.head is not weights.embedding:
        tensors[names["head"]] = weights.head
    for i, layer in enumerate(weights.layers):
        for field in LayerWeights.__dataclass_fields__:
            if (values := getattr(layer, field)) is not None:
                tensors[names[field].format(i=i)] = values
    return tensors


def gguf_arch(config: ModelConfig) -> str:
    return "llama" if config.family == "mistral" else config.family


def config_metadata(config: ModelConfig) -> dict[str, Any]:
    """Returns the model's shape as GGUF metadata. Mistral models are written as Llama models, without windows."""
    arch = gguf_arch(config)
    assert config.attention_scale == 0, "a GGUF file has no scale of attention"
    windows: dict[str, Any] = {}
    if arch == "gemma3":
        windows = {
            "gemma3.attention.sliding_window": max(config.windows),
            "gemma3.attention.sliding_window_pattern": [bool(window) for window in config.windows],
        }
    return {
        "general.type": "model",
        "general.name": f"Tiny {arch}",
        **windows,
        f"{arch}.block_count": config.num_layers,
        f"{arch}.context_length": config.context_length,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_heads,
        f"{arch}.attention.head_count_kv": config.num_kv_heads,
        f"{arch}.attention.key_length": config.head_dim,
        f"{arch}.attention.value_length": config.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": config.norm_eps,
        f"{arch}.rope.freq_base": config.rope_base,
        f"{arch}.rope.dimension_count": config.rope_dim,
        f"{arch}.vocab_size": config.vocab_rows,
    }


def write_gguf(
    path: Path,
    family: str = "llama",
    *,
    tied: bool = True,
    quant: str | None = None,
    seed: int = 0,
    config: ModelConfig | None = None,
    weights: ModelWeights | None = None,
    extra_metadata: Mapping[str, Any] | None = None,
    drop_metadata: Iterable[str] = (),
    extra_tensors: Mapping[str, FloatArray] | None = None,
    drop_tensors: Iterable[str] = (),
    max_tensors_in_part: int = 0,
) -> Path:
    """Writes a GGUF file and returns its path (of the first part, where `max_tensors_in_part` splits it).

    Args:
        quant: the GGML type of all matrices, such as "Q8_0"; vectors stay F32. Types that the `gguf` package cannot
            write, such as "Q4_K", hold random blocks instead, the same for the same seed; rows must be of 256 values.
        config, weights: what to write, as a config.json folder has it; by default `tiny_config`, `random_weights`.
        extra_metadata: added to or put in place of the usual keys.
        extra_tensors: added to or put in place of the usual tensors, as they stand in the file.
    """
    config = config or tiny_config(family)
    weights = weights or random_weights(config, seed=seed, tied=tied)
    arch = gguf_arch(config)
    tensors = named_tensors(weights, gguf_names(config.family))
    for name in [name for name in tensors if arch == "llama" and ("attn_q." in name or "attn_k." in name)]:
        heads = config.num_heads if "attn_q." in name else config.num_kv_heads
        tensors[name] = permute_for_gguf(tensors[name], heads)
    if config.rope_factors is not None:
        tensors["rope_freqs.weight"] = config.rope_factors
    tensors |= dict(extra_tensors or {})
    metadata = config_metadata(config) | tokenizer_metadata(tiny_tokenizer()) | dict(extra_metadata or {})
    dropped, dropped_tensors = set(drop_metadata), set(drop_tensors)
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=max_tensors_in_part)
    for key, value in metadata.items():
        if key not in dropped:
            add_metadata(writer, key, value)
    for number, (name, values) in enumerate(tensors.items()):
        if name not in dropped_tensors:
            _add_tensor(writer, name, values, quant if values.ndim > 1 else None, seed=seed * 1000 + number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = len(writer.tensors)
    return path if parts == 1 else path.with_name(f"{path.stem}-00001-of-{parts:05d}.gguf")


def add_metadata(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Adds a value with the GGUF type its Python type suggests."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        (writer.add_uint32 if value >= 0 else writer.add_int32)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: FloatArray, quant: str | None, *, seed: int) -> None:
    if quant is None:
        writer.add_tensor(name, values)
        return
    kind = gguf.GGMLQuantizationType[quant]
    try:
        blocks = quantize(values, kind)
    except NotImplementedError:
        blocks = random_blocks(quant, values.shape, seed=seed)
    if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
        writer.add_tensor(name, blocks)
    else:
        writer.add_tensor(name, blocks, raw_dtype=kind)


# Where a block's half-precision scales stand: (first byte, how many).
_SCALES = {
    "Q4_0": (0, 1), "Q4_1": (0, 2), "Q5_0": (0, 1), "Q5_1": (0, 2), "Q8_0": (0, 1), "Q2_K": (80, 2), "Q3_K": (108, 1),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208, 1), "IQ4_NL": (0, 1), "IQ4_XS": (0, 1),
}  # fmt: skip


def random_blocks(
    quant: str, shape: Sequence[int], *, seed: int = 0, scale: float = 0.001, fill: int | None = None
) -> np.ndarray[Any, Any]:
    """Returns uint8 [..., bytes of a row] of blocks: small finite scales of both signs, all else random or `fill`."""
    rng = np.random.default_rng([seed, *shape])
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[quant]]
    assert shape[-1] % block_len == 0, f"rows of {shape[-1]} values in blocks of {block_len}"
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // block_len, block_bytes), np.uint8)
    if fill is not None:
        blocks[:] = fill
    first, count = _SCALES[quant]
    scales = np.asarray(rng.normal(0, scale, (*blocks.shape[:-1], count)), "<f2")
    blocks[..., first : first + 2 * count] = scales.view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def config_json(config: ModelConfig, *, tied: bool, dtype: str = "F32") -> dict[str, Any]:
    """Returns the model's shape as the object of a config.json."""
    tokenizer = tiny_tokenizer()
    family: dict[str, Any] = {"hidden_act": "silu"}
    if config.family == "mistral":
        family["sliding_window"] = config.window(0) or None
    if config.family == "gemma3":
        kinds = ["sliding_attention" if window else "full_attention" for window in config.windows]
        family = {
            "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": kinds,
            "query_pre_attn_scalar": config.score_scale**-2 if config.attention_scale else config.head_dim,
            "rope_local_base_freq": config.local_rope_base,
            "sliding_window": max(config.windows),
        }
    return {
        "architectures": [_ARCHITECTURES[config.family]],
        "model_type": _MODEL_TYPES.get(config.family, config.family),
        **family,
        "attention_bias": config.qkv_bias,
        "attention_dropout": 0.0,
        "bos_token_id": tokenizer.id(IM_START),
        "eos_token_id": tokenizer.id(IM_END),
        "head_dim": config.head_dim,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.context_length,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.norm_eps,
        "rope_scaling": None,
        "rope_theta": config.rope_base,
        "tie_word_embeddings": tied,
        "torch_dtype": {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype],
        "vocab_size": config.vocab_rows,
    }


def encode_floats(values: FloatArray, dtype: str) -> bytes:
    """Returns the values as bytes of a safetensors type; BF16 rounds towards zero."""
    if dtype == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype({"F64": "<f8", "F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write_safetensors(path: Path, tensors: Mapping[str, FloatArray], dtype: str = "F32") -> Path:
    """Writes one safetensors file and returns its path."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, values in tensors.items():
        start = len(data)
        data += encode_floats(values, dtype)
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def write_hf_folder(
    path: Path,
    family: str = "llama",
    *,
    tied: bool = True,
    seed: int = 0,
    dtype: str = "F32",
    config: ModelConfig | None = None,
    weights: ModelWeights | None = None,
    extra_config: Mapping[str, Any] | None = None,
    drop_config: Iterable[str] = (),
    extra_tensors: Mapping[str, FloatArray] | None = None,
    drop_tensors: Iterable[str] = (),
    num_shards: int = 1,
) -> Path:
    """Writes a model folder, all files of it, and returns its path. Arguments as `write_gguf`.

    `config.rope_factors` is not written: pass `extra_config={"rope_scaling": ...}`.
    """
    config = config or tiny_config(family)
    weights = weights or random_weights(config, seed=seed, tied=tied)
    tied = weights.head is weights.embedding
    tensors = named_tensors(weights, hf_names(config.family))
    if config.family == "gemma3":  # its norms are stored less one
        tensors = {name: values - ("norm" in name) for name, values in tensors.items()}
    tensors |= dict(extra_tensors or {})
    for name in drop_tensors:
        del tensors[name]
    path.mkdir(parents=True, exist_ok=True)
    settings = config_json(config, tied=tied, dtype=dtype) | dict(extra_config or {})
    for key in drop_config:
        del settings[key]
    tokenizer = tiny_tokenizer()
    write_json(path / "config.json", settings)
    write_json(path / "generation_config.json", {"eos_token_id": list(tokenizer.end_ids)})
    write_json(path / "tokenizer.json", tokenizer_json(tokenizer))
    write_json(path / "tokenizer_config.json", tokenizer_config(tokenizer))
    if num_shards == 1:
        write_safetensors(path / "model.safetensors", tensors, dtype)
        return path
    weight_map: dict[str, str] = {}
    for number in range(num_shards):
        file = f"model-{number + 1:05d}-of-{num_shards:05d}.safetensors"
        names = list(tensors)[number::num_shards]
        write_safetensors(path / file, {name: tensors[name] for name in names}, dtype)
        weight_map |= dict.fromkeys(names, file)
    write_json(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return path


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
    return path
