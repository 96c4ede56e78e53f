"""How an explanation looks on a terminal: few lines, on stderr, below the text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from draftgraph.cli import console
from draftgraph.explain import Explanation

_BAR = 32  # columns of the longest bar
_BUCKETS = (
    (0, "no draft"),
    (1, "1 draft"),
    (2, "2"),
    (4, "3-4"),
    (8, "5-8"),
    (16, "9-16"),
    (32, "17-32"),
    (512, "33+"),
)


def print_explanation(found: Explanation) -> None:
    """Prints what was drafted, what it cost, and whether it paid."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    for caption, lines in (
        ("checked", _histogram(found)),
        ("sources", _sources(found)),
        ("a pass", [_passes(found)]),
        ("plain", [_plain(found)]),
    ):
        for number, line in enumerate(lines):
            grid.add_row("" if number else caption, line)
    console.err.print(grid)


def _histogram(found: Explanation) -> Iterator[Text]:
    """A bar per bucket of drafts checked in one pass."""
    counts = dict.fromkeys((name for _, name in _BUCKETS), 0)
    for drafts, passes in found.budgets.items():
        counts[next(name for most, name in _BUCKETS if drafts <= most)] += passes
    longest = max(counts.values(), default=0)
    for name, passes in counts.items():
        if passes:
            bar = "━" * max(1, round(_BAR * passes / longest))
            colour = "bright_black" if name == _BUCKETS[0][1] else "green4"
            share = f" {passes} of {found.passes} passes, {passes / found.passes:.0%}"
            yield Text.assemble(f"{name:<9}", (bar, colour), (share, "dim"))


def _sources(found: Explanation) -> Iterator[Text]:
    """A line per source: what became of its drafts, and its price."""
    wide = max(map(len, found.sources), default=0)
    for name, source in found.sources.items():
        price = "" if source.ms_per_step is None else f", asked in {source.asked} steps at {source.ms_per_step:.3f} ms"
        drafts = f"  {source.accepted} of {source.proposed} drafts accepted"
        yield Text.assemble((f"{name:<{wide}}", console.style_of(name)), drafts, (price, "dim"))


def _passes(found: Explanation) -> Text:
    one = found.pass_ms[1]
    costs = [
        f"{rows} row{'s' if rows > 1 else ''} {ms:.2f} ms" + (f" ({ms / one:.2f} ×)" if rows > 1 else "")
        for rows, ms in found.pass_ms.items()
    ]
    return Text(" · ".join(costs))


def _plain(found: Explanation) -> Text:
    if not found.plain_tokens_per_second:
        return Text("not known: a fixed budget does not predict it", "dim")
    ratio = found.tokens_per_second / found.plain_tokens_per_second
    return Text.assemble(
        f"would have been {found.plain_tokens_per_second:.1f} tokens/s; this was {found.tokens_per_second:.1f}, ",
        (f"{ratio:.2f} × as fast", "bold"),
    )
