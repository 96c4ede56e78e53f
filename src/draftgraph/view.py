"""The steps of one text as pictures' data.

In: a model and a prompt. Out: a `StepView` for each step, and which of them shows most.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftgraph.draw import StepView
from draftgraph.llm import LLM
from draftgraph.steps import step_view
from draftgraph.types import Verdict


def record_steps(llm: LLM, prompt: object, max_steps: int | None, **sampling: object) -> list[StepView]:
    """Writes a prompt's continuation and returns a view of each decoding step, at most `max_steps`."""
    views: list[StepView] = []
    stream = llm.stream(prompt, **sampling)  # type: ignore[arg-type]
    request = stream.request

    def observe(verdicts: Sequence[Verdict]) -> None:
        (verdict,) = verdicts
        if request.num_written:  # the first token comes from the prompt's own pass
            step, label = len(views) + 1, llm.model.tokenizer.token_label
            views.append(step_view(verdict, request.tokens, label, model=llm.name, step=step, budget=request.budget))

    llm.engine.observer = observe
    try:
        while max_steps is None or len(views) < max_steps:
            if next(stream, None) is None:
                break
    finally:
        llm.engine.observer = lambda verdicts: None
        stream.close()
    return views


def most_telling(views: Sequence[StepView]) -> int:
    """Returns the index of the step that shows most: accepted and merged nodes in a graph that is still legible."""

    def worth(view: StepView) -> float:
        crowded = max(0, len(view.nodes) - 24)
        return (
            3 * view.num_accepted
            + 2 * min(view.num_merged, 4)
            + len({s for n in view.nodes for s in n.sources})
            - crowded
        )

    return max(range(len(views)), key=lambda index: worth(views[index]))
