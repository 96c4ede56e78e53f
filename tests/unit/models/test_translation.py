"""Two vocabularies matched by text: every byte arrives, markup by name, and borders that later text does not move."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.models.tokenizer import Tokenizer, tokenizer_from_gguf
from draftgraph.models.translation import TokenTranslation
from support.vocabularies import (
    CONTROL,
    byte_level_metadata,
    learned_metadata,
    sample_texts,
    sentencepiece_metadata,
)

METADATA = {
    "bytes": byte_level_metadata("smollm", 0),
    "few merges": byte_level_metadata("smollm", 60),
    "smollm": byte_level_metadata("smollm"),
    "qwen2": byte_level_metadata("qwen2", 250),
    "llama-bpe": byte_level_metadata("llama-bpe", 330),
    "sentencepiece": sentencepiece_metadata(),
}
TOKENIZERS = {name: tokenizer_from_gguf(metadata) for name, metadata in METADATA.items()}
PAIRS = list(itertools.permutations(TOKENIZERS, 2))


@functools.cache
def translation(draft: str, target: str) -> TokenTranslation:
    return TokenTranslation(TOKENIZERS[draft], TOKENIZERS[target])


def text_of(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


def random_tokenizer(words: list[bytes], num_merges: int, turn: int = 0) -> Tokenizer:
    return tokenizer_from_gguf(learned_metadata(words, num_merges, turn))


# The text


@pytest.mark.parametrize(("draft", "target"), PAIRS)
def test_every_byte_of_a_text_arrives_and_comes_back(draft: str, target: str) -> None:
    there = translation(draft, target)
    for text in sample_texts(120):
        ids = TOKENIZERS[target].encode(text, special=False)
        theirs = there.to_draft(ids)
        assert text_of(TOKENIZERS[draft], theirs) == text_of(TOKENIZERS[target], ids)
        assert text_of(TOKENIZERS[target], there.to_target(theirs)) == text_of(TOKENIZERS[target], ids)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(st.binary(min_size=1, max_size=6), st.text(min_size=1, max_size=4).map(str.encode)), max_size=12
    ),
    st.integers(0, 30),
    st.integers(0, 300),
    st.data(),
)
def test_random_vocabularies_and_ids_in_any_order_lose_no_byte(
    words: list[bytes], num_merges: int, turn: int, data: st.DataObject
) -> None:
    """Merges cut characters anywhere; ids in random order are texts that no encoder would write."""
    draft, target = random_tokenizer(words, num_merges, turn), random_tokenizer(words[::2], 30 - num_merges)
    there = TokenTranslation(draft, target)
    ids = data.draw(st.lists(st.integers(len(CONTROL), target.size - 1), max_size=20))
    theirs = there.to_draft(ids)
    assert text_of(draft, theirs) == text_of(target, ids)
    back = there.to_target(theirs)
    assert text_of(target, back) == text_of(draft, theirs)
    assert all(0 <= token < draft.size for token in theirs)
    assert all(0 <= token < target.size for token in back)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_vocabulary_is_its_own_translation(name: str) -> None:
    there = translation(name, name)
    for text in sample_texts(60):
        ids = TOKENIZERS[name].encode(text, special=False)
        assert there.to_draft(ids) == there.to_target(ids) == ids


def test_bytes_that_no_draft_token_holds_are_left_out() -> None:
    metadata = byte_level_metadata("smollm", 0)
    lost = metadata["tokenizer.ggml.tokens"].index("x")
    kinds = [5 if token == lost else kind for token, kind in enumerate(metadata["tokenizer.ggml.token_type"])]
    draft = tokenizer_from_gguf(metadata | {"tokenizer.ggml.token_type": kinds})
    target = TOKENIZERS["smollm"]
    ids = target.encode("text and x", special=False)
    theirs = TokenTranslation(draft, target).to_draft(ids)
    assert text_of(draft, theirs) == b"tet and "


# Markup


def test_control_tokens_are_matched_by_name_and_text_never_becomes_one() -> None:
    renamed = [*("<|end|>", "<|im_start|>", "<|im_end|>"), *METADATA["few merges"]["tokenizer.ggml.tokens"][3:]]
    renamed[1], renamed[2] = renamed[2], renamed[1]
    draft = tokenizer_from_gguf(METADATA["few merges"] | {"tokenizer.ggml.tokens": renamed})
    target = TOKENIZERS["qwen2"]
    there = TokenTranslation(draft, target)
    end, start, stop = (target.encode(name, special=True)[0] for name in CONTROL)
    assert there.to_draft([start, stop]) == [2, 1]
    assert there.to_target([2, 1]) == [start, stop]
    assert text_of(draft, there.to_draft([end])) == b"<|endoftext|>"
    assert there.to_target([0]) == []
    assert there.mute.tolist() == [0]
    spelled = target.encode("<|im_start|>", special=False)
    assert text_of(draft, there.to_draft(spelled)) == b"<|im_start|>"


def with_bos(name: str, add: bool) -> Tokenizer:
    return tokenizer_from_gguf(METADATA[name] | {"tokenizer.ggml.add_bos_token": add})


@pytest.mark.parametrize(("own", "theirs"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize(("draft_name", "target_name"), [("sentencepiece", "qwen2"), ("few merges", "qwen2")])
def test_a_text_has_one_begin_token_where_the_draft_model_wants_one(
    draft_name: str, target_name: str, own: bool, theirs: bool
) -> None:
    draft, target = with_bos(draft_name, own), with_bos(target_name, theirs)
    there = TokenTranslation(draft, target)
    ids = [*there.opening, *there.to_draft(target.encode_prompt("hello"))]
    begins = [token for token in ids if token == draft.bos_id]
    named_alike = draft_name == "few merges"
    assert len(begins) == (own or (theirs and named_alike))
    assert text_of(draft, ids) == b"hello"


# Pairs and borders


@pytest.mark.parametrize(("draft", "target"), PAIRS)
def test_pairs_have_one_text_and_all_of_them_are_found(draft: str, target: str) -> None:
    there, one, two = translation(draft, target), TOKENIZERS[draft], TOKENIZERS[target]
    for ids, theirs in zip(*there.pairs, strict=True):
        assert one.token_bytes(ids) == two.token_bytes(theirs)
        assert one.token_bytes(ids) or one.token_label(ids) == two.token_label(theirs)
    pieces = {two.token_bytes(token) for token in range(two.size)} - {b""}
    shared = sum(one.token_bytes(token) in pieces for token in range(one.size))
    named = len({one.token_label(t) for t in one.special_ids} & {two.token_label(t) for t in two.special_ids})
    assert len(there.pairs[0]) == shared + named


@pytest.mark.parametrize("draft", ["few merges", "smollm", "qwen2", "llama-bpe", "sentencepiece"])
@pytest.mark.parametrize("target", ["smollm", "qwen2", "llama-bpe", "sentencepiece"])
def test_a_text_cut_at_a_border_is_translated_as_a_whole(draft: str, target: str) -> None:
    there = translation(draft, target)
    borders = 0
    for text in sample_texts(150):
        ids = TOKENIZERS[target].encode(text, special=False)
        whole = there.to_draft(ids)
        for i in range(1, len(ids)):
            if there.is_border(ids[i - 1], ids[i]):
                borders += 1
                assert there.to_draft(ids[:i]) + there.to_draft(ids[i:]) == whole
    assert borders > 100


def test_markup_is_a_border_and_white_space_before_white_space_is_none() -> None:
    there, target = translation("few merges", "bytes"), TOKENIZERS["bytes"]
    start, a, space = 1, target.encode("a", special=False)[0], target.encode(" ", special=False)[0]
    assert there.is_border(start, a)
    assert there.is_border(a, start)
    assert not there.is_border(a, a)
    assert not there.is_border(a, space)  # a second one may follow
