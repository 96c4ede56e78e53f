"""The commands that measure a model rather than use it: what its passes cost, and how well it foretells a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from draftgraph import perplexity as perplexities
from draftgraph import profile as profiles
from draftgraph.cli import console
from draftgraph.cli.options import Options, with_options
from draftgraph.cli.shared import (
    JsonOption,
    ModelArgument,
    check_out,
    context_limit,
    loaded,
    status,
    whole_numbers,
    write,
)
from draftgraph.config import EngineConfig
from draftgraph.data import read_text
from draftgraph.errors import DataFileError, ParameterError

_CONTEXTS = (128, 1024, 4096)


@with_options(EngineConfig, without=("context", "chat_template"))
def profile(
    *,
    model: ModelArgument,
    options: Options,
    rows: Annotated[str, typer.Option("--rows", help="Row counts to measure, comma-separated.")] = "1,2,4,8,12,16,32",
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            help="Tokens below the measured rows, comma-separated (default 128,1024,4096, as far as the model goes).",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=3, help="Passes per row count and context.")] = 15,
    out: Annotated[Path | None, typer.Option("--out", help="Draw the curves here, an .svg file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what a target pass costs, by its number of rows, beside the least it could cost."""
    counts = whole_numbers("--rows", rows, 256)
    contexts = None if context is None else whole_numbers("--context", context, 2**20)
    if out is not None:
        check_out(out, ".svg")
    contexts = _fitting(context_limit(model) - max(counts), contexts, counts)
    load = {"draft": "off", "slots": 1, "context": max(contexts) + max(counts)} | options.load
    with loaded(model, Options({}, load)) as llm, status() as report:
        report("measuring")
        result = profiles.profile(llm, counts, contexts, repeats)
    if out is not None:
        write(out, result.to_svg())
    if as_json:
        console.print_json(result.to_json())
    else:
        _print_profile(result)


@with_options(EngineConfig, without=("context", "chat_template"))
def perplexity(
    *,
    model: ModelArgument,
    data: Annotated[Path, typer.Option("--data", help="A text file in UTF-8.")],
    options: Options,
    tokens: Annotated[int | None, typer.Option("--tokens", min=2, help="Read only the first tokens.")] = None,
    window: Annotated[int, typer.Option("--window", min=2, help="Tokens that are read together.")] = 512,
    as_json: JsonOption = False,
) -> None:
    """Measure how well a model foretells a text: the lower, the better."""
    text, longest = read_text(data), context_limit(model)
    if window > longest:
        raise ParameterError(f"--window {window}", f"at most {longest}, the model's own context", "lower --window")
    load = {"draft": "off", "context": window, "slots": 1} | options.load
    with loaded(model, Options({}, load)) as llm, status() as report:
        ids = perplexities.first_ids(llm.model.tokenizer, text, tokens)
        if len(ids) < 2:
            raise DataFileError(f"{data} has {len(ids)} tokens", "a text of at least two tokens", "choose a longer one")
        report(f"reading {len(ids)} tokens")
        result = perplexities.perplexity(perplexities.score_with(llm.runner), ids, window)
    if as_json:
        console.print_json(result.to_json())
    else:
        console.out.print(
            f"perplexity {result.perplexity:.4f} over {result.tokens} tokens in windows of {window}, "
            f"read in {result.seconds:.1f} s"
        )


def _fitting(longest: int, contexts: list[int] | None, counts: list[int]) -> list[int]:
    """Returns the contexts to measure: those asked for, all of which must fit the model, or the usual ones that do."""
    if contexts is None:
        contexts = [context for context in _CONTEXTS if context <= longest] or [longest]
    if not 1 <= max(contexts) <= longest:
        raise ParameterError(
            f"a context of {max(contexts)} tokens below {max(counts)} rows",
            f"{longest + max(counts)} together, the model's own",
            "lower --context or --rows",
        )
    return contexts


def _print_profile(result: profiles.Profile) -> None:
    """Prints the curves as one table, a row per row count."""
    ceiling, curves = result.ceiling, list(result.curves.values())
    console.out.print(
        f"ceiling: {ceiling.weight_bytes / 1e6:.0f} MB of weights a pass over {ceiling.memory_speed / 1e9:.1f} GB/s, "
        f"{ceiling.multiply_adds / 1e9:.2f} G multiply-adds a row over {ceiling.multiply_speed / 1e9:.0f} G/s "
        f"({result.isa}, {result.threads} threads)"
    )
    table = Table("rows", "ceiling", box=None)
    for context in result.curves:
        table.add_column(f"ms at {context}")
        table.add_column("ratio")
    for rows in curves[0]:
        cells: list[Any] = [str(rows), f"{1e3 * ceiling.seconds(rows):.2f}"]
        for curve in curves:
            cells += [f"{1e3 * curve[rows]:.2f}", f"{curve[rows] / curve[1]:.2f}"]
        table.add_row(*cells)
    console.out.print(table)
    console.out.print(f"a prompt is read at {result.prompt_tokens_per_second:.0f} tokens/s")
