"""The values that travel between the stages: frozen, small, with their shapes.

A leaf: imports nothing of ours but the noise. In a step they appear in this order: `Context` (to the drafters),
`TokenTree` (from `select`), `VerifyBatch` and `TargetRows` (to and from a runner), `Verdict` (from `accept`), `Delta`
(to the caller). Nothing here knows how any stage works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from draftgraph.rng import Noise

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
# Probabilities and logits of one row, [vocabulary]. The tests enumerate them in `fractions.Fraction`, hence Any.
Row = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]  # [vocabulary]

TARGET = "target"  # the source of a token that no drafter proposed


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # a stop id or a stop string
    LENGTH = "length"  # max_tokens or the context length
    GRAMMAR = "grammar"  # the text can neither go on nor end by its grammar, or the grammar's limits were reached
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class MergeRule:
    """When two hypotheses may share a graph node.

    Args:
        length: the last `length` tokens of both, the shared one included, must be equal. 0 switches merging off.
        same_depth: they must also stand at the same depth. Needed when draws are keyed by position.
    """

    length: int = 2
    same_depth: bool = False


class Constraint(Protocol):
    """What one request may write, by its grammar; `path` lists tokens after the known ones.

    The answers depend on the tokens alone, and a question changes no answer.
    """

    def allowed(self, path: Sequence[int]) -> Mask | None:
        """Returns which tokens may follow `path`; None where the request has ended before."""

    def permits(self, path: Sequence[int]) -> bool:
        """Whether the text may go on by all of `path`."""

    def forced(self) -> tuple[int, ...]:
        """Returns tokens that follow the known ones without a choice."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a drafter may know about one request.

    Args:
        request: the request's id, the key for a drafter's own memory.
        tokens: every known token, prompt and committed output; the last one is the root of the graph to propose.
            A read-only view: it grows between steps.
        noise: the request's position-keyed noise; the token after `tokens` stands at position `len(tokens)`.
        temperature: the request's temperature; 0 is greedy.
        max_depth: no path longer than this can be emitted.
        merge_rule: how graphs for this request merge.
        constraint: what the request may write; None for anything.
        cache_salt: whose texts may be found again in a drafter's cache; see `Runner.open`.
    """

    request: int
    tokens: Sequence[int]
    noise: Noise
    temperature: float
    max_depth: int
    merge_rule: MergeRule
    constraint: Constraint | None = None
    cache_salt: bytes = b""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A child that was sampled, not ranked: draw number `order` (from 0), without replacement, from `draft_prob`.

    Args:
        draft_prob: [vocabulary], the distribution the draw was really made from.
        order: 0 for the first draw at its parent, 1 for the second, and so on.
    """

    draft_prob: Row
    order: int


@dataclass(frozen=True, slots=True)
class Extension:
    """Nodes to append to one slot's open tree.

    Args:
        tokens: [n] token ids.
        parents: [n] index of each node's parent in the slot's open tree, below the node's own index; -1 for "follows
            the last committed token".
        first_row: target rows are wanted for nodes [first_row, n) of this extension.
    """

    tokens: IntArray
    parents: IntArray
    first_row: int


class Drafted(Protocol):
    """The merged graph of one request, as far as statistics look at it."""

    @property
    def num_drafted(self) -> int:
        """Nodes below the root."""

    @property
    def num_merged(self) -> int:
        """Edges made by suffix merging: drafts that cost nothing."""


@dataclass(frozen=True, slots=True)
class TokenTree(Extension):
    """One request's tree for one target pass: known tokens in a chain, then the drafts chosen by `select`.

    Nodes [0, num_known) are known tokens, node num_known - 1 is the root, nodes [num_known, n) are drafts in best-first
    order. In plain decoding the tree is its root alone; in prefill it is a chain of known tokens.

    Args:
        num_known: how many leading nodes are known tokens.
        sources: [n] for each draft the names of the drafters that proposed it; () for known tokens.
        draws: [n] how a draft was drawn, or None where it was ranked or retrieved.
        path_acceptance: [n] estimated probability that the path to the node is accepted.
        graph_nodes: [n] the graph node a draft was unrolled from; -1 for known tokens, 0 for the root.
        graph: the graph the drafts were unrolled from.
    """

    num_known: int
    sources: tuple[tuple[str, ...], ...]
    draws: tuple[Drawn | None, ...]
    path_acceptance: tuple[float, ...]
    graph_nodes: tuple[int, ...]
    graph: Drafted

    @property
    def root(self) -> int:
        return self.num_known - 1

    @property
    def num_drafts(self) -> int:
        return len(self.tokens) - self.num_known

    @property
    def draws_next(self) -> bool:
        """Whether the known tokens are complete, so that this pass decides the next token."""
        return self.first_row < len(self.tokens)


@dataclass(frozen=True, slots=True)
class Window:
    """What `select` needs to know about one request in a step.

    Args:
        known: [k] tokens the runner has not computed yet; the last one is the root, unless more are to follow.
        complete: whether `known` reaches the request's last token.
        budget: at most this many drafts.
        max_depth: no draft deeper than this below the root.
        vocab_size: drafted ids lie in [0, vocab_size).
        permits: whether a path of tokens below the root can be accepted at all; None: any can.
    """

    known: IntArray
    complete: bool
    budget: int
    max_depth: int
    vocab_size: int
    permits: Callable[[Sequence[int]], bool] | None = None


@dataclass(frozen=True, slots=True)
class VerifyBatch:
    """One extension for each of several slots, computed in one target pass."""

    slots: tuple[int, ...]
    extensions: Sequence[Extension]


@dataclass(frozen=True, slots=True)
class TargetRows:
    """Raw logits: `rows[i]` is [n_i - first_row_i, vocabulary], for the i-th extension of the batch."""

    rows: tuple[FloatArray, ...]


# How many of the given tokens a request will take, and why it ends there (None: it goes on). Pure.
Ending = Callable[[Sequence[int]], tuple[int, FinishReason | None]]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely the model alone finds a token: natural logarithms of the softmax of its raw logits at that place.

    Args:
        token: the emitted token.
        logprob: its log-probability.
        top: the likeliest tokens there, as (id, log-probability), likeliest first, the lower id first on a tie.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target decided about one tree: the only value that crosses from one step to the next.

    Args:
        tree: the tree that was verified.
        tokens: emitted tokens in order, ending where the request ends; () while a prompt is still being read.
        nodes: [len(tokens)] the tree node each token was accepted at, -1 where the token is the target's own
            (a correction or a bonus).
        path: tree nodes to commit, in order: the known tokens and the accepted nodes before the last token.
        finish: why the request ended, or None.
        successors: [rows, k] the target's k likeliest next tokens after each node from `tree.first_row` on.
        logprobs: [len(tokens)] how likely each emitted token was; None if the request did not ask.
    """

    tree: TokenTree
    tokens: tuple[int, ...]
    nodes: tuple[int, ...]
    path: tuple[int, ...]
    finish: FinishReason | None
    successors: IntArray
    logprobs: tuple[TokenLogprobs, ...] | None = None

    @property
    def num_accepted(self) -> int:
        return sum(node >= 0 for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step adds to one request's output.

    Args:
        request: the request's id.
        text: new text, whole characters only; the deltas of a request joined are its text.
        token_ids: new tokens.
        sources: [len(token_ids)] who proposed each token: drafter names, or ("target",).
        finish_reason: set in the last delta.
        logprobs: [len(token_ids)] how likely each new token was; None if the request did not ask.
    """

    request: int
    text: str
    token_ids: tuple[int, ...]
    sources: tuple[tuple[str, ...], ...]
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...] | None = None
