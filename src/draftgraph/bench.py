"""The benchmark: plain and drafted decoding of the same prompts, alternately, in one process.

In: a model and prompts. Out: medians and ratios, with the machine and the ceiling beside them. Reports what the clock
says and claims nothing else.
"""

from __future__ import annotations

import platform
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftgraph.audit import as_chat
from draftgraph.data import DataPrompt
from draftgraph.doctor import examine
from draftgraph.llm import LLM, Completion
from draftgraph.speeds import memory_speed

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt written both ways; the texts are equal, which is checked."""

    task: str
    plain: Completion
    drafted: Completion

    @property
    def speedup(self) -> float:
        """Decode tokens per second, drafted over plain; 1 where no token followed the first."""
        plain = self.plain.stats.decode_tokens_per_second
        return self.drafted.stats.decode_tokens_per_second / plain if plain else 1.0


def bench(llm: LLM, prompts: Sequence[DataPrompt], report: Report, *, raw: bool, **sampling: Any) -> list[Pair]:
    """Writes each prompt plain and with drafts, the order changing from prompt to prompt, after one warm-up of both."""
    warm_up = prompts[0].text if raw else as_chat(prompts[0].text)
    for budget in (0, None):
        llm.generate(warm_up, budget=budget, **{**sampling, "max_tokens": min(8, sampling.get("max_tokens", 8))})
    pairs = []
    for number, prompt in enumerate(prompts):
        report(f"prompt {number + 1} of {len(prompts)} ({prompt.id})")
        given = prompt.text if raw else as_chat(prompt.text)
        order = (0, None) if number % 2 == 0 else (None, 0)
        done = {budget: llm.generate(given, budget=budget, **sampling) for budget in order}
        pairs.append(Pair(prompt.task, done[0], done[None]))
    return pairs


def summarise(llm: LLM, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Returns the published form: per arm the median over prompts, the median of the ratios, per task, the machine."""
    tasks: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        tasks[pair.task].append(pair)
    weight_bytes = llm.runner.weight_bytes
    bytes_per_second = memory_speed(llm.runner.threads)
    return {
        **_medians(pairs),
        "identical": all(pair.plain.token_ids == pair.drafted.token_ids for pair in pairs),
        "prompts": len(pairs),
        "per_task": {task: _medians(of_task) for task, of_task in sorted(tasks.items())},
        "ceiling": {
            "weight_bytes": weight_bytes,
            "memory_bytes_per_second": round(bytes_per_second),
            "plain_tokens_per_second": round(bytes_per_second / weight_bytes, 2),
        },
        "machine": _machine(llm),
    }


def _medians(pairs: Sequence[Pair]) -> dict[str, Any]:
    def median(values: Sequence[float]) -> float:
        return round(statistics.median(values), 3)

    return {
        "plain": {"tokens_per_second": median([pair.plain.stats.decode_tokens_per_second for pair in pairs])},
        "graph": {
            "tokens_per_second": median([pair.drafted.stats.decode_tokens_per_second for pair in pairs]),
            "tokens_per_step": median([pair.drafted.stats.tokens_per_step for pair in pairs]),
        },
        "speedup": median([pair.speedup for pair in pairs]),
    }


def _machine(llm: LLM) -> dict[str, Any]:
    report = examine()
    return {
        "model": llm.name,
        "runner": type(llm.runner).__name__,
        "cpu": report.cpu,
        "cores": report.num_cores,
        "system": platform.system(),
        "python": report.versions["python"],
        "numpy": report.versions["numpy"],
        "draftgraph": report.versions["draftgraph"],
    }
