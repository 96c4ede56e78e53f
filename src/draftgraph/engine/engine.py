"""The engine: one loop for plain decoding, speculation and prefill, for one request or many.

In: prompts as token ids. Out: deltas. It wires the stages and computes nothing itself. Plain decoding is budget 0.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from draftgraph.config import SamplingParams
from draftgraph.draft.base import EngineDrafter, root_graph
from draftgraph.engine.request import Request, State, Vocabulary
from draftgraph.engine.scheduler import Batch, Scheduler
from draftgraph.errors import ParameterError, PromptError
from draftgraph.graph.encode import bare_tree
from draftgraph.graph.token_graph import merge
from draftgraph.plan.planner import Expense, FixedPlanner, Planner
from draftgraph.runner.base import Runner, commit_all
from draftgraph.types import Delta, FinishReason, Verdict, VerifyBatch
from draftgraph.verify.accept import Rule, accept, residual
from draftgraph.verify.distribution import distribution
from draftgraph.verify.grammar import GrammarConstraint

Observer = Callable[[Sequence[Verdict]], None]


class Engine:
    """Advances many requests together, one step at a time. Not thread-safe: one thread calls it.

    Args:
        runner: computes the target model.
        drafter: proposes.
        rule: decides.
        planner: chooses how much to draft; without one, as much as the budgets allow.
        merge_length: see `MergeRule`.
        prefill_chunk: prompt tokens read per step, of all requests together.
    """

    def __init__(
        self,
        runner: Runner,
        drafter: EngineDrafter,
        rule: Rule,
        vocabulary: Vocabulary,
        *,
        planner: Planner | None = None,
        merge_length: int = 2,
        prefill_chunk: int = 64,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner = runner
        self.drafter = drafter
        self.rule = rule
        self.planner = planner or FixedPlanner()
        self.scheduler = Scheduler(runner, prefill_chunk, clock)
        self.observer: Observer = lambda verdicts: None  # sees each step's verdicts, for drawing and tests
        self.failed: tuple[Request, ...] = ()  # who took part in the last step that raised
        self._vocabulary = vocabulary
        # NOTE: whether two draws merge depends on their values, which under `residual` must not decide what is kept.
        self._merge_length = 0 if rule is residual else merge_length
        self._clock = clock
        self._next_id = 0
        self._abandoned: deque[Request] = deque()

    def constrain(self, sampling: SamplingParams) -> GrammarConstraint | None:
        """Compiles what constrains a request's text; None if nothing does. Takes a while; any thread may call it.

        Raises:
            ParameterError, MissingPackageError, CapacityError: it cannot be used.
        """
        return self._vocabulary.constrain(sampling)

    def submit(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        budget: int,
        *,
        constraint: GrammarConstraint | None = None,
        cache_salt: bytes = b"",
    ) -> Request:
        """Queues a prompt and returns its request.

        Args:
            constraint: made by `constrain` for these parameters and no other request; None has it made here.
            cache_salt: of the key-value cache only texts with the same salt are found again.

        Raises:
            PromptError: the prompt is empty, too long, or has an id outside the vocabulary.
            ParameterError: logit_bias names an id outside the vocabulary.
            ParameterError, MissingPackageError, CapacityError: see `constrain`.
        """
        self._check(prompt, sampling)
        request = Request(
            self._next_id,
            tuple(prompt),
            sampling,
            budget,
            min(sampling.max_tokens, self.runner.context_length - len(prompt)),
            self._merge_length,
            self._vocabulary,
            constraint or self.constrain(sampling),
            cache_salt,
        )
        self._next_id += 1
        self.scheduler.add(request)
        return request

    def step(self) -> list[Delta]:
        """Advances every running request by one target pass and returns what they wrote.

        A step that raises, wherever it does, did not happen: all requests read again what they have, and go on.
        """
        requests: Sequence[Request] = ()
        undo: Sequence[Callable[[], None]] = ()
        try:
            self._drop_abandoned()
            batch = self.scheduler.next_batch()
            requests = batch.requests
            undo = [request.checkpoint() for request in requests]
            return self._advance(batch) if requests else []
        except BaseException:
            for restore in undo:
                restore()
            self._restart(requests)
            raise

    def _advance(self, batch: Batch) -> list[Delta]:
        """The loop: propose, merge, select, verify, accept, commit, emit."""
        budgets = self.planner.budgets(batch.contexts, batch.windows)
        drafts = self.drafter.propose(batch.contexts, budgets)
        trees = self.planner.select(batch.contexts, merge(drafts), batch.windows)
        rows = self.runner.extend(VerifyBatch(batch.slots, trees))
        self.planner.passed()
        verdicts = accept(self.rule, trees, distribution(rows, trees, batch.samplings), batch.noises, batch.endings)
        commit_all(self.runner, batch.slots, [verdict.path for verdict in verdicts])
        self.drafter.observe(batch.contexts, verdicts)
        expenses = self.planner.observe(batch.contexts, verdicts)
        return self._emit(batch.requests, verdicts, expenses)

    def cancel(self, request: Request) -> Delta | None:
        """Ends a request between two steps; what it has written stays. Returns its last delta; None if it was over."""
        if request.state is State.FINISHED:
            return None
        try:
            return self._cancel(request)
        except BaseException:
            self._restart([request])
            raise

    def _cancel(self, request: Request) -> Delta:
        context = request.context()
        nothing = replace(request.window(0, 0), complete=False)
        tree = bare_tree(nothing, root_graph(context))
        verdict = Verdict(tree, (), (), (), FinishReason.CANCELLED, np.zeros((0, 0), np.int32))
        self.drafter.observe([context], [verdict])
        return self._emit([request], [verdict], self.planner.observe([context], [verdict]))[0]

    def abandon(self, request: Request) -> None:
        """Has a request cancelled before the next step. Any thread may call it at any time, also while a step is being
        made: the collector of garbage does."""
        self._abandoned.append(request)

    def _drop_abandoned(self) -> None:
        while self._abandoned:
            self.cancel(self._abandoned[0])
            self._abandoned.popleft()

    def _restart(self, took_part: Sequence[Request]) -> None:
        """Begins anew with what the requests have written: nothing else that an exception may have left is trusted."""
        self.failed = tuple(took_part)
        self.scheduler.restart(took_part)
        self.drafter.restart()

    def _emit(
        self, requests: Sequence[Request], verdicts: Sequence[Verdict], expenses: Sequence[Expense]
    ) -> list[Delta]:
        self.observer(verdicts)
        now = self._clock()
        parts = zip(requests, verdicts, expenses, strict=True)
        deltas = [request.apply(verdict, expense, now) for request, verdict, expense in parts]
        for request in requests:
            if request.state is State.FINISHED:
                self.scheduler.retire(request)
        return deltas

    def _check(self, prompt: Sequence[int], sampling: SamplingParams) -> None:
        longest = self.runner.context_length - 1
        if not prompt:
            raise PromptError("an empty prompt", "at least one token", "write something to continue")
        if len(prompt) > longest:
            raise PromptError(
                f"a prompt of {len(prompt)} tokens",
                f"at most {longest}: the context holds {longest + 1} tokens, and one is for the answer",
                "shorten the prompt, or raise --context (and --kv-tokens, if that is set)",
            )
        size = self._vocabulary.size
        if not all(0 <= token < size for token in prompt):
            raise PromptError(
                "a token id outside the vocabulary", f"ids from 0 to {size - 1}", "tokenize with this model"
            )
        for token in sampling.logit_bias:
            if token >= size:
                raise ParameterError(f"logit_bias key {token}", f"token ids from 0 to {size - 1}", "remove it")
