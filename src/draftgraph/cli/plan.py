"""`draftgraph plan`: the best static tree for this machine and this pair of model and drafters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from draftgraph.audit import as_chat, as_prompts
from draftgraph.cli import console
from draftgraph.cli.options import Options, with_options
from draftgraph.cli.shared import (
    JsonOption,
    LimitOption,
    ModelArgument,
    RawOption,
    check_out,
    open_workshop,
    status,
    write,
)
from draftgraph.config import DraftConfig, EngineConfig, SamplingParams
from draftgraph.data import read_prompts
from draftgraph.draw import Lines, Series, render_tree
from draftgraph.llm import Prompt
from draftgraph.static_plan import PROMPTS, StaticPlan, static_plan

_SHOWN = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # sizes in the table, and the best one


@with_options(SamplingParams, DraftConfig, EngineConfig)
def plan(
    *,
    model: ModelArgument,
    options: Options,
    data: Annotated[
        Path | None, typer.Option("--data", help="Prompts to measure on; three questions of ours if left out.")
    ] = None,
    limit: LimitOption = None,
    most: Annotated[int, typer.Option("--most", min=1, max=128, help="Drafts of the largest tree.")] = 48,
    out: Annotated[Path | None, typer.Option("--out", help="Draw the tree into this .svg file.")] = None,
    raw: RawOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the best static tree: which ranks are right how often, what a pass costs, and what follows."""
    if out is not None:
        check_out(out, ".svg")
    prompts: list[Prompt] = [text if raw else as_chat(text) for text in PROMPTS]
    if data is not None:
        prompts = [prompt for _, prompt in as_prompts(read_prompts(data, limit), raw=raw)]
    shop, draft = open_workshop(model, options)
    with status() as report:
        found = static_plan(shop, draft, prompts, most, report, **{"max_tokens": 64, "seed": 0} | options.sampling)
    if out is not None:
        write(out, _picture(found))
    if as_json:
        console.print_json(found.to_json() | ({"out": str(out)} if out else {}))
    else:
        _print(found)


def _print(found: StaticPlan) -> None:
    ranks = "  ".join(f"{rank}: {share:.3f}" for rank, share in enumerate(found.acceptances, start=1))
    console.out.print(f"right candidate, by rank, over {found.nodes} nodes:  {ranks or 'never one'}")
    table = Table("drafts", "tokens/step", "ms/step", "tokens/s", "over plain", box=None)
    for count in sorted({*(size for size in _SHOWN if size < len(found.trees)), found.best.count}):
        tokens, seconds = found.trees[count].tokens, found.seconds[count]
        cells = (f"{tokens:.3f}", f"{1e3 * seconds:.2f}", f"{tokens / seconds:.2f}")
        style = "bold green4" if count == found.best.count else ""
        table.add_row(str(count), *cells, f"{tokens / seconds * found.seconds[0]:.3f}", style=style)
    console.out.print(table)
    console.out.print(_shape(found))


def _shape(found: StaticPlan) -> str:
    """The best tree in words: how many candidates after which path of ranks."""
    tree = found.tree
    if not len(tree):
        return "the best static tree has no drafts: plain decoding is fastest with these drafters"
    paths: list[str] = []
    for parent, rank in zip(tree.parents, tree.ranks, strict=True):
        paths.append((paths[parent] + "." if parent >= 0 else "") + str(rank + 1))
    return f"the best tree has {len(tree)} drafts, each named by its path of ranks:\n  " + "  ".join(paths)


def _picture(found: StaticPlan) -> str:
    tree, sizes = found.tree, tuple(range(len(found.trees)))
    rates = tuple(tree.tokens / seconds for tree, seconds in zip(found.trees, found.seconds, strict=True))
    return render_tree(
        f"{found.model}: the best static tree",
        f"{found.draft}: {tree.tokens:.2f} tokens per step, {found.best.rate:.1f} tokens/s, "
        f"{found.speedup:.2f} × plain",
        tree.parents,
        tree.ranks,
        tree.acceptances,
        [
            Lines("expected tokens/s", "drafts in the tree", sizes, (Series("tokens/s", 7, rates),)),
            Lines(
                "expected tokens per step",
                "drafts in the tree",
                sizes,
                (Series("tokens per step", 4, tuple(tree.tokens for tree in found.trees)),),
            ),
        ],
    )
