"""The paged key-value cache: who owns which cells.

In: how many cells a slot needs. Out: cell indices, and the keys and values of any list of cells. A cell holds one
token's keys and values in every layer; a block is `BLOCK` cells; a slot owns whole blocks. Never sees tokens, trees
or models.

A slot's cells in logical order:
    [0, committed)            the committed text, cell i at position i
    [committed, committed+n)  the open tree, node i in cell committed + i, at any position
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from draftgraph.errors import CapacityError
from draftgraph.types import FloatArray

BLOCK = 16

Cells = npt.NDArray[np.intp]


class BlockPool:
    """Owns the list of free blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """Returns a free block.

        Raises:
            CapacityError: there is none.
        """
        if not self._free:
            raise CapacityError(
                f"all {self.num_blocks} key-value blocks are in use",
                "requests that fit together",
                "lower --slots or --context",
            )
        return self._free.pop()

    def give(self, block: int) -> None:
        """Takes a block back."""
        self._free.append(block)

    def check(self, owned: list[int]) -> None:
        """Asserts that each block is either free or in `owned`, once."""
        assert sorted(self._free + owned) == list(range(self.num_blocks)), "a block is lost or owned twice"


class BlockTable:
    """One slot's blocks, in logical order. Owns them until `resize(0)`."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[int] = []

    def resize(self, num_cells: int) -> None:
        """Takes or gives back blocks until exactly enough for `num_cells` are owned."""
        needed = -(-num_cells // BLOCK)
        while len(self.blocks) < needed:
            self.blocks.append(self._pool.take())
        while len(self.blocks) > needed:
            self._pool.give(self.blocks.pop())

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
