"""Problems that no method of the catalogue was made on: larger, badly scaled, with heavy tails and saddles.

None has proven constants; all are bounded from below by 0 or nearly so, and each is a loss on data drawn from a seed.
Those in SEEN have been looked at since, and some were designed on; those in FRESH were run once, when all was fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm.problems import from_loss


def scaled_regression() -> Any:
    """50 unknowns, curvatures over four decades, residuals of a cut t-distribution with 2.5 degrees of freedom."""
    rng = np.random.default_rng(101)
    a = rng.normal(size=(1000, 50)) * np.logspace(0, -2, 50)
    noise = np.clip(rng.standard_t(2.5, 1000), -20, 20)
    truth = rng.normal(size=50)

    def loss(x: jax.Array, row: Any) -> jax.Array:
        return 0.5 * (jnp.dot(row[0], x) - row[1]) ** 2

    return from_loss(loss, (a, a @ truth + noise), start=np.full(50, 0.5), name="scaled-regression")


def softmax() -> Any:
    """Ten classes, 30 features, 300 unknowns, overlapping clouds; start 0."""
    rng = np.random.default_rng(102)
    labels = rng.integers(0, 10, 2000)
    a = rng.normal(size=(10, 30))[labels] * 0.5 + rng.normal(size=(2000, 30))

    def loss(x: jax.Array, row: Any) -> jax.Array:
        scores = row[0] @ x
        return jax.nn.logsumexp(scores) - scores[row[1]]

    return from_loss(loss, (a, labels), start=np.zeros((30, 10)), name="softmax")


def saddles() -> Any:
    """Factors of a matrix from noisy entries, 2 x 30 x 4 unknowns; starts near the saddle at 0."""
    rng = np.random.default_rng(103)
    u, v = rng.normal(size=(30, 4)), rng.normal(size=(30, 4))
    i, j = rng.integers(0, 30, 3000), rng.integers(0, 30, 3000)
    y = np.sum(u[i] * v[j], axis=1) + 0.5 * rng.normal(size=3000)

    def loss(x: Any, row: Any) -> jax.Array:
        return 0.25 * (jnp.dot(x[0][row[0]], x[1][row[1]]) - row[2]) ** 2

    start = 0.05 * rng.normal(size=(2, 30, 4))
    return from_loss(loss, (i, j, y), start=start, name="saddles")


def small_network() -> Any:
    """A tanh network 8-24-1 on a noisy target, 241 unknowns in a pytree."""
    rng = np.random.default_rng(104)
    a = rng.normal(size=(1500, 8))
    y = np.sin(a[:, 0]) * a[:, 1] + 0.1 * rng.normal(size=1500)

    def loss(x: Any, row: Any) -> jax.Array:
        hidden = jnp.tanh(row[0] @ x["in"] + x["shift"])
        return 0.5 * (jnp.dot(hidden, x["out"]) + x["last"] - row[1]) ** 2

    start = {"in": rng.normal(size=(8, 24)) / 8**0.5, "shift": np.zeros(24), "out": rng.normal(size=24) / 24**0.5}
    return from_loss(loss, (a, y), start=start | {"last": np.zeros(())}, name="small-network")


def rosenbrock() -> Any:
    """A curved valley in 50 dimensions, shifted by bounded noise with rare large values; no finite sum."""

    def draw(key: jax.Array, n: int) -> jax.Array:
        size, way = jax.random.split(key)
        heavy = jnp.where(jax.random.uniform(size, (n, 1)) < 0.01, 10.0, 1.0)
        return heavy * jax.random.uniform(way, (n, 50), minval=-1.0, maxval=1.0)

    def loss(x: jax.Array, shift: jax.Array) -> jax.Array:
        valley = jnp.sum(5 * (x[1:] - x[:-1] ** 2) ** 2 + 0.5 * (1 - x[:-1]) ** 2)
        return valley + jnp.dot(shift, x)

    def value(x: jax.Array) -> jax.Array:
        return loss(x, jnp.zeros(50))

    return from_loss(loss, draw, objective=value, start=np.full(50, -0.5), name="rosenbrock")


def wide_logistic() -> Any:
    """500 unknowns, 1000 rows, labels flipped in a tenth of them, a little weight decay; start 0."""
    rng = np.random.default_rng(106)
    a = rng.normal(size=(1000, 500)) / 500**0.5 * np.logspace(0.5, -0.5, 500)
    y = np.sign(a @ rng.normal(size=500)) * np.where(rng.uniform(size=1000) < 0.1, -1, 1)

    def loss(x: jax.Array, row: Any) -> jax.Array:
        return jax.nn.softplus(-row[1] * jnp.dot(row[0], x)) + 5e-4 * jnp.sum(x * x)

    return from_loss(loss, (a, y), start=np.zeros(500), name="wide-logistic")


def robust_regression() -> Any:
    """120 unknowns, curvatures over six decades, log-cosh of residuals with a cut t-distribution of 2 degrees."""
    rng = np.random.default_rng(201)
    a = rng.normal(size=(2000, 120)) * np.logspace(0.5, -2.5, 120)
    y = a @ rng.normal(size=120) + np.clip(rng.standard_t(2, 2000), -30, 30)

    def loss(x: jax.Array, row: Any) -> jax.Array:
        r = jnp.dot(row[0], x) - row[1]
        return jnp.logaddexp(r, -r) - np.log(2)

    return from_loss(loss, (a, y), start=np.zeros(120), name="robust-regression")


def autoencoder() -> Any:
    """Two linear layers 24-6-24, 288 unknowns; the start is near the saddle at 0."""
    rng = np.random.default_rng(202)
    a = rng.normal(size=(1500, 6)) @ rng.normal(size=(6, 24)) / 6**0.5 + 0.3 * rng.normal(size=(1500, 24))

    def loss(x: Any, row: Any) -> jax.Array:
        return 0.5 * jnp.mean(((row[0] @ x["down"]) @ x["up"] - row[0]) ** 2)

    start = {"down": 0.05 * rng.normal(size=(24, 6)), "up": 0.05 * rng.normal(size=(6, 24))}
    return from_loss(loss, (a,), start=start, name="autoencoder")


def small_classifier() -> Any:
    """A softplus network 10-16-3 on rings with a tenth of wrong labels, 227 unknowns."""
    rng = np.random.default_rng(203)
    a = rng.normal(size=(2000, 10))
    ring = np.digitize(np.sum(a[:, :3] ** 2, axis=1), [1.5, 3.5])
    labels = np.where(rng.uniform(size=2000) < 0.1, rng.integers(0, 3, 2000), ring)

    def loss(x: Any, row: Any) -> jax.Array:
        scores = jax.nn.softplus(row[0] @ x["in"] + x["shift"]) @ x["out"] + x["last"]
        return jax.nn.logsumexp(scores) - scores[row[1]]

    start = {"in": rng.normal(size=(10, 16)) / 10**0.5, "shift": np.zeros(16), "out": rng.normal(size=(16, 3)) / 4}
    return from_loss(loss, (a, labels), start=start | {"last": np.zeros(3)}, name="small-classifier")


def mixture() -> Any:
    """Two centres in 40 dimensions, 80 unknowns, from a start at which they nearly agree."""
    rng = np.random.default_rng(204)
    way = rng.normal(size=40) / 40**0.5
    a = np.where(rng.uniform(size=(1500, 1)) < 0.4, 2, -2) * way + rng.normal(size=(1500, 40))

    def loss(x: Any, row: Any) -> jax.Array:
        return -jax.nn.logsumexp(-0.5 * jnp.sum((row[0] - x) ** 2, axis=1))

    return from_loss(loss, (a,), start=0.1 * rng.normal(size=(2, 40)), name="mixture")


def folded_valley() -> Any:
    """log(1 + r^2) of 60 coupled residuals in 60 dimensions, plateaus far away, noise with rare large values."""
    rng = np.random.default_rng(205)
    mix = np.eye(60) + 0.5 * rng.normal(size=(60, 60)) / 60**0.5

    def draw(key: jax.Array, n: int) -> jax.Array:
        size, way = jax.random.split(key)
        heavy = jnp.where(jax.random.uniform(size, (n, 1)) < 0.02, 8.0, 0.5)
        return heavy * jax.random.uniform(way, (n, 60), minval=-1.0, maxval=1.0)

    def value(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.log1p((jnp.asarray(mix) @ x) ** 2)) + 0.01 * jnp.sum(x * x)

    def loss(x: jax.Array, shift: jax.Array) -> jax.Array:
        return value(x) + jnp.dot(shift, x)

    return from_loss(loss, draw, objective=value, start=np.full(60, 2.0), name="folded-valley")


def rare_words() -> Any:
    """Logistic regression in 300 dimensions; features are there in half of the rows, down to one in 300. Start 0."""
    rng = np.random.default_rng(206)
    a = (rng.uniform(size=(2000, 300)) < 1 / np.arange(2, 302)).astype(float)
    y = np.sign(a @ rng.normal(size=300) + 0.5 * rng.normal(size=2000))

    def loss(x: jax.Array, row: Any) -> jax.Array:
        return jax.nn.softplus(-row[1] * jnp.dot(row[0], x)) + 1e-3 * jnp.sum(x * x)

    return from_loss(loss, (a, y), start=np.zeros(300), name="rare-words")


SEEN: dict[str, Callable[[], Any]] = {
    "scaled-regression": scaled_regression,
    "softmax": softmax,
    "saddles": saddles,
    "small-network": small_network,
    "rosenbrock": rosenbrock,
    "wide-logistic": wide_logistic,
}
FRESH: dict[str, Callable[[], Any]] = {
    "robust-regression": robust_regression,
    "autoencoder": autoencoder,
    "small-classifier": small_classifier,
    "mixture": mixture,
    "folded-valley": folded_valley,
    "rare-words": rare_words,
}
PROBLEMS = SEEN | FRESH
