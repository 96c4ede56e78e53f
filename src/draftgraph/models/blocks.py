"""What all families share: typed settings, weight names and shapes, scaled RoPE.

In: a `TensorSource` and its settings. Out: checked values, `ModelWeights`, typed errors that name both sides of a
disagreement. A family adds names and a few choices, see `Family`. Knows no file format and no runner.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from draftgraph.errors import ModelFileError, UnsupportedModelError
from draftgraph.models.base import LayerWeights, ModelConfig, ModelWeights, TensorSource
from draftgraph.types import FloatArray


class Fields:
    """Typed access to a model's settings. Does not modify them.

    Args:
        path: named in every error.
        values: the settings; a value of None counts as missing.
        prefix: put before every name, such as "llama.".
    """

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self.prefix = prefix

    def get(self, name: str) -> Any:
        """Returns the raw value, or None where it is missing."""
        return self.values.get(self.prefix + name)

    def refuse(self, name: str, allowed: str) -> NoReturn:
        """Raises ModelFileError about a value that is missing or makes no sense."""
        value = self.get(name)
        given = f"has no {self.prefix}{name}" if value is None else f"{self.prefix}{name}={_short(value)}"
        raise ModelFileError(f"{self.path}: {given}", allowed, "download the file again or convert the model again")

    def unsupported(self, name: str, allowed: str) -> NoReturn:
        """Raises UnsupportedModelError about a value that is sound but changes the mathematics."""
        given = f"{self.path}: {self.prefix}{name}={_short(self.get(name))}"
        raise UnsupportedModelError(given, allowed, "use another model, or a runner that supports this setting")

    def whole(self, name: str, *, default: int | None = None, low: int = 1, high: int = 2**31 - 1) -> int:
        value = default if self.get(name) is None else self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.refuse(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        value = default if self.get(name) is None else self.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1e-30 < value < 1e30:
            self.refuse(name, "a positive number")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = default if self.get(name) is None else self.get(name)
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def text(self, name: str, *, default: str | None = None) -> str:
        value = default if self.get(name) is None else self.get(name)
        if not isinstance(value, str):
            self.refuse(name, "a string")
        return value

    def expect(self, name: str, *allowed: Any) -> None:
        """Raises UnsupportedModelError unless the value is missing or one of `allowed`."""
        value = self.get(name)
        if value is not None and not any(type(value) in _KIN[type(each)] and value == each for each in allowed):
            self.unsupported(name, " or ".join(map(repr, allowed)) or "no such setting")


_KIN: Mapping[type, tuple[type, ...]] = {bool: (bool,), int: (int, float), float: (int, float), str: (str,)}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# (settings, the shape that all families share) -> fields of `ModelConfig`
Additions = Callable[[Fields, ModelConfig], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Family:
    """What one family adds to the shared blocks.

    Args:
        name: goes into `ModelConfig.family`.
        gguf_archs: values of `general.architecture`.
        model_types: values of `model_type` in config.json.
        gguf_names, hf_names: field of `LayerWeights` or `ModelWeights` -> tensor name, with "{i}" for the layer.
        hf, gguf: settings and the shape that all families share -> the fields of `ModelConfig` that the family adds.
        hf_settings: config.json -> the same with the family's defaults, under the keys that `settings` reads.
        hf_plain: setting of config.json -> the values that the family computes, in place of those for all families;
            None where `hf` reads the setting.
        gguf_known: settings under "<arch>." that `gguf` reads, beyond those of all families.
        always_biased: query, key and value always have biases; otherwise where the file says so.
        gguf_interleaved: the GGUF converter permutes query and key rows, so that RoPE rotates neighbouring pairs.
        hf_norm_offset: what a folder's norms lack, all of them; GGUF files hold them whole.
    """

    name: str
    gguf_archs: tuple[str, ...]
    model_types: tuple[str, ...]
    gguf_names: Mapping[str, str]
    hf_names: Mapping[str, str]
    hf: Additions
    gguf: Additions
    hf_settings: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    hf_plain: Mapping[str, tuple[Any, ...] | None] = field(default_factory=dict)
    gguf_known: frozenset[str] = frozenset()
    always_biased: bool = False
    gguf_interleaved: bool = False
    hf_norm_offset: float = 0.0


# Names that a file may carry and that the computation does not need: RoPE tables, or factors read elsewhere.
GGUF_SPARE = ("rope_freqs.weight", "blk.{i}.attn_rot_embd.weight")
HF_SPARE = ("model.layers.{i}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")

GGUF_NAMES: Mapping[str, str] = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "attn_norm": "blk.{i}.attn_norm.weight",
    "q": "blk.{i}.attn_q.weight",
    "k": "blk.{i}.attn_k.weight",
    "v": "blk.{i}.attn_v.weight",
    "q_bias": "blk.{i}.attn_q.bias",
    "k_bias": "blk.{i}.attn_k.bias",
    "v_bias": "blk.{i}.attn_v.bias",
    "o": "blk.{i}.attn_output.weight",
    "o_bias": "blk.{i}.attn_output.bias",
    "ffn_norm": "blk.{i}.ffn_norm.weight",
    "gate": "blk.{i}.ffn_gate.weight",
    "up": "blk.{i}.ffn_up.weight",
    "down": "blk.{i}.ffn_down.weight",
    "q_norm": "blk.{i}.attn_q_norm.weight",
    "k_norm": "blk.{i}.attn_k_norm.weight",
}
HF_NAMES: Mapping[str, str] = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attn_norm": "model.layers.{i}.input_layernorm.weight",
    "q": "model.layers.{i}.self_attn.q_proj.weight",
    "k": "model.layers.{i}.self_attn.k_proj.weight",
    "v": "model.layers.{i}.self_attn.v_proj.weight",
    "q_bias": "model.layers.{i}.self_attn.q_proj.bias",
    "k_bias": "model.layers.{i}.self_attn.k_proj.bias",
    "v_bias": "model.layers.{i}.self_attn.v_proj.bias",
    "o": "model.layers.{i}.self_attn.o_proj.weight",
    "o_bias": "model.layers.{i}.self_attn.o_proj.bias",
    "ffn_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "gate": "model.layers.{i}.mlp.gate_proj.weight",
    "up": "model.layers.{i}.mlp.up_proj.weight",
    "down": "model.layers.{i}.mlp.down_proj.weight",
    "q_norm": "model.layers.{i}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{i}.self_attn.k_norm.weight",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """How one file format stores a family's weights; the fields are those of `Family`."""

    names: Mapping[str, str]
    spare: Sequence[str]
    norm_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class WeightName:
    """Where one weight lies: a field of `LayerWeights` (layer >= 0) or of `ModelWeights` (layer -1).

    Args:
        offset: what is added to the values in the file; only a norm has one, see `load_weight`.
    """

    field: str
    layer: int
    name: str
    shape: tuple[int, ...]
    offset: float = 0.0


def weight_names(config: ModelConfig, layout: Layout, *, tied: bool) -> Iterator[WeightName]:
    """Yields every weight that a model of this shape must have, the model's own first, then layer by layer."""
    hidden, rows = config.hidden_size, config.vocab_rows
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    model: dict[str, tuple[int, ...]] = {"embedding": (rows, hidden), "final_norm": (hidden,)}
    if not tied:
        model["head"] = (rows, hidden)
    biases = {"q_bias": (heads,), "k_bias": (kv_heads,), "v_bias": (kv_heads,)} if config.qkv_bias else {}
    layer: Mapping[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "q": (heads, hidden),
        "k": (kv_heads, hidden),
        "v": (kv_heads, hidden),
        **biases,
        "o": (hidden, heads),
        "ffn_norm": (hidden,),
        "gate": (config.intermediate_size, hidden),
        "up": (config.intermediate_size, hidden),
        "down": (hidden, config.intermediate_size),
        **({"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)} if config.qk_norm else {}),
        **({"post_attn_norm": (hidden,), "post_ffn_norm": (hidden,)} if config.post_norms else {}),
    }
    for i in range(-1, config.num_layers):
        for name, shape in (model if i < 0 else layer).items():
            offset = layout.norm_offset if name.endswith("_norm") else 0.0
            yield WeightName(name, i, layout.names[name].format(i=i), shape, offset)


def check_weights(source: TensorSource, config: ModelConfig, layout: Layout, *, tied: bool) -> list[WeightName]:
    """Returns `weight_names`, after checking that the source has them all, in these shapes, and nothing unknown.

    Raises:
        ModelFileError: a tensor is missing or has another shape.
        UnsupportedModelError: a tensor that the family does not know, so that leaving it out would change the text.
    """
    wanted = []
    for weight in weight_names(config, layout, tied=tied):
        if weight.name not in source:
            raise ModelFileError(
                f"{source.path}: tensor {weight.name!r} is missing",
                f"{config.num_layers} layers with all their tensors, as the settings say",
                "download the file again or convert the model again",
            )
        if (shape := source.shape(weight.name)) != weight.shape:
            raise ModelFileError(
                f"{source.path}: tensor {weight.name!r} has shape {shape}",
                f"{weight.shape}, from {_short_shape(config)}",
                "download the file again or convert the model again",
            )
        wanted.append(weight)
    spare = (*layout.spare, layout.names["o_bias"])
    known = {weight.name for weight in wanted} | {layout.names["head"]}
    known |= {name.format(i=i) for name in spare for i in range(config.num_layers)}
    if unknown := [name for name in source.names() if name not in known]:
        shown = ", ".join(unknown[:3])
        raise UnsupportedModelError(
            f"{source.path}: {len(unknown)} tensors that the family {config.family} does not have: {shown}",
            f"the tensors of a plain {config.family} model",
            "use another model; leaving these out would change its text",
        )
    return wanted


def _short_shape(config: ModelConfig) -> str:
    return (
        f"hidden size {config.hidden_size}, {config.num_heads} heads and {config.num_kv_heads} key-value heads of "
        f"{config.head_dim}, intermediate size {config.intermediate_size}, {config.vocab_rows} rows"
    )


def assemble(source: TensorSource, config: ModelConfig, layout: Layout, *, tied: bool) -> ModelWeights:
    """Checks all tensors, then loads them.

    Raises:
        ModelFileError, UnsupportedModelError: as `check_weights`, and for values that are not finite.
    """
    loaded: dict[int, dict[str, FloatArray]] = {}
    for weight in check_weights(source, config, layout, tied=tied):
        loaded.setdefault(weight.layer, {})[weight.field] = load_weight(source, weight)
    model, names = loaded.pop(-1), layout.names
    layers = []
    for i in range(config.num_layers):
        _require_zero(source, names["o_bias"].format(i=i))
        fields: dict[str, Any] = {"q_bias": None, "k_bias": None, "v_bias": None} | loaded[i]
        layers.append(LayerWeights(**fields))
    embedding = model["embedding"]
    if tied and names["head"] in source and not np.array_equal(embedding, source.load(names["head"])):
        warnings.warn(
            f"{source.path}: {names['head']!r} differs from the embedding, but the settings tie them; "
            "the embedding is used for both",
            stacklevel=3,
        )
    head = embedding if tied else model["head"]
    return ModelWeights(embedding=embedding, layers=tuple(layers), final_norm=model["final_norm"], head=head)


def load_weight(source: TensorSource, weight: WeightName) -> FloatArray:
    """Loads a weight as the model computes with it. Raises as `load_finite`."""
    values = load_finite(source, weight.name)
    return values + np.float32(weight.offset) if weight.offset else values


def load_finite(source: TensorSource, name: str) -> FloatArray:
    """Loads a tensor. Raises ModelFileError where it holds values that are not finite numbers."""
    values = source.load(name)
    if not np.isfinite(values).all():
        bad = int(np.count_nonzero(~np.isfinite(values)))
        given = f"{source.path}: tensor {name!r} holds {bad} values that are not finite"
        raise ModelFileError(given, "finite numbers", "download the file again or use another quantisation")
    return values


def _require_zero(source: TensorSource, name: str) -> None:
    if name in source and source.load(name).any():
        given = f"{source.path}: tensor {name!r} is not zero"
        raise UnsupportedModelError(given, "no bias on the attention's output", "use another model")


def linear_factors(rope_dim: int, factor: float) -> FloatArray:
    """Returns [rope_dim / 2] frequency divisors of linear position scaling."""
    return np.full(rope_dim // 2, factor, np.float32)


def llama3_factors(
    rope_dim: int, base: float, *, factor: float, low: float, high: float, original_context: int
) -> FloatArray:
    """Returns [rope_dim / 2] frequency divisors of Llama 3.1 (the "llama3" RoPE type of config.json).

    Frequencies that turn fewer than `low` times in the original context are divided by `factor`, those that turn more
    than `high` times are kept, and those between are blended by the number of turns.
    """
    frequency = base ** -(np.arange(0, rope_dim, 2, dtype=np.float64) / rope_dim)
    turns = original_context * frequency / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - share) / factor + share), np.float32)
