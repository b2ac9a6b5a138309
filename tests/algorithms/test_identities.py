"""Algorithms that are one another in disguise: the same samples, the same path. And the costs that papers state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import BIG, SEED, W1, X1, B, N, problem
from test_contract import MeteredSum, keys

from normstorm.algorithms import CATALOGUE, Algorithm
from normstorm.algorithms.estimators import Corrected, Momentum, draw_large_batch, large_batch_key
from normstorm.algorithms.geometries import Euclidean, Normalized, Sign
from normstorm.algorithms.matrices import ScaledCorrection
from normstorm.algorithms.schedules import Constant
from normstorm.problems.noise import fourier, noisy, sphere
from normstorm.problems.synthetic import DoubleWell
from normstorm.random import seed_words, step_key

STEPS, ALPHA, ETA = 20, 0.2, 0.05
CLOSE = {"rtol": 0, "atol": 1e-12}
BETA = 1 - ALPHA
PLAIN = {"alpha": ALPHA, "eta": ETA, "K": B}
FIRST = jax.jit(lambda problem, algorithm, x, samples: algorithm.first(problem, x, samples))
DRAW = jax.jit(lambda problem, algorithm, key: algorithm.draw(problem, key))
STEP = jax.jit(lambda problem, algorithm, state, samples, t: algorithm.step(problem, state, samples, t))


@jax.jit
def key(t: Any) -> jax.Array:
    return step_key(jnp.asarray(seed_words([SEED])[0]), t)


@jax.jit
def big(t: jax.Array) -> jax.Array:
    """The big batch of a step."""
    return draw_large_batch(problem(), large_batch_key(key(t)), BIG)


def follow(
    algorithm: Algorithm | Callable[[int], Algorithm],
    x1: np.ndarray = X1,
    draw: Callable[[int], Any] | None = None,
    asked: Any = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x_1 .. x_{T+1}, m_1 .. m_T and costs; the algorithm and the samples of every step may be given one by one."""
    asked = problem() if asked is None else asked
    at = algorithm if callable(algorithm) else lambda t: algorithm
    samples = draw or (lambda t: DRAW(asked, at(t), key(t)))
    state, cost = FIRST(asked, at(1), jnp.asarray(x1), samples(1))
    xs, ms, costs = [np.asarray(x1), state.x], [state.m], [int(cost)]
    for t in range(2, STEPS + 1):
        state, cost = STEP(asked, at(t), state, samples(t), jnp.int32(t))
        xs.append(state.x)
        ms.append(state.m)
        costs.append(int(cost))
    return np.array(xs), np.array(ms), np.array(costs)


def same(one: tuple[np.ndarray, ...], *others: tuple[np.ndarray, ...], **close: float) -> None:
    assert np.ptp(one[0], axis=0).max() > 0.1, "a path that does not move shows nothing"
    for other in others:
        for a, b in zip(one[:2], other[:2], strict=True):
            np.testing.assert_allclose(a, b, **(CLOSE | close))


def storm(alpha: float = ALPHA, eta: float = ETA, geometry: Any = None) -> Algorithm:
    """STORM's recursion with constant numbers."""
    return Algorithm(Corrected(B, B), geometry or Euclidean(), Constant(alpha, eta), "storm's recursion")


def test_1_normalized_storm_without_memory_is_normalised_sgd() -> None:
    forgetful = follow(CATALOGUE["normalized_storm"](alpha=1.0, eta=ETA, K=B))
    same(forgetful, follow(CATALOGUE["normalized_sgd"](eta=ETA, K=B)))
    same(forgetful, follow(CATALOGUE["momentum_nsgd"](alpha=1.0, eta=ETA, K=B)))


def test_2_hybrid_with_one_set_of_samples_is_storm_with_plain_steps() -> None:
    hybrid = CATALOGUE["hybrid_sarah_sgd"](**PLAIN, first_batch=B, same=True)

    @jax.jit
    def draw(t: jax.Array) -> jax.Array:
        return jnp.where(t == 1, draw_large_batch(problem(), large_batch_key(key(t)), B), problem().sample(key(t), B))

    found = follow(hybrid)
    same(found, follow(storm(), draw=draw))
    two = follow(CATALOGUE["hybrid_sarah_sgd"](**PLAIN, first_batch=B))
    assert np.abs(found[0] - two[0]).max() > 1e-3, "two sets of samples are another algorithm"


def test_3_generalised_signsgd_without_memory_is_the_sign_of_the_momentum_is_scion() -> None:
    sign = Algorithm(Momentum(B, True), Sign(), Constant(ALPHA, ETA), "sign of the momentum")
    generalised = CATALOGUE["generalized_signsgd"](**PLAIN, b2=0.0)
    same(follow(sign), follow(generalised), follow(CATALOGUE["scion"](**PLAIN, ball="sign")))


def test_4_muon_mvr_with_full_gain_is_limuon() -> None:
    """Up to 1e-10: the decomposition and the composition of a matrix of full rank round."""
    full = CATALOGUE["limuon"](**PLAIN, rank=min(W1.shape))
    mvr = follow(CATALOGUE["muon_mvr"](**PLAIN, gain=1.0), W1)
    same(mvr, follow(CATALOGUE["limuon"](**PLAIN), W1), follow(full, W1), atol=1e-10)
    low = follow(CATALOGUE["limuon"](**PLAIN, rank=1), W1)
    assert np.abs(mvr[0] - low[0]).max() > 1e-3, "a lower rank is another algorithm"


def test_5_mixed_clipping_without_momentum_is_clipped_sgd() -> None:
    mixed = CATALOGUE["mixed_clipping"](**PLAIN, gamma=0.08, nu=0.0)
    clipped = CATALOGUE["clipped_sgd"](eta=ETA, threshold=0.08 / ETA, K=B)
    one, other = follow(mixed), follow(clipped)
    np.testing.assert_allclose(one[0], other[0], **CLOSE)  # m is the momentum there and the gradient here
    lengths = np.linalg.norm(np.diff(other[0], axis=0), axis=1)
    assert lengths.min() < 0.079 and lengths.max() > 0.07999, "steps that are cut and steps that are not"


def test_6_page_that_always_restarts_is_mini_batch_sgd() -> None:
    page = follow(CATALOGUE["page"](eta=ETA, chance=1.0, S1=BIG, S2=B))
    sgd = follow(CATALOGUE["sgd"](eta=ETA, K=BIG), draw=big)
    same(page, sgd)
    assert page[2].tolist() == sgd[2].tolist()


def test_7_super_adam_without_scaling_is_storm_with_its_own_steps() -> None:
    """mu_t = k / (m + t)^{1/3}, step gamma mu_t, weight c mu_{t-1}^2, written out here."""
    gamma, k, m, c = 0.2, 1.0, 10.0, 2.0
    adam = CATALOGUE["super_adam"](gamma=gamma, k=k, m=m, c=c, scaling="identity", K=B)

    def mu(t: int) -> float:
        return k / (m + t) ** (1 / 3)

    same(follow(adam), follow(lambda t: storm(min(1.0, c * mu(t - 1) ** 2), gamma * mu(t))))


def test_8_mars_with_full_gain_is_storm_from_zero() -> None:
    """m_0 = 0 in MARS; with m_1 = g_1 the estimate at the same points is larger by beta^t g_1."""
    mars = follow(CATALOGUE["mars"](**PLAIN, gamma=1.0, clip=False, flavour="lion"))
    zero = Algorithm(ScaledCorrection(B, True, False, 1.0), Sign(), Constant(ALPHA, ETA), "storm from zero")
    same(mars, follow(zero))
    x, from_zero, _ = mars
    corrected = Corrected(B, B)
    g_1 = np.asarray(problem().grad(x[0], problem().sample(key(1), B)))
    m: Any = g_1

    @jax.jit
    def combined(m: Any, t: jax.Array, here: Any, there: Any) -> Any:
        grads, _, _ = corrected.sample_gradients(problem(), t, here, there, (), problem().sample(key(t), B))
        return corrected.update_estimate(m, grads, ALPHA)

    for t in range(2, STEPS + 1):
        m = combined(m, t, x[t - 1], x[t - 2])
        np.testing.assert_allclose(m - from_zero[t - 1], BETA**t * g_1, **CLOSE)
    assert np.abs(m - from_zero[-1]).max() > 1e-5, "not lost in rounding"


@jax.jit
def truths(asked: Any, xs: jax.Array) -> jax.Array:
    """grad F at points."""
    return jax.vmap(asked.full_grad)(xs)


@jax.jit
def noises(asked: Any, xs: jax.Array) -> jax.Array:
    """What the samples of step t add to the gradient at the t-th point."""
    samples = jax.vmap(lambda t: asked.sample(key(t), B))(jnp.arange(1, len(xs) + 1))
    return jax.vmap(asked.grad)(xs, samples) - truths(asked, xs)


@pytest.mark.parametrize(("noise", "free"), [(sphere(0.7, 0.0), True), (fourier(0.7, 3.0), False)])
def test_9_the_correction_is_free_of_noise_that_is_additive(noise: Any, free: bool) -> None:
    """f = F + <zeta, x>: samples tell the change of the gradient exactly. With Fourier noise they do not."""
    asked, x = noisy(DoubleWell(4), noise), jnp.asarray(X1)

    @jax.jit
    def gradients(t: jax.Array) -> Any:
        return Corrected(B, B).sample_gradients(asked, t, x, 0.9 * x, (), asked.sample(key(t), B))[0]

    here, there = truths(asked, jnp.stack([x, 0.9 * x]))
    for t in range(2, 12):
        grads = gradients(jnp.int32(t))
        left = float(jnp.abs(grads.g_sub - grads.g_prev - (here - there)).max())
        assert left < 1e-14 if free else left > 1e-3
        assert jnp.abs(grads.g - here).max() > 0.01, "the gradients themselves are noisy"


def test_9_then_storm_averages_the_noise_and_nothing_else() -> None:
    """m_t - grad F(x_t) = beta (m_{t-1} - grad F(x_{t-1})) + alpha zeta_t, whatever the steps are."""
    asked = noisy(DoubleWell(4), sphere(0.7, 0.0))
    x, m, _ = follow(storm(geometry=Normalized()), asked=asked)
    points = jnp.asarray(x[:-1])
    errors, zeta = m - truths(asked, points), np.asarray(noises(asked, points))
    average = zeta[0]
    for t in range(1, STEPS):
        average = BETA * average + ALPHA * zeta[t]
        np.testing.assert_allclose(errors[t], average, **CLOSE)


def test_shrinking_steps_that_do_not_shrink_yet_are_normalized_storm() -> None:
    plain = follow(CATALOGUE["normalized_storm"](**PLAIN))
    same(plain, follow(CATALOGUE["normalized_storm_anytime"](**PLAIN, shift=1e15)))
    same(plain, follow(CATALOGUE["clipped_storm"](**PLAIN, threshold=1e-12)))


def test_the_agnostic_schedule_is_the_anytime_one_without_a_shift() -> None:
    agnostic = follow(CATALOGUE["agnostic_storm"](**PLAIN))
    same(agnostic, follow(CATALOGUE["normalized_storm_anytime"](**PLAIN, shift=0.0)))


def test_clipped_storm_without_memory_is_clipped_sgd() -> None:
    """m/max(||m||, tau) has the coefficient eta/tau of a step below the threshold."""
    clipped = follow(CATALOGUE["clipped_storm"](alpha=1.0, eta=ETA, threshold=0.8, K=B))
    same(clipped, follow(CATALOGUE["clipped_sgd"](eta=ETA / 0.8, threshold=0.8, K=B)))


T, Q = 11, 4
RESTARTS = 3  # of steps 1 .. 11 with period 4: 1, 5, 9
SPIDER = {"S1": BIG, "S2": B, "q": Q}
STATED: dict[str, tuple[dict[str, Any], int]] = {  # what a paper counts for T steps
    "sgd": ({"eta": ETA, "K": B}, B * T),
    "averaged_sgd": ({"eta": ETA, "K": B}, B * T),
    "schedule_free_sgd": ({"eta": ETA, "K": B}, B * T),
    "clipped_sgd": ({"eta": ETA, "threshold": 1.0, "K": B}, B * T),
    "momentum_nsgd": (PLAIN, B * T),
    "nigt": (PLAIN, B * T),
    "generalized_signsgd": (PLAIN, B * T),
    "adagrad_norm": ({"eta": ETA, "b0": 1.0, "K": B}, B * T),
    "normalized_storm": ({"alpha": ALPHA, "eta": ETA, "K": 5, "k": 2}, 5 * T + 2 * (T - 1)),
    "normalized_storm_anytime": (
        {"alpha": ALPHA, "eta": ETA, "shift": 2.0, "K": 5, "k": 2},
        5 * T + 2 * (T - 1),
    ),
    "halving_storm": (PLAIN | {"gap": 1.0, "L0": 1.0}, B + 2 * B * (T - 1)),
    "clipped_storm": (PLAIN | {"threshold": 1.0}, B + 2 * B * (T - 1)),
    "measured_storm": ({"L0": 2.0, "longest": 1.0, "K": 5, "k": 2}, 5 * T + 2 * (T - 1)),
    "storm": ({"k": 0.1, "w": 0.1, "c": 1.0, "K": B}, B + 2 * B * (T - 1)),
    "storm_plus": ({"K": B}, B + 2 * B * (T - 1)),
    "meta_storm": ({"eta": ETA, "K": B}, B + 2 * B * (T - 1)),
    "super_adam": ({"gamma": 0.1, "k": 1.0, "m": 9.0, "c": 1.0, "K": B}, B + 2 * B * (T - 1)),
    "sign_storm": (PLAIN | {"first_batch": BIG}, BIG + 2 * B * (T - 1)),
    "mars": (PLAIN, B + 2 * B * (T - 1)),
    "hybrid_sarah_sgd": ({"alpha": ALPHA, "eta": ETA, "first_batch": BIG}, BIG + 3 * (T - 1)),
    "spider_2": (SPIDER | {"eps": 0.1, "L": 2.0}, RESTARTS * BIG + 2 * B * (T - RESTARTS)),
    "l0l1_spider": (SPIDER | {"eps": 0.1, "L0": 2.0, "L1": 1.0}, RESTARTS * BIG + 2 * B * (T - RESTARTS)),
    "sarah": ({"eta": ETA, "period": Q, "K": B}, RESTARTS * N + 2 * B * (T - RESTARTS)),
    "svrg": ({"eta": ETA, "period": Q, "K": B}, RESTARTS * N + 2 * B * T),
    "saga": ({"eta": ETA}, N + T),
    "beta_gd": ({"eta": ETA}, N * T),
    "page": ({"eta": ETA, "chance": 0.0, "S1": BIG, "S2": B}, BIG + 2 * B * (T - 1)),
}


def metered(algorithm: Algorithm, steps: int) -> int:
    """What is really asked, operation by operation."""
    meter = MeteredSum(problem())
    first, *later = keys(steps)
    with jax.disable_jit():
        state, _ = algorithm.first(meter, jnp.asarray(X1), algorithm.draw(meter, first))
        for t, key in enumerate(later, start=2):
            state, _ = algorithm.step(meter, state, algorithm.draw(meter, key), t)
    return int(meter.asked)


@pytest.mark.parametrize("name", STATED)
def test_costs_are_those_of_the_papers(name: str) -> None:
    """Of the formula; test_costs holds it to what the steps say, and test_contract that to what they ask."""
    parameters, stated = STATED[name]
    assert CATALOGUE[name](**parameters).cost(T, N) == stated


def test_costs_of_whole_periods() -> None:
    """SPIDER: S1 + 2 S2 (q - 1) a period. SVRG: n + 2 b m an epoch."""
    spider = CATALOGUE["spider_2"](**SPIDER, eps=0.1, L=2.0)
    svrg = CATALOGUE["svrg"](eta=ETA, period=Q, K=B)
    for periods in (1, 2):
        assert metered(spider, periods * Q) == periods * (BIG + 2 * B * (Q - 1)) == spider.cost(periods * Q)
        assert metered(svrg, periods * Q) == periods * (N + 2 * B * Q) == svrg.cost(periods * Q, N)
