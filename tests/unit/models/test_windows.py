"""Sliding windows: which layers have one, in every way that a file says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftgraph.errors import DraftGraphError, ModelFileError, UnsupportedModelError
from draftgraph.models.base import ModelConfig
from draftgraph.models.families import open_source, read_config
from support import tiny

GLOBAL, LOCAL = "full_attention", "sliding_attention"


def windows(folder: Path, family: str, num_layers: int = 2, drop: str = "", **settings: Any) -> tuple[int, ...]:
    """The windows of a folder of `num_layers` layers with changed settings, one of them dropped."""
    config = tiny.tiny_config(family, num_layers=num_layers)
    path = tiny.write_hf_folder(folder / "m", config=config, extra_config=settings, drop_config=[drop] if drop else [])
    return read_config(open_source(path)).windows


def gguf(folder: Path, family: str, num_layers: int, drop: str = "", **metadata: Any) -> ModelConfig:
    """The config of a GGUF file with changed metadata; "__" stands for a dot, and the keys are those of the family."""
    config = tiny.tiny_config(family, num_layers=num_layers)
    extra = {f"{family}.{key.replace('__', '.')}": value for key, value in metadata.items()}
    path = tiny.write_gguf(folder / "m.gguf", config=config, extra_metadata=extra, drop_metadata=[f"{family}.{drop}"])
    return read_config(open_source(path))


def test_mistral_has_its_window_in_every_layer_unless_it_is_null(tmp_path: Path) -> None:
    assert windows(tmp_path, "mistral", 3, sliding_window=7) == (7, 7, 7)
    assert windows(tmp_path, "mistral", sliding_window=None) == ()
    assert windows(tmp_path, "mistral", drop="sliding_window") == (4096, 4096)
    assert windows(tmp_path, "mistral", 3, layer_types=[LOCAL, GLOBAL, GLOBAL]) == (tiny.WINDOW, 0, 0)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_has_its_window_in_the_last_layers_and_only_if_it_is_on(tmp_path: Path, family: str) -> None:
    settings = {"sliding_window": 7, "max_window_layers": 1}
    assert windows(tmp_path, family, 3, **settings) == ()
    assert windows(tmp_path, family, 3, **settings, use_sliding_window=False, layer_types=[GLOBAL] * 3) == ()
    assert windows(tmp_path, family, 3, **settings, use_sliding_window=True) == (0, 7, 7)
    assert windows(tmp_path, family, 2, use_sliding_window=True, max_window_layers=0) == (4096, 4096)
    assert windows(tmp_path, family, 2, use_sliding_window=True, sliding_window=7) == ()
    types = [LOCAL, GLOBAL, LOCAL]
    assert windows(tmp_path, family, 3, **settings, use_sliding_window=True, layer_types=types) == (7, 0, 7)
    with pytest.raises(UnsupportedModelError, match="layer_types"):
        windows(tmp_path, family, 3, **settings, layer_types=types)


def test_every_sixth_layer_of_gemma3_is_global_unless_a_setting_says_otherwise(tmp_path: Path) -> None:
    usual = (9,) * 5 + (0,) + (9,) * 2
    assert windows(tmp_path, "gemma3", 8, "layer_types", sliding_window=9) == usual
    assert windows(tmp_path, "gemma3", 4, "layer_types", sliding_window=9, sliding_window_pattern=2) == (9, 0, 9, 0)
    assert windows(tmp_path, "gemma3", 4, "layer_types", sliding_window=9, _sliding_window_pattern=3) == (9, 9, 0, 9)
    assert windows(tmp_path, "gemma3", 2, "layer_types", sliding_window=9, sliding_window_pattern=1) == ()
    key = "attention.sliding_window_pattern"
    assert gguf(tmp_path, "gemma3", 8, key, attention__sliding_window=9).windows == usual
    pattern = {"attention__sliding_window_pattern": 3}
    assert gguf(tmp_path, "gemma3", 4, attention__sliding_window=9, **pattern).windows == (9, 9, 0, 9)
    pattern = {"attention__sliding_window_pattern": [False, False, True]}
    assert gguf(tmp_path, "gemma3", 3, attention__sliding_window=9, **pattern).windows == (0, 0, 9)
    assert not any(gguf(tmp_path, "gemma3", 2, attention__sliding_window_pattern=1).windows)


@pytest.mark.parametrize("pattern", [[True], [True, False, True], [1, 0], 0, -1, "6", 0.5])
def test_a_pattern_of_windows_that_makes_no_sense_is_refused(tmp_path: Path, pattern: Any) -> None:
    with pytest.raises(ModelFileError, match="sliding_window_pattern"):
        gguf(tmp_path, "gemma3", 2, attention__sliding_window_pattern=pattern)


@pytest.mark.parametrize("family", ["mistral", "gemma3", "qwen3"])
@pytest.mark.parametrize("kinds", [[LOCAL], [LOCAL] * 3, ["chunked_attention", LOCAL], "x", {}, [7, None], [[], {}]])
def test_layer_types_that_are_not_understood_are_refused_by_name(tmp_path: Path, family: str, kinds: Any) -> None:
    with pytest.raises(DraftGraphError, match="layer_types"):
        windows(tmp_path, family, 2, layer_types=kinds, sliding_window=9, use_sliding_window=True)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_gguf_file_of_a_family_without_windows_may_not_have_one(tmp_path: Path, family: str) -> None:
    assert gguf(tmp_path, family, 2, attention__sliding_window=256).windows == ()
    with pytest.raises(UnsupportedModelError, match="sliding_window=128"):
        gguf(tmp_path, family, 2, attention__sliding_window=128)


def test_a_gemma3_file_without_its_window_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"has no gemma3\.attention\.sliding_window"):
        gguf(tmp_path, "gemma3", 2, "attention.sliding_window")
