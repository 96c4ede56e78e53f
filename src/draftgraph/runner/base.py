"""The runner protocol: one model, many slots, an open tree in each.

A slot holds a committed text and, above it, an open tree. `extend` appends nodes to open trees and computes them in one
pass; it may be called several times before `commit` keeps one path and drops the rest. The target is verified and a
draft model grows its graph through the same calls. A runner never sees drafters, probabilities or characters.

Slots share one memory, counted in blocks. A caller that may run short asks `blocks_needed` before it extends, and
makes room with `release`: what a released slot held is kept as long as there is room, and `reuse` finds it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from draftgraph.types import TargetRows, VerifyBatch


@dataclass(frozen=True, slots=True)
class BlockUse:
    """How full a runner's memory is, in blocks.

    Args:
        used: held by open slots; a block that several of them share counts once.
        cached: held by no slot, but kept for `reuse` until the room is needed.
    """

    total: int
    used: int
    cached: int

    @property
    def available(self) -> int:
        """Blocks that slots can still take."""
        return self.total - self.used


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

    @property
    def blocks(self) -> BlockUse:
        """How full the memory is."""

    def blocks_needed(self, slot: int, num_nodes: int) -> int:
        """Returns how many more blocks the slot takes if its open tree grows by this many nodes.

        One slot with all the memory can hold a text of `context_length` tokens.
        """

    def open(self, cache_salt: bytes = b"") -> int:
        """Returns an empty slot.

        Args:
            cache_salt: `reuse` finds only texts of slots that were opened with the same one.

        Raises:
            CapacityError: all slots are in use.
        """

    def reuse(self, slot: int, tokens: Sequence[int]) -> int:
        """Commits to an empty slot a prefix of `tokens` that is still in memory. Returns its length, perhaps 0."""

    def extend(self, batch: VerifyBatch) -> TargetRows:
        """Appends each extension's nodes to its slot's open tree and returns the rows it asks for.

        Raises:
            CapacityError: the nodes do not fit into the slot, or into the memory.
        """

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Keeps these open nodes, a path from the top of the slot's open tree, and drops the rest of it."""

    def release(self, slot: int) -> None:
        """Frees the slot and all that it holds."""

    def reset(self) -> None:
        """Frees every slot and forgets every text, whatever state an exception has left behind."""


def commit_all(runner: Runner, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
    """Commits one path per slot."""
    for slot, path in zip(slots, paths, strict=True):
        runner.commit(slot, path)
