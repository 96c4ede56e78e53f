"""A benchmark's tables, the same on a terminal and in Markdown.

In: the published form. Out: tables of plain text cells, and a Markdown page of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from draftgraph.bench.arms import PLAIN


@dataclass(frozen=True, slots=True)
class Table:
    """Cells by row; the first column is text, the others are numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def records(self) -> list[dict[str, str]]:
        """Returns each row by the names of the columns, of which no two may be the same."""
        assert len(set(self.columns)) == len(self.columns), "two columns share a name"
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def markdown(self) -> str:
        """Returns the table in Markdown."""
        lines = [self.columns, ("---", *["---:"] * (len(self.columns) - 1)), *self.rows]
        return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def tables(result: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    """Yields (caption, table), the most important first."""
    yield "medians per arm; speedups are over plain, prompt by prompt", _speed(result)
    yield "where the time went, in all", _work(result)
    yield "median speedup per task", _tasks(result)
    if result["batches"]:
        yield "requests together: tokens/s of all of them, drafts per request and pass", _batches(result)
    if result["peers"]:
        yield "beside other engines that decode plainly", _peers(result)


def facts(result: Mapping[str, Any]) -> list[str]:
    """Returns what must stand beside the numbers, line by line."""
    machine, ceiling = result["machine"], result["ceiling"]
    sampling = ", ".join(f"{name} {value}" for name, value in result["sampling"].items())
    repeated = "each once" if result["repeats"] == 1 else f"the median of {result['repeats']} turns"
    return [
        f"{result['model']} on {machine['cpu']}, {machine['cores']} cores; {result['commit']}",
        f"{result['prompts']} prompts, {repeated}; {sampling}",
        f"ceiling of plain decoding: {ceiling['weight_bytes'] / 1e6:.0f} MB of weights a pass over "
        f"{ceiling['memory_bytes_per_second'] / 1e9:.1f} GB/s, before or after the texts, = "
        f"{ceiling['plain_tokens_per_second']:.1f} tokens/s",
        f"texts identical: {'yes' if result['identical'] else 'NO'}",
    ]


def markdown(result: Mapping[str, Any]) -> str:
    """Returns the whole result as a Markdown page."""
    parts = [f"# draftgraph bench: {result['model']}", "\n".join(f"- {fact}" for fact in facts(result))]
    parts += [f"{caption[0].upper()}{caption[1:]}:\n\n{table.markdown()}" for caption, table in tables(result)]
    return "\n\n".join(parts) + "\n"


def _speed(result: Mapping[str, Any]) -> Table:
    rows = []
    for arm, row in result["arms"].items():
        cells = [f"{row['tokens_per_second']:.2f}", f"{row['tokens_per_step']:.2f}"]
        if arm != PLAIN:
            test = row["sign_test"]
            cells += [f"{row['speedup']:.3f}", f"{row['worst']['speedup']:.3f}"]
            cells += [f"{test['wins']}:{test['losses']}", f"{test['p']:.2g}"]
        rows.append((arm, *cells, *[""] * (6 - len(cells))))
    return Table(("arm", "tokens/s", "tokens/step", "speedup", "worst", "won:lost", "p"), tuple(rows))


def _work(result: Mapping[str, Any]) -> Table:
    rows = []
    for arm, row in result["arms"].items():
        counts = [row[name] for name in ("target_passes", "draft_passes", "drafted_nodes", "merged_nodes")]
        times = [f"{row['ms_per_pass']:.2f}", f"{row['pass_seconds']:.2f}", f"{row['draft_seconds']:.2f}"]
        rows.append((arm, str(counts[0]), *times, *map(str, counts[1:])))
    heads = ("arm", "passes", "ms each", "in passes s", "drafting s", "draft passes", "drafted", "merged")
    return Table(heads, tuple(rows))


def _tasks(result: Mapping[str, Any]) -> Table:
    arms = [arm for arm in result["arms"] if arm != PLAIN]
    rows = []
    for task, entry in result["tasks"].items():
        plain = f"{entry['arms'][PLAIN]['tokens_per_second']:.2f}"
        rows.append((task, plain, *(f"{entry['arms'][arm]['speedup']:.3f}" for arm in arms)))
    return Table(("task", "plain tok/s", *arms), tuple(rows))


def _batches(result: Mapping[str, Any]) -> Table:
    arms = list(result["batches"][0]["arms"])
    drafting = [arm for arm in arms if arm != PLAIN]
    rows = []
    for batch in result["batches"]:
        rates = [f"{batch['arms'][arm]['tokens_per_second']:.2f}" for arm in arms]
        shares = [
            f"{batch['arms'][arm][name]:.{digits}f}" for arm in drafting for name, digits in _BATCH_COLUMNS.items()
        ]
        rows.append((str(batch["size"]), *rates, *shares))
    return Table(("requests", *arms, *(["speedup", "drafts"] * len(drafting))), tuple(rows))


_BATCH_COLUMNS = {"speedup": 3, "mean_budget": 2}


def _peers(result: Mapping[str, Any]) -> Table:
    arms = list(result["arms"])
    rows = [
        (peer, f"{row['tokens_per_second']:.2f}", *(f"{row['ratio'][arm]:.3f}" for arm in arms))
        for peer, row in result["peers"].items()
    ]
    return Table(("peer", "tokens/s", *(f"{arm} over it" for arm in arms)), tuple(rows))
