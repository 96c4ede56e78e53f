"""Small vocabularies learned from a few lines of text, in the forms in which model files hold them.

In: nothing. Out: GGUF metadata and `tokenizer.json` objects. Shares no code with the package.
"""

from __future__ import annotations

import itertools
import random
import unicodedata
from collections import Counter
from typing import Any

import regex

CORPUS = (
    "The quick brown fox doesn't jump over the lazy dog; it's 1234567 times 42.  We'll see, they've SHOUTED: DON'T!\n"
    "def add(first, second):\n    return first + second  # a comment\n\n\tif x == 10:\r\n\t\tprint('hello, hello')\n"
    "Der Bär läßt grüßen, où est la forêt déjà vue? Señor, mañana por la mañana.\n"
    "Быстрая коричневая лиса прыгает через ленивую собаку. Η αλεπού και ο σκύλος.\n"
    "素早い茶色の狐は怠け者の犬を飛び越える。人工知能 人工知能\n"
    "한국어 텍스트 한국어 텍스트 हिन्दी में लिखा हुआ पाठ हिन्दी\n"
    "العربية نص قصير العربية 👨‍👩‍👧 👍🏽 🎉🎉 aaaaaaaaaaaaaaaa ================ \n"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<tool>", "::::")
# Whole words that no merges lead to: only a splitter that looks up words first finds them.
WHOLE_WORDS = ("café", "naïve", "123", "人工知能", "!?...")
_WORD = regex.compile(r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
_SAMPLES = (
    "the quick", " brown", "DON'T", "don't we'll It'S", "'s", "12", "1234567", "٣٤٥", "½Ⅷ²", "café", "naïve",
    "forêt déjà", "Быстрая лиса", "Η αλεπού", "素早い", "人工知能", "한국어", "हिन्दी", "العربية", "👨‍👩‍👧",
    "👍🏽", "🎉", "\u200d", "\u200b", "\ufeff", "\u00a0", "\u3000", "\u2028", "\x85", "\x1c", "\x00", "ſ", "İ",
    "ﬁ", "\u0301", "A\u030a", " ", "  ", " " * 7, "\t", "\t\t", "\n", "\n\n\n", "\r\n", "\r", " \n ",
    "def f(x):\n    return x", "a[i] += 1;", "{}()", "=" * 20, "a" * 23, "!?...", "#include <x.h>", "https://example.org",
    "\\n", "\U0001f1e9\U0001f1ea", "\U0010fffd", "<0x41>", "▁", "<|im_", "<tool", "<unk>", ":::", "::::",
)  # fmt: skip


def sample_texts(count: int, seed: int = 0) -> list[str]:
    """Returns `count` texts of many scripts, composed and decomposed, with runs of white space, digits and symbols."""
    rng = random.Random(seed)
    texts = [*_SAMPLES, " " * 200, "\n" * 50, CORPUS, unicodedata.normalize("NFD", CORPUS)]
    while len(texts) < count:
        text = "".join(rng.choices(_SAMPLES, k=rng.randint(1, 9)))
        form = rng.choice(("NFC", "NFD", "", ""))
        texts.append(unicodedata.normalize(form, text) if form else text)  # type: ignore[arg-type]
    return texts


def byte_letters() -> list[str]:
    """Returns [256] the printable letter of each byte, as GPT-2's encoder defines it."""
    letters, spare = [], 256
    for byte in range(256):
        if 33 <= byte <= 126 or (byte >= 161 and byte != 173):
            letters.append(chr(byte))
        else:
            letters.append(chr(spare))
            spare += 1
    return letters


def learn_merges(words: list[tuple[str, ...]], count: int) -> list[tuple[str, str]]:
    """Returns up to `count` merges, each of the most frequent pair at its time."""
    counts = Counter(words)
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in counts.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += times
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        counts = Counter({join_pair(word, best): times for word, times in counts.items()})
    return merges


def join_pair(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """Returns `word` with every occurrence of `pair` joined, from the left."""
    joined: list[str] = []
    at = 0
    while at < len(word):
        if word[at : at + 2] == pair:
            joined.append(word[at] + word[at + 1])
            at += 2
        else:
            joined.append(word[at])
            at += 1
    return tuple(joined)


def byte_level_metadata(pre: str = "smollm", num_merges: int = 400) -> dict[str, Any]:
    """Returns GGUF metadata with a byte-level vocabulary: control tokens, bytes, merges, user-defined tokens."""
    letters = byte_letters()
    words = [tuple(letters[byte] for byte in word.encode()) for word in _WORD.findall(CORPUS)]
    merges = learn_merges(words, num_merges)
    whole = ["".join(letters[byte] for byte in word.encode()) for word in WHOLE_WORDS]
    learned = list(dict.fromkeys([*(left + right for left, right in merges), *whole]))
    tokens = [*CONTROL, *letters, *learned, *USER_DEFINED]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (256 + len(learned)) + [4] * len(USER_DEFINED),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def learned_metadata(words: list[bytes], num_merges: int, turn: int = 0) -> dict[str, Any]:
    """Returns GGUF metadata with a byte-level vocabulary whose merges are learned from these words, of any bytes.

    Args:
        turn: by how many places the ids of the plain tokens are turned.
    """
    letters = byte_letters()
    merges = learn_merges([tuple(letters[byte] for byte in word) for word in words], num_merges)
    plain = [*letters, *dict.fromkeys(left + right for left, right in merges)]
    turn %= len(plain)
    return byte_level_metadata(num_merges=0) | {
        "tokenizer.ggml.tokens": [*CONTROL, *plain[turn:], *plain[:turn]],
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * len(plain),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
    }


def sentencepiece_metadata(num_merges: int = 400) -> dict[str, Any]:
    """Returns GGUF metadata with a SentencePiece vocabulary: control tokens, byte tokens, scored pieces."""
    text = "▁" + CORPUS.replace(" ", "▁")
    words = [tuple(word) for word in regex.findall(r"▁*[^▁\n]*|\n", text)]
    learned = list(dict.fromkeys(left + right for left, right in learn_merges(words, num_merges)))
    learned += [piece for piece in ("▁▁", "▁▁▁", "▁▁▁▁", "aaa", "aba", "ab", "ba", "abab") if piece not in learned]
    letters = sorted({*text, *"ab"})
    specials, byte_tokens = ["<unk>", "<s>", "</s>"], [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*specials, *byte_tokens, *learned, *letters, *USER_DEFINED]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (len(learned) + len(letters)) + [4] * len(USER_DEFINED)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def added_token(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    """Returns an entry of `added_tokens`; special unless the flags say otherwise."""
    plain = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
    return {"id": token_id, "content": content, **plain, **flags}


def byte_level_json(num_merges: int = 400) -> dict[str, Any]:
    """Returns the `tokenizer.json` of the vocabulary of `byte_level_metadata("smollm")`."""
    metadata = byte_level_metadata("smollm", num_merges)
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            added_token(i, token, special=kinds[i] == 3) for i, token in enumerate(tokens) if kinds[i] in (3, 4)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokens) if kinds[i] != 4},
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }


def sentencepiece_json(splits: list[tuple[str, str]]) -> dict[str, Any]:
    """Returns a `tokenizer.json` of the pieces of `sentencepiece_metadata` with the given merges, as Llama 2 has it."""
    metadata = sentencepiece_metadata()
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    return {
        "version": "1.0",
        "added_tokens": [
            added_token(i, token, special=kinds[i] in (2, 3)) for i, token in enumerate(tokens) if kinds[i] in (2, 3, 4)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: i for i, token in enumerate(tokens) if kinds[i] != 4},
            "merges": [" ".join(split) for split in splits],
        },
    }
