"""Cells, blocks and their owners: none lost, none owned twice, and every value where it was put."""

from __future__ import annotations

import random

import numpy as np
import pytest

from draftgraph.errors import CapacityError
from draftgraph.runner.kv import BLOCK, BlockPool, BlockTable, KeyValueStore


def owned(tables: list[BlockTable]) -> list[int]:
    return [block for table in tables for block in table.blocks]


@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_neither_lost_nor_shared_in_any_order_of_events(seed: int) -> None:
    rng = random.Random(seed)
    pool = BlockPool(12)
    tables = [BlockTable(pool) for _ in range(4)]
    for _ in range(200):
        table = rng.choice(tables)
        num_cells = rng.choice([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, rng.randrange(6 * BLOCK)])
        needed = -(-num_cells // BLOCK)
        before = list(table.blocks)
        if needed - len(before) > pool.num_free:
            with pytest.raises(CapacityError):
                table.resize(num_cells)
            table.resize(len(before) * BLOCK)
        else:
            table.resize(num_cells)
            assert len(table.blocks) == needed
        kept = min(len(before), len(table.blocks))
        assert table.blocks[:kept] == before[:kept], "a committed block moved"
        pool.check(owned(tables))
        assert pool.num_free == 12 - len(owned(tables))
    for table in tables:
        table.resize(0)
    pool.check([])
    assert pool.num_free == pool.num_blocks == 12


def test_an_empty_pool_says_so_in_three_parts_and_stays_sound() -> None:
    pool = BlockPool(2)
    table = BlockTable(pool)
    with pytest.raises(CapacityError) as error:
        table.resize(2 * BLOCK + 1)
    assert "2" in error.value.given
    assert error.value.allowed
    assert error.value.remedy
    pool.check(table.blocks)
    assert BlockPool(0).num_free == 0


@pytest.mark.parametrize("fault", ["lost", "shared", "given twice", "unknown"])
def test_check_notices_a_block_without_one_owner(fault: str) -> None:
    pool = BlockPool(3)
    table = BlockTable(pool)
    table.resize(2 * BLOCK)
    blocks = list(table.blocks)
    pool.check(blocks)
    if fault == "lost":
        blocks.pop()
    elif fault == "shared":
        blocks.append(blocks[0])
    elif fault == "given twice":
        pool.give(blocks[0])
    else:
        blocks[0] = 99
    with pytest.raises(AssertionError, match="lost or owned twice"):
        pool.check(blocks)


def test_cells_follow_the_tables_blocks_and_are_distinct() -> None:
    pool = BlockPool(8)
    tables = [BlockTable(pool) for _ in range(2)]
    for size in (1, 3):  # grow in turns, so that the blocks alternate
        for table in tables:
            table.resize(size * BLOCK)
    cells = [table.cells(range(3 * BLOCK)) for table in tables]
    assert len({*cells[0].tolist(), *cells[1].tolist()}) == 6 * BLOCK
    for table, found in zip(tables, cells, strict=True):
        for logical in (0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 5):
            assert found[logical] == table.blocks[logical // BLOCK] * BLOCK + logical % BLOCK
    for count in (0, 1, BLOCK, 2 * BLOCK + 3):
        assert tables[1].first_cells(count).tolist() == cells[1][:count].tolist()
    assert tables[0].cells([]).shape == (0,)
    with pytest.raises(IndexError):
        tables[0].cells([3 * BLOCK])


def filled(num_cells: int = 20) -> tuple[KeyValueStore, list[np.ndarray], list[np.ndarray]]:
    """A store of two layers and three heads, with what was written: [layer][cell, head, dim]."""
    store = KeyValueStore(2, 3, num_cells, 4)
    rng = np.random.default_rng(0)
    keys, values = ([rng.normal(size=(num_cells, 3, 4)).astype(np.float32) for _ in range(2)] for _ in range(2))
    for layer in range(2):
        for cell in range(num_cells):
            store.write(layer, np.array([cell]), keys[layer][cell : cell + 1], values[layer][cell : cell + 1])
    return store, keys, values


def assert_holds(store: KeyValueStore, keys: list[np.ndarray], values: list[np.ndarray]) -> None:
    for layer in range(2):
        found_keys, found_values = store.read(layer, np.arange(len(keys[layer])))
        assert np.array_equal(found_keys, keys[layer].transpose(1, 0, 2))
        assert np.array_equal(found_values, values[layer].transpose(1, 0, 2))


def test_what_is_written_is_read_in_any_order_and_as_a_copy() -> None:
    store, keys, values = filled()
    assert_holds(store, keys, values)
    cells = np.array([7, 3, 3, 19, 0])
    found_keys, found_values = store.read(1, cells)
    assert np.array_equal(found_keys, keys[1][cells].transpose(1, 0, 2))
    assert np.array_equal(found_values, values[1][cells].transpose(1, 0, 2))
    assert found_keys.flags.c_contiguous
    assert found_values.flags.c_contiguous
    found_keys[:] = 0
    found_values[:] = 0
    assert_holds(store, keys, values)
    assert store.read(0, np.array([], np.intp))[0].shape == (3, 0, 4)


def test_a_write_reaches_its_own_layer_and_cells_alone() -> None:
    store, keys, values = filled()
    cells = np.array([11, 2])
    new = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
    store.write(1, cells, new, -new)
    keys[1][cells], values[1][cells] = new, -new
    assert_holds(store, keys, values)


@pytest.mark.parametrize("seed", range(10))
def test_a_move_may_overlap_and_reaches_every_layer(seed: int) -> None:
    store, keys, values = filled()
    rng = np.random.default_rng(seed)
    source, target = rng.permutation(20)[:8], rng.permutation(20)[:8]
    store.move(source, target)
    for arrays in (keys, values):
        for array in arrays:
            array[target] = array[source].copy()
    assert_holds(store, keys, values)


@pytest.mark.parametrize("by", [1, 3])
def test_a_committed_path_closes_up_over_the_cells_between(by: int) -> None:
    store, keys, values = filled()
    source, target = np.arange(by, 20), np.arange(20 - by)
    store.move(source, target)
    for arrays in (keys, values):
        for array in arrays:
            array[target] = array[source].copy()
    assert_holds(store, keys, values)
