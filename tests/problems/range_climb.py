"""A search for violations of `range`: points, radii and samples, then hill climbing on the worst of them.

Two ratios found/stated, each of which must not exceed 1 anywhere. The spread that is found is a proven lower bound of
the radius of every ball that holds the gradients: with weights l of the samples, the root of sum l |v|^2 - |sum l v|^2,
the dual of the smallest ball (two samples with weights 1/2 give half their distance). The change that is found is the
largest of all samples. Samples are all rows of a finite sum, both outcomes of a coin, and for continuous noise those
that point along the gradient and its change. Points are numbers of float32, so that the range in either precision is
held to exact gradients. Run as a script, this file prints the table of what was found.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
from climb import Flat, _unit, adversaries, each

from normstorm.problems import PROBLEMS, get, noisy
from normstorm.problems.chain import Chain
from normstorm.problems.noise import Noisy, coordinate
from normstorm.problems.synthetic import DoubleWell

PLACES = ("start", "path", "solution", "far", "anywhere")
RADII = (1e-3, 0.03, 1.0, 10.0)
CASES = {name: (lambda name=name: get(name)) for name in PROBLEMS}
CASES |= {
    "matrix-regression": lambda: Flat(get("matrix-regression")),
    "double well + coordinate": lambda: noisy(DoubleWell(4), coordinate()),
    "chain, p 1": lambda: get("chain", length=5, p=1.0),
    "chain, p .7": lambda: get("chain", length=5, p=0.7, rotate=None),
    "noisy valley, one slope": lambda: get("noisy-valley", dim=1, g0=3.0),
    "phase retrieval, a line": lambda: get("phase-retrieval", n=60, dim=2, length=2.0, L1=5.0),
    "DRO chi2, lam .05": lambda: get("dro-chi2", lam=0.05),
    "CVaR, al .6, lam 2": lambda: get("dro-cvar", al=0.6, lam=2.0),
}


def samples_at(problem, x, y):
    """All that there are, or the worst of them at x and y."""
    if isinstance(problem, Chain):
        return jnp.array([False, True] if problem.p < 1 else [True])
    return adversaries(problem, x, y) if isinstance(problem, Noisy) else jnp.arange(problem.size)


def least_radius(v, rounds: int = 12):
    """A lower bound of the radius of any ball that holds the rows of v, near the best one (Badoiu and Clarkson)."""

    def step(k, weights):
        far = jnp.argmax(jnp.sum((v - weights @ v) ** 2, axis=1))
        return (weights * (k + 1) + jax.nn.one_hot(far, len(v))) / (k + 2)

    first = jax.nn.one_hot(jnp.argmax(jnp.sum((v - v[0]) ** 2, axis=1)), len(v))
    weights = jax.lax.fori_loop(0, rounds, step, first)
    return jnp.sqrt(weights @ jnp.sum((v - weights @ v) ** 2, axis=1))


def ratios(problem, x, y):
    """(spread, change) found/stated in float64, then in float32, at a point x of float32 numbers."""
    batch = samples_at(problem, x, y)
    here, there = each(problem, x, batch), each(problem, y, batch)
    moved = jnp.max(jnp.linalg.norm(here - there, axis=1))
    lost = 1e-15 * jnp.max(jnp.linalg.norm(here, axis=1))  # of a difference of neighbours, which a search would climb
    found = jnp.stack([least_radius(here), jnp.maximum(moved - lost, 0)])
    distance = jnp.linalg.norm(x - y)
    double = jnp.stack(problem.range(x, distance * (1 + 1e-15)))
    single = jnp.stack(problem.range(x.astype(jnp.float32), (distance * (1 + 1e-6)).astype(jnp.float32)))
    assert double.dtype == jnp.float64 and single.dtype == jnp.float32
    return jnp.nan_to_num(jnp.concatenate([found / double, found / single]), nan=0.0)


def points(problem, rng, crowd):
    """(start, path, solution, far) of every climber, (places, climbers, d)."""
    start = np.asarray(problem.start())

    @jax.jit
    def walk(x):
        def step(t, carry):
            x, path = carry
            x = x - 0.3 / (1 + 0.02 * t) * _unit(problem.full_grad(x))
            return x, path.at[t].set(x)

        return jax.lax.fori_loop(0, 400, step, (x, jnp.zeros((400, x.size))))[1]

    path = np.asarray(walk(start + 1e-3))
    crowd = (len(RADII) * crowd, start.size)
    normal = rng.standard_normal(crowd)
    far = start + 30 * normal / np.linalg.norm(normal, axis=1, keepdims=True)
    solution = path[-1] + 1e-3 * normal * rng.integers(0, 2, (crowd[0], 1))
    found = np.stack([np.tile(start, (crowd[0], 1)), path[rng.integers(0, 40, crowd[0])], solution, far, 2 * normal])
    return found.astype(np.float32).astype(np.float64)


def search(problem, seed: int = 0, steps: int = 40, crowd: int = 2):
    """The largest ratios by place: {place: (spread, change)} in float64, and the largest of all in float32.

    `crowd` climbers start at every place with every radius. They stay at their x, but for those of "anywhere". Every
    third one moves along one coordinate only.
    """
    rng = np.random.default_rng(seed)
    measure = jax.jit(jax.vmap(lambda x, y: ratios(problem, x, y)))
    grid = points(problem, rng, crowd)
    x = grid.reshape(-1, grid.shape[-1])
    free = np.repeat(np.arange(len(PLACES)) == 4, len(RADII) * crowd)[:, None]
    radius = np.tile(np.repeat(RADII, crowd), len(PLACES))[:, None]
    lines = np.eye(x.shape[1])[rng.integers(0, x.shape[1], len(x))]
    confined = np.where((np.arange(len(x)) % 3 == 0)[:, None], lines, 1.0)

    def inside(delta):
        return delta / np.maximum(np.linalg.norm(delta, axis=1, keepdims=True), 1)

    delta = inside(3 * confined * rng.standard_normal(x.shape))
    best = np.asarray(measure(x, x + radius * delta))
    largest = best.copy()
    for _ in range(steps):
        scale = 10 ** rng.uniform(-2, 0.5, (len(x), 1))
        moved = x + free * scale * 0.3 * rng.standard_normal(x.shape)
        moved = moved.astype(np.float32).astype(np.float64)
        turned = inside(delta + confined * scale * rng.standard_normal(x.shape))
        found = np.asarray(measure(moved, moved + radius * turned))
        largest = np.maximum(largest, found)
        aim = np.arange(len(x)) % 2
        better = (found[np.arange(len(x)), aim] > best[np.arange(len(x)), aim])[:, None]
        x, delta, best = (np.where(better, new, old) for new, old in ((moved, x), (turned, delta), (found, best)))
    by_place = largest.reshape(len(PLACES), -1, 4).max(axis=1)
    return {place: tuple(row[:2]) for place, row in zip(PLACES, by_place.tolist(), strict=True)}, largest[:, 2:].max()


if __name__ == "__main__":
    with jax.enable_x64(True):
        print(f"{'found/stated':28}" + "".join(f"{place:>16}" for place in PLACES) + f"{'float32':>10}")
        for label, make in CASES.items():
            if sys.argv[1:] and label.split()[0] not in sys.argv[1:]:
                continue
            table, single = search(make(), steps=200)
            cells = "".join(f"{spread:8.3f}{change:8.3f}" for spread, change in table.values())
            print(f"{label:28}{cells}{single:10.3f}", flush=True)
