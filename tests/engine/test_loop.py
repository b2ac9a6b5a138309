"""The fast loops give what the plain ones give: steps in turns, records inside the kernel, norms of long vectors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import Toy

from normstorm.algorithms import momentum_nsgd, normalized_storm
from normstorm.algorithms.geometries import ROWS, SHORT, WIDTH, norm
from normstorm.algorithms.sgd import sgd
from normstorm.algorithms.sign import generalized_signsgd
from normstorm.engine import job, run
from normstorm.engine.layout import Changing, program_shape
from normstorm.engine.program import Shape

FIELDS = ("mean_grad_norm", "min_grad_norm", "grad_norm", "running_mean", "value", "error", "last", "estimate")
COUNTED = ("cost", "record_cost", "diverged_at", "record_steps")
ALGORITHMS = {
    "storm": normalized_storm(alpha=0.1, eta=0.01, K=3, k=2),
    "momentum": momentum_nsgd(alpha=0.1, eta=0.01),
    "signs": generalized_signsgd(alpha=0.1, eta=0.01),
}


def equal(one: Any, other: Any, rtol: float) -> None:
    for name in FIELDS:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rtol, atol=1e-12, err_msg=name)
    for name in COUNTED:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for pick in ("uniform", "smallest", "candidates"):
        a, b = getattr(one, pick), getattr(other, pick)
        np.testing.assert_array_equal(a.step, b.step)
        np.testing.assert_allclose(a.x, b.x, rtol=rtol, atol=1e-12)


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shape, "turns", False)
    job.program.cache_clear()


@pytest.mark.parametrize("d", [3, 300])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_steps_in_turns(name: str, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = ALGORITHMS[name]
    assert program_shape(Toy(d), algorithm, jnp.ones(d), True, lambda: Changing(True, True))[0].turns
    fast = run(Toy(d), algorithm, jnp.ones(d), 203, 5, chunk=37)
    one_by_one(monkeypatch)
    equal(run(Toy(d), algorithm, jnp.ones(d), 203, 5), fast, 1e-9)


def test_steps_in_turns_beside_seeds_that_diverge(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a dead lane asked, and the others' numbers, are the same whoever notes them."""
    problem, algorithm = Toy(3, s0=8.0), sgd(eta=0.15, K=2)
    fast = run(problem, algorithm, jnp.ones(3), 150, 40)
    dead = fast.diverged_at > 0
    assert 3 < dead.sum() < 37
    np.testing.assert_array_equal(fast.cost, 2 * np.where(dead, fast.diverged_at, 150))
    one_by_one(monkeypatch)
    equal(run(problem, algorithm, jnp.ones(3), 150, 40), fast, 1e-6)


def test_x_that_does_not_become_x_prev_is_not_taken_in_turns() -> None:
    class Kept(type(ALGORITHMS["storm"])):  # type: ignore[misc]
        def _move(self, t: Any, x: Any, *rest: Any) -> Any:
            state = super()._move(t, x, *rest)
            return state._replace(x_prev=1.0 * x)

    storm = ALGORITHMS["storm"]
    jax.tree_util.register_dataclass(Kept, ["estimator", "geometry", "schedule"], ["name"])
    kept = Kept(storm.estimator, storm.geometry, storm.schedule, "kept")
    assert not program_shape(Toy(3), kept, jnp.ones(3), True, lambda: Changing(True, True))[0].turns
    equal(run(Toy(3), kept, jnp.ones(3), 60, 3), run(Toy(3), storm, jnp.ones(3), 60, 3), 1e-9)


class Matrix(Toy):
    """A value that no kernel can hold."""

    def value(self, x: jax.Array) -> jax.Array:
        return (x @ x) / 2 + self.q * (x * x) @ (x * x) / 4


jax.tree_util.register_dataclass(Matrix, ["s0", "s1", "q"], ["d", "dtype", "name"])


@pytest.mark.parametrize("d", [3, 300])
def test_records_inside_and_outside_of_the_kernel(d: int) -> None:
    storm = ALGORITHMS["storm"]
    shapes = [
        program_shape(kind(d), storm, jnp.ones(d), True, lambda: Changing(True, True))[0] for kind in (Toy, Matrix)
    ]
    assert [(shape.kernel, shape.marks) for shape in shapes] == [(True, True), (True, False)]
    equal(run(Matrix(d), storm, jnp.ones(d), 150, 3), run(Toy(d), storm, jnp.ones(d), 150, 3), 1e-9)


class Odd(Toy):
    """Values that the compiler may find to be constants."""

    def value(self, x: jax.Array) -> jax.Array:
        return {"zero": jnp.zeros(()), "hidden": x[0] * 0.0, "difference": jnp.sum(x - x)}[self.name]


jax.tree_util.register_dataclass(Odd, ["s0", "s1", "q"], ["d", "dtype", "name"])


@pytest.mark.parametrize("name", ["zero", "hidden", "difference"])
def test_a_value_that_never_changes(name: str) -> None:
    assert not run(Odd(3, name=name), ALGORITHMS["storm"], jnp.ones(3), 20, 2).value.any()


@pytest.mark.parametrize("size", [1, SHORT - 1, SHORT, SHORT + 1, 1000, ROWS * WIDTH, ROWS * WIDTH + 1, 5000, 100_003])
def test_norms_of_long_vectors(size: int) -> None:
    x = np.random.default_rng(size).standard_normal(size)
    assert float(norm(jnp.asarray(x))) == pytest.approx(np.linalg.norm(x), rel=1e-13)
    tree = {"a": jnp.asarray(x).reshape(1, -1), "b": jnp.asarray(3.0)}
    assert float(norm(tree)) == pytest.approx(np.hypot(np.linalg.norm(x), 3), rel=1e-13)
