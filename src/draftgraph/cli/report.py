"""How statistics and the doctor's report look on a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from draftgraph.cli import console
from draftgraph.doctor import Report
from draftgraph.engine.stats import RequestStats


def print_stats(stats: RequestStats, *, trace: bool) -> None:
    """Prints one request's statistics on stderr: a line, and with `trace` the sources and their colours."""
    console.err.print(
        f"[dim]{stats.completion_tokens} tokens · {stats.tokens_per_step:.2f} per step · "
        f"{stats.decode_tokens_per_second:.1f} tokens/s · prompt read in {stats.prefill_seconds:.2f} s[/dim]"
    )
    if not trace:
        return
    console.err.print(console.legend(sorted(stats.by_source)))
    for name, source in sorted(stats.by_source.items()):
        console.err.print(
            Text.assemble(
                (f"  {name:8}", console.style_of(name)), f"{source.accepted} of {source.proposed} drafts accepted"
            )
        )


def print_doctor(report: Report) -> None:
    """Prints what the doctor found."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    versions = {name: version for name, version in report.versions.items() if version}
    rows = [
        ("versions", "  ".join(f"{name} {version}" for name, version in versions.items())),
        ("machine", f"{report.cpu}, {report.num_cores} cores" + _gigabytes(report.memory_bytes, " of memory")),
        ("features", " ".join(report.cpu_features) or "none known"),
        ("system", report.system),
        ("blas", report.blas),
        ("extension", report.extension or f"absent: {report.extension_problem}"),
        ("runner", report.runner),
        ("cache", f"{report.cache_dir}" + _gigabytes(report.free_bytes, " free")),
        *(("", f"{model.name}: {model.path.name}, {model.bytes / 1e6:.0f} MB") for model in report.models),
    ]
    for name, value in rows:
        table.add_row(name, Text(value))
    console.out.print(table)
    for missing in report.missing:
        console.out.print(
            Text.assemble("\n", ("missing", "bold"), f"  {missing.what}: {missing.why}\n         {missing.how}")
        )


def _gigabytes(number: int | None, what: str) -> str:
    return "" if number is None else f", {number / 1e9:.1f} GB{what}"
