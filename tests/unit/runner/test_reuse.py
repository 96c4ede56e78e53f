"""Blocks known by their content: found while they are kept, evicted in the right order, never written while shared."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from draftgraph.errors import CapacityError
from draftgraph.runner.kv import BLOCK, BlockPool, BlockTable
from draftgraph.runner.paged import block_keys
from draftgraph.runner.reference import ReferenceRunner
from draftgraph.types import Extension, VerifyBatch
from support.rigs import small_model, tiny_runner

TEXT = tuple(int(token) for token in np.random.default_rng(0).integers(0, 96, 6 * BLOCK))


def published(pool: BlockPool, *keys: bytes) -> BlockTable:
    """A table whose blocks have these contents."""
    table = BlockTable(pool)
    table.reuse(keys)
    table.resize(len(keys) * BLOCK)
    table.publish(keys[len(table.keys) :])
    return table


def test_a_block_is_found_by_its_key_until_the_room_is_needed() -> None:
    pool = BlockPool(4)
    published(pool, b"1", b"2", b"3").resize(0)
    assert (pool.num_free, pool.num_idle) == (4, 3)
    table = BlockTable(pool)
    table.reuse([b"1", b"2", b"x", b"3"])
    assert table.keys == [b"1", b"2"]
    assert (pool.num_free, pool.num_idle) == (2, 1)
    table.resize(4 * BLOCK)  # takes the free block, then the idle one
    assert len(set(table.blocks)) == 4
    pool.check(table.blocks)
    other = BlockTable(pool)
    other.reuse([b"3"])
    assert other.blocks == []


def test_free_blocks_go_first_then_the_least_recently_used_and_ends_before_beginnings() -> None:
    pool = BlockPool(6)
    one, two = published(pool, b"a1", b"a2"), published(pool, b"b1", b"b2")
    one.resize(0)
    two.resize(0)
    published(pool, b"a1", b"a2").resize(0)  # used again
    gone = []
    table = BlockTable(pool)
    for count in range(1, 7):
        table.resize(count * BLOCK)
        left = [key for key in (b"a1", b"a2", b"b1", b"b2") if key in pool._block_of]
        gone.append(4 - len(left))
        if gone[-1] == 1:
            assert b"b2" not in left
        if gone[-1] == 2:
            assert left == [b"a1", b"a2"]
        if gone[-1] == 3:
            assert left == [b"a1"]
        pool.check(table.blocks)
    assert gone == [0, 0, 1, 2, 3, 4]
    with pytest.raises(CapacityError):
        table.resize(7 * BLOCK)


def test_equal_contents_become_one_block() -> None:
    pool = BlockPool(4)
    one, two = BlockTable(pool), BlockTable(pool)
    one.resize(BLOCK)
    two.resize(2 * BLOCK)
    one.publish([b"k"])
    two.publish([b"k"])
    assert one.blocks[0] == two.blocks[0]
    assert pool.num_free == 2
    pool.check([*one.blocks, *two.blocks])
    one.resize(0)
    pool.check(two.blocks)
    assert pool.num_idle == 0
    two.resize(0)
    assert (pool.num_idle, pool.num_free) == (1, 4)


@pytest.mark.parametrize("seed", range(20))
def test_every_block_is_free_idle_or_used_in_any_order_of_events(seed: int) -> None:
    rng = random.Random(seed)
    pool = BlockPool(10)
    tables: list[tuple[BlockTable, list[bytes]]] = []
    for _ in range(200):
        if tables and rng.random() < 0.4:
            tables.pop(rng.randrange(len(tables)))[0].resize(0)
        else:
            keys = list(block_keys([rng.randrange(2)] * BLOCK + [rng.randrange(2)] * BLOCK * rng.randrange(3)))
            table = BlockTable(pool)
            table.reuse(keys)
            try:
                table.resize(len(keys) * BLOCK + rng.choice([0, 1]))
                table.publish(keys[len(table.keys) :])
            except CapacityError:
                table.resize(0)
            tables.append((table, keys))
        used = [block for table, _ in tables for block in table.blocks]
        pool.check(used)
        assert pool.num_free == 10 - len(set(used))
        for table, keys in tables:
            for key, block in zip(keys, table.blocks, strict=False):
                assert pool._block_of[key] == block


@pytest.mark.parametrize("fault", ["used too often", "still listed", "no key", "wrong key", "shared and private"])
def test_check_notices_what_does_not_agree(fault: str) -> None:
    pool = BlockPool(4)
    table, other = published(pool, b"1", b"2"), published(pool, b"1")
    published(pool, b"3").resize(0)
    used = [*table.blocks, *other.blocks]
    pool.check(used)
    if fault == "used too often":
        pool._num_users[table.blocks[0]] += 1
    elif fault == "still listed":
        pool._idle[table.blocks[1]] = None
    elif fault == "no key":
        pool._key_of.pop(next(iter(pool._idle)))
        pool._block_of.pop(b"3")
    elif fault == "wrong key":
        pool._block_of[b"1"] = table.blocks[1]
    else:
        del pool._block_of[pool._key_of.pop(table.blocks[0])]
    with pytest.raises(AssertionError):
        pool.check(used)


def test_a_key_is_of_everything_up_to_the_block_s_end() -> None:
    keys = list(block_keys(TEXT))
    assert len(set(keys)) == 6
    assert list(block_keys(TEXT[: 3 * BLOCK + 5])) == keys[:3]
    assert list(block_keys(TEXT[2 * BLOCK :], keys[1])) == keys[2:]
    assert list(block_keys(TEXT[: BLOCK - 1])) == []
    for place in range(0, len(TEXT), 7):
        changed = list(block_keys((*TEXT[:place], (TEXT[place] + 1) % 96, *TEXT[place + 1 :])))
        assert [one == two for one, two in zip(keys, changed, strict=True)] == [i < place // BLOCK for i in range(6)]


def read(runner: ReferenceRunner, slot: int, tokens: Sequence[int]) -> np.ndarray:
    """Commits tokens to a slot. Returns their rows."""
    chain = Extension(np.asarray(tokens, np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32), 0)
    rows = runner.extend(VerifyBatch((slot,), [chain])).rows[0]
    runner.commit(slot, range(len(tokens)))
    runner.check()
    return rows


@pytest.mark.parametrize("length", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 2, 6 * BLOCK])
def test_the_longest_known_prefix_of_whole_blocks_is_reused(length: int) -> None:
    runner = tiny_runner(small_model("gemma3", seed=1))
    first, second, fresh = (runner.open() for _ in range(3))
    read(runner, first, TEXT)
    tokens = (*TEXT[:length], *([95 - TEXT[length]] if length < len(TEXT) else []), 5, 6)
    assert runner.reuse(fresh, ()) == 0
    found = runner.reuse(second, tokens)
    assert found == length // BLOCK * BLOCK
    used = runner.blocks.used
    more = read(runner, second, tokens[found:])
    assert runner.blocks.used == used + runner.blocks_needed(fresh, len(tokens)) - found // BLOCK
    alone = tiny_runner(small_model("gemma3", seed=1))
    np.testing.assert_array_equal(more, read(alone, alone.open(), tokens)[found:])
    runner.release(second)
    # What the second slot wrote changed nothing of the first one's.
    np.testing.assert_array_equal(runner.committed_keys(first, 1), tiny_keys(TEXT))


def tiny_keys(tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    alone = tiny_runner(small_model("gemma3", seed=1))
    slot = alone.open()
    read(alone, slot, tokens)
    return alone.committed_keys(slot, 1)


def test_blocks_are_counted_as_they_are_taken() -> None:
    runner = tiny_runner(small_model("llama", seed=1), context_length=64, num_slots=2, num_cells=8 * BLOCK)
    slot, other = runner.open(), runner.open()
    assert [runner.blocks_needed(slot, n) for n in (0, 1, BLOCK, BLOCK + 1)] == [0, 1, 1, 2]
    text = TEXT[: BLOCK + 4]
    read(runner, slot, text)
    assert (runner.blocks.total, runner.blocks.used, runner.blocks.available) == (8, 2, 6)
    left = BLOCK - 4
    assert [runner.blocks_needed(slot, n) for n in (0, left, left + 1, left + BLOCK + 1)] == [0, 0, 1, 2]
    assert runner.reuse(other, text) == BLOCK
    assert runner.blocks.used == 2
    runner.release(slot)
    runner.release(other)
    assert (runner.blocks.used, runner.blocks.cached) == (0, 1)
