"""A request: its tokens, its state, its statistics. Per request, small, owned by the scheduler.

In: a prompt and parameters, then one verdict per step. Out: what the other stages may see of it (`Context`, `Window`,
`SamplingContext`, `Ending`) and its deltas. Never sees tensors.

Lengths:  [0, num_prompt) prompt · [num_prompt, len(tokens)) output · [0, num_computed) committed in the runner.
A request that lost its slot starts again at num_computed = 0, or wherever the runner still has its text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from draftgraph.config import MAX_BUDGET, SamplingParams
from draftgraph.engine.stats import RequestStats
from draftgraph.engine.text import TextStream
from draftgraph.plan.planner import Expense
from draftgraph.rng import Noise, fresh_seed, noise_for
from draftgraph.types import TARGET, Context, Delta, FinishReason, MergeRule, TokenLogprobs, Verdict, Window
from draftgraph.verify.distribution import SamplingContext
from draftgraph.verify.grammar import GrammarConstraint, no_grammars


class State(StrEnum):
    """Where a request stands. It only moves forward, except that it may lose its slot and wait again."""

    WAITING = "waiting"  # for a slot
    PREFILL = "prefill"  # in a slot, its known tokens not read to the end
    DECODE = "decode"  # writing
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a request needs of its model's words. Per model; `constrain` is `Grammars.constrain`."""

    size: int
    end_ids: frozenset[int]
    token_bytes: Callable[[int], bytes]
    constrain: Callable[[SamplingParams], GrammarConstraint | None] = no_grammars


@dataclass(slots=True)
class Request:
    """One generation in progress.

    Args:
        prompt: [n ≥ 1] token ids.
        budget: most drafts in one of its trees.
        limit: most tokens it may write: max_tokens, or what the context leaves.
        merge_length: see `MergeRule`.
        constraint: what it may write; its own, not moved yet.
        cache_salt: see `Runner.open`.
    """

    id: int
    prompt: Sequence[int]
    sampling: SamplingParams
    budget: int
    limit: int
    merge_length: int
    vocabulary: Vocabulary
    constraint: GrammarConstraint | None = None
    cache_salt: bytes = b""
    tokens: list[int] = field(init=False)
    sources: list[tuple[str, ...]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = field(init=False)
    seed: int = field(init=False)
    noise: Noise = field(init=False)
    text: str = ""
    state: State = State.WAITING
    finish_reason: FinishReason | None = None
    slot: int = -1
    num_computed: int = 0
    deltas: deque[Delta] = field(default_factory=deque)  # not yet taken by a stream
    stats: RequestStats = field(default_factory=RequestStats)
    _stream: TextStream = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.logprobs = None if self.sampling.logprobs is None else []
        self.seed = fresh_seed() if self.sampling.seed is None else self.sampling.seed
        self.noise = noise_for(self.sampling.temperature, self.seed)
        self._stream = TextStream(self.vocabulary.token_bytes, self.sampling.stop)

    @property
    def num_prompt(self) -> int:
        return len(self.prompt)

    @property
    def num_written(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_unread(self) -> int:
        """Known tokens that the runner has not computed: at least the last one, the root."""
        return len(self.tokens) - self.num_computed

    @property
    def output(self) -> list[int]:
        """The tokens written so far."""
        return self.tokens[self.num_prompt :]

    @property
    def step_budget(self) -> int:
        """Drafts worth making now: none while the prompt is read, so that the first token waits for nobody."""
        return min(self.budget, MAX_BUDGET) if self.state is State.DECODE and self._max_depth > 0 else 0

    @property
    def _max_depth(self) -> int:
        """The deepest draft that can be emitted: the target's own token follows it."""
        return self.limit - self.num_written - 1

    def start(self, slot: int, num_computed: int, now: float) -> None:
        """Takes a slot that holds the first `num_computed` of the known tokens."""
        self.slot, self.num_computed, self.state = slot, num_computed, State.PREFILL
        if not self.stats.preemptions:
            self.stats.started, self.stats.reused_tokens = now, num_computed

    def preempt(self) -> None:
        """Gives the slot up; the text and the stream stay."""
        self.slot, self.num_computed, self.state = -1, 0, State.WAITING
        self.stats.preemptions += 1

    def context(self) -> Context:
        """Returns what a drafter may know."""
        temperature = self.sampling.temperature
        rule = MergeRule(self.merge_length, same_depth=temperature > 0)
        return Context(
            self.id, self.tokens, self.noise, temperature, self._max_depth, rule, self.constraint, self.cache_salt
        )

    def sampling_context(self) -> SamplingContext:
        """Returns what the target distribution depends on besides the logits."""
        return SamplingContext(self.tokens, self.num_prompt, self.sampling, self.constraint)

    def window(self, num_known: int, budget: int) -> Window:
        """Returns the next `num_known` known tokens, to be computed, and how many drafts may follow."""
        end = self.num_computed + num_known
        known = np.asarray(self.tokens[self.num_computed : end], np.int32)
        complete = end == len(self.tokens)
        permits = None if self.constraint is None else self.constraint.permits
        return Window(known, complete, budget, self._max_depth, self.vocabulary.size, permits)

    def ending(self, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
        """Returns how many of `tokens` plain decoding would write, and why it would end there. Modifies nothing."""
        stream = self._stream.copy() if self.sampling.stop else None
        for count, token in enumerate(tokens, start=1):
            if self._is_end(token):
                return count, FinishReason.STOP
            if stream is not None and stream.push(token)[1]:
                return count, FinishReason.STOP
            reason = None if self.constraint is None else self.constraint.ending(tokens[:count])
            if reason is not None:
                return count, reason
            if self.num_written + count == self.limit:
                return count, FinishReason.LENGTH
        return len(tokens), None

    def _is_end(self, token: int) -> bool:
        return token in self.vocabulary.end_ids and not self.sampling.ignore_eos

    def checkpoint(self) -> Callable[[], None]:
        """Returns a function that takes the text and all that belongs to it back to where they stand now."""
        lengths = len(self.tokens), len(self.sources), len(self.deltas), len(self.logprobs or ())
        stream, text, state, finish_reason = self._stream, self.text, self.state, self.finish_reason
        stats = self.stats.copy()
        undo = None if self.constraint is None else self.constraint.checkpoint()

        def restore() -> None:
            del self.tokens[lengths[0] :]
            del self.sources[lengths[1] :]
            while len(self.deltas) > lengths[2]:
                self.deltas.pop()
            if self.logprobs is not None:
                del self.logprobs[lengths[3] :]
            self._stream, self.text, self.state, self.finish_reason = stream, text, state, finish_reason
            self.stats = stats
            if undo is not None:
                undo()

        return restore

    def apply(self, verdict: Verdict, expense: Expense, now: float) -> Delta:
        """Takes in a verdict and returns what it adds to the output."""
        stream, text = self._stream.copy(), ""
        for token in verdict.tokens:
            if not self._is_end(token):
                text += stream.push(token)[0]
        text += stream.flush() if verdict.finish is not None else ""
        sources = tuple(verdict.tree.sources[node] if node >= 0 else (TARGET,) for node in verdict.nodes)
        self.num_computed += len(verdict.path)
        self.tokens.extend(verdict.tokens)
        self._stream, self.text = stream, self.text + text
        self.sources.extend(sources)
        if self.logprobs is not None:
            self.logprobs.extend(verdict.logprobs or ())
        if self.constraint is not None and verdict.finish is None:
            self.constraint.advance(verdict.tokens)
        self.stats.record(verdict, expense, now)
        if verdict.tokens and self.state is State.PREFILL:
            self.state = State.DECODE
        if verdict.finish is not None:
            self.state, self.finish_reason = State.FINISHED, verdict.finish
        self.deltas.append(Delta(self.id, text, verdict.tokens, sources, verdict.finish, verdict.logprobs))
        return self.deltas[-1]
