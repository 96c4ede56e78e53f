"""The noise: the same for ever, uniform, and independent of everything it should be independent of.

Statistical tests use fixed seeds and alpha 0.001 each: the odds of a false alarm were 1 in 1000 when a test was
written, and are none since.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2, norm

from draftgraph.rng import Greedy, SeededNoise, fresh_seed, noise_for

ALPHA = 0.001
LAST_SEED = 2**63 - 1
MASK = 2**64 - 1

# If one of these changes, every sampled text of every user changes.
GOLDEN = {
    (0, 0): (-0.08116903215863935, -0.2719792283174781, -0.26508964732465634),
    (0, 1): (2.0868436769674386, 0.17385007634518215, -1.290089817813329),
    (1, 0): (0.1772064934697003, 0.15761364183195914, 0.4832105184676039),
    (42, 1000): (3.2291315695132283, -0.39133445231653957, 1.616513835504101),
    (LAST_SEED, 2**40): (-0.6877995215457758, -0.6566040995853918, 2.516678834471251),
}
PROBS = np.array([0.1, 0.2, 0.3, 0.4])
GOLDEN_PICKS = [2, 3, 1, 1, 3, 0, 0, 1, 2, 3, 0, 3, 3, 2, 3, 2, 2, 3, 1, 0]
GOLDEN_CHOICES = [0, 2, 3, 2, 3, 3, 1, 3, 0, 2, 2, 0, 0, 3, 3, 0, 1, 3, 3, 3]
GOLDEN_COINS = [1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0]


def gumbel(noise: SeededNoise, position: int, num_tokens: int) -> npt.NDArray[np.float64]:
    """The noise of the first token ids."""
    return noise.contenders(np.zeros(num_tokens), position, math.inf)[1]


def uniform(noise: SeededNoise, position: int, num_tokens: int) -> npt.NDArray[np.float64]:
    """The uniform numbers behind the Gumbel noise."""
    return np.exp(-np.exp(-gumbel(noise, position, num_tokens)))


def assert_uniform(values: npt.NDArray[np.float64], cells: int = 64) -> None:
    counts = np.bincount((values * cells).astype(int).ravel(), minlength=cells)
    expected = values.size / cells
    assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(ALPHA, cells - 1)


def assert_uncorrelated(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> None:
    """Correlation, and the joint counts of 16 × 16 cells."""
    a, b = a.ravel(), b.ravel()
    assert abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(a.size) < norm.isf(ALPHA / 2)
    cells = (a * 16).astype(int) * 16 + (b * 16).astype(int)
    expected = a.size / 256
    assert ((np.bincount(cells, minlength=256) - expected) ** 2 / expected).sum() < chi2.isf(ALPHA, 255)


@pytest.mark.parametrize(("seed", "position"), GOLDEN)
def test_the_noise_of_a_seed_never_changes(seed: int, position: int) -> None:
    assert gumbel(SeededNoise(seed), position, 3).tolist() == pytest.approx(GOLDEN[seed, position], rel=1e-12)


def test_the_draws_of_a_seed_never_change() -> None:
    noise = SeededNoise(42)
    assert [noise.pick(np.log(PROBS), position) for position in range(20)] == GOLDEN_PICKS
    assert [noise.choose(PROBS, position) for position in range(20)] == GOLDEN_CHOICES
    assert [noise.coin(0.5, position, attempt) for position in range(10) for attempt in (0, 1)] == GOLDEN_COINS


def mix(state: int) -> int:
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
    return state ^ (state >> 31)


@pytest.mark.parametrize("seed", [0, 1, 7, LAST_SEED])
@pytest.mark.parametrize("position", [0, 1, 4095, 2**31, 2**62])
def test_the_hash_is_splitmix64_in_whole_numbers(seed: int, position: int) -> None:
    golden = 0x9E3779B97F4A7C15
    key = mix(mix(seed + golden & MASK) ^ mix(position * golden & MASK))
    bits = [mix(key + (token + 1) * golden & MASK) for token in range(50)]
    expected = [-math.log(-math.log(((value >> 12) + 0.5) * 2.0**-52)) for value in bits]
    assert gumbel(SeededNoise(seed), position, 50).tolist() == pytest.approx(expected, rel=1e-12)


def test_a_tokens_noise_does_not_depend_on_how_many_there_are() -> None:
    noise = SeededNoise(3)
    for num in (1, 2, 7, 100):
        assert gumbel(noise, 5, num).tolist() == pytest.approx(gumbel(noise, 5, 1000)[:num].tolist(), rel=1e-15)


def test_two_objects_with_one_seed_agree_whatever_was_drawn_before() -> None:
    one, two = SeededNoise(9), SeededNoise(9)
    one.pick(np.zeros(5), 0)
    one.coin(0.5, 1, 0)
    assert (gumbel(one, 77, 20) == gumbel(two, 77, 20)).all()


@pytest.mark.parametrize("seed", [0, 1, 123456789, LAST_SEED])
@pytest.mark.parametrize("first", [0, 2**40, 2**62])
def test_noise_is_uniform_over_tokens_and_positions(seed: int, first: int) -> None:
    noise = SeededNoise(seed)
    values = np.array([uniform(noise, first + position, 100) for position in range(200)])
    assert np.isfinite(values).all()
    assert values.min() > 0
    assert values.max() < 1
    assert_uniform(values)


def test_neighbouring_positions_tokens_and_seeds_are_independent() -> None:
    noise = SeededNoise(0)
    values = np.array([uniform(noise, position, 200) for position in range(200)])
    assert_uncorrelated(values[:-1], values[1:])
    assert_uncorrelated(values[:, :-1], values[:, 1:])
    assert_uncorrelated(values[:-1, 1:], values[1:, :-1])
    for seed in (0, LAST_SEED - 1):
        one, two = (np.array([uniform(SeededNoise(s), p, 200) for p in range(100)]) for s in (seed, seed + 1))
        assert_uncorrelated(one, two)


def test_no_two_places_share_their_noise() -> None:
    """A thousand rows of noise from neighbouring seeds and positions hold no value twice."""
    rows = [gumbel(SeededNoise(seed), position, 50) for seed in range(32) for position in range(32)]
    assert len(set(np.concatenate(rows).tolist())) == 32 * 32 * 50


def test_picks_follow_the_probabilities_over_positions_and_over_seeds() -> None:
    draws = [
        [SeededNoise(1).pick(np.log(PROBS), position) for position in range(10_000)],
        [SeededNoise(seed).pick(np.log(PROBS), 0) for seed in range(10_000)],
        [SeededNoise(1).choose(PROBS, position) for position in range(10_000)],
    ]
    for drawn in draws:
        expected = PROBS * len(drawn)
        assert ((np.bincount(drawn) - expected) ** 2 / expected).sum() < chi2.isf(ALPHA, 3)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_a_coin_falls_with_its_probability(probability: float) -> None:
    noise, num = SeededNoise(5), 10_000
    heads = sum(noise.coin(probability, position, attempt) for position in range(num // 4) for attempt in range(4))
    assert abs(heads - num * probability) < norm.isf(ALPHA / 2) * math.sqrt(num * probability * (1 - probability))


def test_picks_choices_and_coins_at_one_place_are_independent() -> None:
    """Chi-square for independence of all pairs of lanes, and of coins of different attempts."""
    noise, half = SeededNoise(2), np.full(2, 0.5)
    num = 4000
    columns = np.array(
        [
            (
                noise.pick(np.log(half), position),
                noise.choose(half, position),
                noise.coin(0.5, position, 0),
                noise.coin(0.5, position, 1),
                noise.coin(0.5, position + 1, 0),
            )
            for position in range(num)
        ],
        int,
    ).T
    for a, b in itertools.combinations(columns, 2):
        counts = np.bincount(2 * a + b, minlength=4)
        assert ((counts - num / 4) ** 2 / (num / 4)).sum() < chi2.isf(ALPHA, 3)


def test_the_noise_of_drafts_differs_from_node_to_node_and_from_the_requests_own() -> None:
    noise = SeededNoise(8)

    def rows(node: int) -> npt.NDArray[np.float64]:
        return np.exp(-np.exp(-np.array([noise.draft_gumbel(position, node, 200) for position in range(100)])))

    own = np.array([uniform(noise, position, 200) for position in range(100)])
    nodes = [rows(node) for node in (0, 1, 2, 511)]
    for one, other in itertools.combinations([own, *nodes], 2):
        assert_uniform(one)
        assert_uncorrelated(one, other)
    assert not Greedy().draft_gumbel(3, 1, 5).any()


def test_certain_things_happen_and_impossible_ones_do_not() -> None:
    noise = SeededNoise(4)
    for position in range(200):
        assert noise.coin(1, position, 0)
        assert noise.coin(np.float64(1.7), position, 0)
        assert not noise.coin(0, position, 0)
        assert noise.choose(np.array([0.0, 1.0, 0.0]), position) == 1
        assert noise.pick(np.array([-np.inf, 0.0, -np.inf]), position) == 1


def test_greedy_takes_the_likeliest_and_the_lowest_id_on_a_tie() -> None:
    greedy = Greedy()
    assert greedy.pick(np.array([0.0, 2.0, 1.0, 2.0]), 0) == 1
    assert greedy.pick(np.array([-np.inf, -np.inf]), 3) == 0
    assert greedy.choose(np.array([0.4, 0.2, 0.4]), 9) == 0
    assert [each.tolist() for each in greedy.contenders(np.array([3.0, 5.0, 4.0]), 5, 1.5)] == [[1, 2], [5.0, 4.0]]
    assert [greedy.coin(value, 0, 0) for value in (0, 0.999, 1, 1.5)] == [False, False, True, True]


def test_a_request_gets_noise_only_where_it_samples() -> None:
    assert isinstance(noise_for(0, 3), Greedy)
    assert isinstance(noise_for(0.0, 3), Greedy)
    noise = noise_for(0.01, 3)
    assert isinstance(noise, SeededNoise)
    assert noise.seed == 3


def test_a_fresh_seed_is_a_seed_that_may_be_given() -> None:
    seeds = {fresh_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed <= LAST_SEED for seed in seeds)
