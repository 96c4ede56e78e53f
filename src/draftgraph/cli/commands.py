"""The commands, but for those with files of their own. Each one loads, calls, prints; options come from the config
fields."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftgraph import audit as audits
from draftgraph.cli import console
from draftgraph.cli.chat import run_chat
from draftgraph.cli.explanation import print_explanation
from draftgraph.cli.options import Options, with_options
from draftgraph.cli.report import print_doctor, print_stats
from draftgraph.cli.shared import (
    DataOption,
    FileOption,
    JsonOption,
    LimitOption,
    ModelArgument,
    PromptOption,
    RawOption,
    check_out,
    loaded,
    read_prompt,
    require_repeatable,
    status,
    write,
)
from draftgraph.config import DraftConfig, EngineConfig, SamplingParams
from draftgraph.data import read_prompts
from draftgraph.doctor import examine
from draftgraph.draw import render_html, render_svg
from draftgraph.engine.trace import Tracer
from draftgraph.errors import ParameterError, PromptError
from draftgraph.explain import explain_completion
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
    explain: Annotated[
        bool, typer.Option("--explain", help="Say afterwards what was drafted, what it cost and whether it paid.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the answer to a prompt, streaming."""
    text = read_prompt(prompt, file)
    with loaded(model, options) as llm:
        stream = llm.stream(text if raw else audits.as_chat(text), **options.sampling)
        tracer = Tracer(llm.model.tokenizer.token_bytes)
        for delta in stream:
            if not as_json:
                for piece, sources in tracer.pieces(delta):
                    console.print_text(piece, sources[0] if trace else TARGET)
        completion = stream.finish()
        explanation = explain_completion(llm, completion) if explain else None
    if as_json:
        explained = {} if explanation is None else {"explain": explanation.to_json()}
        console.print_json(completion.to_json() | explained)
        return
    console.out.print()
    print_stats(completion.stats, trace=trace)
    if explanation is not None:
        print_explanation(explanation)


@app.command()
@with_options(SamplingParams, DraftConfig, EngineConfig)
def chat(*, model: ModelArgument, options: Options, as_json: JsonOption = False) -> None:
    """Talk to a model. An empty line or Ctrl-D ends the chat."""
    with loaded(model, options) as llm:
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
    """Prove that the text with drafts is the text without, token for token; by default with a budget of 8."""
    prompts = read_prompts(data, limit)
    sampling = {"seed": fresh_seed()} | options.sampling
    require_repeatable(options)
    drafting = Options(
        options.sampling, {"budget": 8} | options.load
    )  # a planner that drafts nothing would prove nothing
    with loaded(model, drafting) as llm, status() as report:
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
    check_out(out, ".svg", ".html")
    text = read_prompt(prompt, file)
    wider = Options(options.sampling, {"budget": 10} | options.load)  # more to see than what is fastest
    with loaded(model, wider) as llm, status() as report:
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
        write(out, render_svg(views[chosen]))
    else:
        write(out, render_html(views if step is None else views[chosen]))
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
