"""Which template a chat goes through: the model's, the one for tools, the built-in one, or the one the user names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftgraph.errors import ChatTemplateError
from draftgraph.models.chat_templates import BUILT_IN, ChatTemplates, asked_templates
from draftgraph.models.tokenizer import Tokenizer, tokenizer_from_gguf
from support.vocabularies import byte_level_metadata

ASKED = [{"role": "user", "content": "hi"}]
CHATML = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
TOOLS: dict[str, Any] = {"tools": [{"name": "f"}]}
TWO = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}


def tokenizer_with(**keys: Any) -> Tokenizer:
    return tokenizer_from_gguf(byte_level_metadata() | {name.replace("__", "."): keys[name] for name in keys})


def written(tokenizer: Tokenizer, variables: dict[str, Any] | None = None) -> str:
    return tokenizer.render_messages(ASKED, variables=variables).plain


def test_with_tools_the_template_for_tools_is_used_and_else_the_default() -> None:
    tokenizer = tokenizer_with(**TWO, **{"tokenizer.chat_templates": ["tool_use"]})
    assert written(tokenizer, TOOLS) == "tools"
    assert written(tokenizer, {"tools": []}) == "tools"  # as in transformers
    assert written(tokenizer, {"tools": None}) == "plain"
    assert written(tokenizer) == "plain"
    assert written(tokenizer, {"documents": []}) == "plain"


def test_a_single_template_is_used_with_tools_too() -> None:
    assert written(tokenizer_with(tokenizer__chat_template="plain"), TOOLS) == "plain"


def test_without_a_default_the_choices_are_named() -> None:
    tokenizer = tokenizer_with(tokenizer__chat_template__tool_use="tools", tokenizer__chat_template__rag="rag")
    assert written(tokenizer, TOOLS) == "tools"
    with pytest.raises(ChatTemplateError) as caught:
        written(tokenizer)
    assert caught.value.allowed == "rag, tool_use"
    assert written(tokenizer.with_chat_template("rag")) == "rag"


@pytest.mark.parametrize("keys", [{}, {"tokenizer.chat_template": ""}])
def test_a_model_without_a_template_chats_in_chatml_with_a_warning(keys: dict[str, str]) -> None:
    tokenizer = tokenizer_with(**keys)
    assert tokenizer.encode_prompt("hi")  # a warning would be an error here
    with pytest.warns(UserWarning, match="no chat template; chats use the built-in 'chatml'"):
        assert written(tokenizer) == CHATML


def test_a_template_that_the_user_names_needs_no_warning(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("\ufeff{{ messages[0].content }} é", encoding="utf-8")
    for tokenizer in (tokenizer_with(), tokenizer_with(**TWO)):
        assert written(tokenizer.with_chat_template("chatml"), TOOLS) == CHATML
        assert written(tokenizer.with_chat_template(str(file)), TOOLS) == "hi é"
    assert written(tokenizer_with(**TWO).with_chat_template("tool_use")) == "tools"


def test_the_end_of_a_built_in_templates_turn_is_a_control_token_or_a_text_to_stop_at() -> None:
    metadata = byte_level_metadata()
    known = tokenizer_from_gguf(metadata)
    end = metadata["tokenizer.ggml.tokens"].index("<|im_end|>")
    assert (known.chat_end_id, known.chat_stop) == (end, ())
    tokens = ["<|fin|>" if token == "<|im_end|>" else token for token in metadata["tokenizer.ggml.tokens"]]
    unknown = tokenizer_from_gguf(metadata | {"tokenizer.ggml.tokens": tokens})
    assert (unknown.chat_end_id, unknown.chat_stop) == (None, ("<|im_end|>",))
    kinds = [4 if token == end else kind for token, kind in enumerate(metadata["tokenizer.ggml.token_type"])]
    ordinary = {"tokenizer.ggml.token_type": kinds, "tokenizer.ggml.eos_token_id": 0}
    assert tokenizer_from_gguf(metadata | ordinary).chat_stop == ("<|im_end|>",)
    own = tokenizer_with(tokenizer__chat_template="x")
    assert (own.chat_end_id, own.chat_stop) == (None, ())


@pytest.mark.parametrize("asked", ["no.jinja", "", "~nobody/x", "a\0b", "x" * 5000, ".", "/dev/zero"])
def test_a_template_that_is_not_there_is_refused_in_three_parts(asked: str) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        asked_templates(asked, {"rag": "x"})
    assert "rag, chatml" in caught.value.allowed
    assert caught.value.given.startswith("chat_template=")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\xff\xfe", "utf-8"), (b"x" * 2**20, "too large"), (b"x" * 200_000, "200000"), (b"{% if %}", "Expected")],
)
def test_a_file_that_is_no_template_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_bytes(content)
    with pytest.raises(ChatTemplateError, match=reason):
        asked_templates(str(file), {})


def test_built_in_templates_are_templates_for_every_chat() -> None:
    for templates in BUILT_IN.values():
        assert isinstance(templates, ChatTemplates)
        assert templates.choose(None)
        assert templates.end
