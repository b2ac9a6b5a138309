"""The recursion: against a transcription of the paper, and in the cases where it must become something simpler."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import Walk, walked
from toy import Metered, Toy
from transcription import algorithm_1

from normstorm.algorithms import CATALOGUE, Algorithm, from_plan, momentum_nsgd, normalized_storm
from normstorm.algorithms.estimators import Corrected, GradientSample, Momentum
from normstorm.engine import run
from normstorm.engine.results import Trace
from normstorm.random import seed_words, step_key

D, STEPS, SEED = 10, 200, 7
PAIRS = [(1, 1), (8, 8), (8, 3), (5, 1)]
ENGINE = [(1, 1), (8, 3)]


def batches(problem: Any, K: int, seed: int = SEED, steps: int = STEPS) -> list[np.ndarray]:
    words = jnp.asarray(seed_words([seed])[0])
    drawn = jax.jit(jax.vmap(lambda t: problem.sample(step_key(words, t), K)))(jnp.arange(1, steps + 1))
    return list(np.asarray(drawn))


def toy_gradient(problem: Toy) -> Any:
    def gradient(x: np.ndarray, xi: np.ndarray) -> np.ndarray:
        return (1 + problem.s1 * xi[0]) * (x + problem.q * x**3) + problem.s0 * xi[1:]

    return gradient


def go(problem: Any, algorithm: Algorithm, x1: Any, seeds: Any = (SEED,)) -> Trace:
    """Always with the same shapes, so that few programs are compiled."""
    return run(problem, algorithm, x1, STEPS, seeds, candidates=STEPS)


@jax.jit
def plain(problem: Any, algorithm: Algorithm, x1: jax.Array) -> Walk:
    """Without the engine, which costs a large program for every algorithm."""
    return walked(problem, algorithm, x1, jnp.asarray(seed_words([SEED])[0]), STEPS)


def path(problem: Any, algorithm: Algorithm, x1: Any) -> np.ndarray:
    return np.asarray(plain(problem, algorithm, jnp.asarray(x1)).x)


@pytest.mark.parametrize(("K", "k"), PAIRS)
def test_equals_the_paper(K: int, k: int) -> None:
    """And the engine, with one sample and with head and tail: as many strata of candidates as steps are the path."""
    problem, x1, eta = Toy(D), np.linspace(-1, 2, D), 0.01
    drawn = batches(problem, K)
    for beta in (0, 0.9, 0.999):  # with one program
        xs, ms = algorithm_1(x1, drawn, toy_gradient(problem), k, beta, eta)
        algorithm = normalized_storm(alpha=1 - beta, eta=eta, K=K, k=k)
        ours = plain(problem, algorithm, jnp.asarray(x1))
        np.testing.assert_allclose(ours.x, xs, rtol=0, atol=1e-12)
        np.testing.assert_allclose(ours.m, ms, rtol=0, atol=1e-10)
        if (K, k) in ENGINE:
            result = go(problem, algorithm, x1)
            assert (result.candidates.step[0] == np.arange(1, STEPS + 1)).all()
            np.testing.assert_allclose(np.concatenate([result.candidates.x[0], result.last]), xs, rtol=0, atol=1e-12)
            np.testing.assert_allclose(result.estimate[0], ms[-1], rtol=0, atol=1e-10)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Careless(Corrected):
    """A frequent mistake: the old point is asked with other samples than the new one."""

    def draw(self, problem: Any, key: jax.Array) -> Any:
        return problem.sample(key, 2 * self.K)

    def sample_gradients(self, problem: Any, t: Any, x: Any, x_prev: Any, state: Any, samples: Any) -> Any:
        here, there = problem.grad(x, samples[: self.K]), problem.grad(x_prev, samples[self.K :])
        return GradientSample(here, there, here), state, self.K + self.k


def test_other_samples_at_the_old_point_are_noticed() -> None:
    problem, x1 = Toy(D), np.linspace(-1, 2, D)
    xs, _ = algorithm_1(x1, batches(problem, 2), toy_gradient(problem), 2, 0.9, 0.01)
    right = normalized_storm(alpha=1 - 0.9, eta=0.01, K=2)
    wrong = replace(right, estimator=Careless(2, 2))
    assert np.abs(path(problem, wrong, jnp.asarray(x1)) - xs).max() > 1e-3


@pytest.mark.parametrize(("K", "k"), PAIRS)
def test_cost_is_what_was_asked(K: int, k: int) -> None:
    for algorithm, first, later in [
        (normalized_storm(alpha=0.1, eta=0.01, K=K, k=k), K, K + k),
        (momentum_nsgd(alpha=0.1, eta=0.01, K=K), K, K),
    ]:
        meter, asked = Metered(Toy(D)), []

        def two_steps(key: jax.Array, algorithm: Any = algorithm, meter: Any = meter, asked: Any = asked) -> None:
            samples = algorithm.draw(meter, key)
            state, cost = algorithm.first(meter, jnp.ones(D), samples)
            asked += [meter.asked, cost]
            _, cost = algorithm.step(meter, state, samples, 2)
            asked += [meter.asked - asked[0], cost]

        jax.eval_shape(two_steps, jax.random.key(0))
        assert asked == [first, first, later, later]
        if (K, k) == (8, 3):
            result = go(Toy(D), algorithm, jnp.ones(D), 2)
            assert (result.cost == first + (STEPS - 1) * later).all()
            assert (result.record_cost == first + (result.record_steps - 1) * later).all()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dear(Momentum):
    """Says that a step asks almost 2^32 sample gradients."""

    def sample_gradients(self, *arguments: Any) -> Any:
        grads, state, _ = super().sample_gradients(*arguments)
        return grads, state, 4_000_000_000


def test_cost_passes_32_bits() -> None:
    algorithm = replace(momentum_nsgd(alpha=0.5, eta=0.1), estimator=Dear(1))
    result = run(Toy(D), algorithm, jnp.ones(D), 300, 2)
    assert (result.cost == 1 + 299 * 4_000_000_000).all()
    assert (result.record_cost == 1 + (result.record_steps - 1) * 4_000_000_000).all()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Unsteady(Momentum):
    """A cost that is known only when the step is taken."""

    def sample_gradients(self, *arguments: Any) -> Any:
        grads, state, _ = super().sample_gradients(*arguments)
        return grads, state, jnp.uint32(3_000_000)


def test_cost_that_is_not_a_fixed_number_passes_32_bits() -> None:
    algorithm = replace(momentum_nsgd(alpha=0.5, eta=0.1), estimator=Unsteady(1))
    result = run(Toy(D), algorithm, jnp.ones(D), 5000, 2, records=1, candidates=1)
    assert (result.cost == 1 + 4999 * 3_000_000).all()


def test_zero_gradient_means_stay() -> None:
    result = go(Toy(D, s0=0.0), normalized_storm(alpha=0.5, eta=0.1), jnp.zeros(D))
    assert (result.last == 0).all()
    assert (result.status == "ok").all()
    assert (result.mean_grad_norm == 0).all()


def test_without_noise_the_estimate_is_the_gradient() -> None:
    problem = Toy(D, s0=0.0, s1=0.0)
    result = go(problem, normalized_storm(alpha=0.01, eta=0.01, K=8, k=3), jnp.linspace(-1, 2, D))
    assert result.error.max() < 1e-12


def test_beta_zero_is_normalised_sgd() -> None:
    problem, x1 = Toy(D), jnp.linspace(-1, 2, D)
    storm = path(problem, normalized_storm(alpha=1, eta=0.01, K=8, k=3), x1)
    plain = path(problem, momentum_nsgd(alpha=1, eta=0.01, K=8), x1)
    np.testing.assert_allclose(storm, plain, rtol=0, atol=1e-12)


def test_equal_batches_give_the_two_term_form() -> None:
    """m_t = g_K(x_t) + beta (m_{t-1} - g_K(x_{t-1})) when k = K."""
    problem, x, beta, eta = Toy(D), np.linspace(-1, 2, D), 0.9, 0.01
    drawn, gradient = batches(problem, 8), toy_gradient(problem)
    xs, m = [x], None
    for batch in drawn:
        here = np.mean([gradient(xs[-1], xi) for xi in batch], axis=0)
        m = here if m is None else here + beta * (m - np.mean([gradient(xs[-2], xi) for xi in batch], axis=0))
        xs.append(xs[-1] - eta * m / np.linalg.norm(m))
    np.testing.assert_allclose(path(problem, normalized_storm(alpha=1 - beta, eta=eta, K=8), x), xs, rtol=0, atol=1e-12)


def test_a_pytree_is_one_vector() -> None:
    class Halves:
        name = "halves"

        def __init__(self) -> None:
            self.flat = Toy(D)

        def join(self, x: Any) -> jax.Array:
            return jnp.concatenate([x["a"], x["b"].ravel()])

        def split(self, x: jax.Array) -> Any:
            return {"a": x[:2], "b": x[2:].reshape(4, 2)}

        def sample(self, key: jax.Array, n: int) -> Any:
            return self.flat.sample(key, n)

        def grad(self, x: Any, batch: Any) -> Any:
            return self.split(self.flat.grad(self.join(x), batch))

        def full_grad(self, x: Any) -> Any:
            return self.split(self.flat.full_grad(self.join(x)))

        def value(self, x: Any) -> Any:
            return self.flat.value(self.join(x))

    tree, x1 = Halves(), jnp.linspace(-1, 1, D)
    algorithm = normalized_storm(alpha=0.1, eta=0.01, K=8, k=3)
    one, other = go(tree, algorithm, tree.split(x1), 2), go(Toy(D), algorithm, x1, 2)
    assert one.last["b"].shape == (2, 4, 2)
    joined = np.concatenate([one.last["a"], one.last["b"].reshape(2, 8)], axis=1)
    np.testing.assert_allclose(joined, other.last, rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.mean_grad_norm, other.mean_grad_norm, rtol=1e-12)
    assert one.candidates.x["a"].shape == (2, STEPS, 2)


def test_from_plan() -> None:
    plan = SimpleNamespace(alpha=0.25, eta=0.5, batch=4, sub_batch=2)
    assert from_plan(plan) == normalized_storm(alpha=0.25, eta=0.5, K=4, k=2)
    plan.shift = 7.0
    assert from_plan(plan) == CATALOGUE["normalized_storm_anytime"](alpha=0.25, eta=0.5, shift=7.0, K=4, k=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alpha": 0, "eta": 1}, "normalized_storm: alpha must be a number in (0, 1]; got alpha=0"),
        ({"alpha": 1.5, "eta": 1}, "normalized_storm: alpha must be a number in (0, 1]; got alpha=1.5"),
        ({"alpha": 1, "eta": 0}, "normalized_storm: eta must be a finite number > 0; got eta=0"),
        ({"alpha": 1, "eta": "1"}, "normalized_storm: eta must be a finite number > 0; got eta='1'"),
        ({"alpha": 1, "eta": 1, "K": 0}, "normalized_storm: K must be an integer >= 1; got K=0"),
        ({"alpha": 1, "eta": 1, "K": 8, "k": 9}, "normalized_storm: k must be an integer in [1, K]; got k=9, K=8"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        normalized_storm(**given)
    assert str(error.value) == message
