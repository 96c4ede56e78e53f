"""Every family from a folder that transformers wrote: both runners compute what transformers computes.

Runs where torch and transformers are installed, which the tests do not ask for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgraph import load
from draftgraph.plan.measure import chain
from draftgraph.types import Extension, VerifyBatch
from support.tiny import write_hf_folder, write_json

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

_SHAPE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": None, "bos_token_id": None,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
_WINDOW = 8
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("Llama", {"rms_norm_eps": 1e-5, "rope_theta": 5e5}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, RoPE of Llama 3": ("Llama", {"rope_parameters": _LLAMA3}),
    "llama, linear RoPE": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "qwen2": ("Qwen2", {"rope_theta": 1e6}),
    "qwen2, window": ("Qwen2", {"use_sliding_window": True, "sliding_window": _WINDOW, "max_window_layers": 3}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "mistral": ("Mistral", {"sliding_window": _WINDOW}),
    "mistral, no window": ("Mistral", {"sliding_window": None, "head_dim": 32}),
    "gemma3": ("Gemma3", {"sliding_window": _WINDOW, "head_dim": 32, "query_pre_attn_scalar": 20}),
    "gemma3, linear RoPE": (
        "Gemma3",
        {"sliding_window": _WINDOW, "head_dim": 16, "query_pre_attn_scalar": 16, "rope_parameters": _GEMMA3_ROPE},
    ),
}
_LENGTH, _CHUNK = 60, 20
# Of the spread of logits; the native runner keeps keys and values in half precision.
_ERROR = {"reference": 1e-4, "native": 0.05}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, Any]:
    """A folder, a text [n], and the logits [n, vocabulary] that transformers has for it."""
    family, settings = request.param
    folder = write_hf_folder(tmp_path_factory.mktemp("model"))
    written = json.loads((folder / "config.json").read_text())
    kind = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    size = {"vocab_size": written["vocab_size"], "eos_token_id": written.get("eos_token_id")}
    config = getattr(transformers, kind)(**_SHAPE, **size, **settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * (1.5 * weight.shape[1] ** -0.5 if weight.ndim == 2 else 0.2))
        model.save_pretrained(folder)
        text = np.random.default_rng(0).integers(0, written["vocab_size"], _LENGTH)
        logits = model(torch.tensor(text)[None]).logits[0].numpy()
    return folder, text.astype(np.int32), logits


@pytest.mark.parametrize("runner", _ERROR)
def test_logits_are_those_of_transformers(case: tuple[Path, np.ndarray, Any], runner: str) -> None:
    folder, text, expected = case
    assert np.abs(_logits(folder, text, runner) - expected).max() < _ERROR[runner] * expected.std()


def test_the_windows_of_folders_that_do_not_list_them(case: tuple[Path, np.ndarray, Any], tmp_path: Path) -> None:
    """Older folders have no `layer_types`."""
    folder, text, expected = case
    older = shutil.copytree(folder, tmp_path / "older")
    settings = json.loads((older / "config.json").read_text())
    settings.pop("layer_types", None)
    write_json(older / "config.json", settings)
    assert np.abs(_logits(older, text, "reference") - expected).max() < _ERROR["reference"] * expected.std()


def _logits(folder: Path, text: np.ndarray, runner: str) -> np.ndarray:
    """Returns [n, vocabulary], read in several passes."""
    with load(folder, runner=runner, context=256) as llm:
        slot = llm.runner.open()
        rows = []
        for start in range(0, _LENGTH, _CHUNK):
            open_tree = Extension(text[start : start + _CHUNK], chain(_CHUNK, 0).parents, first_row=0)
            rows += [*llm.runner.extend(VerifyBatch((slot,), [open_tree])).rows[0]]
            llm.runner.commit(slot, range(_CHUNK))
    return np.stack(rows)
