"""The runner protocol: one model, many slots, an open tree in each.

A slot holds a committed text and, above it, an open tree. `extend` appends nodes to open trees and computes them in one
pass; it may be called several times before `commit` keeps one path and drops the rest. The target is verified and a
draft model grows its graph through the same four calls. A runner never sees drafters, probabilities or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftgraph.types import TargetRows, VerifyBatch


class Runner(Protocol):
    """Computes target rows.

    Promise: a row's values depend on its own ancestors alone, bit for bit where the runner says so: not on other rows
    in the call, on earlier rejected nodes, on the slot, or on how the text was split over calls.
    """

    @property
    def vocab_size(self) -> int:
        """Number of real token ids; rows are this long."""

    @property
    def context_length(self) -> int:
        """A slot's committed tokens and tree path together may be this long."""

    @property
    def num_free_slots(self) -> int:
        """How many times `open` can be called now."""

    def open(self) -> int:
        """Returns an empty slot.

        Raises:
            CapacityError: all slots are in use.
        """

    def extend(self, batch: VerifyBatch) -> TargetRows:
        """Appends each extension's nodes to its slot's open tree and returns the rows it asks for.

        Raises:
            CapacityError: the nodes do not fit into the slot.
        """

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Keeps these open nodes, a path from the top of the slot's open tree, and drops the rest of it."""

    def release(self, slot: int) -> None:
        """Drops all that the slot holds and frees it."""


def commit_all(runner: Runner, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
    """Commits one path per slot."""
    for slot, path in zip(slots, paths, strict=True):
        runner.commit(slot, path)
