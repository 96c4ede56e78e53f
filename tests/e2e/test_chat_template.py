"""Chats with models that have no chat template, and with the template that the user names."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import draftgraph as dg
from support.commands import command, program
from support.serving import CHAT, serving
from support.tiny import tiny_config, tiny_tokenizer, write_gguf, write_hf_folder, write_json
from support.tools import script

SAY: list[dict[str, Any]] = [{"role": "user", "content": "Say hi"}]
CHATML = "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n"
TOKENS = tiny_tokenizer().tokens
FIN: dict[str, Any] = {"tokenizer.ggml.tokens": [*TOKENS[:-1], "<|fin|>"]}  # in place of <|im_end|>
quiet = pytest.mark.filterwarnings("ignore:the model has no chat template")
SAID = "I say hi.<|im_end|>\nand more"


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A model that has neither a chat template nor a token of ChatML's end of turn."""
    config = tiny_config(context_length=2048)
    dropped = ["tokenizer.chat_template"]
    return write_gguf(tmp_path / "bare.gguf", config=config, drop_metadata=dropped, extra_metadata=FIN)


def written_ids(llm: dg.LLM) -> list[int]:
    return llm.model.tokenizer.encode(SAID, special=False)


def test_raw_prompts_of_a_model_without_a_template_give_no_warning(bare: Path) -> None:
    with dg.load(bare, draft="off") as llm, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert llm.generate("Say hi", max_tokens=3).completion_tokens == 3


@quiet
def test_an_answer_of_a_model_without_a_template_ends_before_the_text_of_the_end(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dg.load(bare) as llm:
        script(monkeypatch, written_ids(llm))
        assert llm.prompt_ids(SAY) == llm.model.tokenizer.encode(CHATML, special=True)
        answer = llm.generate(SAY, max_tokens=60)
        assert (answer.text, answer.finish_reason) == ("I say hi.", "stop")
        assert llm.generate("Say hi", max_tokens=len(written_ids(llm))).text == SAID  # no chat
        assert llm.generate(SAY, max_tokens=len(written_ids(llm)), ignore_eos=True).text == SAID


@quiet
def test_a_server_ends_such_answers_there_too(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(bare) as running:
        script(monkeypatch, written_ids(running.llm))
        body = {"messages": SAY, "max_tokens": 60}
        (choice,) = running.post(CHAT, body).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("I say hi.", "stop")
        (choice,) = running.post(CHAT, body | {"stop": ["hi"]}).json()["choices"]
        assert choice["message"]["content"] == "I say "


def test_the_command_line_warns_where_it_chats_without_a_template(bare: Path) -> None:
    asked = ("generate", bare, "-p", "Say hi", "--max-tokens", "2", "--json")
    for arguments, warned in (((), 1), (("--chat-template", "chatml"), 0), (("--raw",), 0)):
        outcome = program(*asked, *arguments)
        assert outcome.json["completion_tokens"] == 2
        assert outcome.err.count("no chat template") == warned


def test_the_end_of_chatml_ends_texts_where_it_is_a_control_token(tmp_path: Path) -> None:
    end = TOKENS.index("<|im_end|>")
    ends = {f"tokenizer.ggml.{name}_token_id": TOKENS.index("<|endoftext|>") for name in ("eos", "eot", "padding")}
    path = write_gguf(tmp_path / "a.gguf", drop_metadata=["tokenizer.chat_template"], extra_metadata=ends)
    with dg.load(path, draft="off") as llm:
        assert end in llm.model.end_ids
    path = write_gguf(tmp_path / "b.gguf", extra_metadata=ends)
    with dg.load(path, draft="off") as llm:
        assert end not in llm.model.end_ids  # the model has a template of its own
    with dg.load(path, draft="off", chat_template="chatml") as llm:
        assert end in llm.model.end_ids


def test_the_template_that_the_user_names_goes_before_the_models_own(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("Q: {{ messages[0].content }} A:", encoding="utf-8")
    folder = write_hf_folder(tmp_path / "folder")
    for model in (write_gguf(tmp_path / "model.gguf"), folder):
        with dg.load(model, draft="off", chat_template=str(file)) as llm:
            assert llm.prompt_ids(SAY) == llm.model.tokenizer.encode("Q: Say hi A:", special=True)
            answer = llm.generate(SAY, max_tokens=5)
        outcome = command(
            "generate", model, "-p", "Say hi", "--max-tokens", "5", "--draft", "off", "--chat-template", file, "--json"
        )
        assert outcome.json["token_ids"] == list(answer.token_ids)
        assert outcome.json["prompt_tokens"] == answer.prompt_tokens


def test_a_folder_without_a_template_chats_in_chatml(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "folder")
    write_json(folder / "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    with dg.load(folder, draft="off") as llm, pytest.warns(UserWarning, match="chatml"):
        assert llm.prompt_ids(SAY) == llm.model.tokenizer.encode(CHATML, special=True)
