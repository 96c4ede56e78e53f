"""What the commands share: arguments, a loaded model, a line of status, a written picture."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from draftgraph.cli import console
from draftgraph.cli.options import Options
from draftgraph.errors import ParameterError
from draftgraph.llm import LLM, load
from draftgraph.models.catalog import resolve
from draftgraph.models.families import open_source, read_config

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="A catalogue name (smollm2-135m), a .gguf file, a model folder, or a Hub name owner/name[:file]."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one line of JSON last, and nothing else on stdout.")]


@contextmanager
def loaded(model: str, options: Options) -> Iterator[LLM]:
    """Loads a model, with a progress bar if it must be fetched first, and closes it at the end."""
    with console.DownloadBar() as bar:
        llm = load(model, progress=bar.update, **options.load)
    with llm:
        yield llm


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


def check_out(out: Path, *endings: str) -> None:
    """Raises ParameterError unless a picture can be written to `out`, which ends in one of `endings`."""
    if out.suffix not in endings:
        raise ParameterError(f"--out {out}", f"a file that ends in {' or '.join(endings)}", "change the name")
    if not out.parent.is_dir():
        raise ParameterError(f"--out {out}", "a file in a folder that exists", f"make the folder {out.parent}")
    if os.path.isdir(out):
        raise ParameterError(f"--out {out}", "a file; this is a folder", "change the name")


def write(out: Path, picture: str) -> None:
    """Writes a picture. Raises ParameterError if the file cannot be written."""
    try:
        out.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise ParameterError(f"--out {out}: {error.strerror}", "a file that can be written", "change it") from error
