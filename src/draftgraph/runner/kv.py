"""The paged key-value cache: who uses which cells.

In: how many cells a slot needs, and a key for the content of each full block. Out: cell indices, and the keys and
values of any list of cells. A cell holds one token's keys and values in every layer; a block is `BLOCK` cells; a slot
uses whole blocks. Never sees tokens, trees or models.

A slot's cells in logical order:
    [0, committed)            the committed text, cell i at position i
    [committed, committed+n)  the open tree, node i in cell committed + i, at any position

Blocks that are full of committed text are published: known by their key, perhaps shared, never written again. All
that is ever written lies at or above `committed`, so in blocks that one slot alone uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from draftgraph.errors import CapacityError
from draftgraph.types import FloatArray

BLOCK = 8

Cells = npt.NDArray[np.intp]


def blocks_for(num_cells: int) -> int:
    """Returns how many blocks hold this many cells."""
    return -(-num_cells // BLOCK)


class BlockPool:
    """Owns all blocks. Each is free, used by one or more tables, or idle: used by none, but its content has a key.

    Idle blocks can be found again by their key until the room is needed; the least recently used goes first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_users: dict[int, int] = {}
        self._idle: dict[int, None] = {}  # in the order of their last use
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be taken, idle ones included."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def take(self) -> int:
        """Returns a block for one user, its content undefined.

        Raises:
            CapacityError: all are used.
        """
        if not self.num_free:
            raise CapacityError(
                f"all {self.num_blocks} key-value blocks are in use",
                "requests that fit together",
                "lower --slots or raise --kv-tokens",
            )
        block = self._free.pop() if self._free else self._evict()
        self._num_users[block] = 1
        return block

    def give(self, block: int) -> None:
        """Takes one use of a block back."""
        self._num_users[block] -= 1
        if self._num_users[block]:
            return
        del self._num_users[block]
        if block in self._key_of:
            self._idle[block] = None
        else:
            self._free.append(block)

    def find(self, key: bytes) -> int | None:
        """Returns the block with this content, for one more user; None if there is none."""
        block = self._block_of.get(key)
        if block is not None:
            self._idle.pop(block, None)
            self._num_users[block] = self._num_users.get(block, 0) + 1
        return block

    def publish(self, block: int, key: bytes) -> int:
        """Makes a full block known by its content; nobody writes it from now on.

        Returns the block to use instead, where one of this content was known before: then `block` is given back.
        """
        known = self.find(key)
        if known is not None:
            self.give(block)
            return known
        self._key_of[block], self._block_of[key] = key, block
        return block

    def forget(self) -> None:
        """Frees all idle blocks."""
        while self._idle:
            self._free.append(self._evict())

    def check(self, used: Iterable[int]) -> None:
        """Asserts that each block is free, idle, or used as often as it occurs in `used`; and that keys agree."""
        assert Counter(used) == self._num_users, "a block is lost or owned twice"
        everywhere = sorted([*self._free, *self._idle, *self._num_users])
        assert everywhere == list(range(self.num_blocks)), "a block is lost or owned twice"
        assert {block: key for key, block in self._block_of.items()} == self._key_of, "a key names another block"
        assert self._idle.keys() <= self._key_of.keys(), "an idle block has no key"
        assert not self._key_of.keys() & set(self._free), "a free block has a key"
        assert all(n == 1 or block in self._key_of for block, n in self._num_users.items()), "a private block is shared"

    def _evict(self) -> int:
        """Forgets the least recently used idle block and returns it."""
        block = next(iter(self._idle))
        del self._idle[block]
        del self._block_of[self._key_of.pop(block)]
        return block


class BlockTable:
    """One slot's blocks, in logical order. Uses them until `resize(0)`.

    Blocks [0, len(keys)) are published and must not be written; the others are private.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[int] = []
        self.keys: list[bytes] = []

    def resize(self, num_cells: int) -> None:
        """Takes or gives back blocks until exactly enough for `num_cells` are used."""
        needed = blocks_for(num_cells)
        while len(self.blocks) < needed:
            self.blocks.append(self._pool.take())
        while len(self.blocks) > needed:  # from the end: the end of a text is forgotten before what it follows
            self._pool.give(self.blocks.pop())
        del self.keys[needed:]

    def reuse(self, keys: Iterable[bytes]) -> None:
        """Appends the published blocks of these contents to an empty table, up to the first that is not known."""
        assert not self.blocks, "blocks are reused from the start of a text"
        for key in keys:
            block = self._pool.find(key)
            if block is None:
                break
            self.blocks.append(block)
            self.keys.append(key)

    def publish(self, keys: Iterable[bytes]) -> None:
        """Publishes the next blocks, which are full, under these keys."""
        for key in keys:
            index = len(self.keys)
            self.blocks[index] = self._pool.publish(self.blocks[index], key)
            self.keys.append(key)

    def first_cells(self, count: int) -> Cells:
        """Returns the physical cells of logical indices [0, count)."""
        blocks = np.asarray(self.blocks, np.intp)[:, np.newaxis]
        return (blocks * BLOCK + np.arange(BLOCK)).reshape(-1)[:count]

    def cells(self, indices: npt.ArrayLike) -> Cells:
        """Returns the physical cells of these logical indices."""
        logical = np.asarray(indices, np.intp)
        return np.asarray(self.blocks, np.intp)[logical // BLOCK] * BLOCK + logical % BLOCK


class KeyValueStore:
    """Owns the keys and values of all cells: per layer [kv_heads, cells, head_dim], float32."""

    def __init__(self, num_layers: int, num_kv_heads: int, num_cells: int, head_dim: int) -> None:
        # np.empty reserves addresses only; memory is used as cells are written.
        self._keys = [np.empty((num_kv_heads, num_cells, head_dim), np.float32) for _ in range(num_layers)]
        self._values = [np.empty((num_kv_heads, num_cells, head_dim), np.float32) for _ in range(num_layers)]

    def write(self, layer: int, cells: Cells, keys: FloatArray, values: FloatArray) -> None:
        """Stores keys and values [n, kv_heads, head_dim] in cells [n]."""
        self._keys[layer][:, cells] = keys.transpose(1, 0, 2)
        self._values[layer][:, cells] = values.transpose(1, 0, 2)

    def read(self, layer: int, cells: Cells) -> tuple[FloatArray, FloatArray]:
        """Returns copies of the keys and values of cells [n], each [kv_heads, n, head_dim] and contiguous."""
        return np.take(self._keys[layer], cells, axis=1), np.take(self._values[layer], cells, axis=1)

    def move(self, source: Cells, target: Cells) -> None:
        """Copies cells `source` [n] to cells `target` [n] in every layer; they may overlap."""
        for array in (*self._keys, *self._values):
            array[:, target] = np.take(array, source, axis=1)
