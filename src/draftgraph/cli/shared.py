"""What the commands share: arguments, a loaded model, a line of status, a written picture."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from draftgraph.cli import console
from draftgraph.cli.options import Options
from draftgraph.config import DraftConfig, EngineConfig, from_options
from draftgraph.data import read_text
from draftgraph.draft.table import check_draft
from draftgraph.errors import ParameterError
from draftgraph.llm import LLM, load
from draftgraph.models.catalog import resolve
from draftgraph.models.families import open_source, read_config
from draftgraph.workshop import Workshop

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="A catalogue name (smollm2-135m), a .gguf file, a model folder, or a Hub name owner/name[:file]."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one line of JSON last, and nothing else on stdout.")]
RawOption = Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")]
DataOption = Annotated[Path, typer.Option("--data", help="Prompts: JSON lines with turns, or plain text, one a line.")]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="Use only the first prompts.")]
PromptOption = Annotated[str | None, typer.Option("--prompt", "-p", help="The prompt.")]
FileOption = Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file; - is stdin.")]


@contextmanager
def loaded(model: str, options: Options) -> Iterator[LLM]:
    """Loads a model, with a progress bar if it must be fetched first, and closes it at the end."""
    with console.DownloadBar() as bar:
        llm = load(model, progress=bar.update, **options.load)
    with llm:
        yield llm


def open_workshop(model: str, options: Options) -> tuple[Workshop, DraftConfig]:
    """Loads a model as `loaded` does, to compare several ways to draft, and returns the draft settings beside it."""
    draft, engine = from_options(options.load, DraftConfig, EngineConfig)
    check_draft(draft.draft, engine.acceptance)
    with console.DownloadBar() as bar:
        return Workshop(model, engine, bar.update), draft


def require_repeatable(options: Options) -> None:
    """Checks that a text must not depend on the drafts.

    Raises:
        ParameterError: `residual` with a temperature keeps only the distribution.
    """
    if options.load.get("acceptance") == "residual" and options.sampling.get("temperature"):
        raise ParameterError(
            "a comparison of texts under --acceptance residual with a temperature",
            "--acceptance match, whose text does not depend on the drafts; residual keeps only the distribution",
            "use --acceptance match or --temperature 0",
        )


@contextmanager
def status() -> Iterator[Any]:
    """Shows one changing line on stderr, on a terminal only."""
    with console.err.status("loading") as line:
        yield line.update


def context_limit(model: str) -> int:
    """Returns the context length of the model itself, after fetching it if need be; reads no weights."""
    with console.DownloadBar() as bar:
        path = resolve(model, progress=bar.update)
    return read_config(open_source(path)).context_length


def whole_numbers(option: str, text: str, most: int) -> list[int]:
    """Returns the whole numbers from 1 to `most` of a comma-separated list. Raises ParameterError for any other."""
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if not all(1 <= number <= most for number in numbers):
        raise ParameterError(f"{option} {text}", f"whole numbers from 1 to {most}, comma-separated", f"change {option}")
    return numbers


def check_out(out: Path, *endings: str) -> None:
    """Raises ParameterError unless a picture can be written to `out`, which ends in one of `endings`."""
    if out.suffix not in endings:
        raise ParameterError(f"--out {out}", f"a file that ends in {' or '.join(endings)}", "change the name")
    if not out.parent.is_dir():
        raise ParameterError(f"--out {out}", "a file in a folder that exists", f"make the folder {out.parent}")
    if os.path.isdir(out):
        raise ParameterError(f"--out {out}", "a file; this is a folder", "change the name")


def write(out: Path, text: str) -> None:
    """Writes a file. Raises ParameterError if the file cannot be written."""
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ParameterError(f"--out {out}: {error.strerror}", "a file that can be written", "change it") from error


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """Returns the prompt of -p, or of -f, where - is stdin."""
    if (prompt is None) == (file is None):
        raise ParameterError(
            "both -p and -f" if file else "neither -p nor -f", "one of them", "give -p TEXT or -f FILE"
        )
    if prompt is not None:
        return prompt
    assert file is not None, "one of the two is given"
    return console.read_stdin(sys.stdin.read) if str(file) == "-" else read_text(file)
