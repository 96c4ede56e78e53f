"""`draftgraph bench`: several ways to write the same texts, measured in turns."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from draftgraph.bench import run as runs
from draftgraph.bench.arms import PLAIN, open_arms, settings_of
from draftgraph.bench.peer import PEERS, Peer
from draftgraph.bench.plots import plots
from draftgraph.bench.report import summarise
from draftgraph.bench.tables import facts, markdown, tables
from draftgraph.cli import console
from draftgraph.cli.options import Options, with_options
from draftgraph.cli.shared import (
    JsonOption,
    LimitOption,
    ModelArgument,
    RawOption,
    open_workshop,
    require_repeatable,
    status,
    whole_numbers,
    write,
)
from draftgraph.config import AUTO, DraftConfig, EngineConfig, SamplingParams, from_options
from draftgraph.data import read_prompts
from draftgraph.environment import num_cores
from draftgraph.errors import ParameterError
from draftgraph.speeds import memory_speed
from draftgraph.workshop import Workshop

DataOptions = Annotated[list[Path], typer.Option("--data", help="A prompt file; may be given several times.")]
_MOST_TOGETHER = 256


@with_options(SamplingParams, DraftConfig, EngineConfig)
def bench(
    *,
    model: ModelArgument,
    data: DataOptions,
    options: Options,
    limit: LimitOption = None,
    arms: Annotated[
        str,
        typer.Option(
            "--arms",
            help="What to measure beside plain, comma-separated: auto (the planner); chain, tree (nothing merged) and "
            "graph, of a fixed budget; each drafter alone; or all.",
        ),
    ] = AUTO,
    batch: Annotated[
        str | None, typer.Option("--batch", help="Also measure so many requests together, such as 1,2,4,8,16.")
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Write each prompt so often with each arm, in turns; medians count.")
    ] = 1,
    peer: Annotated[
        list[str] | None, typer.Option("--peer", help=f"Run another engine beside: {' or '.join(PEERS)}.")
    ] = None,
    peer_python: Annotated[str, typer.Option("--peer-python", help="The Python that has the peer.")] = sys.executable,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write bench.json, bench.md and plots (SVG) into this folder.")
    ] = None,
    raw: RawOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure plain and drafted decoding in turns, check that the texts are equal, and print the ceiling beside."""
    prompts = [prompt for file in data for prompt in read_prompts(file, limit)]
    sizes = [] if batch is None else whole_numbers("--batch", batch, _MOST_TOGETHER)
    options = _with_slots(options, sizes)
    settings = settings_of(arms, from_options(options.load, DraftConfig, EngineConfig)[0])
    require_repeatable(options)
    _check_peers(peer or [])
    if out is not None:
        _make_folder(out)
    sampling = {"max_tokens": 64, "seed": 0} | options.sampling
    shop, draft = open_workshop(model, options)
    with contextlib.ExitStack() as stack, status() as report:
        opened = open_arms(shop, draft, settings)
        peers = [stack.enter_context(_open_peer(name, peer_python, shop)) for name in peer or []]
        speed_before = memory_speed(shop.runner.threads)
        trials = runs.compare(opened, peers, prompts, report, raw=raw, repeats=repeats, **sampling)
        together = [arm for arm in opened if arm.name in (PLAIN, AUTO)]
        batches = runs.compare_batches(together, trials, sizes, report, raw=raw, **sampling)
        speed = max(speed_before, memory_speed(shop.runner.threads))
        result = summarise(shop, trials, batches, sampling, repeats, speed)
    if out is not None:
        _write(out, result)
    if as_json:
        console.print_json(result)
    else:
        _print(result)
    if not result["identical"]:
        raise typer.Exit(1)


def _print(result: dict[str, Any]) -> None:
    for fact in facts(result):
        console.out.print(fact, markup=False, emoji=False)
    for caption, table in tables(result):
        shown = Table(*table.columns[:1], title=caption, title_justify="left", title_style="dim", box=None)
        for column in table.columns[1:]:
            shown.add_column(column, justify="right")
        for row in table.rows:
            shown.add_row(*row)
        console.out.print()
        console.out.print(shown)
    for mismatch in result["mismatches"]:
        console.err.print(
            f"{mismatch['arm']} is not {PLAIN}: prompt {mismatch['prompt']!r}, token {mismatch['position']}",
            markup=False,
            emoji=False,
        )


def _write(out: Path, result: dict[str, Any]) -> None:
    write(out / "bench.json", json.dumps(result, indent=1) + "\n")
    write(out / "bench.md", markdown(result))
    for name, picture in plots(result).items():
        write(out / name, picture)


def _with_slots(options: Options, sizes: list[int]) -> Options:
    """Makes room for the largest batch, unless --slots says how much there is."""
    largest = max(sizes, default=0)
    slots = options.load.get("slots")
    if slots is None:
        default = EngineConfig().slots
        return Options(options.sampling, options.load | {"slots": max(default, largest)})
    if slots < largest:
        raise ParameterError(f"--batch {largest} with --slots {slots}", f"at most {slots}", "raise --slots")
    return options


def _check_peers(names: list[str]) -> None:
    for name in names:
        if name not in PEERS:
            raise ParameterError(f"--peer {name}", " or ".join(PEERS), "change --peer")


def _open_peer(name: str, python: str, shop: Workshop) -> Peer:
    return Peer(name, python, shop.target.path, shop.config.threads or num_cores(), shop.context)


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ParameterError(f"--out {out}: {error.strerror}", "a folder that can be made", "change it") from error
