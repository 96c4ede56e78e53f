"""A model's file that is cut short, overwritten, replaced or deleted while it is served: the texts stay what they were.

All that is read from it after loading was copied. The server is a process of its own: a file that is mapped and cut
short ends who reads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from draftgraph.runner import native
from support.programs import ServingProgram, serving_program
from support.serving import CHAT, TEXT
from support.tiny import tiny_config, write_gguf


def cut_short(file: Path) -> None:
    os.truncate(file, 4096)


def cut_to_nothing(file: Path) -> None:
    os.truncate(file, 0)


def overwrite(file: Path) -> None:
    """In place, as a careless copy does."""
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.write(os.urandom(size))


def overwrite_with_zeros(file: Path) -> None:
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.write(bytes(size))


def replace(file: Path) -> None:
    other = file.with_suffix(".new")
    other.write_bytes(os.urandom(5000))
    other.replace(file)


def delete(file: Path) -> None:
    file.unlink()


CHANGES = [cut_short, cut_to_nothing, overwrite, overwrite_with_zeros, replace, delete]
MODELS = {"a tied head": {"tied": True}, "a head of its own": {"tied": False}}


def texts(program: ServingProgram) -> list[str]:
    """What it writes to prompts that between them hold every token, with and without a chat template."""
    bodies = [
        *({"prompt": [list(range(first, first + 64))], "max_tokens": 12} for first in range(0, 256, 64)),
        {"prompt": "abcabcabcabc", "max_tokens": 24, "temperature": 0.9, "seed": 3},
    ]
    found = []
    for body in bodies:
        answer = program.post(TEXT, body)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["choices"][0]["text"])
    chat = program.post(CHAT, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12})
    assert chat.status_code == 200, chat.text
    return [*found, chat.json()["choices"][0]["message"]["content"]]


@pytest.mark.parametrize("runner", ["native", "reference"])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_served_changes_no_text(
    change: Callable[[Path], None], kind: str, runner: str, tmp_path: Path
) -> None:
    if runner == "native" and native.core is None:
        pytest.skip("needs the C++ core")
    file = write_gguf(tmp_path / "model.gguf", config=tiny_config(context_length=512), **MODELS[kind])
    draft = write_gguf(tmp_path / "draft.gguf", config=tiny_config(context_length=512), **MODELS[kind])
    options = ["--runner", runner, "--draft", f"ngram,model:{draft}", "--budget", "4"]
    with serving_program(file, tmp_path, *options) as program:
        before = texts(program)
        change(file)
        change(draft)
        assert texts(program) == before
        program.assert_alive()
    assert "Traceback" not in program.log.read_text()
