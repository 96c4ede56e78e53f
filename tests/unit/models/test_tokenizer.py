"""Literals, begin tokens, the text of ids, comparison of vocabularies, and the ways a GGUF tokenizer can be broken."""

from __future__ import annotations

import codecs
import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.errors import ParameterError, PromptError, TokenizerError
from draftgraph.models.gguf import GgufFile
from draftgraph.models.tokenizer import Tokenizer, tokenizer_from_gguf
from draftgraph.models.tokenizer_gguf import count_tokens
from support.vocabularies import (
    CONTROL,
    byte_level_metadata,
    sample_texts,
    sentencepiece_metadata,
)

METADATA = {"byte_level": byte_level_metadata(), "sentencepiece": sentencepiece_metadata()}
TOKENIZERS = {name: tokenizer_from_gguf(metadata) for name, metadata in METADATA.items()}
END_OF_TEXT, IM_START, IM_END = range(3)


def with_keys(name: str, **changes: Any) -> dict[str, Any]:
    """Returns the metadata with some `tokenizer.ggml.` keys changed, or removed where the value is None."""
    changed = METADATA[name] | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not None}


def with_item(name: str, key: str, index: int, value: Any) -> dict[str, Any]:
    items = list(METADATA[name][f"tokenizer.ggml.{key}"])
    items[index] = value
    return with_keys(name, **{key: items})


# --- text of ids ---------------------------------------------------------------------------------------------------


def stream(tokenizer: Tokenizer, chunks: list[list[int]]) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    texts = [decoder.decode(b"".join(map(tokenizer.token_bytes, chunk))) for chunk in chunks]
    return "".join([*texts, decoder.decode(b"", final=True)])


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", [" x", "  ", "\n ", "é日", "👨‍👩‍👧", "e\u0301", "🎉a"])
def test_every_chunk_split_of_an_output_gives_the_text_of_the_whole(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = [token for byte in text.encode() for token in byte_ids(name, byte)][:11]
    for cuts in itertools.product((False, True), repeat=len(ids) - 1):
        chunks = [[ids[0]]]
        for token, cut in zip(ids[1:], cuts, strict=True):
            chunks += [[token]] if cut else []
            if not cut:
                chunks[-1] = [*chunks[-1], token]
        assert stream(tokenizer, chunks) == tokenizer.decode(ids)


def byte_ids(name: str, byte: int) -> list[int]:
    return [next(i for i in range(TOKENIZERS[name].size) if TOKENIZERS[name].token_bytes(i) == bytes([byte]))]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_ids_cut_anywhere_stream_to_the_text_of_the_whole(data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[data.draw(st.sampled_from(sorted(TOKENIZERS)))]
    chunks = data.draw(st.lists(st.lists(st.integers(0, tokenizer.size - 1), max_size=5), max_size=8))
    assert stream(tokenizer, chunks) == tokenizer.decode([token for chunk in chunks for token in chunk])


def test_sentencepiece_text_keeps_the_space_before_the_first_word() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    for text in sample_texts(200, seed=5):
        expected = text.replace("▁", " ")
        if "<tool>" not in text and "::::" not in text:
            assert tokenizer.decode(tokenizer.encode(text, special=False)) == " " * bool(text) + expected


def test_control_tokens_have_a_label_and_no_text() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    assert tokenizer.special_ids == {0, 1, 2}
    for token_id, literal in enumerate(CONTROL):
        assert tokenizer.token_bytes(token_id) == b""
        assert tokenizer.token_label(token_id) == literal
    assert tokenizer.decode([IM_START, *tokenizer.encode("hi", special=False), IM_END]) == "hi"


def test_labels_show_text_and_stray_bytes() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    assert tokenizer.token_label(tokenizer.encode(" ", special=False)[0]) == " "
    assert tokenizer.token_label(byte_ids("byte_level", 0xE2)[0]) == "\\xe2"


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_an_id_outside_the_vocabulary_is_refused(token_id: int) -> None:
    tokenizer = TOKENIZERS["byte_level"]
    for use in (tokenizer.token_bytes, tokenizer.token_label, lambda token: tokenizer.decode([token])):
        with pytest.raises(ParameterError):
            use(token_id)


# --- literals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOKENIZERS)
def test_control_literals_become_control_ids_in_markup_and_never_in_content(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    for literal in tokenizer.control_literals:
        for text in (literal, f"a{literal}b", literal * 3, f" {literal}\n", f"<{literal}>", literal[:-1] + literal):
            content = tokenizer.encode(text, special=False)
            assert not set(content) & tokenizer.special_ids, text
            assert literal in tokenizer.decode(content)
            markup = [token for token in tokenizer.encode(text, special=True) if token in tokenizer.special_ids]
            assert [tokenizer.token_label(token) for token in markup] == [literal] * text.count(literal), text


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("special", [False, True])
def test_user_defined_tokens_match_in_any_text(name: str, special: bool) -> None:
    tokenizer = TOKENIZERS[name]
    tool, colons = tokenizer.size - 2, tokenizer.size - 1
    ids = tokenizer.encode("<tool>x:::::::::", special=special)
    assert ids[0] == tool
    assert ids.count(colons) == 2
    assert tokenizer.token_bytes(colons) == b"::::"


def test_the_longest_literal_wins_at_each_place() -> None:
    tokens = [*METADATA["byte_level"]["tokenizer.ggml.tokens"], "<|im_end|>>", "<|im"]
    kinds = [*METADATA["byte_level"]["tokenizer.ggml.token_type"], 3, 3]
    tokenizer = tokenizer_from_gguf(with_keys("byte_level", tokens=tokens, token_type=kinds))
    assert tokenizer.encode("<|im_end|>><|im_end|><|im", special=True) == [len(tokens) - 2, IM_END, len(tokens) - 1]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_empty_text_has_no_ids(name: str) -> None:
    assert TOKENIZERS[name].encode("", special=True) == TOKENIZERS[name].encode("", special=False) == []


def test_half_a_surrogate_pair_is_refused() -> None:
    for encode in (
        lambda text: TOKENIZERS["byte_level"].encode(text, special=True),
        TOKENIZERS["byte_level"].encode_prompt,
    ):
        with pytest.raises(PromptError, match="surrogate"):
            encode("a\ud83d")


def test_texts_of_many_possible_literals_are_split_in_linear_time() -> None:
    tokens = [*METADATA["byte_level"]["tokenizer.ggml.tokens"], *(f"<unused{i}>" for i in range(5000))]
    kinds = [*METADATA["byte_level"]["tokenizer.ggml.token_type"], *[3] * 5000]
    tokenizer = tokenizer_from_gguf(with_keys("byte_level", tokens=tokens, token_type=kinds))
    assert len(tokenizer.encode("<unused" * 20_000, special=True)) > 20_000


# --- begin tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("add_bos", [False, True])
def test_a_prompt_begins_with_one_begin_token_where_the_model_wants_one(name: str, add_bos: bool) -> None:
    tokenizer = tokenizer_from_gguf(with_keys(name, add_bos_token=add_bos))
    assert tokenizer.bos_id is not None
    literal = tokenizer.token_label(tokenizer.bos_id)
    plain = tokenizer.encode("hello", special=True)
    assert tokenizer.encode_prompt("hello") == [tokenizer.bos_id] * add_bos + plain
    assert tokenizer.encode_prompt(f"{literal}hello") == [tokenizer.bos_id, *plain]
    assert tokenizer.encode_prompt("") == [tokenizer.bos_id] * add_bos
    assert tokenizer.encode("hello", special=True)[:1] != [tokenizer.bos_id]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, False), ({"pre": "llama-bpe"}, True), ({"pre": "llama-bpe", "bos_token_id": None}, False)],
)
def test_without_a_key_the_splitter_says_whether_a_begin_token_is_added(
    changes: dict[str, Any], expected: bool
) -> None:
    tokenizer = tokenizer_from_gguf(with_keys("byte_level", add_bos_token=None, **changes))
    assert tokenizer.add_bos is expected


def test_a_sentencepiece_model_adds_a_begin_token_unless_told_otherwise() -> None:
    assert TOKENIZERS["sentencepiece"].add_bos
    assert not tokenizer_from_gguf(with_keys("sentencepiece", add_bos_token=False)).add_bos


def test_user_defined_end_tokens_are_markup() -> None:
    metadata = with_item("byte_level", "token_type", IM_END, 4)
    tokenizer = tokenizer_from_gguf(metadata)
    assert IM_END in tokenizer.special_ids
    assert IM_END not in tokenizer.encode("<|im_end|>", special=False)


# --- comparison of vocabularies ------------------------------------------------------------------------------------


def test_unused_tokens_at_the_end_are_padding() -> None:
    tokens = METADATA["byte_level"]["tokenizer.ggml.tokens"]
    kinds = METADATA["byte_level"]["tokenizer.ggml.token_type"]
    padded = with_keys("byte_level", tokens=[*tokens, "[PAD0]", "[PAD1]"], token_type=[*kinds, 5, 5])
    tokenizer = tokenizer_from_gguf(padded)
    assert tokenizer.size == len(tokens)
    assert tokenizer.first_difference(TOKENIZERS["byte_level"]) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (with_item("byte_level", "tokens", 1, "<|other|>"), ("token 1", "<|im_start|>", "<|other|>")),
        (with_item("byte_level", "token_type", 1, 1), ("token 1", "control", "bytes")),
        (with_item("sentencepiece", "tokens", 262, "zzzz"), ("token 262", "zzzz")),
        (with_keys("byte_level", tokens=[*METADATA["byte_level"]["tokenizer.ggml.tokens"], "zz"],
                   token_type=[*METADATA["byte_level"]["tokenizer.ggml.token_type"], 4]), ("tokens and the other",)),
    ],
)  # fmt: skip
def test_the_first_difference_is_named(changed: dict[str, Any], words: tuple[str, ...]) -> None:
    name = "byte_level" if changed["tokenizer.ggml.model"] == "gpt2" else "sentencepiece"
    for one, other in (
        (TOKENIZERS[name], tokenizer_from_gguf(changed)),
        (tokenizer_from_gguf(changed), TOKENIZERS[name]),
    ):
        sentence = one.first_difference(other)
        assert sentence is not None
        assert all(word in sentence for word in words), sentence


def test_vocabularies_of_equal_size_and_other_kind_differ_at_once() -> None:
    assert "token 0" in (TOKENIZERS["byte_level"].first_difference(TOKENIZERS["sentencepiece"]) or "")


# --- everything that can be broken ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({}, "tokenizer.ggml.model"),
        (with_keys("byte_level", model="bert"), "'bert'"),
        (with_keys("byte_level", model="t5"), "'t5'"),
        (with_keys("byte_level", model=7), "tokenizer.ggml.model"),
        (with_keys("byte_level", pre=None), "tokenizer.ggml.pre is missing"),
        (with_keys("byte_level", pre="default"), "'default'"),
        (with_keys("byte_level", pre=["qwen2"]), "tokenizer.ggml.pre"),
        (with_keys("byte_level", tokens=None), "tokenizer.ggml.tokens is missing"),
        (with_keys("byte_level", tokens="abc"), "tokenizer.ggml.tokens"),
        (with_keys("byte_level", tokens=[], token_type=[]), "tokenizer.ggml.tokens"),
        (with_item("byte_level", "tokens", 5, 5), "tokenizer.ggml.tokens"),
        (with_item("byte_level", "tokens", 5, "a"), "twice"),
        (with_item("byte_level", "tokens", 0, "\ud800"), "surrogate"),
        (with_keys("byte_level", token_type=None), "tokenizer.ggml.token_type is missing"),
        (with_keys("byte_level", token_type=[1, 2]), "tokenizer.ggml.token_type"),
        (with_item("byte_level", "token_type", 5, 7), "tokenizer.ggml.token_type"),
        (with_item("byte_level", "token_type", 5, True), "tokenizer.ggml.token_type"),
        (with_keys("byte_level", merges=None), "tokenizer.ggml.merges is missing"),
        (with_keys("byte_level", merges=["a"]), "merge 0"),
        (with_keys("byte_level", merges=["a b c"]), "merge 0"),
        (with_keys("byte_level", merges=["a "]), "merge 0"),
        (with_keys("byte_level", merges=[7]), "merge 0"),
        (with_keys("byte_level", merges=["a qqqq"]), "'qqqq'"),
        (with_keys("byte_level", merges=["q q"]), "'qq'"),
        (with_keys("byte_level", bos_token_id=10**6), "tokenizer.ggml.bos_token_id"),
        (with_keys("byte_level", bos_token_id=-1), "tokenizer.ggml.bos_token_id"),
        (with_keys("byte_level", eos_token_id="2"), "tokenizer.ggml.eos_token_id"),
        (with_keys("byte_level", eos_token_id=True), "tokenizer.ggml.eos_token_id"),
        (with_keys("byte_level", add_bos_token=1), "tokenizer.ggml.add_bos_token"),
        (with_keys("byte_level", add_bos_token=True, bos_token_id=None), "tokenizer.ggml.bos_token_id"),
        *(
            ({**metadata, "tokenizer.ggml.tokens": [*metadata["tokenizer.ggml.tokens"][:-1], "x" * 1025]}, "1025")
            for metadata in (with_keys("byte_level"), with_keys("sentencepiece"))
        ),
        (with_keys("byte_level") | {"tokenizer.chat_template": 7}, "tokenizer.chat_template"),
        (with_keys("byte_level") | {"tokenizer.chat_template.tool_use": 7}, "tokenizer.chat_template.tool_use"),
        (with_keys("sentencepiece", scores=None), "tokenizer.ggml.scores is missing"),
        (with_keys("sentencepiece", scores=[0.0]), "tokenizer.ggml.scores"),
        (with_item("sentencepiece", "scores", 300, float("nan")), "token 300"),
        (with_item("sentencepiece", "scores", 300, "0"), "token 300"),
        (with_item("sentencepiece", "tokens", 20, "<0xZZ>"), "'<0xZZ>'"),
        (with_keys("sentencepiece", remove_extra_whitespaces=True), "remove_extra_whitespaces"),
        (with_keys("sentencepiece", add_space_prefix="yes"), "tokenizer.ggml.add_space_prefix"),
    ],
)
def test_broken_gguf_tokenizers_are_refused_by_name(metadata: dict[str, Any], named: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        tokenizer_from_gguf(metadata)
    assert named in caught.value.given
    assert caught.value.allowed
    assert caught.value.remedy


def test_a_missing_splitter_names_the_supported_ones() -> None:
    with pytest.raises(TokenizerError) as caught:
        tokenizer_from_gguf(with_keys("byte_level", pre=None))
    assert all(name in caught.value.allowed for name in ("smollm", "gpt-2", "qwen2", "llama-bpe"))


def test_the_metadata_is_not_modified() -> None:
    for metadata in METADATA.values():
        before = copy.deepcopy(metadata)
        tokenizer_from_gguf(metadata)
        assert metadata == before


@pytest.mark.model
def test_literals_and_streams_of_a_published_model(smollm2_path: Path) -> None:
    tokenizer = tokenizer_from_gguf(GgufFile(smollm2_path).metadata)
    assert (tokenizer.size, tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (49152, 1, 2, False)
    assert len(tokenizer.control_literals) == 17
    for literal in tokenizer.control_literals:
        assert not set(tokenizer.encode(f"a {literal} b", special=False)) & tokenizer.special_ids
        assert len(tokenizer.encode(literal, special=True)) == 1
    for text in sample_texts(200, seed=8):
        ids = tokenizer.encode(text, special=False)
        assert stream(tokenizer, [[token] for token in ids]) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("unused", [0, 1, 5])
def test_the_size_is_known_before_the_tokenizer_is_read(name: str, unused: int) -> None:
    tokens, kinds = (METADATA[name][f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    padded = with_keys(
        name,
        tokens=[*tokens, *(f"[PAD{i}]" for i in range(unused))],
        token_type=[*kinds, *[5] * unused],
        scores=[0.0] * (len(tokens) + unused),
    )
    assert count_tokens(padded) == tokenizer_from_gguf(padded).size == TOKENIZERS[name].size


@pytest.mark.parametrize("metadata", [{}, {"tokenizer.ggml.token_type": 1}, {"tokenizer.ggml.token_type": [5, 5]}])
def test_the_size_of_no_tokenizer_is_not_known(metadata: dict[str, Any]) -> None:
    assert count_tokens(metadata) is None
