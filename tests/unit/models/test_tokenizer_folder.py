"""Folders with tokenizer.json: the library's own ids, the files beside it, and the ways each can be broken."""

from __future__ import annotations

import copy
import json
import os
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from draftgraph.errors import TokenizerError
from draftgraph.models.tokenizer import tokenizer_from_folder, tokenizer_from_gguf
from draftgraph.models.tokenizer_folder import read_folder
from support.vocabularies import (
    added_token,
    byte_level_json,
    byte_level_metadata,
    sample_texts,
    sentencepiece_json,
    sentencepiece_metadata,
)

METADATA = {"byte_level": byte_level_metadata(), "sentencepiece": sentencepiece_metadata()}
TOKENIZERS = {name: tokenizer_from_gguf(metadata) for name, metadata in METADATA.items()}


def folder(path: Path, spec: Any, config: Any = None, **files: str) -> Path:
    """Writes a folder with tokenizer.json and, where given, the files beside it."""
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return path


def score_splits() -> list[tuple[str, str]]:
    """Returns the merges that the published Llama 2 file has for such pieces: all splits of the best piece first."""
    metadata = METADATA["sentencepiece"]
    normal = [
        t for t, k in zip(*(metadata[f"tokenizer.ggml.{k}"] for k in ("tokens", "token_type")), strict=True) if k == 1
    ]
    order = {piece: i for i, piece in enumerate(normal)}
    splits = [(piece, piece[:cut], piece[cut:]) for piece in normal for cut in range(1, len(piece))]
    known = [split for split in splits if split[1] in order and split[2] in order]
    known.sort(key=lambda split: tuple(order[part] for part in split))
    return [split[1:] for split in known]


def special_flags(spec: dict[str, Any]) -> dict[str, Any]:
    size = len(spec["model"]["vocab"]) + 2
    spec["added_tokens"] += [
        added_token(size, "<left>", lstrip=True),
        added_token(size + 1, "<right>", rstrip=True),
        added_token(size + 2, "<both>", lstrip=True, rstrip=True, special=False),
    ]
    return spec


def composed(spec: dict[str, Any]) -> dict[str, Any]:
    spec["normalizer"] = {"type": "NFC"}
    size = len(spec["model"]["vocab"]) + 2
    spec["added_tokens"] += [
        added_token(size, "e\u0301te\u0301", special=False, normalized=True),
        added_token(size + 1, "A\u030a", special=False),
    ]
    return spec


def metaspace(scheme: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(_: dict[str, Any]) -> dict[str, Any]:
        spec = sentencepiece_json(score_splits())
        spec["normalizer"] = None
        spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
        return spec

    return change


FORMS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "plain": lambda spec: spec,
    "flags of added tokens": special_flags,
    "normalised added tokens": composed,
    "Llama 2": lambda _: sentencepiece_json(score_splits()),
    "metaspace first": metaspace("first"),
    "metaspace always": metaspace("always"),
    "metaspace never": metaspace("never"),
    "merges as lists": lambda spec: (
        spec | {"model": spec["model"] | {"merges": [m.split(" ") for m in spec["model"]["merges"]]}}
    ),
    "whole words first": lambda spec: spec | {"model": spec["model"] | {"ignore_merges": True}},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_gives_the_ids_of_the_library_that_published_its_form(form: str, tmp_path: Path) -> None:
    spec = FORMS[form](byte_level_json())
    library = tokenizers.Tokenizer.from_str(json.dumps(spec))
    tokenizer = tokenizer_from_folder(folder(tmp_path, spec))
    contents = [token["content"] for token in spec["added_tokens"]]
    literals = [unicodedata.normalize(form, text) for text in contents for form in ("NFC", "NFD")]
    rng = random.Random(6)
    for text in sample_texts(500, seed=6):
        glue = rng.choice(["", " ", "\n ", "  x"])
        mixed = f"{text}{glue}{rng.choice(literals)}{glue}{text[::-1]}{rng.choice(literals)}"
        for each in (text, mixed):
            assert tokenizer.encode(each, special=True) == library.encode(each, add_special_tokens=False).ids, repr(
                each
            )


def test_a_gguf_file_and_a_folder_of_one_model_give_the_same_ids(tmp_path: Path) -> None:
    specs = {"byte_level": byte_level_json(), "sentencepiece": sentencepiece_json(score_splits())}
    for name, spec in specs.items():
        tokenizer = tokenizer_from_folder(folder(tmp_path / name, spec))
        for text in sample_texts(500, seed=7):
            assert tokenizer.encode(text, special=True) == TOKENIZERS[name].encode(text, special=True), repr(text)


def test_limits_of_length_in_a_folder_are_ignored(tmp_path: Path) -> None:
    limits = {
        "truncation": {"max_length": 2, "stride": 0, "strategy": "LongestFirst", "direction": "Right"},
        "padding": {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "<|endoftext|>"},
    }  # fmt: skip
    tokenizer = tokenizer_from_folder(folder(tmp_path, byte_level_json() | limits))
    assert tokenizer.encode("one two three", special=False) == TOKENIZERS["byte_level"].encode(
        "one two three", special=False
    )


@pytest.mark.parametrize(
    ("config", "bos", "add_bos"),
    [
        (None, None, False),
        ({"bos_token": None}, None, False),
        ({"bos_token": "<s>"}, 1, True),
        ({"bos_token": {"content": "<s>"}, "add_bos_token": False}, 1, False),
        ({"bos_token": "<unk>"}, 0, False),
        ({"bos_token": "<unk>", "add_bos_token": True}, 0, True),
    ],
)
def test_begin_tokens_of_a_folder_follow_its_config_and_post_processor(
    config: dict[str, Any] | None, bos: int | None, add_bos: bool, tmp_path: Path
) -> None:
    tokenizer = tokenizer_from_folder(folder(tmp_path, sentencepiece_json(score_splits()), config))
    assert (tokenizer.bos_id, tokenizer.add_bos) == (bos, add_bos)


NAMED = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
PUBLISHED: dict[str, tuple[Any, dict[str, str], dict[str, str]]] = {
    "text": ({"chat_template": "a"}, {}, {"default": "a"}),
    "a list": ({"chat_template": NAMED}, {}, {"default": "plain", "tool_use": "tools"}),
    "an object": ({"chat_template": {"default": "a", "rag": "b"}}, {}, {"default": "a", "rag": "b"}),
    "an empty list": ({"chat_template": []}, {}, {}),
    "null": ({"chat_template": None}, {}, {}),
    "no config": (None, {}, {}),
    "a file before the config": ({"chat_template": NAMED}, {"chat_template.jinja": "a"}, {"default": "a"}),
    "files beside a file": (
        {"chat_template": "a"},
        {"chat_template.jinja": "b", "additional_chat_templates/tool_use.jinja": "c"},
        {"default": "b", "tool_use": "c"},
    ),
    "files alone before the config": (
        {"chat_template": "a"}, {"additional_chat_templates/tool_use.jinja": "c"}, {"tool_use": "c"},
    ),
    "a file before a processor's": (
        None, {"chat_template.json": '{"chat_template": "a"}', "chat_template.jinja": "b"}, {"default": "b"},
    ),
    "the config before a processor's": (
        {"chat_template": "a"}, {"chat_template.json": '{"chat_template": "b"}'}, {"default": "a"},
    ),
    "a processor's alone": ({}, {"chat_template.json": '{"chat_template": "b"}'}, {"default": "b"}),
}  # fmt: skip


@pytest.mark.parametrize(("config", "files", "expected"), PUBLISHED.values(), ids=PUBLISHED)
def test_chat_templates_are_found_where_the_tokenizers_of_transformers_find_them(
    config: Any, files: dict[str, str], expected: dict[str, str], tmp_path: Path
) -> None:
    folder(tmp_path, byte_level_json(), config)
    (tmp_path / "additional_chat_templates").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_folder(tmp_path).chat_templates == expected


def test_ids_that_no_token_has_are_never_text(tmp_path: Path) -> None:
    spec = byte_level_json()
    hole = len(spec["model"]["vocab"]) + 2
    spec["added_tokens"].append(added_token(hole + 1, "<|last|>"))
    tokenizer = tokenizer_from_folder(folder(tmp_path, spec))
    assert tokenizer.size == hole + 2
    assert tokenizer.token_bytes(hole) == b""
    assert hole in tokenizer.special_ids


def test_equal_vocabularies_have_no_difference_whatever_file_they_come_from(tmp_path: Path) -> None:
    spec = sentencepiece_json(score_splits())
    pairs = [
        (TOKENIZERS["byte_level"], tokenizer_from_gguf(byte_level_metadata())),
        (TOKENIZERS["byte_level"], tokenizer_from_folder(folder(tmp_path / "bytes", byte_level_json()))),
        (TOKENIZERS["sentencepiece"], tokenizer_from_folder(folder(tmp_path / "pieces", spec))),
    ]
    for one, other in pairs:
        assert one.first_difference(other) is None
        assert other.first_difference(one) is None


def at(*path: Any) -> Callable[[Any], dict[str, Any]]:
    """Returns a function that sets the place `path` of a fresh tokenizer.json to a value."""

    def change(value: Any) -> dict[str, Any]:
        spec = copy.deepcopy(byte_level_json())
        place: Any = spec
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return spec

    return change


@pytest.mark.parametrize(
    "spec",
    [
        [],
        {},
        at("model")(None),
        at("model", "type")("Unigram"),
        at("model", "vocab")([]),
        at("model", "vocab")({}) | {"added_tokens": []},
        at("model", "vocab", "a")(-1),
        at("model", "vocab", "a")("7"),
        at("model", "vocab", "a")(2**40),
        at("model", "vocab", "a")(0),
        at("model", "merges")(None),
        at("model", "merges")(["q q"]),
        at("model", "merges")([["q"]]),
        at("model", "merges")([7]),
        at("model", "dropout")(0.1),
        at("model", "end_of_word_suffix")("</w>"),
        at("model", "continuing_subword_prefix")("##"),
        at("model", "byte_fallback")("yes"),
        at("model", "unk_token")("<none>"),
        at("normalizer")({"type": "Mystery"}),
        at("pre_tokenizer")({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}),
        at("pre_tokenizer")(7),
        at("decoder")(None),
        at("decoder")({"type": "WordPiece", "prefix": "##", "cleanup": True}),
        at("decoder")({"type": "Sequence", "decoders": []}),
        at("decoder")({"type": "Sequence", "decoders": [{"type": "Fuse"}]}),
        at("decoder")({"type": "Replace", "pattern": {"String": "_"}, "content": " "}),
        at("added_tokens")({}),
        at("added_tokens", 0)("<s>"),
        at("added_tokens", 0, "id")(None),
        at("added_tokens", 0, "id")(1),
        at("added_tokens", 0, "content")(None),
        at("added_tokens", 0, "content")("<|other|>"),
        at("added_tokens", 0, "lstrip")("no"),
        at("added_tokens", 0, "single_word")(True),
    ],
)
def test_broken_folders_are_refused(spec: Any, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError):
        tokenizer_from_folder(folder(tmp_path, spec))


@pytest.mark.parametrize(
    "config",
    [
        [],
        {"bos_token": "<none>"},
        {"bos_token": 1},
        {"eos_token": {"content": 7}},
        {"add_bos_token": True},
        {"add_bos_token": "yes", "bos_token": "<|im_start|>"},
        *(
            {"chat_template": template}
            for template in (7, ["x"], [{"name": "default"}], [{"name": [], "template": ""}], {"a": 1})
        ),
    ],
)
def test_broken_configs_are_refused(config: Any, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError):
        tokenizer_from_folder(folder(tmp_path, byte_level_json(), config))


@pytest.mark.parametrize("text", ["", "{", '{"model": ' + "[" * 100_000, "\xff"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_files_that_are_not_json_are_named(name: str, text: str, tmp_path: Path) -> None:
    folder(tmp_path, byte_level_json())
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(TokenizerError, match=name):
        tokenizer_from_folder(tmp_path)


def test_claims_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    spec = byte_level_json()
    spec["added_tokens"].append(added_token(2**20, "<|last|>"))
    with pytest.raises(TokenizerError, match="the added token"):
        tokenizer_from_folder(folder(tmp_path, spec))
    spec["added_tokens"][-1] = added_token(2**20 - 1, "<|last|>")
    with pytest.raises(TokenizerError, match="ids up to 1048575"):
        tokenizer_from_folder(folder(tmp_path, spec))
    spec["added_tokens"][-1] = added_token(len(spec["model"]["vocab"]) + 2, "x" * 1025)
    with pytest.raises(TokenizerError, match="1025 characters"):
        tokenizer_from_folder(folder(tmp_path, spec))
    folder(tmp_path, byte_level_json())
    with (tmp_path / "tokenizer_config.json").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(TokenizerError, match="1073741824 bytes"):
        tokenizer_from_folder(tmp_path)


def test_a_file_that_never_ends_is_not_read(tmp_path: Path) -> None:
    folder(tmp_path, byte_level_json())
    os.mkfifo(tmp_path / "chat_template.jinja")
    with pytest.raises(TokenizerError, match="regular file"):
        tokenizer_from_folder(tmp_path)


GROWING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BETWEEN = {"type": "Replace", "pattern": {"Regex": ""}, "content": "a"}
STEPS: dict[str, tuple[str, Any, str]] = {
    "replacements that double a text": ("normalizer", [GROWING] * 7, "64 times"),
    "replacements that double it in many ways": ("normalizer", [GROWING] * 60, "32"),
    "replacements of nothing": ("normalizer", [BETWEEN] * 7, "64 times"),
    "a long replacement": ("normalizer", [{**GROWING, "content": "a" * 65}], "64 times"),
    "a long beginning": ("normalizer", [{"type": "Prepend", "prepend": "a" * 17}], "16 characters"),
    "a table that panics": ("normalizer", [{"type": "Precompiled", "precompiled_charsmap": "BAAAAP///396enp6"}], "NFC"),
    "pieces of no length": ("pre_tokenizer", [{"type": "FixedLength", "length": 0}], "Split"),
    "steps that are no steps": ("pre_tokenizer", [[[[]]]], "Split"),
    "too many splitters": ("pre_tokenizer", [{"type": "Whitespace"}] * 40, "32"),
}  # fmt: skip


@pytest.mark.parametrize(("where", "steps", "allowed"), STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("depth", [1, 5])
def test_steps_that_the_library_could_not_bear_are_refused(
    where: str, steps: list[Any], allowed: str, depth: int, tmp_path: Path
) -> None:
    inner = "normalizers" if where == "normalizer" else "pretokenizers"
    section: Any = steps
    for _ in range(depth):
        section = {"type": "Sequence", inner: section if isinstance(section, list) else [section]}
    with pytest.raises(TokenizerError) as caught:
        tokenizer_from_folder(folder(tmp_path, byte_level_json() | {where: section}))
    assert allowed in caught.value.allowed


def test_an_expression_that_gives_up_on_a_text_is_a_typed_error(tmp_path: Path, capfd: Any) -> None:
    step = {"type": "Split", "pattern": {"Regex": "(?:a|aa)+(?:a|aa)+b"}, "behavior": "Isolated", "invert": False}
    tokenizer = tokenizer_from_folder(folder(tmp_path, byte_level_json() | {"pre_tokenizer": step}))
    with pytest.raises(TokenizerError, match="retry-limit"):
        tokenizer.encode("a" * 2000, special=False)


def test_a_folder_without_a_tokenizer_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json does not exist"):
        tokenizer_from_folder(tmp_path)
