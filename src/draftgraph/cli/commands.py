"""The commands. Each one loads, calls, prints; options come from the config fields."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from draftgraph import audit as audits
from draftgraph import bench as benches
from draftgraph import profile as profiles
from draftgraph.cli import console
from draftgraph.cli.chat import run_chat
from draftgraph.cli.options import Options, with_options
from draftgraph.cli.report import print_doctor, print_stats
from draftgraph.config import DraftConfig, EngineConfig, SamplingParams
from draftgraph.data import read_prompts, read_text
from draftgraph.doctor import examine
from draftgraph.draw import render_html, render_svg
from draftgraph.errors import ParameterError, PromptError
from draftgraph.llm import LLM, load
from draftgraph.models.catalog import CATALOG
from draftgraph.models.catalog import pull as pull_model
from draftgraph.rng import fresh_seed
from draftgraph.types import TARGET
from draftgraph.view import most_telling, record_steps

app = typer.Typer(
    help="Lossless speculative decoding over a token graph: the same text, in fewer passes of the model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)

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


@app.command()
@with_options(SamplingParams, DraftConfig, EngineConfig)
def generate(
    *,
    model: ModelArgument,
    options: Options,
    prompt: PromptOption = None,
    file: FileOption = None,
    raw: RawOption = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Colour each word by its source: a drafter or the target.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the answer to a prompt, streaming."""
    text = _prompt(prompt, file)
    with _loaded(model, options) as llm:
        stream = llm.stream(text if raw else audits.as_chat(text), **options.sampling)
        tracer = console.Tracer(llm.model.tokenizer.token_bytes)
        for delta in stream:
            if not as_json:
                for piece, source in tracer.pieces(delta):
                    console.print_text(piece, source if trace else TARGET)
        completion = stream.finish()
    if as_json:
        console.print_json(completion.to_json())
        return
    console.out.print()
    print_stats(completion.stats, trace=trace)


@app.command()
@with_options(SamplingParams, DraftConfig, EngineConfig)
def chat(*, model: ModelArgument, options: Options, as_json: JsonOption = False) -> None:
    """Talk to a model. An empty line or Ctrl-D ends the chat."""
    with _loaded(model, options) as llm:
        turns = run_chat(llm, options.sampling, quiet=as_json)
    if as_json:
        console.print_json({"messages": turns})


@app.command()
def pull(*, model: ModelArgument, as_json: JsonOption = False) -> None:
    """Fetch a model and check it."""
    with console.DownloadBar() as bar:
        path = pull_model(model, progress=bar.update)
    if as_json:
        console.print_json({"model": model, "path": str(path)})
    else:
        entry = CATALOG.get(model)
        about = f"\n{entry.summary} {entry.licence}, SHA-256 verified." if entry else ""
        console.out.print(f"{path}{about}", markup=False, emoji=False)


@app.command()
def doctor(*, as_json: JsonOption = False) -> None:
    """Say what is installed, what this machine can do, and what is missing."""
    report = examine()
    if as_json:
        console.print_json(report.to_json())
    else:
        print_doctor(report)


@app.command()
@with_options(SamplingParams, DraftConfig, EngineConfig)
def audit(
    *,
    model: ModelArgument,
    data: DataOption,
    options: Options,
    limit: LimitOption = None,
    raw: RawOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prove that the text with drafts is the text without, token for token."""
    prompts = read_prompts(data, limit)
    sampling = {"seed": fresh_seed()} | options.sampling
    if options.load.get("acceptance") == "residual" and sampling.get("temperature"):
        raise ParameterError(
            "an audit of --acceptance residual with a temperature",
            "--acceptance match, whose text does not depend on the drafts; residual keeps only the distribution",
            "use --acceptance match or --temperature 0",
        )
    with _loaded(model, options) as llm, _status() as report:
        result = audits.audit(llm, audits.as_prompts(prompts, raw=raw), report, **sampling)
    if as_json:
        console.print_json(result.to_json())
    else:
        console.out.print(
            f"{result.prompts} prompts, {result.tokens} tokens, {result.tokens_per_step:.2f} tokens per step: "
            f"{len(result.mismatches)} mismatches"
        )
    if result.mismatches:
        first = result.mismatches[0]
        console.err.print(
            f"first mismatch: prompt {first.prompt!r}, token {first.position} (seed {sampling['seed']})\n"
            f"  plain    {first.plain!r}\n  drafted  {first.drafted!r}",
            markup=False,
            emoji=False,
        )
        raise typer.Exit(1)


@app.command()
@with_options(SamplingParams, DraftConfig, EngineConfig)
def graph(
    *,
    model: ModelArgument,
    out: Annotated[
        Path, typer.Option("--out", help="Write the picture here: .svg for one step, .html for one or all.")
    ],
    options: Options,
    prompt: PromptOption = None,
    file: FileOption = None,
    raw: RawOption = False,
    step: Annotated[
        int | None, typer.Option("--step", min=1, help="Which decoding step; the default is the most telling one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw the token graph of a step, the tree that was verified, and what was accepted."""
    if out.suffix not in (".svg", ".html"):
        raise ParameterError(f"--out {out}", "a file that ends in .svg or .html", "change the name")
    if not out.parent.is_dir():
        raise ParameterError(f"--out {out}", "a file in a folder that exists", f"make the folder {out.parent}")
    if os.path.isdir(out):
        raise ParameterError(f"--out {out}", "a file; this is a folder", "change the name")
    text = _prompt(prompt, file)
    wider = Options(options.sampling, {"budget": 10} | options.load)  # more to see than what is fastest
    with _loaded(model, wider) as llm, _status() as report:
        report("writing")
        views = record_steps(llm, text if raw else audits.as_chat(text), step, **{"max_tokens": 64} | options.sampling)
    if not views:
        raise PromptError("a text that ended with its first token", "a text of several tokens", "raise --max-tokens")
    if step is not None and step > len(views):
        raise ParameterError(
            f"--step {step}", f"1 to {len(views)}, the steps this text took", "change --step or --max-tokens"
        )
    chosen = most_telling(views) if step is None else step - 1
    if out.suffix == ".svg":
        _write(out, render_svg(views[chosen]))
    else:
        _write(out, render_html(views if step is None else views[chosen]))
    view = views[chosen]
    summary = {
        "out": str(out),
        "step": view.step,
        "drafted_nodes": view.num_drafted,
        "merged_nodes": view.num_merged,
        "verified_rows": view.num_rows,
        "accepted_nodes": view.num_accepted,
    }
    if as_json:
        console.print_json(summary)
    else:
        console.out.print(
            f"{out}: step {view.step}, {view.num_drafted} drafts, {view.num_merged} merged, "
            f"{view.num_rows} rows, {view.num_accepted} accepted",
            markup=False,
            emoji=False,
        )


@app.command()
@with_options(SamplingParams, DraftConfig, EngineConfig)
def bench(
    *,
    model: ModelArgument,
    data: DataOption,
    options: Options,
    limit: LimitOption = None,
    raw: RawOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure plain and drafted decoding, alternately, and print the ceiling beside them."""
    prompts = read_prompts(data, limit)
    sampling = {"max_tokens": 64, "seed": 0} | options.sampling
    with _loaded(model, options) as llm, _status() as report:
        pairs = benches.bench(llm, prompts, report, raw=raw, **sampling)
        result = benches.summarise(llm, pairs)
    if as_json:
        console.print_json(result)
        return
    ceiling = result["ceiling"]
    console.out.print(
        f"ceiling of plain decoding: {ceiling['weight_bytes'] / 1e6:.0f} MB of weights a pass over "
        f"{ceiling['memory_bytes_per_second'] / 1e9:.1f} GB/s = {ceiling['plain_tokens_per_second']:.1f} tokens/s"
    )
    table = Table("task", *("plain tok/s", "graph tok/s", "tokens/step", "speedup"), box=None)
    for task, row in [*result["per_task"].items(), ("all", result)]:
        graph_row = row["graph"]
        table.add_row(
            task,
            *(f"{v:.2f}" for v in (row["plain"]["tokens_per_second"], graph_row["tokens_per_second"])),
            *(f"{v:.2f}" for v in (graph_row["tokens_per_step"], row["speedup"])),
        )
    console.out.print(table)
    console.out.print(
        f"medians over {result['prompts']} prompts; texts identical: {'yes' if result['identical'] else 'NO'}"
    )


@app.command()
@with_options(EngineConfig)
def profile(
    *,
    model: ModelArgument,
    options: Options,
    rows: Annotated[str, typer.Option("--rows", help="Row counts to measure, comma-separated.")] = "1,2,4,8,12,16",
    at: Annotated[int, typer.Option("--at", min=1, help="Tokens in the context below the measured rows.")] = 128,
    repeats: Annotated[int, typer.Option("--repeats", min=3, help="Passes per row count.")] = 15,
    as_json: JsonOption = False,
) -> None:
    """Measure what a target pass costs, by its number of rows."""
    counts = [int(part) if part.strip().isdigit() else 0 for part in rows.split(",")]
    if not all(1 <= count <= 256 for count in counts):
        raise ParameterError(f"--rows {rows}", "whole numbers from 1 to 256, comma-separated", "change --rows")
    with _loaded(model, Options({}, {"draft": "off"} | options.load)) as llm, _status() as report:
        longest = llm.runner.context_length - max(counts)
        if at > longest:
            raise ParameterError(f"--at {at}", f"at most {longest} with these rows", "lower --at or raise --context")
        report("measuring")
        result = profiles.profile(llm.runner, counts, at, repeats).to_json()
    if as_json:
        console.print_json(result)
        return
    table = Table("rows", "ms", "times one row", box=None)
    for count, ms in result["pass_ms"].items():
        table.add_row(count, f"{ms:.2f}", f"{result['ratio'][count]:.2f}")
    console.out.print(f"ceiling: the weights alone take {result['ceiling_ms']:.1f} ms to read from memory")
    console.out.print(table)
    console.out.print(f"a prompt is read at {result['prompt_tokens_per_second']:.0f} tokens/s")


@contextmanager
def _loaded(model: str, options: Options) -> Iterator[LLM]:
    """Loads a model, with a progress bar if it must be fetched first, and closes it at the end."""
    with console.DownloadBar() as bar:
        llm = load(model, progress=bar.update, **options.load)
    with llm:
        yield llm


@contextmanager
def _status() -> Iterator[Any]:
    """Shows one changing line on stderr, on a terminal only."""
    with console.err.status("loading") as status:
        yield status.update


def _write(out: Path, picture: str) -> None:
    try:
        out.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise ParameterError(f"--out {out}: {error.strerror}", "a file that can be written", "change it") from error


def _prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise ParameterError(
            "both -p and -f" if file else "neither -p nor -f", "one of them", "give -p TEXT or -f FILE"
        )
    if prompt is not None:
        return prompt
    assert file is not None, "one of the two is given"
    return console.read_stdin(sys.stdin.read) if str(file) == "-" else read_text(file)
