"""A search for violations of the stated constants: random pairs, then hill climbing on the worst of them.

Eight ratios left side/right side, each of which must not exceed 1 anywhere: the five statements, the descent lemma,
the gradient-norm lemma, and the bias of the samples relative to a tolerance for rounding. Means over samples are
exact: all rows of a finite sum, all outcomes of a coin, and for continuous noise designs on random orthonormal bases,
for which the statements hold exactly because they use second moments only. Almost sure statements add samples that
are built to be as bad as possible at the pair in hand. Run as a script, this file prints the table of the worst
ratios found.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np

from normstorm.problems import get, noisy
from normstorm.problems.chain import Chain
from normstorm.problems.noise import CoordinateNoise, FourierNoise, Noisy, coordinate, fourier, gaussian, sphere
from normstorm.problems.synthetic import Cosh, DoubleWell, ExpQuad, Quadratic, RadialPower, SeparablePower

NAMES = ("D1", "3A", "3B", "4A", "4B", "descent", "gradient norm", "bias")
REACH = 30.0
ROUNDING = 1e-9


def cases() -> dict:
    """Every problem of the catalogue, and compositions that it does not contain. Values are factories."""
    rs = sphere(0.5, 0.3)
    curvatures = np.geomspace(0.1, 10, 4)
    return {
        **{name: (lambda name=name: get(name, **SMALL[name])) for name in SMALL},
        "matrix-regression": lambda: Flat(get("matrix-regression")),
        "quadratic + RS": lambda: noisy(Quadratic(curvatures), rs),
        "quadratic + G": lambda: noisy(Quadratic(curvatures), gaussian(1.0, 0.2)),
        "cosh + G": lambda: noisy(Cosh(2.0, 4), gaussian(0.5, 0.5)),
        "exp-quad + RS(0, 1.5)": lambda: noisy(ExpQuad(1.0, 2.0, 4), sphere(0.0, 1.5)),
        "|x|^6 + RS": lambda: noisy(RadialPower(4.0, 3, 4), rs),
        "sum x^6 + RS": lambda: noisy(SeparablePower(2.0, 3, 4), rs),
        "cosh + coordinate": lambda: noisy(Cosh(2.0, 5), coordinate()),
        "double well + coordinate": lambda: noisy(DoubleWell(5), coordinate()),
        "double well + coordinate + Fourier": lambda: noisy(DoubleWell(4), coordinate(), fourier(0.5, 3.0)),
        "double well, no noise": lambda: noisy(DoubleWell(4)),
        "DRO chi2, lam .05": lambda: get("dro-chi2", lam=0.05),
        "phase retrieval, a line": lambda: get("phase-retrieval", n=60, dim=2, length=2.0, L1=5.0),
        "tanh network, 2 units": lambda: get("tanh-network", hidden=2, rho=1.0, L1=15.0, sigma1=1.5),
        "chain, p .5, not rotated": lambda: get("chain", length=5, p=0.5, rotate=None),
        "noisy valley, g0 3": lambda: get("noisy-valley", dim=3, g0=3.0),
    }


SMALL = {
    **{name: {"dim": 4} for name in ("quadratic", "quartic", "quartic-sum", "cosh", "double-well", "cosh-cosine")},
    "exp-quad": {"dim": 4},
    "noisy-valley": {"dim": 4},
    "chain": {"length": 6},
    "dro-regression": {},
    "least-squares": {},
    "matrix-regression": {},
    "separable-logistic": {},
    "separable-exponential": {},
    "logistic-nonconvex": {},
    "phase-retrieval": {},
    "dro-chi2": {},
    "dro-cvar": {},
    "tanh-network": {},
}


class Flat:
    """A problem whose x is a matrix as one whose x is a vector."""

    def __init__(self, inner) -> None:
        self.inner, self.shape = inner, inner.start().shape

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def start(self):
        return self.inner.start().ravel()

    def value(self, x):
        return self.inner.value(x.reshape(self.shape))

    def full_grad(self, x):
        return self.inner.full_grad(x.reshape(self.shape)).ravel()

    def grad(self, x, batch):
        return self.inner.grad(x.reshape(self.shape), batch).ravel()

    def range(self, x, radius):
        return self.inner.range(x.reshape(self.shape), radius)


def design(problem, seed: int = 0):
    """Samples and weights whose weighted mean squares obey 3B and 4B exactly if the true ones do."""
    if isinstance(problem, Noisy) and not problem.noises:
        return None, jnp.ones(1)
    if isinstance(problem, Chain):
        return jnp.array([False, True]), jnp.array([1 - problem.p, problem.p])
    if not isinstance(problem, Noisy):
        return jnp.arange(problem.size), jnp.full(problem.size, 1 / problem.size)
    d, parts = problem.dim, []
    for noise in problem.noises:
        seed += 1
        basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]
        if isinstance(noise, CoordinateNoise):
            parts.append(np.arange(d))
        elif isinstance(noise, FourierNoise):
            phases = np.tile(np.arange(4) * np.pi / 2, d)
            parts.append((np.repeat(basis, 4, axis=0), phases))
        else:
            parts.append((np.repeat([1.0, -1.0], 2 * d), np.tile(np.concatenate([basis, -basis]), (2, 1))))
    sizes = [len(jax.tree.leaves(part)[0]) for part in parts]
    grid = np.indices(sizes).reshape(len(sizes), -1)
    batch = tuple(jax.tree.map(lambda a, g=g: jnp.asarray(a[g]), part) for part, g in zip(parts, grid, strict=True))
    return batch, jnp.full(grid.shape[1], 1 / grid.shape[1])


def adversaries(problem, x, y):
    """Samples with the largest noise at x, in two opposite directions, and with the largest change to y, in two."""
    g, move = problem.full_grad(x), y - x
    change = problem.full_grad(y) - g
    along, ahead, middle = _unit(g), _unit(move), (x + y) / 2
    batch = []
    for noise in problem.noises:
        if isinstance(noise, CoordinateNoise):
            places = jnp.argmax(g**2), jnp.argmin(g**2), jnp.argmax(change**2), jnp.argmin(change**2)
            batch.append(jnp.stack(places))
        elif isinstance(noise, FourierNoise):
            there, between = noise.w * (along @ x), noise.w * (ahead @ middle)
            phases = jnp.stack([-jnp.pi / 2 - there, jnp.pi / 2 - there, -between, jnp.pi - between])
            batch.append((jnp.stack([along, along, ahead, ahead]), phases))
        else:
            batch.append((jnp.array([1.0, -1.0, 1.0, 1.0]), jnp.stack([along, -along, along, along])))
    return tuple(batch)


def _unit(v):
    first = jnp.zeros_like(v).at[0].set(1.0)
    n = jnp.linalg.norm(v)
    return jnp.where(n > 0, v / jnp.where(n > 0, n, 1), first)


def each(problem, x, batch):
    """Gradient of every sample by itself."""
    if batch is None:
        return problem.grad(x, ())[None]
    return jax.vmap(lambda s: problem.grad(x, jax.tree.map(lambda a: a[None], s)))(batch)


def stated(problem):
    """((L0, L1) of Definition 1, 3A, 3B; (sigma0, sigma1) of 4A, 4B); nan where a sense is refused."""
    nothing = (float("nan"), float("nan"))

    def ask(method, sense):
        try:
            return method(sense)
        except ValueError:
            return nothing

    senses = ("almost-sure", "mean-square")
    smooth = [ask(problem.smoothness, s) for s in senses]
    return [problem.objective_smoothness(), *smooth], [ask(problem.deviation, s) for s in senses]


def ratios(problem, numbers, samples, x, delta):
    """The eight ratios at x and y = x + radius delta, ||delta|| <= 1, each with its own admissible radius."""
    (smooth, ((s0, s1), (m0, m1))), (batch, weights) = numbers, samples
    L0, L1 = (jnp.array(column) for column in zip(*smooth, strict=True))
    radius = jnp.where(L1 > 0, 1 / jnp.where(L1 > 0, L1, 1), 1.0)
    places = jnp.concatenate([x[None], x + radius[:, None] * delta])
    if isinstance(problem, Noisy) and problem.noises:
        bad = adversaries(problem, x, places[2])
        batch = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), batch, bad)
        weights = jnp.concatenate([weights, jnp.zeros(4)])
    values, full, every = jax.vmap(lambda z: (problem.value(z), problem.full_grad(z), each(problem, z, batch)))(places)
    gx, g = full[0], jnp.linalg.norm(full[0])
    distance = jnp.linalg.norm(places[1:] - x, axis=1)
    right = (L0 + L1 * g) * distance
    moves = jnp.linalg.norm(every[1:] - every[0], axis=2)
    sizes = jnp.linalg.norm(every[0] - gx, axis=1)
    gap = values[0] - problem.infimum
    found = [
        jnp.linalg.norm(full[1] - gx) / right[0],
        jnp.max(moves[1]) / right[1],
        jnp.sqrt(weights @ moves[2] ** 2) / right[2],
        jnp.max(sizes) / (s0 + s1 * g),
        jnp.sqrt(weights @ sizes**2) / jnp.hypot(m0, m1 * g),
        (values[1] - values[0] - gx @ (places[1] - x)) / (right[0] * distance[0] / 2),
        g / (L1[0] * gap + jnp.sqrt((L1[0] * gap) ** 2 + 2 * L0[0] * gap)),
        jnp.linalg.norm(weights @ every[0] - gx) / (ROUNDING * (g + jnp.max(sizes))),
    ]
    return jnp.nan_to_num(jnp.stack(found), nan=0.0)


def worst_ratios(problem, seed: int = 0, people: int = 8, steps: int = 160) -> dict[str, float]:
    """The largest ratios found: for each of the eight, `people` climbers start at random and keep what is worse.

    Every third climber stays on a line parallel to an axis through 0, where the worst pairs of separable functions lie.
    """
    numbers, samples = stated(problem), design(problem, seed)
    measure = jax.jit(jax.vmap(lambda x, delta: ratios(problem, numbers, samples, x, delta)))
    rng, start = np.random.default_rng(seed), np.asarray(problem.start())
    which, shape = np.repeat(np.arange(len(NAMES)), people), (len(NAMES) * people, len(start))
    bound = np.arange(shape[0]) % 3 == 0
    free = np.where(bound[:, None], np.eye(shape[1])[rng.integers(0, shape[1], shape[0])], 1.0)

    def confine(x, delta):
        size, length = (np.linalg.norm(v, axis=1, keepdims=True) for v in (x, delta))
        return x * np.minimum(1, REACH / np.maximum(size, 1e-9)), delta * np.clip(length, 0.02, 1) / length

    def normal():
        return free * rng.standard_normal(shape) / np.sum(free, axis=1, keepdims=True) ** 0.5

    x = np.where(bound[:, None], 0, start) + normal() * 10 ** rng.uniform(-2, 1.5, (shape[0], 1))
    x, delta = confine(x, 1.5 * normal())
    found = np.asarray(measure(x, delta))
    largest, best = found.max(axis=0), found[np.arange(len(which)), which]
    for _ in range(steps):
        scale = 10 ** rng.uniform(-3, 0, (shape[0], 1))
        still = rng.random((shape[0], 1)) < 0.3
        moved = x + np.where(still, 0, scale * (0.1 + np.linalg.norm(x, axis=1, keepdims=True)) * normal())
        moved, turned = confine(moved, delta + scale * normal())
        found = np.asarray(measure(moved, turned))
        largest = np.maximum(largest, found.max(axis=0))
        mine = found[np.arange(len(which)), which]
        better = mine > best
        x[better], delta[better], best[better] = moved[better], turned[better], mine[better]
    return dict(zip(NAMES, map(float, largest), strict=True))


if __name__ == "__main__":
    with jax.enable_x64(True):
        print(f"{'':36}" + "".join(f"{name:>14}" for name in NAMES))
        for label, make in cases().items():
            if sys.argv[1:] and label.split()[0] not in sys.argv[1:]:
                continue
            row = worst_ratios(make())
            print(f"{label:36}" + "".join(f"{row[name]:14.4f}" for name in NAMES), flush=True)
