"""What a run reports, against a plain Python loop over the same iterates."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import Toy

from normstorm.algorithms import normalized_storm
from normstorm.algorithms.spider import spider_2
from normstorm.engine import run
from normstorm.engine.recording import choose_iterates, record_schedule
from normstorm.engine.results import Trace
from normstorm.problems import get
from normstorm.random import seed_words, step_key

D, STEPS = 10, 200
STORM = normalized_storm(alpha=0.1, eta=0.05)
X1 = np.linspace(-1, 2, D)


@pytest.fixture(scope="module")
def result() -> Trace:
    with jax.enable_x64(True):
        return run(Toy(D), STORM, X1, STEPS, [5, 6, 2**63 + 1], candidates=STEPS)


@pytest.fixture(scope="module")
def weighted() -> Trace:
    spider = spider_2(eps=0.05, L=1.0, S1=40, S2=3, q=7)
    with jax.enable_x64(True):
        return run(Toy(D), spider, X1, STEPS, [5, 6, 2**63 + 1], candidates=STEPS, records=10 * STEPS)


def gradient(x: np.ndarray) -> np.ndarray:
    return x + x**3


def estimates(xs: np.ndarray, seed: int) -> np.ndarray:
    """m_1..m_T from the iterates and the samples."""
    words, problem, ms = jnp.asarray(seed_words([seed])[0]), Toy(D), []
    draw = jax.jit(jax.vmap(lambda t: problem.sample(step_key(words, t), 1)))
    for t, z in enumerate(np.asarray(draw(jnp.arange(1, STEPS + 1)))):
        at = [(1 + 0.3 * z[:, :1]) * gradient(x) + z[:, 1:] for x in (xs[t], xs[max(t - 1, 0)])]
        new = at[0].mean(axis=0)
        ms.append(0.1 * new + 0.9 * (ms[-1] + at[0][0] - at[1][0]) if ms else new)
    return np.array(ms)


@pytest.mark.parametrize("i", range(3))
def test_mean_minimum_records_and_picks_equal_a_plain_loop(result: Trace, i: int) -> None:
    xs = result.candidates.x[i]
    assert (result.candidates.step[i] == np.arange(1, STEPS + 1)).all()
    np.testing.assert_array_equal(xs[0], X1)
    norms = np.linalg.norm(gradient(xs), axis=1)
    ms = estimates(xs, int(result.seeds[i]))
    at = result.record_steps - 1
    assert at[0] == 0
    assert at[-1] == STEPS - 1
    assert len(at) > 40
    np.testing.assert_allclose(result.mean_grad_norm[i], norms.mean(), rtol=1e-13)
    np.testing.assert_allclose(result.mean_estimate_norm[i], np.linalg.norm(ms, axis=1).mean(), rtol=1e-11)
    np.testing.assert_allclose(result.min_grad_norm[i], norms.min(), rtol=1e-13)
    np.testing.assert_allclose(result.grad_norm[i], norms[at], rtol=1e-13)
    np.testing.assert_allclose(result.value[i], (xs**2 / 2 + xs**4 / 4).sum(axis=1)[at], rtol=1e-13)
    np.testing.assert_allclose(result.error[i], np.linalg.norm(ms - gradient(xs), axis=1)[at], rtol=1e-9)
    np.testing.assert_array_equal(result.record_cost[i], 1 + 2 * at)
    assert result.mean_by_cost[i] == pytest.approx((2 * norms.sum() - norms[0]) / (2 * STEPS - 1), rel=1e-13)
    smallest = int(np.argmin(np.linalg.norm(ms, axis=1)))
    assert result.smallest.step[i] == smallest + 1
    np.testing.assert_array_equal(result.smallest.x[i], xs[smallest])
    np.testing.assert_array_equal(result.uniform.x[i], xs[result.uniform.step[i] - 1])
    assert np.linalg.norm(result.last[i] - xs[-1]) == pytest.approx(0.05, rel=1e-12)


def test_an_iterate_counts_as_often_as_its_step_asks(weighted: Trace) -> None:
    """Restarts of 40 samples every seventh step, 2 x 3 in between, and a sum over one sample gradient at a time."""
    assert (weighted.record_steps == np.arange(1, STEPS + 1)).all()
    for i in range(3):
        norms = np.linalg.norm(gradient(weighted.candidates.x[i]), axis=1)
        each = [norm for t, norm in enumerate(norms) for _ in range(40 if t % 7 == 0 else 6)]
        ends = weighted.record_cost[i]
        assert len(each) == ends[-1] == weighted.cost[i]
        slow = [np.mean(each[:end]) for end in ends]
        np.testing.assert_allclose(weighted.running_mean_by_cost[i], slow, rtol=1e-12)
        assert weighted.mean_by_cost[i] == pytest.approx(slow[-1], rel=1e-12)
        assert weighted.mean_grad_norm[i] == pytest.approx(norms.mean(), rel=1e-12)
        assert abs(slow[-1] / norms.mean() - 1) > 1e-3, "the two means are told apart"


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("candidates", [1, 8, STEPS - 1, STEPS + 5])
def test_candidates_are_the_iterates_of_their_steps(candidates: int, chunk: int | None, result: Trace) -> None:
    few = run(Toy(D), STORM, X1, STEPS, [5, 6, 2**63 + 1], candidates=candidates, progress_steps=chunk)
    assert few.candidates.step.shape == (3, min(candidates, STEPS))
    for i in range(3):
        np.testing.assert_allclose(few.candidates.x[i], result.candidates.x[i, few.candidates.step[i] - 1], atol=1e-13)
        np.testing.assert_allclose(few.uniform.x[i], result.candidates.x[i, few.uniform.step[i] - 1], atol=1e-13)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(("steps", "strata"), [(10, 1), (10, 4), (10, 10), (7, 3)])
def test_the_uniform_pick_is_uniform(steps: int, strata: int) -> None:
    """Chi-square over 20,000 seeds; its 1 - 1e-6 quantile is below 45 for at most 9 degrees of freedom.

    Over these cases together a correct picker would fail with probability below 1e-5 for a fresh set of seeds.
    """
    seeds = list(range(20_000))
    picks, chosen = choose_iterates(seeds, record_schedule(steps, 1, strata).bounds)
    bounds = record_schedule(steps, 1, strata).bounds
    uniform = picks[np.arange(len(seeds)), chosen]
    assert chi_square(np.bincount(uniform, minlength=steps + 1)[1:], np.full(steps, len(seeds) / steps)) < 45
    for r in range(strata):
        low, high = bounds[r] + 1, bounds[r + 1]
        counts = np.bincount(picks[:, r] - low, minlength=high - low + 1)
        assert counts.size == high - low + 1
        assert chi_square(counts, np.full(counts.size, len(seeds) / counts.size)) < 45


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cliff:
    """Beyond an edge, which some seeds reach, the gradient is not a number."""

    toy: Toy
    edge: float
    name = "cliff"

    def broken(self, x: jax.Array) -> jax.Array:
        return jnp.where(x[0] > self.edge, jnp.nan, 1.0)

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return self.toy.sample(key, n)

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        return self.broken(x) * self.toy.grad(x, batch)

    def full_grad(self, x: jax.Array) -> jax.Array:
        return self.broken(x) * self.toy.full_grad(x)

    def value(self, x: jax.Array) -> jax.Array:
        return self.toy.value(x)


@pytest.mark.parametrize("average", [True, False])
def test_diverged_seeds_are_reported_and_stay(average: bool) -> None:
    n = 40
    result = run(Cliff(Toy(D), 0.25), STORM, X1 * 0, 300, n, average=average)
    diverged = result.status == "diverged"
    assert 3 < diverged.sum() < n - 3
    assert result.last.shape == (n, D)
    assert np.isfinite(result.last).all()
    assert np.isnan(result.grad_norm[diverged, -1]).all()
    assert np.isfinite(result.grad_norm[~diverged]).all()
    assert (result.cost[~diverged] == 1 + 2 * 299).all()
    assert (result.cost[diverged] == 1 + 2 * (result.diverged_at[diverged] - 1)).all()
    assert np.isinf(result.mean_grad_norm[diverged]).all() and np.isinf(result.mean_estimate_norm[diverged]).all()
    assert np.isfinite(result.mean_estimate_norm[~diverged]).all()
    if average:
        assert np.isfinite(result.mean_grad_norm[~diverged]).all()
        assert np.isfinite(result.min_grad_norm).all()
    else:
        assert np.isnan(result.mean_grad_norm[~diverged]).all() and np.isnan(result.mean_by_cost[~diverged]).all()
    first = [int(np.flatnonzero(diverged)[0])]
    alone = run(Cliff(Toy(D), 0.25), STORM, X1 * 0, 300, first, average=average, width=result.width)
    np.testing.assert_array_equal(alone.last[0], result.last[diverged][0])
    assert alone.diverged_at[0] == result.diverged_at[diverged][0]


def test_a_start_that_is_not_finite_is_refused_and_one_that_overflows_diverges_at_once() -> None:
    with pytest.raises(ValueError, match=r"^run: x0 must be finite numbers; got nan in x0, row 0 \(in "):
        run(Toy(D), STORM, X1 * np.nan, STEPS, 2)
    result = run(get("quartic", dim=D), STORM, X1 * 1e200, STEPS, 2)
    assert (result.diverged_at == 1).all()
    assert (result.cost == 1).all()


def test_single_precision_keeps_the_mean() -> None:
    """At a fixed point every term is the same; a plain float32 sum of 200,000 of them is off by more than 1e-4."""
    problem = Toy(D, s0=0.0, s1=0.0, dtype="float32")
    still = normalized_storm(alpha=1.0, eta=1e-30)
    x = np.full(D, 0.1, np.float32)
    result = run(problem, still, x, 200_000, 1)
    exact = np.linalg.norm(x.astype(float) + x.astype(float) ** 3)
    assert result.mean_grad_norm[0] == pytest.approx(exact, rel=1e-6)
    assert result.mean_estimate_norm[0] == pytest.approx(exact, rel=1e-6)
    plain = np.cumsum(np.full(200_000, exact, np.float32))[-1] / 200_000
    assert abs(plain - exact) / exact > 1e-4


def test_no_exact_gradient_no_value() -> None:
    class Bare:
        name = "bare"
        sample, grad = Toy(3).sample, Toy(3).grad

    result = run(Bare(), STORM, np.ones(3), 20, 2)
    assert np.isnan(result.mean_grad_norm).all()
    assert np.isnan(result.grad_norm).all()
    assert np.isnan(result.value).all()
    assert (result.cost == 1 + 2 * 19).all()
