"""The paper's two prescriptions against sixty digits, and the places where they are easily misread."""

import math

import numpy as np
import oracle
import pytest

from normstorm.theory import Constants
from normstorm.theory.rules import expectation_batch, paper_expectation, paper_high_probability

CLOSE = 1e-12
UNIT = Constants(1, 0, 1, 0, 1, 1)


def some_constants(rng: np.random.Generator, zeros: float = 0.2) -> Constants:
    """Each of the six vanishes now and then; the first gradient may be unknown or above its proven bound."""

    def number(low: float, high: float) -> float:
        return 0.0 if rng.random() < zeros else float(10 ** rng.uniform(low, high))

    L0, L1 = number(-5, 5), number(-5, 3)
    L0 = 1.0 if L0 == L1 == 0 else L0
    g1 = None if rng.random() < 0.3 else number(-4, 4)
    return Constants(L0, L1, number(-5, 4), number(-5, 2), number(-4, 4), g1)


def some_horizon(rng: np.random.Generator) -> int:
    return int(rng.choice([1, 2, 3, int(10 ** rng.uniform(0, 15)), 10**15]))


def assert_close(found, exact, case):
    for value, truth in zip(found, exact, strict=True):
        assert value == truth or abs(oracle.mpf(value) / truth - 1) < CLOSE, (case, value, float(truth))


def test_high_probability_agrees_with_the_oracle():
    rng = np.random.default_rng(1)
    for _ in range(600):
        c, T, delta = some_constants(rng), some_horizon(rng), float(10 ** rng.uniform(-12, -0.01))
        exact = oracle.paper_high_probability_rule(c, T, delta)
        assert_close(paper_high_probability(c, T, delta), exact, (c, T, delta))


def test_expectation_agrees_with_the_oracle():
    rng = np.random.default_rng(2)
    for _ in range(600):
        c, T = some_constants(rng), some_horizon(rng)
        K = expectation_batch(c.sigma1) + int(rng.choice([0, 1, 1000]))
        k = int(rng.choice([1, K, rng.integers(1, K + 1)]))
        exact = oracle.paper_expectation_rule(c, T, K, k)
        assert_close(paper_expectation(c, T, K, k), exact, (c, T, K, k))


def test_the_logarithm_is_that_of_4T_over_delta():
    alpha, eta = paper_high_probability(UNIT, 1000, 0.01)
    log_term = math.log(4 * 1000 / 0.01)
    assert math.isclose(alpha, (1000 * math.sqrt(log_term)) ** (-2 / 3), rel_tol=CLOSE)
    assert math.isclose(eta, math.sqrt(math.sqrt(alpha) / (1000 * math.sqrt(log_term))), rel_tol=CLOSE)
    slip = (1000 * math.sqrt(math.log(1000 / 0.01))) ** (-2 / 3)
    assert abs(alpha / slip - 1) > 0.02


def test_each_term_of_the_step_size_binds_somewhere():
    """One set of constants for each of the four terms of the minimum, worked out by hand."""
    T, delta = 10_000, 0.01
    log_term = math.log(4 * T / delta)
    cases = {
        Constants(1, 0, 1, 0, 1, 1): lambda a: math.sqrt(math.sqrt(a) / (T * math.sqrt(log_term))),
        Constants(1, 0, 0, 50, 1, 1): lambda a: 1 / (50 * T * math.sqrt(a * log_term)),
        Constants(0, 1, 1, 5, 1, 1): lambda a: 1 / (64 * 5 * T * math.sqrt(a * log_term)),
        Constants(0, 2, 1, 0, 1, 1): lambda a: a**0.25 / (16 * math.sqrt(2 * T) * log_term**0.25),
    }
    for c, term in cases.items():
        alpha, eta = paper_high_probability(c, T, delta)
        assert 0 < alpha < 1
        assert math.isclose(eta, term(alpha), rel_tol=CLOSE), c


@pytest.mark.parametrize("L0, L1", [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_without_noise_there_is_no_momentum(L0, L1):
    c = Constants(L0, L1, 0, 0, 1, 1)
    assert paper_high_probability(c, 10**6, 0.01).alpha == 1.0
    assert paper_expectation(c, 10**6, 1, 1).alpha == 1.0


def test_vanishing_constants_drop_terms():
    T, delta = 10**6, 0.01
    bent = paper_high_probability(Constants(0, 1, 1, 0.1, 1, 1), T, delta)
    plain = paper_high_probability(Constants(1, 0, 1, 0.1, 1, 1), T, delta)
    for pair in (bent, plain):
        assert 0 < pair.alpha < 1 and 0 < pair.eta < math.inf
    assert paper_expectation(Constants(0, 1, 1, 0, 1, 1), T, 1, 1).eta < 1 / 8
    tiny = paper_high_probability(Constants(1, 0, 1, 1e-30, 1, 1), T, delta)
    assert tiny == paper_high_probability(UNIT, T, delta)


def test_expectation_without_sigma0_has_no_momentum_although_there_is_noise():
    c = Constants(1, 0.5, 0, 0.1, 1, 1)
    alpha, eta = paper_expectation(c, 1000, 4, 2)
    assert alpha == 1.0
    assert math.isclose(eta, min(math.sqrt(1 / 1000), 1 / (2 * (4 + 1) * 0.5)), rel_tol=CLOSE)
    assert paper_high_probability(c, 1000, 0.01).alpha < 1.0


def test_the_first_gradient_is_used_as_given():
    """Above its proven bound it is not cut, unlike in the certificates; unknown, it is that bound."""
    noisy = {"L0": 1, "L1": 0, "sigma0": 0.1, "sigma1": 10, "gap": 1e-3}
    cut = Constants(**noisy).first_gradient
    large = paper_high_probability(Constants(**noisy, grad_norm=1e6 * cut), 10**6, 0.01)
    known = paper_high_probability(Constants(**noisy, grad_norm=cut), 10**6, 0.01)
    assert large.alpha > 10 * known.alpha
    assert known == paper_high_probability(Constants(**noisy), 10**6, 0.01)


@pytest.mark.parametrize(
    "sigma1, needed", [(0.0, 1), (0.1, 1), (0.125, 1), (0.126, 2), (0.5, 16), (1.0, 64), (2.0, 256)]
)
def test_a_batch_that_is_too_small_is_refused_with_the_number_needed(sigma1, needed):
    c = Constants(1, 0, 1, sigma1, 1, 1)
    assert expectation_batch(sigma1) == needed
    assert paper_expectation(c, 100, needed, 1).alpha > 0
    if needed > 1:
        with pytest.raises(ValueError) as refusal:
            paper_expectation(c, 100, needed - 1, 1)
        assert str(refusal.value) == (
            "paper_expectation: batch must be an integer >= max(ceil(64 sigma1^2), 1) = "
            f"{needed}; got batch={needed - 1}"
        )


@pytest.mark.parametrize("T", [1, 2, 10, 10**15])
def test_alpha_stays_a_weight(T):
    rng = np.random.default_rng(3)
    for _ in range(50):
        c = some_constants(rng, zeros=0.4)
        for pair in (paper_high_probability(c, T, 0.5), paper_expectation(c, T, expectation_batch(c.sigma1), 1)):
            assert 0 < pair.alpha <= 1 and pair.eta >= 0
