"""What a request's statistics say is what happened, counted here from the verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from draftgraph.config import SamplingParams
from draftgraph.draft.base import Drafter, NoDrafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.engine.request import State
from draftgraph.types import TARGET, Verdict
from support.rigs import ScriptDrafter, TableRunner, follow, hashed_logits, make_engine, mixture, scripts, write

PROMPT = (1, 2, 3, 1, 2)
TEXT = (*PROMPT, *write(make_engine(TableRunner(hashed_logits(8), 8)), PROMPT, 0, max_tokens=30).output)
DRAFTERS = {
    "none": NoDrafter,
    "ngram": lambda: NgramDrafter(6),
    "mixture": lambda: mixture(NgramDrafter(6), RecycleDrafter(6), ScriptDrafter(follow(TEXT, 3))),
    **{name: lambda name=name: ScriptDrafter(scripts(TEXT, 8)[name]) for name in scripts(TEXT, 8)},
}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("budget", [0, 1, 8])
def test_counts_agree_with_the_verdicts(name: str, budget: int) -> None:
    drafter: Drafter = DRAFTERS[name]()
    runner = TableRunner(hashed_logits(8), 8)
    engine = make_engine(runner, drafter, prefill_chunk=2)
    verdicts: list[Verdict] = []

    def keep(step: Sequence[Verdict]) -> None:
        verdicts.extend(step)

    engine.observer = keep
    request = engine.submit(PROMPT, SamplingParams(max_tokens=30), budget)
    while request.state is not State.FINISHED:
        engine.step()
    stats = request.stats
    assert [len(verdict.tokens) for verdict in verdicts[:3]] == [0, 0, 1], "three passes read the prompt"
    decoding = verdicts[3:]
    assert runner.num_passes == len(verdicts)
    assert stats.completion_tokens == 30
    assert stats.target_passes == len(decoding)
    assert stats.verified_rows == sum(len(verdict.tree.tokens) for verdict in decoding)
    assert stats.accepted_nodes == sum(verdict.num_accepted for verdict in decoding)
    # Every pass ends with the target's own token, unless max_tokens cut it before.
    assert stats.accepted_nodes in (29 - len(decoding), 30 - len(decoding))
    assert stats.tokens_per_step == pytest.approx(29 / len(decoding))
    proposed = Counter(source for verdict in decoding for sources in verdict.tree.sources for source in sources)
    accepted = Counter(source for sources in request.sources for source in sources if source != TARGET)
    assert {source: share.proposed for source, share in stats.by_source.items()} == proposed
    assert {source: share.accepted for source, share in stats.by_source.items() if share.accepted} == accepted
    if budget == 0:
        assert stats.drafted_nodes == stats.accepted_nodes == 0 or name not in ("none", "ngram")
        assert stats.verified_rows == stats.target_passes == 29
    assert all(len(verdict.tree.tokens) <= budget + 1 for verdict in decoding)


def test_times_run_forward_and_come_from_the_clock() -> None:
    engine = make_engine(TableRunner(hashed_logits(8), 8))
    ticks = iter(range(1000))
    engine._clock = engine.scheduler._clock = lambda: float(next(ticks))
    stats = write(engine, PROMPT, 0, max_tokens=5).stats
    assert stats.started < stats.first_token < stats.last_token
    assert stats.decode_seconds == 4
    assert stats.decode_tokens_per_second == 1


def test_a_single_token_needs_no_decoding_pass() -> None:
    stats = write(make_engine(TableRunner(hashed_logits(8), 8)), PROMPT, 8, max_tokens=1).stats
    assert (stats.completion_tokens, stats.target_passes, stats.tokens_per_step) == (1, 0, 0.0)
    assert stats.to_json()["tokens_per_step"] == 0
