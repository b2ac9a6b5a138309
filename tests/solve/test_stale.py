"""What a user's function mentions may change between two calls: no program that was traced before answers then."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from normstorm import Constants, certify, minimize
from normstorm.algorithms import normalized_storm
from normstorm.engine import run
from normstorm.problems import from_loss

ROWS = {"a": np.random.default_rng(0).normal(size=(20, 3)), "y": np.arange(20.0)}
WEIGHT = 1.0


class Ridge:
    weight = 1.0

    def loss(self, x, row):
        return 0.5 * (row["a"] @ x - row["y"]) ** 2 + 0.5 * self.weight * jnp.sum(x**2)


def by_global(x, row):
    return 0.5 * (row["a"] @ x - row["y"]) ** 2 + 0.5 * WEIGHT * jnp.sum(x**2)


def by_array():
    weight = np.ones(1)

    def change(value):
        weight[:] = value

    return lambda x, row: 0.5 * (row["a"] @ x - row["y"]) ** 2 + 0.5 * weight[0] * jnp.sum(x**2), change


def cases(monkeypatch):
    ridge, (loss, change) = Ridge(), by_array()
    yield by_global, lambda value: monkeypatch.setitem(globals(), "WEIGHT", value)
    yield ridge.loss, lambda value: setattr(ridge, "weight", value)
    yield loss, change


def test_a_changed_loss_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, algorithm = np.ones(3), normalized_storm(alpha=1.0, eta=0.1)
    a, y = ROWS["a"], ROWS["y"]
    for loss, change in cases(monkeypatch):
        problem = from_loss(loss, ROWS, np.zeros(3))
        change(1.0)
        certify(problem, x, exact=True)
        for weight in (1.0, 5.0):
            change(weight)
            true = np.linalg.norm(a.T @ (a @ x - y) / 20 + weight * x)
            assert certify(problem, x, exact=True).upper_bound == pytest.approx(true, rel=1e-6)
            with jax.enable_x64(True):
                assert run(problem, algorithm, x, 1, 1).min_grad_norm[0] == pytest.approx(true, rel=1e-9)


def test_programs_stay_while_the_loss_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = from_loss(by_global, ROWS, np.zeros(3))
    certify(problem, np.ones(3), exact=True)
    monkeypatch.setattr(jax, "clear_caches", lambda: pytest.fail("programs were forgotten"))
    certify(problem, np.ones(3), exact=True)
    other = {"a": 2 * ROWS["a"], "y": ROWS["y"]}
    certify(from_loss(by_global, other, np.zeros(3)), np.ones(3), exact=True)


def test_what_single_precision_has_traced_answers_nothing_in_double() -> None:
    """A plan in single precision rounds the arrays that the loss mentions; its certificate, and a race, do not."""
    scale = np.array([1.1, 1.3, 0.7]) / 3
    rows = ROWS["a"]

    def loss(x, row):
        return 0.5 * jnp.sum(scale * (x - row) ** 2)

    problem = from_loss(loss, rows, np.zeros(3, np.float32), constants=Constants(0.44, 0, 2.0, 0, 2.0))
    with jax.enable_x64(False):
        for asked in ({"method": "plan", "target": 0.9}, {"target": 0.05}):
            found = minimize(problem, progress=False, **asked)
            true = np.linalg.norm(scale * (np.asarray(found.x, np.float64) - rows.mean(axis=0)))
            assert found.certificate.mean_norm == pytest.approx(true, rel=1e-12)
