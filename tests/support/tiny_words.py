"""The tiny tokenizer: 256 bytes, some merges, the control tokens of ChatML.

In: nothing. Out: one vocabulary in both spellings, as GGUF metadata and as the objects of tokenizer.json and
tokenizer_config.json, with SmolLM2's form of chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, IM_START, IM_END)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant<|im_end|>\\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Each pair is made of tokens that exist before it: single bytes, or products of the pairs above it.
_MERGES = (
    "Ġ t|h e|Ġ a|i n|r e|o n|Ġt he|e r|Ġ s|a t|Ġ w|Ġ o|e n|Ġ c|i t|i s|a n|o r|e s|Ġ b|e d|Ġ f|in g|Ġ p|o u|Ġa n|"
    "a l|a r|Ġt o|Ġ m|Ġo f|Ġ in|Ġ d|Ġ h|Ġan d|i c|l e|Ġt h|o m|l l"
)
_TYPE_NORMAL, _TYPE_CONTROL = 1, 3


def byte_characters() -> list[str]:
    """Returns [256]: the printable character that stands for each byte in a byte-level vocabulary (GPT-2)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


@dataclass(frozen=True, slots=True)
class TinyTokenizer:
    """A byte-level BPE vocabulary: 256 bytes in GPT-2's order, then one token a merge, then the control tokens."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]

    def id(self, token: str) -> int:
        return self.tokens.index(token)

    @property
    def end_ids(self) -> tuple[int, ...]:
        return tuple(sorted((self.id(END_OF_TEXT), self.id(IM_END))))


def tiny_tokenizer(control_tokens: Sequence[str] = CONTROL_TOKENS) -> TinyTokenizer:
    merges = tuple(_MERGES.split("|"))
    return TinyTokenizer((*sorted(byte_characters()), *(m.replace(" ", "") for m in merges), *control_tokens), merges)


def tokenizer_metadata(tokenizer: TinyTokenizer) -> dict[str, Any]:
    """Returns the tokenizer as GGUF metadata."""
    control = [token in CONTROL_TOKENS for token in tokenizer.tokens]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(tokenizer.tokens),
        "tokenizer.ggml.token_type": [_TYPE_CONTROL if is_control else _TYPE_NORMAL for is_control in control],
        "tokenizer.ggml.merges": list(tokenizer.merges),
        "tokenizer.ggml.bos_token_id": tokenizer.id(IM_START),
        "tokenizer.ggml.eos_token_id": tokenizer.id(IM_END),
        "tokenizer.ggml.eot_token_id": tokenizer.id(END_OF_TEXT),
        "tokenizer.ggml.padding_token_id": tokenizer.id(IM_END),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def tokenizer_json(tokenizer: TinyTokenizer) -> dict[str, Any]:
    """Returns the tokenizer as the object of a tokenizer.json."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    control = [token for token in tokenizer.tokens if token in CONTROL_TOKENS]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": tokenizer.id(token), "content": token, **flags} for token in control],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokenizer.tokens)},
            "merges": list(tokenizer.merges),
        },
    }


def tokenizer_config(tokenizer: TinyTokenizer) -> dict[str, Any]:
    """Returns the object of a tokenizer_config.json."""
    control = [token for token in tokenizer.tokens if token in CONTROL_TOKENS]
    return {
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "added_tokens_decoder": {str(tokenizer.id(token)): {"content": token, "special": True} for token in control},
        "bos_token": IM_START,
        "eos_token": IM_END,
        "pad_token": IM_END,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 256,
    }
