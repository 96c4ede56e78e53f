"""A drafter of your own: two methods, and the text cannot change.

    python examples/own_drafter.py

This one counts which token followed which, over all requests. It is asked where that pays, as ours are, and put aside
with a warning if it fails. To ship it, put the class in a file of `src/draftgraph/draft/`, say in `restart` what it
drops after a step that failed, and add one line to `DRAFTERS` in `table.py`; then `--draft bigram` finds it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

import draftgraph as dg
from draftgraph.draft.base import Proposals, root_graph
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import Context, Verdict


class BigramDrafter:
    """Proposes the two tokens that most often followed the last one, and what most often followed these."""

    name = "bigram"  # under which its drafts are counted

    def __init__(self) -> None:
        self._followers: dict[int, Counter[int]] = defaultdict(Counter)

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        return [(self._grow(context, budget),) for context, budget in zip(contexts, budgets, strict=True)]

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        for context, verdict in zip(contexts, verdicts, strict=True):
            text = [context.tokens[-1], *verdict.tokens]
            for token, follower in pairwise(text):
                self._followers[token][follower] += 1

    def _grow(self, context: Context, budget: int) -> TokenGraph:
        graph = root_graph(context)
        nodes = [0]
        while nodes and graph.num_drafted < budget:
            node = nodes.pop(0)
            counts = self._followers[graph.tokens[node]]
            for token, count in counts.most_common(2):
                nodes.append(graph.add(node, token, "bigram", count / (counts.total() + 1)))
        return graph


def main() -> None:
    question = [{"role": "user", "content": "Count from one to twenty in words, then do it again."}]
    with dg.load("smollm2-135m", drafter=BigramDrafter()) as llm:
        plain = llm.generate(question, budget=0, max_tokens=96)
        graph = llm.generate(question, max_tokens=96)
    print(graph.text)
    print(f"\n{graph.stats.tokens_per_step:.2f} tokens per step; same text as plain: {graph.text == plain.text}")


if __name__ == "__main__":
    main()
