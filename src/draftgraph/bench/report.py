"""What a benchmark found, in its published form.

In: trials and batches. Out: one JSON-ready dict with medians per arm and per task. Every speedup is a median of ratios
to plain decoding of the same prompt; it claims nothing that was not measured.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draftgraph.bench.arms import PLAIN
from draftgraph.bench.machine import commit, machine
from draftgraph.bench.run import BatchRun, Trial
from draftgraph.bench.significance import sign_test
from draftgraph.workshop import Workshop


def summarise(
    shop: Workshop,
    trials: Sequence[Trial],
    batches: Mapping[int, Sequence[Mapping[str, BatchRun]]],
    sampling: Mapping[str, Any],
    repeats: int,
    bytes_per_second: float,
) -> dict[str, Any]:
    """Returns the published form, with the machine and what its memory allows plain decoding beside the numbers.

    Args:
        bytes_per_second: that the target's threads read from memory.
    """
    return {
        "model": shop.name,
        "draft_models": list(shop.drafts),
        "runner": type(shop.runner).__name__,
        "sampling": dict(sampling),
        "repeats": repeats,
        "machine": (described := machine()),
        "commit": commit() or f"draftgraph {described['draftgraph']}",
        "ceiling": {
            "weight_bytes": shop.runner.weight_bytes,
            "memory_bytes_per_second": round(bytes_per_second),
            "plain_tokens_per_second": round(bytes_per_second / shop.runner.weight_bytes, 2),
        },
        **results(trials, batches),
    }


def results(trials: Sequence[Trial], batches: Mapping[int, Sequence[Mapping[str, BatchRun]]]) -> dict[str, Any]:
    """Returns the part of the published form that comes from the runs alone."""
    tasks: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        tasks[trial.prompt.task].append(trial)
    arms = list(trials[0].runs)
    together = [run for rounds in batches.values() for runs in rounds for run in runs.values()]
    mismatches = list(_mismatches(trials))
    return {
        "prompts": len(trials),
        "identical": not mismatches and not any(run.mismatches for run in together),
        "mismatches": mismatches,
        "arms": {arm: arm_row(trials, arm) for arm in arms},
        "tasks": {
            task: {"prompts": len(some), "arms": {arm: _medians(some, arm) for arm in arms}}
            for task, some in sorted(tasks.items())
        },
        "batches": [_batch_row(size, rounds) for size, rounds in batches.items()],
        "peers": {peer: _peer_row(trials, peer) for peer in trials[0].peers},
    }


def arm_row(trials: Sequence[Trial], arm: str) -> dict[str, Any]:
    """Returns one arm's medians, its worst prompt, its sign test against plain, and where its time went, in all."""
    runs = [trial.runs[arm] for trial in trials]
    stats = [run.completion.stats for run in runs]
    speedups = [trial.speedup(arm) for trial in trials]
    wins, losses = sum(value > 1 for value in speedups), sum(value < 1 for value in speedups)
    worst = min(range(len(trials)), key=speedups.__getitem__)
    passes = sum(stat.target_passes for stat in stats)
    pass_seconds = sum(run.pass_seconds for run in runs)
    drafts = sum(number * count for stat in stats for number, count in stat.budgets.items())
    return {
        **_medians(trials, arm),
        "worst": {"prompt": trials[worst].prompt.id, "speedup": round(speedups[worst], 3)},
        "sign_test": {"wins": wins, "losses": losses, "p": round(sign_test(wins, losses), 6)},
        "decode_seconds": round(sum(stat.decode_seconds for stat in stats), 6),
        "target_passes": passes,
        "pass_seconds": round(pass_seconds, 6),
        "ms_per_pass": round(1e3 * pass_seconds / passes, 3) if passes else 0.0,
        "draft_seconds": round(sum(run.draft_seconds for run in runs), 6),
        "draft_passes": sum(run.draft_passes for run in runs),
        "drafted_nodes": sum(stat.drafted_nodes for stat in stats),
        "merged_nodes": sum(stat.merged_nodes for stat in stats),
        "accepted_nodes": sum(stat.accepted_nodes for stat in stats),
        "mean_budget": round(drafts / passes, 3) if passes else 0.0,
    }


def _medians(trials: Sequence[Trial], arm: str) -> dict[str, Any]:
    steps = [trial.runs[arm].completion.stats.tokens_per_step for trial in trials]
    return {
        "tokens_per_second": _median(trial.rate(arm) for trial in trials),
        "tokens_per_step": _median(steps),
        "speedup": _median(trial.speedup(arm) for trial in trials),
    }


def _batch_row(size: int, rounds: Sequence[Mapping[str, BatchRun]]) -> dict[str, Any]:
    return {
        "size": size,
        "arms": {
            arm: {
                "tokens_per_second": _median(runs[arm].rate for runs in rounds),
                "speedup": _median(runs[arm].rate / runs[PLAIN].rate for runs in rounds),
                "mean_budget": _median(runs[arm].mean_budget for runs in rounds),
                "mismatches": sum(runs[arm].mismatches for runs in rounds),
            }
            for arm in rounds[0]
        },
    }


def _peer_row(trials: Sequence[Trial], peer: str) -> dict[str, Any]:
    """A peer's median rate, each arm's ratio to it, and for how many tokens its texts are plain's."""
    rated = [trial for trial in trials if trial.peers[peer].rate]
    equal = [_first_difference(t.runs[PLAIN].completion.token_ids, t.peers[peer].ids) for t in trials]
    return {
        "tokens_per_second": _median(trial.peers[peer].rate for trial in rated),
        "ratio": {arm: _median(t.rate(arm) / t.peers[peer].rate for t in rated) for arm in trials[0].runs},
        "equal_leading_tokens": _median(equal),
    }


def _mismatches(trials: Sequence[Trial]) -> Iterable[dict[str, Any]]:
    """Where an arm's ids are not plain's."""
    for trial in trials:
        plain = trial.runs[PLAIN].completion.token_ids
        for arm, run in trial.runs.items():
            if run.completion.token_ids != plain:
                position = _first_difference(plain, run.completion.token_ids)
                yield {"prompt": trial.prompt.id, "arm": arm, "position": position}


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _median(values: Iterable[float]) -> float:
    """The median, rounded; 0 of nothing."""
    given = list(values)
    return round(statistics.median(given), 3) if given else 0.0
