"""Whether one side won by chance: the sign test, which asks nothing of how times are distributed.

In: wins and losses. Out: a probability. Knows nothing of what was compared.
"""

from __future__ import annotations

from math import comb


def sign_test(wins: int, losses: int) -> float:
    """Returns the two-sided p value: the chance that a fair coin, thrown wins + losses times, is at least as uneven.

    Ties are left out by the caller, as the test wants it (Dixon and Mood 1946). Exact, from the binomial tail.
    """
    throws = wins + losses
    tail = sum(comb(throws, heads) for heads in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / (1 << throws))
