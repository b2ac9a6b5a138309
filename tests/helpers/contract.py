"""A finite sum, what the engine draws of it, and one setting of every algorithm next to that of its transcription."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import transcriptions as tr
from transcriptions.cases import BIG, DIAGONALS, SHIFTS, W1, X1, B, N

from normstorm.algorithms import CATALOGUE, Algorithm
from normstorm.random import seed_words, step_key

STEPS, SEED = 50, 11
TALL = np.vstack([W1, 0.5 - W1])


def rows_of(key: jax.Array, n: int) -> jax.Array:
    """Rows that the words of the key name: another key, other rows, and few operations to compile in every program."""
    high, low = jax.random.key_data(key)
    return (((high + low * jnp.arange(1, n + 1, dtype=jnp.uint32)) >> 8) % N).astype(jnp.int32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """The finite sum of the transcriptions' own tests: quadratics with a common quartic; samples are row numbers."""

    slopes: jax.Array
    shifts: jax.Array

    name = "rows"
    size = N

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return rows_of(key, n)

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        slope, shift = (jnp.mean(table[batch], axis=0) for table in (self.slopes, self.shifts))
        return slope * x + 0.3 * x * x * x + shift

    def full_grad(self, x: jax.Array) -> jax.Array:
        return self.grad(x, jnp.arange(N))

    def grad_at(self, points: jax.Array) -> np.ndarray:
        """grad F at every point, without a program."""
        slope, shift = (np.mean(table, axis=0) for table in (self.slopes, self.shifts))
        return slope * points + 0.3 * np.asarray(points) ** 3 + shift

    def value(self, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.mean(self.slopes, axis=0) * x * x / 2 + 0.3 * x**4 / 4 + jnp.mean(self.shifts, axis=0) * x)


def problem(noise: float = 1.0) -> Rows:
    return Rows(jnp.asarray(1 + noise * (DIAGONALS - 1)), jnp.asarray(noise * SHIFTS))


@cache
def tables() -> dict[str, Any]:
    """What the engine draws for the seed, step by step: rows from the step's key and from those folded into it."""
    words, steps = jnp.asarray(seed_words([SEED])[0]), jnp.arange(1, STEPS + 1)

    @cache
    def rows(n: int, stream: int | None = None) -> np.ndarray:
        def one(t: jax.Array) -> jax.Array:
            key = step_key(words, t)
            return problem().sample(key if stream is None else jax.random.fold_in(key, stream), n)

        return np.asarray(jax.vmap(one)(steps))

    coins = jax.vmap(lambda t: jax.random.uniform(jax.random.fold_in(step_key(words, t), 3)))(steps)
    return {"rows": rows, "coins": np.asarray(coins)}


def oracle(K: int, large: int, noise: float = 1.0) -> tr.Oracle:
    slopes, shifts = 1 + noise * (DIAGONALS - 1), noise * SHIFTS
    rows = tables()["rows"]
    return tr.Oracle(
        lambda x, i: slopes[i] * x + 0.3 * x**3 + shifts[i],
        n=N,
        samples=rows(K),
        large=rows(large, 1),
        second=rows(K, 2),
        coins=tables()["coins"],
    )


class Walk(NamedTuple):
    """x_1 .. x_{T+1}, m_1 .. m_T, what each step says that it asked, and the points that are handed out."""

    x: Any
    m: Any
    cost: Any
    points: Any


def walked(problem: Any, algorithm: Algorithm, x: jax.Array, words: jax.Array, steps: int) -> Walk:
    """The plain loop, without the engine; to be compiled by the caller."""

    def seen(state: Any, cost: Any) -> Any:
        return state.x, state.m, jnp.asarray(cost, jnp.int64), algorithm.point(state)

    def step(state: Any, t: jax.Array) -> tuple[Any, Any]:
        state, cost = algorithm.step(problem, state, algorithm.draw(problem, step_key(words, t)), t)
        return state, seen(state, cost)

    state, cost = algorithm.first(problem, x, algorithm.draw(problem, step_key(words, 1)))
    last, later = jax.lax.scan(step, state, jnp.arange(2, steps + 1, dtype=jnp.int32))
    xs, m, cost, points = (jnp.concatenate([a[None], b]) for a, b in zip(seen(state, cost), later, strict=True))
    handed = algorithm.last(last, jnp.int32(steps))
    return Walk(jnp.concatenate([x[None], xs]), m, cost, jnp.concatenate([points, handed[None]]))


@dataclass(frozen=True)
class Case:
    """An algorithm, its transcription, the samples of a step, and by how much the reported m differs from theirs."""

    algorithm: Algorithm
    transcription: Callable[..., tr.Path]
    theirs: dict[str, Any]
    K: int = B
    scale: float = 1.0
    x1: np.ndarray = field(default_factory=lambda: X1)


def case(make: str, ours: dict[str, Any], transcription: str, theirs: dict[str, Any], **more: Any) -> Case:
    return Case(CATALOGUE[make](**ours), getattr(tr, transcription), theirs, **more)


OURS, THEIRS = {"eta": 0.05, "K": B}, {"eta": 0.05, "b": B}
SLOW, SLOWLY = OURS | {"alpha": 1 - 0.9}, THEIRS | {"beta": 0.9}
SPIDER: dict[str, Any] = {"S1": BIG, "S2": B, "q": 5}
META = {"p": 0.3, "a0": 0.8, "b0": 1.1}
ADAM: dict[str, Any] = {"gamma": 0.5, "k": 1, "m": 10, "c": 1}
GENTLE = ADAM | {"gamma": 0.002}
CASES = {
    "sgd": case("sgd", OURS, "sgd", THEIRS),
    "mean of sgd": case("averaged_sgd", OURS, "averaged_sgd", THEIRS),
    "ema of sgd": case("averaged_sgd", OURS | {"ema": 0.9}, "averaged_sgd", THEIRS | {"ema": 0.9}),
    "schedule free": case("schedule_free_sgd", OURS | {"beta": 0.7}, "schedule_free_sgd", THEIRS | {"beta": 0.7}),
    "average": case("momentum_sgd", SLOW, "momentum_sgd", SLOWLY),
    "average first": case("momentum_sgd", SLOW | {"start": "first"}, "momentum_sgd", SLOWLY | {"init": "first"}),
    "heavy ball": case(
        "momentum_sgd", SLOW | {"form": "heavy_ball"}, "momentum_sgd", SLOWLY | {"form": "heavy_ball"}, scale=0.1
    ),
    "nesterov": case("momentum_sgd", SLOW | {"nesterov": True}, "momentum_sgd", SLOWLY | {"nesterov": True}),
    "nesterov ball": case(
        "momentum_sgd",
        SLOW | {"form": "heavy_ball", "nesterov": True},
        "momentum_sgd",
        SLOWLY | {"form": "heavy_ball", "nesterov": True},
        scale=0.1,
    ),
    "normalised": case("normalized_sgd", OURS, "normalized_sgd", {"eta": 0.05, "K": B}),
    "momentum nsgd": case("momentum_nsgd", SLOW, "nsgd_momentum", SLOWLY),
    "nigt": case("nigt", SLOW, "nigt", SLOWLY),
    "agnostic": case("agnostic_nsgd", {"eta": 0.1, "K": B}, "nsgd_agnostic", {"c": 0.1, "b": B}),
    "clipped": case("clipped_sgd", OURS | {"threshold": 0.8}, "clipped_sgd", THEIRS | {"threshold": 0.8}),
    "clipped with offset": case(
        "clipped_sgd",
        OURS | {"threshold": 0.8, "offset": 0.5},
        "clipped_sgd",
        THEIRS | {"threshold": 0.8, "offset": 0.5},
    ),
    "soft": case("soft_clipped_sgd", OURS | {"gamma": 0.04}, "soft_clipped_sgd", THEIRS | {"gamma": 0.04}),
    "mixed": case("mixed_clipping", SLOW | {"gamma": 0.04}, "mixed_clipping", SLOWLY | {"gamma": 0.04, "nu": 0.7}),
    "mixed soft": case(
        "mixed_clipping",
        SLOW | {"gamma": 0.04, "soft": True, "nu": 0.4},
        "mixed_clipping",
        SLOWLY | {"gamma": 0.04, "soft": True, "nu": 0.4},
    ),
    "signsgd": case(
        "generalized_signsgd", SLOW | {"b2": 0.99}, "generalized_signsgd", THEIRS | {"b1": 0.9, "b2": 0.99}
    ),
    "signsgd with eps": case(
        "generalized_signsgd",
        SLOW | {"b2": 0.9, "eps": 0.1},
        "generalized_signsgd",
        THEIRS | {"b1": 0.9, "b2": 0.9, "eps": 0.1},
    ),
    "sign storm": case("sign_storm", OURS | {"alpha": 0.2}, "ssvr", THEIRS | {"alpha": 0.2}),
    "sign storm large first": case(
        "sign_storm", OURS | {"alpha": 0.2, "first_batch": BIG}, "ssvr", THEIRS | {"alpha": 0.2, "b_first": BIG}
    ),
    "signstorm": case(
        "generalized_signstorm", OURS | {"alpha": 0.2}, "generalized_signstorm", THEIRS | {"alpha": 0.2, "b2": 0.9}
    ),
    "adagrad": case("adagrad_norm", OURS | {"b0": 0.1}, "adagrad_norm", THEIRS | {"b0": 0.1}),
    "super adam": case("super_adam", ADAM | {"K": B}, "super_adam", ADAM | {"b": B}),
    "super adam average": case(
        "super_adam", ADAM | {"K": B, "corrected": False}, "super_adam", ADAM | {"b": B, "tau": 0}
    ),
    "super adam global": case(
        "super_adam", GENTLE | {"K": B, "scaling": "global"}, "super_adam", GENTLE | {"b": B, "H": "global"}
    ),
    "super adam identity": case(
        "super_adam",
        ADAM | {"K": B, "scaling": "identity", "c": 9},
        "super_adam",
        ADAM | {"b": B, "H": "identity", "c": 9},
    ),
    "storm": case("storm", {"k": 0.1, "w": 0.1, "c": 20, "K": B}, "storm", {"k": 0.1, "w": 0.1, "c": 20, "b": B}),
    "storm plus": case("storm_plus", {"K": B}, "storm_plus", {"b": B}),
    "meta storm": case("meta_storm", OURS | META, "meta_storm", THEIRS | META),
    "meta storm sg": case("meta_storm_sg", OURS | META, "meta_storm_sg", THEIRS | META),
    "meta storm na": case("meta_storm_na", OURS | META, "meta_storm_na", THEIRS | META),
    "hybrid": case(
        "hybrid_sarah_sgd",
        OURS | {"alpha": 1 - 0.8, "first_batch": BIG},
        "hybrid_sarah_sgd",
        THEIRS | {"beta": 0.8, "b_first": BIG},
    ),
    "hybrid same": case(
        "hybrid_sarah_sgd",
        OURS | {"alpha": 1 - 0.8, "first_batch": BIG, "same": True},
        "hybrid_sarah_sgd",
        THEIRS | {"beta": 0.8, "b_first": BIG, "same": True},
    ),
    "normalized storm": case(
        "normalized_storm",
        {"eta": 0.05, "alpha": 1 - 0.9, "K": 4, "k": 3},
        "normalized_storm",
        {"eta": 0.05, "beta": 0.9, "K": 4, "k": 3},
        K=4,
    ),
    "anytime": case(
        "normalized_storm_anytime",
        {"eta": 0.4 * 4 ** (-2 / 3), "alpha": 0.8 * 4 ** (-2 / 3), "shift": 3.0, "K": 4, "k": 3},
        "normalized_storm_anytime",
        {"a": 0.4, "w": 0.5, "s0": 3.0, "K": 4, "k": 3},
        K=4,
    ),
    "agnostic storm": case(
        "agnostic_storm",
        {"eta": 0.2, "alpha": 0.4, "K": B},
        "normalized_storm_anytime",
        {"a": 0.2, "w": 0.5, "s0": 0.0, "K": B},
    ),
    "halving storm, untold": case(
        "halving_storm",
        {"alpha": 0.3, "eta": 0.05, "gap": 1.0, "L0": 2.0, "K": 4, "k": 3},
        "normalized_storm",
        {"eta": 0.05, "beta": 0.7, "K": 4, "k": 3},
        K=4,
    ),
    "measured storm": case(
        "measured_storm",
        {"L0": 3.0, "L1": 0.5, "longest": 0.3, "offset": 4.0, "K": 4, "k": 3},
        "measured_storm",
        {"L0": 3.0, "L1": 0.5, "longest": 0.3, "s0": 4.0, "K": 4, "k": 3},
        K=4,
    ),
    "kalman": case("kalman_storm", {"K": 2, "k": 1}, "kalman_storm", {"K": 2, "k": 1}),
    "kalman table": case("kalman_storm", {"table": True}, "kalman_storm", {"table": True}, K=1),
    "clipped storm": case(
        "clipped_storm",
        {"eta": 0.05, "alpha": 1 - 0.9, "threshold": 0.8, "K": 4, "k": 3},
        "clipped_storm",
        {"c": 0.05, "tau": 0.8, "beta": 0.9, "K": 4, "k": 3},
        K=4,
    ),
    "spider 1": case(
        "spider_1", SPIDER | {"eps": 0.1, "L": 2}, "spider_1", SPIDER | {"eps": 0.1, "L": 2, "n0": 1, "stop": 0}
    ),
    "spider 1 stopped": case(
        "spider_1",
        SPIDER | {"eps": 0.1, "L": 2, "stop": 0.35},
        "spider_1",
        SPIDER | {"eps": 0.1, "L": 2, "n0": 1, "stop": 0.35},
    ),
    "spider 2": case(
        "spider_2", SPIDER | {"eps": 0.1, "L": 2, "n0": 1.5}, "spider_2", SPIDER | {"eps": 0.1, "L": 2, "n0": 1.5}
    ),
    "spider whole": case(
        "spider_2",
        SPIDER | {"eps": 0.1, "L": 2, "S1": None},
        "spider_2",
        SPIDER | {"eps": 0.1, "L": 2, "n0": 1, "S1": None},
    ),
    "l0l1": case(
        "l0l1_spider", SPIDER | {"eps": 0.1, "L0": 2, "L1": 1}, "l0l1_spider", SPIDER | {"eps": 0.1, "L0": 2, "L1": 1}
    ),
    "symmetric": case(
        "symmetric_spider",
        SPIDER | {"eta": 0.05, "power": 2 / 3},
        "symmetric_spider",
        SPIDER | {"gamma": 0.05, "beta": 2 / 3},
    ),
    "beta gd": case("beta_gd", {"eta": 0.05, "power": 2 / 3}, "beta_gd", {"gamma": 0.05, "beta": 2 / 3}),
    "page": case(
        "page", {"eta": 0.05, "chance": 0.3, "S1": BIG, "S2": B}, "page", {"eta": 0.05, "p": 0.3, "S1": BIG, "S2": B}
    ),
    "page whole": case(
        "page",
        {"eta": 0.05, "chance": 0.3, "S1": None, "S2": B, "normalized": True},
        "page",
        {"eta": 0.05, "p": 0.3, "S1": None, "S2": B, "normalized": True},
    ),
    "svrg": case("svrg", OURS | {"period": 5}, "svrg", THEIRS | {"period": 5}),
    "saga": case("saga", OURS, "saga", THEIRS),
    "saga with two": case("saga", {"eta": 0.05, "two": True}, "saga_two_indices", {"eta": 0.05}, K=1),
    "sarah": case("sarah", OURS | {"period": 5}, "sarah", THEIRS | {"period": 5}),
}
MARS = {"decay": 0.1}
CASES |= {
    "mars": case("mars", OURS | MARS, "mars", THEIRS | MARS),
    "mars lion": case(
        "mars", OURS | {"flavour": "lion", "clip": False}, "mars", THEIRS | {"flavour": "lion", "clip": False}
    ),
    "mars stale": case("mars", OURS | {"exact": False}, "mars", THEIRS | {"exact": False}),
    "mars shampoo": case("mars", OURS | {"flavour": "shampoo"}, "mars", THEIRS | {"flavour": "shampoo"}, x1=W1),
    "muon": case("muon", OURS | MARS, "muon", THEIRS | MARS, x1=W1),
    "muon plain": case(
        "muon",
        OURS | {"nesterov": False, "method": "svd"},
        "muon",
        THEIRS | {"nesterov": False, "method": "svd"},
        x1=W1,
    ),
    "muon tall": case("muon", OURS, "muon", THEIRS, x1=TALL),
    "mvr2": case("muon_mvr", SLOW | {"gain": 0.5}, "muon_mvr", SLOWLY | {"gamma": 0.5}, x1=W1),
    "mvr1": case(
        "muon_mvr",
        SLOW | {"gain": 0.5, "exact": False, "start": "zero"},
        "muon_mvr",
        SLOWLY | {"gamma": 0.5, "exact": False, "init": "zero"},
        x1=W1,
    ),
    "limuon 1": case("limuon", OURS | {"alpha": 0.2}, "limuon", THEIRS | {"alpha": 0.2}, x1=W1),
    "limuon 2": case("limuon", OURS | {"alpha": 0.2, "rank": 2}, "limuon", THEIRS | {"alpha": 0.2, "rank": 2}, x1=W1),
} | {
    f"scion {ball}": case(
        "scion",
        OURS | {"alpha": 0.2, "ball": ball, "radius": 1.0, "constrained": ball == "row"},
        "scion",
        THEIRS | {"alpha": 0.2, "norm": ball, "constrained": ball == "row"},
        x1=W1,
    )
    for ball in ("euclidean", "sign", "mean_sign", "spectral", "column", "row", "rms")
}
# Without noise these equal the gradient. Not SAGA, whose kept gradients have different ages.
EXACT = (
    *("sgd", "mean of sgd", "ema of sgd", "schedule free", "normalised", "clipped", "soft", "adagrad"),
    *("sign storm", "sign storm large first", "signstorm"),
    *("super adam", "storm", "storm plus", "meta storm", "meta storm sg", "meta storm na", "hybrid", "hybrid same"),
    *("anytime", "agnostic storm", "clipped storm"),
    *("normalized storm", "spider 1", "spider 2", "spider whole", "l0l1", "symmetric", "beta gd", "page", "page whole"),
    *("svrg", "sarah", "limuon 1"),
)
# What requires a finite sum, and what matrices.
SUMS = {"kalman table", "spider whole", "beta gd", "page whole", "svrg", "saga", "saga with two", "sarah"}
FREE_BALLS = {"scion euclidean", "scion sign", "scion rms"}
MATRIX = {name for name in CASES if name.split()[0] in ("muon", "mvr1", "mvr2", "limuon", "scion")} - FREE_BALLS
MATRIX |= {"mars shampoo"}
