"""A benchmark's pictures: speedup per task and arm, and what batches do.

In: the published form. Out: SVG texts by file name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftgraph.bench.arms import PLAIN
from draftgraph.config import AUTO
from draftgraph.draw import NUM_COLOURS, Bars, Lines, Series, render_bars, render_lines
from draftgraph.draw.view import KNOWN_SOURCES

# Colour numbers; drafters have those of the graphs.
_COLOURS = {name: colour for colour, name in enumerate(KNOWN_SOURCES)}
_COLOURS |= {"graph": 4, "tree": 5, PLAIN: 5, "chain": 6, AUTO: 7}


def plots(result: Mapping[str, Any]) -> dict[str, str]:
    """Returns file name -> SVG: speedup.svg where plain was not alone, and batch.svg where batches were measured."""
    pictures = {"speedup.svg": render_bars(_speedup(result))} if len(result["arms"]) > 1 else {}
    if result["batches"]:
        title = f"{result['model']}: requests together"
        pictures["batch.svg"] = render_lines(title, _facts(result), _batches(result))
    return pictures


def _speedup(result: Mapping[str, Any]) -> Bars:
    arms = [arm for arm in result["arms"] if arm != PLAIN]
    groups = {**{task: entry["arms"] for task, entry in result["tasks"].items()}, "all": result["arms"]}
    series = tuple(
        Series(arm, _COLOURS.get(arm, number % NUM_COLOURS), tuple(rows[arm]["speedup"] for rows in groups.values()))
        for number, arm in enumerate(arms)
    )
    return Bars(
        f"{result['model']}: speed over plain decoding",
        f"medians over {result['prompts']} prompts; {_facts(result)}",
        tuple(groups),
        series,
        (1.0, PLAIN),
    )


def _batches(result: Mapping[str, Any]) -> list[Lines]:
    batches = result["batches"]
    arms = list(batches[0]["arms"])
    sizes = tuple(batch["size"] for batch in batches)

    def series(arm: str, value: str) -> Series:
        return Series(arm, _COLOURS.get(arm, 0), tuple(batch["arms"][arm][value] for batch in batches))

    drafting = [series(arm, "mean_budget") for arm in arms if arm != PLAIN]
    return [
        Lines(
            "tokens/s of all requests", "requests together", sizes, tuple(series(a, "tokens_per_second") for a in arms)
        ),
        Lines("drafts verified per request and pass", "requests together", sizes, tuple(drafting)),
    ]


def _facts(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores; {result['commit']}; seed {result['sampling'].get('seed')}"
