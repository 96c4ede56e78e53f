"""The target distribution: the only definition of what a request draws from.

In: raw logits of a tree's rows and one request's sampling parameters. Out: for each path of the tree the processed
scores and probabilities of the next token. Penalties count the path's own tokens, so a node is judged as plain
decoding would judge it at that place. Never sees drafts' probabilities, models or caches.

Order: the grammar's mask, repetition penalty, presence and frequency penalties, logit bias, temperature, top-k, top-p,
min-p. Ties at a border are kept by the lowest id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from draftgraph.config import SamplingParams
from draftgraph.errors import ModelFileError
from draftgraph.kernels.likeliest import likeliest
from draftgraph.types import Constraint, FloatArray, IntArray, Row, TargetRows, TokenLogprobs, TokenTree
from draftgraph.verify.filters import Scores, keep, softmax
from draftgraph.verify.logprobs import token_logprobs

NUM_SUCCESSORS = 8  # of each verified node, reported to the drafters (Token Recycling keeps 8)


@dataclass(frozen=True, slots=True)
class SamplingContext:
    """One request as the distribution sees it: all its known tokens, how many are the prompt, how it samples, and what
    it may write."""

    tokens: Sequence[int]
    num_prompt: int
    sampling: SamplingParams
    constraint: Constraint | None = None


class TargetDistribution:
    """The next-token distributions of one tree in one step. Reads its arguments, modifies nothing.

    Args:
        rows: [n - first_row, vocabulary] raw logits.
        tree: the tree they belong to.
        context: the request.
    """

    def __init__(self, rows: FloatArray, tree: TokenTree, context: SamplingContext) -> None:
        self._rows = rows
        self._tree = tree
        self._context = context

    @property
    def position(self) -> int:
        """Absolute position of the token that follows the root."""
        return len(self._context.tokens)

    def scores(self, path: Sequence[int]) -> Row:
        """Returns [vocabulary]: processed logits after the drafts `path` (from below the root), over the temperature.

        Dropped tokens are -inf. At temperature 0 the logits are neither divided nor dropped, which would not change the
        argmax, and only that has a meaning; where nothing else touches them either, they are the raw row itself.

        Raises:
            ModelFileError: the model computed a value that is not a number.
        """
        node = path[-1] if path else self._tree.root
        row = self._row(node)
        if not math.isfinite(row[self._likeliest[node - self._tree.first_row, 0]]):
            raise ModelFileError(
                "the model computed logits that are not finite",
                "finite logits",
                "check the model file: its weights are damaged",
            )
        sampling = self._context.sampling
        if not (sampling.temperature or self._context.constraint or sampling.penalises or sampling.logit_bias):
            return row
        logits: Scores = row.astype(np.float64)
        self._constrain(logits, path)
        self._penalise(logits, path)
        for token, bias in sampling.logit_bias.items():
            logits[token] += bias
        if sampling.temperature > 0:
            with np.errstate(over="ignore"):  # close to temperature 0 all but the largest may become -inf
                logits -= logits.max()
                logits /= sampling.temperature
            return keep(logits, sampling)
        return logits

    def probs(self, path: Sequence[int]) -> Row:
        """Returns [vocabulary]: the probabilities that belong to `scores(path)`; at temperature 0 all on the argmax."""
        scores = self.scores(path)
        if self._context.sampling.temperature == 0:
            return np.asarray(np.arange(len(scores)) == np.argmax(scores), np.float64)
        return softmax(scores)

    def successors(self) -> IntArray:
        """Returns [rows, k]: the ids of the k largest raw logits of each row, largest first."""
        return self._likeliest

    def logprobs(self, tokens: Sequence[int], nodes: Sequence[int]) -> tuple[TokenLogprobs, ...] | None:
        """Returns how likely each emitted token was at its own place; None if the request did not ask.

        Args:
            tokens: emitted tokens, the first one after the root.
            nodes: [len(tokens)] where each was accepted; the last one may be -1.
        """
        count = self._context.sampling.logprobs
        if count is None:
            return None
        before = (self._tree.root, *nodes)
        return tuple(token_logprobs(self._row(node), token, count) for token, node in zip(tokens, before, strict=False))

    def _row(self, node: int) -> FloatArray:
        row: FloatArray = self._rows[node - self._tree.first_row]
        return row

    def _constrain(self, logits: Scores, path: Sequence[int]) -> None:
        """Sets what the grammar does not allow after `path` to -inf in place. Beyond the text's end all stays: the
        verdict is cut there."""
        if self._context.constraint is not None:
            allowed = self._context.constraint.allowed(self._tree.tokens[list(path)].tolist())
            if allowed is not None:
                logits[~allowed] = -np.inf

    def _penalise(self, logits: Scores, path: Sequence[int]) -> None:
        """Applies the penalties to `logits` in place, counting the context and the path."""
        sampling = self._context.sampling
        if not sampling.penalises:
            return
        added, more = np.unique(self._tree.tokens[list(path)], return_counts=True)
        # What the path added is penalised again from where it was, as it may or may not be among the tokens before.
        if sampling.repetition_penalty != 1:
            before = logits[added]
            for tokens, values in ((self._seen, logits[self._seen]), (added, before)):
                logits[tokens] = np.where(
                    values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty
                )
        if sampling.presence_penalty or sampling.frequency_penalty:
            before = logits[added]
            written, counts = self._written
            known = (written, logits[written], counts[written])
            for tokens, values, times in (known, (added, before, counts[added] + more)):
                logits[tokens] = values - (sampling.presence_penalty + sampling.frequency_penalty * times)

    @cached_property
    def _likeliest(self) -> IntArray:
        return likeliest(self._rows, NUM_SUCCESSORS)

    @cached_property
    def _seen(self) -> npt.NDArray[np.int64]:
        """The known tokens, each once, rising. They stay the same for all rows of a step."""
        return np.unique(np.asarray(self._context.tokens, np.int64))

    @cached_property
    def _written(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The tokens after the prompt, each once, and [vocabulary] how often each stands there. These stay too."""
        output = np.asarray(self._context.tokens[self._context.num_prompt :], np.int64)
        return np.unique(output), np.bincount(output, minlength=self._rows.shape[1])


def distribution(
    rows: TargetRows, trees: Sequence[TokenTree], contexts: Sequence[SamplingContext]
) -> list[TargetDistribution]:
    """Returns the target's distributions for each tree of a step."""
    return [TargetDistribution(*parts) for parts in zip(rows.rows, trees, contexts, strict=True)]
