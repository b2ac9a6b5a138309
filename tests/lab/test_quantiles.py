"""Quantiles and their intervals, against the binomial law written out and against brute force."""

import itertools
import math

import numpy as np
import pytest

from normstorm.lab.compare.quantiles import Estimate, estimate, rank, ranks


def tail(n: int, p: float, least: int) -> float:
    """P(binomial(n, p) >= least), exactly as far as floats go."""
    return sum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(least, n + 1))


@pytest.mark.parametrize("p", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("n", [1, 2, 5, 6, 8, 20, 73, 200])
def test_ranks_cover_and_no_narrower_ones_do(n: int, p: float) -> None:
    r, s = ranks(n, p)
    assert 0 <= r < s <= n + 1
    miss_low = 0 if r == 0 else 1 - tail(n, p, r)  # the quantile lies below the r-th value
    miss_high = 0 if s > n else tail(n, p, s)
    assert miss_low <= 0.025 and miss_high <= 0.025
    assert 1 - tail(n, p, r + 1) > 0.025, "one rank higher would not cover"
    assert s == 1 or tail(n, p, s - 1) > 0.025, "one rank lower would not cover"


def test_coverage_by_brute_force() -> None:
    """All 2^n samples of a fair coin for every value: how often the median of the law lies in the interval."""
    n = 12
    r, s = ranks(n, 0.5)
    held = sum(r <= sum(below) < s for below in itertools.product((0, 1), repeat=n)) / 2**n
    assert held >= 0.95
    narrower = sum(r + 1 <= sum(below) < s - 1 for below in itertools.product((0, 1), repeat=n)) / 2**n
    assert narrower < 0.95


@pytest.mark.parametrize(("n", "p", "expected"), [(32, 0.5, 16), (5, 0.5, 3), (1, 0.95, 1), (20, 0.95, 19)])
def test_rank(n: int, p: float, expected: int) -> None:
    assert rank(n, p) == expected


def test_infinite_values_are_values() -> None:
    values = [3.0, np.inf, 1.0, np.inf, 2.0, 4.0, 5.0, 6.0]
    assert estimate(values, 0.5) == Estimate(4.0, 1.0, math.inf)
    assert estimate([np.inf] * 8, 0.5) == Estimate(math.inf, math.inf, math.inf)
    assert estimate([1.0, np.inf, np.inf], 0.5).value == math.inf


def test_few_values_bound_nothing() -> None:
    assert estimate([2.0], 0.5) == Estimate(2.0, 0.0, math.inf)
    assert estimate([1.0, 2.0, 3.0, 4.0, 5.0], 0.5) == Estimate(3.0, 0.0, math.inf)
    assert estimate([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.5) == Estimate(3.0, 1.0, 6.0), "2 / 2^6 < 5 %"
    assert estimate(range(1, 33), 0.95).high == math.inf


def test_apart() -> None:
    assert Estimate(1, 0.5, 2).apart(Estimate(3, 2.1, 4))
    assert not Estimate(1, 0.5, 2).apart(Estimate(3, 2, 4)) and not Estimate(3, 2.1, 4).apart(Estimate(1, 0.5, 2))
    assert not Estimate(1, 0, math.inf).apart(Estimate(math.inf, math.inf, math.inf))
