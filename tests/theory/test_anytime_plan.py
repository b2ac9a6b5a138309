"""Plans without a horizon, and the bounds of steps that know no constant and of clipped steps."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from benchmarks.lab.anytime_attack import draw, estimate, setting
from normstorm.theory import (
    AnytimePlan,
    Constants,
    agnostic_bound,
    agnostic_coefficients,
    agnostic_guarantee,
    bound,
    clipped_bound,
    plan,
)
from normstorm.theory.schedules.shrinking import Shrinking

PLAIN = Constants(1, 0, 1, 0, 1, 1)
GENERAL = Constants(1, 1, 1, 0.5, 1, 1)


@pytest.fixture(scope="module")
def found() -> AnytimePlan:
    return plan(PLAIN, horizon=10**7, anytime=True)


def test_it_is_not_far_from_the_best_plan_of_every_horizon(found):
    for T in (10**3, 10**5, 10**7):
        assert found.bound_at(T) <= 2.1 * plan(PLAIN, horizon=T).bound
    assert found.shortest == 1000 and found.longest == found.horizon == 10**7
    assert found.milestones == (10**3, 10**4, 10**5, 10**6, 10**7)


def test_it_says_what_it_is(found):
    again = Shrinking(found.eta, found.alpha, found.shift, found.free).bounds(PLAIN, 0.01, [10**7]).value[0]
    assert found.bound == found.bound_at(10**7) == pytest.approx(again, rel=1e-9)
    assert sum(term.value for term in found.terms) == pytest.approx(found.bound, rel=1e-6)
    assert "at every t at once" in found.guarantee and "0.04433 at t = 10000000" in found.guarantee
    text = found.explain()
    assert found.guarantee in text and all(term.name in text for term in found.terms)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["rule"] == "anytime" and [row["t"] for row in data["bounds"]] == list(found.milestones)
    assert data["bounds"][0]["sample_gradients"] == 1999 and data["bounds"][-1]["bound"] == found.bound
    assert found.notes == () and found.sample_gradients == 2 * 10**7 - 1


def test_weights_are_those_of_the_average(found):
    t = np.arange(1, 101)
    steps = (t + found.shift) ** (-2 / 3)
    np.testing.assert_allclose(found.weights(100), steps / steps.sum(), rtol=1e-9)
    general = AnytimePlan(GENERAL, 10, 100, 100, 0.3, 0.02, 5.0, 4, 2, 0.9, 8.0, 1.0, ())
    weights = general.weights(50)
    assert weights.sum() == pytest.approx(1) and np.all(weights >= 0)
    assert "close to eta_s" in general.guarantee


def test_many_times_at_once(found):
    times = np.array([[5, 10**6], [3, 5]])
    assert found.bound_at(times) == pytest.approx(np.vectorize(found.bound_at)(times), rel=1e-5)
    for t in (0, 1.5, True, 10**18 + 1, []):
        with pytest.raises(ValueError, match=r"^bound_at: t must be an integer in \[1, 1e\+18\], or several; got t="):
            found.bound_at(t)


def test_a_target_is_reached_for_the_first_time():
    found = plan(PLAIN, target=0.5, batch=1, anytime=True, confidence=0.9)
    assert found.bound <= 0.5 < found.bound_at(found.horizon - 1)
    assert found.batch == found.sub_batch == 1 and found.shortest < found.horizon < found.longest


def test_other_units_and_batches():
    found = plan(GENERAL, horizon=10**4, batch=4, sub_batch=2, anytime=True)
    other = plan(GENERAL.scaled(length=4.0, value=0.5), horizon=10**4, batch=4, sub_batch=2, anytime=True)
    assert (found.batch, found.sub_batch, found.shift) == (4, 2, other.shift)
    assert other.bound == pytest.approx(found.bound * 0.5 / 4, rel=1e-9)
    assert other.eta == pytest.approx(found.eta * 4, rel=1e-9)


def test_without_noise_it_plans_too():
    found = plan(Constants(1, 0.5, 0, 0, 2), horizon=1000, anytime=True)
    assert found.bound <= 2.1 * plan(Constants(1, 0.5, 0, 0, 2), horizon=1000).bound


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ({"rule": "paper"}, "rule must be 'sharp' with anytime=True; got rule='paper'"),
        ({"certificate": "ville"}, "certificate must be left out with anytime=True; got certificate='ville'"),
        (
            {"confidence": None},
            "confidence must be a number in (0, 1) with anytime=True, since its bound is in high probability; "
            "got confidence=None",
        ),
        ({"anytime": 1}, "anytime must be True or False; got anytime=1"),
    ],
)
def test_refusals(question, sentence):
    with pytest.raises(ValueError) as error:
        plan(PLAIN, **({"horizon": 10, "anytime": True} | question))
    assert str(error.value) == f"plan: {sentence}"


@settings(max_examples=25)
@given(st.floats(0.01, 3), st.floats(0.05, 0.5), st.sampled_from([1, 10, 10**3, 10**6]), st.floats(0.001, 0.3))
def test_the_agnostic_bound_is_above_the_certificate_that_it_simplifies(eta, alpha, T, delta):
    """At its lam, 1/lam = eta (sigma0 + 2 w L0) sqrt(3.602/(2 log(1/delta)))."""
    c = Constants(2, 0, 0.7, 0, 3)
    scale = eta * (c.sigma0 + 2 * eta / alpha * c.L0)
    lam = math.sqrt(2 * math.log(1 / delta) / 3.602) / scale
    sharp = Shrinking(eta, alpha, 0.0, lam).bounds(c, delta, [T]).value[0]
    assert agnostic_bound(c, eta=eta, alpha=alpha, T=T, delta=delta) >= sharp * (1 - 1e-9)


def test_the_agnostic_bound_by_hand():
    """The statement of the page, term by term."""
    eta, alpha, T, delta, c = 0.2, 0.25, 1000, 0.05, Constants(3, 0, 0.5, 0, 2)
    w, ell = eta / alpha, math.log(1 / delta)
    level = c.sigma0 + w * c.L0
    total = c.gap + 1.81 * eta**2 * c.L0 + 2 * w * c.sigma0
    total += (2.46 * w * math.sqrt(alpha) + 1.64 * eta * math.sqrt(alpha) * (1 + math.log(T))) * level
    total += 5.37 * math.sqrt(ell) * eta * (c.sigma0 + 2 * w * c.L0)
    expected = total / (3 * eta * ((T + 1) ** (1 / 3) - 1))
    assert agnostic_bound(c, eta=eta, alpha=alpha, T=T, delta=delta) == pytest.approx(expected, rel=1e-9)
    found = agnostic_coefficients(eta=eta, alpha=alpha, T=T, delta=delta)
    assert found["gap"] * 2 + found["L0"] * 3 + found["sigma0"] * 0.5 == pytest.approx(expected, rel=1e-9)
    said = agnostic_guarantee(eta=eta, alpha=alpha, T=T, delta=delta)
    assert "0.95" in said and " gap + " in said and " L0 + " in said and " sigma0, if" in said
    with pytest.raises(ValueError, match="constants must be such that L1 = sigma1 = 0"):
        agnostic_bound(GENERAL, eta=eta, alpha=alpha, T=T, delta=delta)
    with pytest.raises(ValueError, match=r"alpha must be a number in \(0, 1/2\]; got alpha=0.6"):
        agnostic_coefficients(eta=1, alpha=0.6, T=1, delta=0.1)


def clipped_oracle(c, T, alpha, eta, tau, K, k, delta, lam):
    """The page's fixed point, iterated from below in many digits; P and Q as `adaptive` has them."""
    mp.dps = 40
    L0, L1, s0, s1, gap, alpha, eta, tau, lam = map(mpf, (c.L0, c.L1, c.sigma0, c.sigma1, c.gap, alpha, eta, tau, lam))
    g1, beta = mpf(c.first_gradient), 1 - alpha
    nu, q = mp.sqrt(1 - beta**2), mp.sqrt(beta * (2 + beta) / (1 - beta**2))

    def v(z, n):
        return mp.sqrt(beta**2 * z**2 / k + 2 * beta * alpha * z * n / K + alpha**2 * n**2 / K)

    B0, B1, a0, a1 = v(eta * L0, s0), v(eta * L1, s1), v(2 * eta * L0, s0), v(2 * eta * L1, s1)

    def first(g):
        n, rho = s0 + s1 * g, q * (B0 + B1 * g)
        one, mean = mp.sqrt(n**2 + rho**2) - rho, mp.sqrt(n**2 / K + rho**2) - rho
        return [x + q * B1 * g / 2 for x in (one, mean + lam * n**2 / (2 * K), mean + lam * one**2 / 8)]

    J = min(max(a, b) for a, b in zip(first(mpf(0)), first(g1), strict=True))
    P = (T - 1) * alpha * B0 / nu + q * B0 * (1 - mp.sqrt(1 - alpha**2)) + J
    P += q * B1 * eta * (T - 1) * L0 / 2 + lam / 2 * (T - 1) * a0**2 - mp.log(mpf(delta)) / lam
    Q0 = alpha * B1 / nu + q * B1 * eta * L1 / 2 + q * B1 * max(0, 0.5 - mp.sqrt(1 - alpha**2)) + lam * a0 * a1

    def Q(Delta):
        G = L1 * Delta + mp.sqrt(L1**2 * Delta**2 + 2 * L0 * Delta)
        return (Q0 + lam / 2 * a1**2 * G) / alpha

    Delta = gap
    for _ in range(300):
        Delta = gap + eta**2 * T * L0 / 2 + 3 * eta * (P / alpha + Q(Delta) * T * tau / 4)
    A = 1 - eta * L1 / 2 - 3 * Q(Delta)
    x = Delta / (A * eta * T)
    return mp.inf if A <= 0 else (x + tau / 4 if x >= tau / 4 else mp.sqrt(tau * x))


@pytest.mark.parametrize("c", [PLAIN, GENERAL, Constants(10, 2, 0.1, 0.1, 5)])
@pytest.mark.parametrize("tau", [1e-3, 0.05, 20.0])
def test_the_clipped_bound_is_the_page(c, tau):
    for T, alpha, eta, K, k, lam in ((10**5, 0.003, 1e-3, 1, 1, 0.2), (2000, 0.2, 4e-3, 8, 3, 1.0)):
        expected = clipped_oracle(c, T, alpha, eta, tau, K, k, 0.05, lam)
        value = clipped_bound(c, T=T, alpha=alpha, eta=eta, threshold=tau, K=K, k=k, delta=0.05, lam=lam)
        best = clipped_bound(c, T=T, alpha=alpha, eta=eta, threshold=tau, K=K, k=k, delta=0.05)
        assert expected <= value <= expected * (1 + mpf("1e-4")) or value == expected == math.inf
        assert best <= value


def test_clipping_almost_nothing_costs_half_as_much_again():
    """The error counts thrice in place of twice; without noise a vanishing threshold costs nothing."""
    found = plan(PLAIN, horizon=10**4, certificate="adaptive")
    value = clipped_bound(PLAIN, T=10**4, alpha=found.alpha, eta=found.eta, threshold=1e-9, delta=0.01)
    assert found.bound < value < 1.5 * found.bound
    quiet = Constants(1, 1, 0, 0, 1)
    expected = float(bound("adaptive", quiet, T=100, alpha=1.0, eta=0.05, delta=0.1))
    value = clipped_bound(quiet, T=100, alpha=1.0, eta=0.05, threshold=1e-9, delta=0.1)
    assert value == pytest.approx(expected, rel=1e-6)
    assert clipped_bound(GENERAL, T=100, alpha=0.1, eta=1.5, threshold=1, delta=0.1) == math.inf


@pytest.mark.parametrize("seed", range(6))
def test_clipped_runs_stay_below_their_bound(seed):
    """Surely the inequality of the page, and with probability 0.9 the bound: 200 runs, where none came near it."""
    s = setting(seed + 20)
    c, rng, runs, T, tau = s.constants, np.random.default_rng(seed), 200, 60, 0.4
    eta, alpha = 0.5 * s.alpha * s.w, np.full(runs, s.alpha)
    x = np.zeros((runs, 3))
    x[:, 0] = s.radius
    old, left, right, mean = x, np.zeros(runs), s.value(x), np.zeros(runs)
    m = np.zeros_like(x)
    for t in range(T):
        m = estimate(s, m, x, old, draw(rng, s, runs), np.ones(runs) if t == 0 else alpha)
        size, g = np.linalg.norm(m, axis=-1), np.linalg.norm(s.grad(x), axis=-1)
        u = m / np.maximum(size, tau)[:, None]
        left += eta * (1 - eta * c.L1 / 2) * np.minimum(g, g * g / tau)
        right += eta**2 * c.L0 / 2 * np.sum(u * u, axis=-1) + 3 * eta * np.linalg.norm(m - s.grad(x), axis=-1)
        old, x = x, x - eta * u
        mean += g / T
        assert np.all(s.value(x) + left <= right * (1 + 1e-9))
    value = clipped_bound(c, T=T, alpha=s.alpha, eta=eta, threshold=tau, K=s.K, k=s.k, delta=0.1)
    assert np.all(mean <= value)


def test_a_larger_threshold_costs_more():
    known = {"T": 10**4, "alpha": 0.02, "eta": 1e-3, "delta": 0.1}
    values = [clipped_bound(GENERAL, **known, threshold=tau) for tau in (0.01, 0.1, 1, 10)]
    assert values == sorted(values) and values[0] < values[-1]
