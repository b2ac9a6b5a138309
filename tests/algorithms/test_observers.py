"""The word that watches: real runs against the slow certificate of tests/helpers/followed.py, coverage, refusals."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import followed
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import CASES, rows_of
from toy import Toy

from normstorm.algorithms import CATALOGUE
from normstorm.algorithms.geometries import norm
from normstorm.algorithms.observers import COVERED, REASONS, Noted, follow, uncovered
from normstorm.engine import run
from normstorm.problems import exact_range, get
from normstorm.random import seed_words, step_key
from normstorm.theory import Constants, trajectory

PAGE = Path(__file__).parents[2] / "docs" / "theory" / "trajectory.md"
STEPS, BLOCK, N, D = 25, 8, 40, 3
TABLE = np.random.default_rng(5).uniform(-1, 1, (N, 2, D))
STORM = {"alpha": 0.2, "eta": 0.01}
RUNS = {
    "one sample": (CATALOGUE["normalized_storm"](**STORM, K=1, k=1), "both"),
    "pieces": (CATALOGUE["normalized_storm"](**STORM, K=10, k=4), "both"),
    "exact": (CATALOGUE["normalized_storm"](**STORM, K=10, k=4), "exact"),
    "constants alone": (CATALOGUE["normalized_storm"](**STORM, K=2, k=2), "constants"),
    "remainder": (CATALOGUE["meta_storm"](eta=0.05, a0=0.5, K=3), "problem"),
    "filtered": (CATALOGUE["kalman_storm"](), "problem"),
    "one piece": (CATALOGUE["hybrid_sarah_sgd"](alpha=0.3, eta=0.02, first_batch=12, K=3), "both"),
}


class Bounded:
    """grad f(x, i) = (1 + .2 u_i) x + .3 v_i, rows of a table; its range is made up: both take it as it is."""

    name = "bounded"

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return rows_of(key, n) % N

    def grad(self, x: jax.Array, rows: jax.Array) -> jax.Array:
        return jnp.mean(gradients(jnp.asarray(TABLE, x.dtype)[rows], x), axis=0)

    def range(self, x: jax.Array, radius: Any) -> tuple[Any, Any]:
        return 0.6 + 0.2 * jnp.max(abs(x)), 1.2 * radius


def of_all_rows(problem: Any, x: Any, before: Any) -> tuple[Any, Any]:
    """What `exact_range` is for a finite sum, not rounded up."""
    here, there = (gradients(jnp.asarray(TABLE, x.dtype), point) for point in (x, before))
    off, change = here - jnp.mean(here, 0), here - there
    return tuple(jnp.max(jnp.linalg.norm(rows, axis=1)) for rows in (off, change))


def gradients(rows: Any, x: Any) -> Any:
    return (1 + 0.2 * rows[..., 0, :]) * x + 0.3 * rows[..., 1, :]


def watched(name: str, dtype: Any) -> tuple[Any, Any]:
    algorithm, kind = RUNS[name]
    constants = None if kind in ("problem", "exact") else Constants(1.2, 0.5, 0.6, 0.2, 0.9, 0.8)
    stated = SimpleNamespace(name="no range") if kind in ("constants", "exact") else Bounded()
    more = {"ranges": of_all_rows} if kind == "exact" else {}
    x = jnp.asarray([0.5, -0.4, 0.3], dtype)
    algorithm = follow(algorithm, stated, x, steps=STEPS, delta=0.1, constants=constants, pieces=60, **more)
    first_w = algorithm.observer.first_w / (3 if kind == "constants" else 1)  # steps without a weight, at first
    return x, replace(algorithm, observer=replace(algorithm.observer, block=BLOCK, first_w=first_w))


@partial(jax.jit, static_argnames="name")
def walk(name: str, algorithm: Any, x: Any) -> Any:
    """x_t, m_t, the samples and the bound after every block, and the points of the same run unwatched."""
    problem, words = Bounded(), jnp.asarray(seed_words([3])[0])

    def path(algorithm: Any) -> Any:
        def step(state: Any, t: Any) -> Any:
            samples = algorithm.draw(problem, step_key(words, t))
            state, _ = algorithm.step(problem, state, samples, t)
            return state, (state, samples)

        samples = algorithm.draw(problem, step_key(words, 1))
        first, _ = algorithm.first(problem, x, samples)
        _, later = jax.lax.scan(step, first, jnp.arange(2, STEPS + 1, dtype=jnp.int32))
        return first, later[0], jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), samples, later[1])

    first, later, samples = path(algorithm)
    watch, before = algorithm.observer, (first.x_prev, first.m)
    path_of = later.x_prev, later.m, jax.vmap(norm)(later.m), later.observer.noted
    bounds = []
    for count in (0, 5, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK):
        seen = watch.follow(problem, before, *path_of, None, count, first.observer).followed
        bounds.append(trajectory.average_bound(jnp, watch._in_precision(seen.size), seen))
    points, m = (jnp.concatenate([a[None], b]) for a, b in zip(before, path_of[:2], strict=True))
    plain, others, _ = path(RUNS[name][0])
    return points, m, samples, jnp.stack(bounds), jnp.concatenate([plain.x_prev[None], others.x_prev])


def slow_bounds(algorithm: Any, x: np.ndarray, m: np.ndarray, samples: Any) -> list[float]:
    """The bounds after the same steps, from gradients that NumPy computes one by one."""
    watch, estimator = algorithm.observer, algorithm.estimator
    cut, c = watch.cut, watch.closure
    constants = None if c is None else [float(v) for v in c]
    oracle = followed.of_fixed(
        watch.fixed,
        w1=float(watch.first_w),
        batches=(cut.K, cut.k),
        samples=(cut.head, cut.tail),
        independent=(cut.pairs, cut.fresh),
        first_samples=cut.first,
        constants=constants,
        settled=None if watch.settled is None else float(watch.settled),
        length=BLOCK,
    )
    two = type(estimator).__name__ == "TwoBatch"
    rows = samples[0] if isinstance(samples, tuple) else samples

    def part(x: np.ndarray, rows: np.ndarray, size: int) -> Any:
        each = gradients(TABLE[rows], x).reshape(-1, size, D)
        return each.mean(axis=1).tolist()

    def stated(x: np.ndarray, moved: float) -> dict[str, float]:
        return {"spread": 0.6 + 0.2 * float(np.max(abs(x))), "change": 1.2 * moved} if watch.local else {}

    def exact(x: np.ndarray, before: np.ndarray) -> tuple[float, float]:
        here, there = gradients(TABLE, x), gradients(TABLE, before)
        return tuple(np.linalg.norm(rows, axis=1).max() for rows in (here - here.mean(axis=0), here - there))

    pieces = [m[0].tolist()] if cut.firsts == 1 else part(x[0], rows[0], cut.first)
    start = followed.Step(m=m[0].tolist(), **stated(x[0], 0.0))
    if watch.exact:
        start.spread = start.off = exact(x[0], x[0])[0]
    oracle.first(start, pieces)
    bounds, seen, weights, steps = [oracle.bound()], 0.0, [1.0], []
    for t in range(1, STEPS):
        moved, K = float(np.linalg.norm(x[t] - x[t - 1])), len(rows[t])
        step = followed.Step(m=m[t].tolist(), moved=moved, a=float(getattr(algorithm.schedule, "alpha", 1.0)))
        step.spread, step.change = stated(x[t], moved).values() if watch.local else (math.inf, math.inf)
        if watch.exact:
            step.spread, step.change = exact(x[t], x[t - 1])
            step.off = step.spread
        if two:  # one piece: as one gradient whose partner is 0
            change = np.subtract(*(part(y, rows[t], K)[0] for y in (x[t], x[t - 1])))
            fresh = np.array(part(x[t], samples[1][t], K)[0])
            step.here, step.there = [(step.a * fresh + (1 - step.a) * change).tolist()], [[0.0] * D]
        if algorithm.name == "meta_storm":  # a_t from the difference at x_{t-1}; a_{t-1} was known before
            old, new = (np.array(part(x[t - 1], rows[i], K)[0]) for i in (t - 1, t))
            seen += np.sum((old - new) ** 2) / 0.5**2
            weights.append((1 + seen) ** (-2 / 3))
            here = np.array(part(x[t], rows[t], K)[0])
            step.a, step.lost = weights[-2], ((weights[-1] - weights[-2]) * (new - m[t - 1])).tolist()
            np.testing.assert_allclose(m[t], here + (1 - weights[-1]) * (m[t - 1] - new), atol=1e-12)
        if algorithm.name == "kalman_storm":  # whose gain is known before; here it is what m_t was made with
            here, old = (np.array(part(y, rows[t], K)[0]) for y in (x[t], x[t - 1]))
            apart, carried = old - m[t - 1], m[t - 1] + here - old
            step.a = float(np.dot(m[t] - carried, apart) / np.dot(apart, apart))
            np.testing.assert_allclose(m[t], carried + step.a * apart, atol=1e-12)
        if not two:
            step.here, step.there = (part(y, rows[t][: cut.k], cut.head) for y in (x[t], x[t - 1]))
            step.others = part(x[t], rows[t][cut.k :], cut.tail) if cut.tails else ()
        steps.append(step)
    for count in (5, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK):
        again, made = deepcopy(oracle), deepcopy(steps[:count])
        for i, step in enumerate(
            made if watch.local and watch.length is not None else ()
        ):  # asked at every second point
            step.spread, step.change = steps[i - i % 2].spread + steps[i - i % 2].change, steps[i - i % 2].change
        for start in range(0, count, BLOCK):
            again.add(made[start : start + BLOCK])
        bounds.append(again.bound())
    return bounds


@pytest.mark.parametrize(("name", "dtype"), [*((name, "float64") for name in RUNS), ("pieces", "float32")])
def test_a_run_has_the_bounds_of_the_slow_certificate(name: str, dtype: str) -> None:
    """And watching changes its path by rounding alone."""
    x, algorithm = watched(name, dtype)
    points, m, samples, bounds, unwatched = walk(name, algorithm, x)
    exact = dtype == "float64"
    assert points.dtype == m.dtype == bounds.dtype == dtype
    np.testing.assert_allclose(points, unwatched, rtol=0, atol=1e-13 if exact else 1e-6)
    points, m = (np.asarray(a, float) for a in (points, m))
    slow = np.array(slow_bounds(algorithm, points, m, jax.tree.map(np.asarray, samples)))
    assert np.all(np.isfinite(slow)) and algorithm.observer.cut.tails == {"pieces": 3, "exact": 3}.get(name, 0)
    ratio = np.asarray(bounds, float) / slow
    # Where w grows it is rounded down; the gains of a filter are those found in m.
    down = {"constants alone": 1e-11, "filtered": 1e-9, "exact": 1e-12}.get(name, 0.0)
    assert np.all(ratio > 1 - down) and np.all(ratio < 1 + (1e-9 if exact else 2e-4)), ratio - 1  # rounded up


def test_the_page_says_which_algorithms_are_covered() -> None:
    """Each on one row, and yes if any of its forms is; and one class inherits a recursion that it changes."""
    lines = PAGE.read_text(encoding="utf-8").split("## Algorithms", 1)[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    said = [(name.strip(" `"), row[1] == "yes") for row in rows for name in row[0].split(",")]
    assert len(dict(said)) == len(said)
    covered = {case.algorithm.name: False for case in CASES.values()}
    for case in CASES.values():
        kind = type(case.algorithm.estimator)
        assert (kind in COVERED) != (kind.__name__ in REASONS), kind
        covered[case.algorithm.name] |= uncovered(case.algorithm) is None
    assert dict(said) == covered, "name it in the table 'Algorithms' of docs/theory/trajectory.md"
    assert "goes on" in str(uncovered(CATALOGUE["limuon"](alpha=0.1, eta=0.1, rank=1)))


PLAIN, GROWING = Constants(1, 0, 1, 0, 1), Constants(1, 1, 1, 0.5, 1)
SIGN, NORMAL = CATALOGUE["sign_storm"](alpha=0.2, eta=0.01), RUNS["one sample"][0]


def test_constants_without_growth_serve_steps_of_every_kind() -> None:
    watch = follow(SIGN, Toy(2), jnp.zeros(2), steps=10, delta=0.1, constants=PLAIN).observer
    assert watch.closure is not None and not watch.local


@pytest.mark.parametrize(
    ("algorithm", "more", "words"),
    [
        (NORMAL, {"steps": 0}, "follow: steps must be an integer >= 1; got steps=0"),
        (NORMAL, {"delta": 1.0}, "follow: delta must be a number in (0, 1); got delta=1.0"),
        (NORMAL, {"target": -1}, "follow: target must be a finite number > 0; got target=-1"),
        (NORMAL, {"ranges": "exact"}, "follow: ranges must be a function of (problem, x, x_prev) or None; got ranges="),
        (NORMAL, {"pieces": 0}, "follow: pieces must be an integer >= 1; got pieces=0"),
        (NORMAL, {}, "follow: ranges must come from a method range(x, radius) of the problem or from constants; 'toy'"),
        (SIGN, {"constants": GROWING}, "'toy' has no such method, and constants do not serve sign_storm"),
        (NORMAL, {"constants": Constants(1, 0, 1, 0, 1, noise="mean-square")}, "must be in the almost-sure sense"),
        (CATALOGUE["sgd"](eta=0.1), {}, "follow: algorithm must have a STORM estimate; sgd has none: its estimate"),
    ],
)
def test_refusals(algorithm: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        follow(algorithm, Toy(2), jnp.zeros(2), **{"steps": 10, "delta": 0.1} | more)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_pass_over_all_rows_gives_the_ranges_of_a_finite_sum() -> None:
    """The bound is below that of stated ranges, and above the truth."""
    with jax.enable_x64(True):
        problem = get("dro-chi2", n=40)
        x, found = problem.start(), {}
        for name, ranges in (("stated", None), ("exact", exact_range)):
            algorithm = follow(NORMAL, problem, x, steps=300, delta=0.1, ranges=ranges)
            trace = run(problem, algorithm, x, 300, 1)
            seen = jax.tree.map(lambda leaf: leaf[0], trace.observer.followed)
            found[name] = trajectory.average_bound(np, algorithm.observer.fixed, seen)
        with pytest.raises(ValueError, match="exact_range: problem must be a finite sum"):
            follow(NORMAL, get("cosh"), get("cosh").start(), steps=300, delta=0.1, ranges=exact_range)
    assert trace.mean_grad_norm[0] < found["exact"] < found["stated"]


def test_what_is_bounded_has_the_weights_of_the_bound() -> None:
    """Of a run that may end at a target: sums of theta ||grad F|| from the weights that the slow way finds."""
    with jax.enable_x64(True):
        problem, rule = get("quadratic"), CATALOGUE["normalized_storm_anytime"](alpha=0.4, eta=0.01, shift=5.0)
        x = problem.start()
        algorithm = follow(rule, problem, x, steps=40, delta=0.1, target=1e-9)
        trace = run(problem, algorithm, x, 40, 2, records=400)
        schedule, state, w, alphas = rule.schedule, rule.schedule.init(x), float(algorithm.observer.first_w), []
        for t in range(1, 41):
            weight, state = schedule.weight(t, None, state)
            alphas.append(float(weight))
            _, state = schedule.step(t, x, None, state)
    thetas = []
    for a in alphas[1:]:
        later = min(1 / a, w / max(1 - a, 0.5))
        thetas.append(w - (1 - a) * later)
        w = later
    thetas.append(min(w, 1.0))
    for i in range(2):
        seen = jax.tree.map(lambda leaf, i=i: leaf[i], trace.observer)
        weighted = np.average(trace.grad_norm[i], weights=thetas)
        assert algorithm.observer.average(seen) == pytest.approx(weighted, rel=1e-9) != trace.mean_grad_norm[i]


def test_a_range_without_end_is_refused() -> None:
    endless = SimpleNamespace(name="endless", range=lambda x, radius: (math.inf, math.inf))
    with pytest.raises(ValueError, match="follow: range must be finite at x; got range=inf"):
        follow(NORMAL, endless, jnp.zeros(2), steps=10, delta=0.1)


def test_steps_are_halved_when_the_certificate_has_spent_its_share() -> None:
    """Blocks of 2 steps end at t = 2, 4, ..; with a share of almost nothing, each but the first step's is an epoch."""
    x = jnp.asarray([0.5, -0.4, 0.3])
    words = {"alpha": 0.2, "eta": 0.01, "gap": 0.9, "L0": 1.2}
    for share, lengths in ((1e-9, [0.01 / 2 ** ((t - 1) // 2) for t in range(1, 12)]), (1e9, [0.01] * 11)):
        algorithm = follow(
            CATALOGUE["halving_storm"](**words, share=share), Bounded(), x, steps=75, delta=0.1, constants=None
        )
        assert algorithm.observer.block == 2 and algorithm.observer.settled == 5.0
        seen = run(Bounded(), algorithm, x, 12, 2).observer.followed
        np.testing.assert_allclose(seen.curve, np.sum(np.square(lengths)), rtol=1e-9)
        np.testing.assert_allclose(seen.weight, np.sum(lengths) / 0.01, rtol=1e-9)  # theta_s = eta_s/eta


def test_what_is_spent_is_counted_from_the_last_halving() -> None:
    rule = CATALOGUE["halving_storm"](alpha=0.2, eta=0.1, gap=2.0, L0=4.0, share=0.5).schedule
    state = rule.init(jnp.zeros(1))
    for errors, curve, eta in ((3.0, 0.0, 0.1), (5.0, 0.2, 0.1), (6.0, 0.2, 0.05), (7.0, 0.3, 0.05), (9.0, 0.5, 0.025)):
        state = rule.told(errors, curve, state)  # spent: .6, 1.4, 1.6 (+ 1), 2.0, 2.8 (+ 1.2)
        assert float(state.eta) == eta and float(state.used) == 0.1
    assert float(state.halvings) == 2


@pytest.mark.parametrize("count", [21, 32])
def test_seeds_that_end_blocks_at_different_steps_do_not_mix(count):
    """Blocks of one seed end where its ranges jump; side by side each gets what it gets alone, and every step once."""
    seeds, chunk, rng = 4, 32, np.random.default_rng(count)
    problem: Any = SimpleNamespace(range=lambda x, radius: (0.1 + abs(x[0]), 1.2 * radius))
    algorithm = follow(CATALOGUE["meta_storm"](eta=0.05, a0=0.5), problem, jnp.ones(D), steps=2000, delta=0.1)
    observer = replace(algorithm.observer, block=8)
    jumps = rng.normal(0, 0.4, (seeds, chunk + 1)) * (rng.random((seeds, chunk + 1)) < 0.2)
    x = np.concatenate([np.exp(np.cumsum(jumps, 1))[..., None], rng.normal(0, 0.01, (seeds, chunk + 1, D - 1))], 2)
    m = rng.normal(0, 0.3, (seeds, chunk + 1, D))
    x, m, alpha, head = jax.tree.map(jnp.asarray, (x, m, *rng.uniform(0.01, 0.4, (2, seeds, chunk))))
    size, zeros = jnp.linalg.norm(m, axis=2), jnp.zeros((seeds, chunk))
    noted = Noted(alpha, head, None, zeros)

    def start(x, m):
        first = observer.first(problem, x, m, None)
        return first._replace(noted=Noted(0.0, 0.0, None, 0.0))

    def one(x, m, size, noted):
        begun = start(x[0], m[0])
        return observer.follow(problem, (x[0], m[0]), x[1:], m[1:], size[1:], noted, None, count, begun).followed

    given = x, m, size, noted
    together = jax.jit(jax.vmap(one))(*given)
    np.testing.assert_array_equal(together.t, 1 + count)
    moved = jnp.sum(jnp.diff(x, axis=1)[:, :count] ** 2, axis=(1, 2))
    np.testing.assert_allclose(together.curve, moved, rtol=1e-5)
    alone = [jax.jit(one)(*jax.tree.map(itemgetter(i), given)) for i in range(seeds)]
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-12),
        together,
        jax.tree.map(lambda *a: np.stack(a), *alone),
    )
