"""A chat on the terminal: the messages so far, one answer at a time."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from draftgraph.cli import console
from draftgraph.cli.report import print_stats
from draftgraph.errors import PromptError
from draftgraph.llm import LLM


def run_chat(llm: LLM, sampling: Mapping[str, Any], *, quiet: bool) -> list[dict[str, str]]:
    """Reads user turns from stdin and writes the answers until an empty line. Returns all messages."""
    messages: list[dict[str, str]] = []
    while (turn := _read_turn()) is not None:
        asked = [*messages, {"role": "user", "content": turn}]
        try:
            stream = llm.stream(asked, **sampling)
        except PromptError as error:
            if not messages:
                raise
            console.print_error(error)  # the chat outgrew the context; what was said stays
            break
        try:
            for delta in stream:
                if not quiet:
                    console.print_text(delta.text)
        except KeyboardInterrupt:
            stream.close()
            console.err.print("\n[dim]stopped[/dim]")
        messages = [*asked, {"role": "assistant", "content": stream.request.text}]
        if not quiet:
            console.out.print()
            print_stats(stream.request.stats, trace=False)
    return messages


def _read_turn() -> str | None:
    """Returns the next line, or None at an empty one or the end. Prompts on a terminal."""
    if sys.stdin.isatty():
        console.err.print("[bold]>[/bold] ", end="")
    line = console.read_stdin(sys.stdin.readline).strip()
    return line or None
