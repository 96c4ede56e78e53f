"""Damaged model files on the native loader: a typed error or a model, never a crash, and no memory for mere claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgraph.models.gguf import GgufFile
from support.children import load_in_child, needs_children
from support.tiny import write_gguf

pytestmark = needs_children

TYPED = {"ModelFileError", "UnsupportedModelError", "TokenizerError"}
NUMBERS = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count", "vocab_size",
)  # fmt: skip
SHAPES: dict[str, tuple[int, ...]] = {
    "blk.0.attn_q.weight": (32, 64),
    "blk.0.attn_k.weight": (32, 32),
    "blk.1.ffn_down.weight": (128, 64),
    "blk.1.ffn_gate.weight": (128,),
    "blk.0.attn_norm.weight": (64, 1),
    "output_norm.weight": (65,),
    "token_embd.weight": (2, 64),
}


@pytest.fixture
def sound(tmp_path: Path) -> bytes:
    return write_gguf(tmp_path / "whole.gguf").read_bytes()


def variant(folder: Path, **changes: Any) -> bytes:
    return write_gguf(folder / "variant.gguf", **changes).read_bytes()


def header_length(folder: Path, sound: bytes) -> int:
    first = GgufFile(folder / "whole.gguf").blocks("token_embd.weight")
    return sound.index(first[:4].tobytes())


def test_a_cut_model_is_refused(tmp_path: Path, sound: bytes) -> None:
    header = header_length(tmp_path, sound)
    lengths = [*range(1, header, header // 40), *range(header, len(sound), len(sound) // 10), len(sound) - 32]
    outcomes = load_in_child(tmp_path, sound, {f"{n} bytes": sound[:n] for n in lengths})
    assert set(outcomes.values()) == {"ModelFileError"}


def test_a_changed_byte_of_the_header_gives_a_model_or_a_typed_error(tmp_path: Path, sound: bytes) -> None:
    header = header_length(tmp_path, sound)
    table = sound.index(b"token_embd.weight")
    files = {}
    for place in (*range(4, table, 97), *range(table, header, 11)):
        changed = bytearray(sound)
        changed[place] ^= 0xFF
        files[f"byte {place}"] = bytes(changed)
    outcomes = load_in_child(tmp_path, sound, files)
    assert set(outcomes.values()) <= TYPED | {"loaded"}, outcomes
    assert len(TYPED.intersection(outcomes.values())) > 1


def test_claims_of_size_are_refused_or_cost_nothing(tmp_path: Path, sound: bytes) -> None:
    files = {
        f"{key}={value}": variant(tmp_path, extra_metadata={f"llama.{key}": value})
        for key in NUMBERS
        for value in (0, 2**20, 2**31, 2**32 - 1)
    }
    outcomes = load_in_child(tmp_path, sound, files)
    # A long context is a promise of the model, and is allocated only as far as --context says.
    longer = {f"context_length={value}" for value in (2**20, 2**31, 2**32 - 1)}
    loaded = {name for name, outcome in outcomes.items() if outcome == "loaded"}
    assert loaded <= longer
    assert {outcome for name, outcome in outcomes.items() if name not in loaded} <= TYPED, outcomes


def test_tensors_of_another_shape_are_refused(tmp_path: Path, sound: bytes) -> None:
    files = {
        name: variant(tmp_path, extra_tensors={name: np.zeros(shape, np.float32)}) for name, shape in SHAPES.items()
    }
    outcomes = load_in_child(tmp_path, sound, files)
    assert set(outcomes.values()) == {"ModelFileError"}, outcomes
