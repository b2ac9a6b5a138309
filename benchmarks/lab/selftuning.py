"""Kalman-STORM, untuned, against tuned methods that only sample, against defaults, and without one part at a time.

    python -m benchmarks.lab.selftuning [--only own|table|race|ablation|rescaling] [--problems a,b] [--rivals a,b]
        [--budget n,m] [--values n] [--seeds n] [--jobs n] [--out benchmarks/results/selftuning.json]

own         as it is: cost-weighted average, last point, and V against the true squared error
table       with the table of a finite sum, beside tuned SAGA

race        every rival with its step on 9 factors around the default of the comparison, times at most 3 values of its
            second parameter. A setting is chosen by some seeds and reported by 16 others, those of `own`, apart for
            average and last point; settings whose median ends above F(x_1) are refused, and counted. Averages are
            weighted by cost.
ablation    the average without one part at a time, on the problems of the design
rescaling   the path under other units of x and F, thousands and powers of 2: largest relative difference of the average

A gradient is measured at every one of the first 128 steps, at every 64th up to step 8192 and at every 512th later.
Problems of the hold-out have no constants; scales of their defaults are measured at the start.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.lab import holdout
from benchmarks.machine import describe
from benchmarks.pages import (
    ablation_table,
    calibration_chart,
    fill,
    filter_table,
    rescaling_line,
    selftuning_counts,
    selftuning_rivals,
    selftuning_table,
)
from normstorm._shared.jsonable import jsonable
from normstorm._shared.pytrees import pytree
from normstorm.algorithms import CATALOGUE, Algorithm
from normstorm.algorithms.filtering import Filter, Filtered
from normstorm.algorithms.geometries import norm
from normstorm.lab.compare.methods import METHODS, Scales, scales
from normstorm.problems import registry
from normstorm.random import seed_words, step_key

RESULT = Path(__file__).parents[1] / "results" / "selftuning.json"
RIVALS = (
    "sgd",
    "momentum_sgd",
    "adagrad_norm",
    "normalized_storm",
    "storm",
    "storm_plus",
    "meta_storm",
    "super_adam",
    "mars",
)
DESIGN = (
    *("quadratic", "noisy-valley", "dro-chi2", "phase-retrieval", "exp-quad", "quartic", "chain"),
    *("logistic-nonconvex", "tanh-network", "softmax", "saddles", "wide-logistic"),
)
PROBLEMS = (*registry.PROBLEMS, *holdout.PROBLEMS)
REPORTED = (100, 16)  # the first of the seeds by which everyone is reported, and how many
DENSE = ((128, 1), (8192, 64), (2**30, 512))  # up to so many steps, a gradient is measured at every so many
UNITS = {
    "difference": ((1e-3, 1e3), (1e3, 1e-3), (1e3, 1e3), (1e-3, 1e-3)),
    "binary": ((2.0**-10, 2.0**10), (2.0**10, 2.0**-10), (2.0**10, 2.0**10), (2.0**-10, 2.0**-10)),
}


def problem_of(name: str) -> Any:
    return holdout.PROBLEMS[name]() if name in holdout.PROBLEMS else registry.get(name)


class Mark(NamedTuple):
    """When so many sample gradients were asked: the average so far, x, the estimate, and V if there is one."""

    average: jax.Array
    x: Any
    m: Any
    V: jax.Array
    alarms: jax.Array


@partial(jax.jit, static_argnames=("steps", "budgets"))
def walk(problem: Any, algorithm: Algorithm, x: Any, words: jax.Array, steps: int, budgets: tuple[int, ...]) -> Any:
    """A path of every algorithm, of which some numbers are stacked, and every seed: (settings, seeds, budgets)."""

    def one(algorithm: Algorithm, seed: jax.Array) -> Any:
        def slope(state: Any) -> jax.Array:
            return norm(problem.full_grad(algorithm.point(state)))

        def mark(state: Any, total: jax.Array, cost: jax.Array) -> Mark:
            known = state.estimator if isinstance(state.estimator, Filter) else None
            V, alarms = (total * 0, total * 0) if known is None else (known.V, known.alarms)
            return Mark(total / cost, algorithm.point(state), state.m, V, alarms)

        def step(t: Any, carry: Any) -> Any:
            state, cost, total, steep, marks = carry
            after, asked = algorithm.step(problem, state, algorithm.draw(problem, step_key(seed, t)), t)
            asked = jnp.asarray(asked, cost.dtype)
            total, spent = total + asked * steep, cost + asked
            now = mark(after, total, spent)
            due = [(cost < b) & (spent >= b) for b in budgets]
            marks = [jax.tree.map(partial(jnp.where, d), now, old) for d, old in zip(due, marks, strict=True)]
            seen = [(t <= upto) & (t % every == 0) for upto, every in DENSE]
            steep = jax.lax.cond(jnp.any(jnp.array(seen)), slope, lambda _: steep, after)
            return after, spent, total, steep, marks

        state, asked = algorithm.first(problem, x, algorithm.draw(problem, step_key(seed, 1)))
        cost, steep = jnp.asarray(asked, float), slope(state)
        begun = mark(state, cost * steep, cost)
        *_, marks = jax.lax.fori_loop(2, steps + 1, step, (state, cost, cost * steep, steep, [begun for _ in budgets]))
        ends = [(norm(problem.full_grad(mark.x)), problem.value(mark.x)) for mark in marks]
        errors = [norm(jax.tree.map(jnp.subtract, mark.m, problem.full_grad(mark.x))) ** 2 for mark in marks]
        rows = zip(marks, ends, errors, strict=True)
        return jnp.array([[k.average, g, F, e, k.V, k.alarms] for k, (g, F), e in rows])

    return jax.vmap(lambda a: jax.vmap(partial(one, a))(words))(algorithm)


def measured_scales(problem: Any, budget: int) -> Scales:
    """Of a problem without constants: curvature along the gradient, and the spread of 256 samples."""
    x = problem.start()
    g = problem.full_grad(x)
    size = float(norm(g))
    way = jax.tree.map(lambda leaf: leaf / size, g)
    bend = float(norm(jax.jvp(problem.full_grad, (x,), (way,))[1]))
    batch = problem.sample(jax.random.key(0), 256)
    each = jax.lax.map(lambda s: problem.grad(x, jax.tree.map(lambda a: a[None], s)), batch)
    apart = jax.tree.map(lambda a, b: a - b, each, g)
    sigma = float(norm(apart)) / 16
    return Scales(bend, 0.0, size, sigma, float(problem.value(x)), budget, getattr(problem, "size", None))


def settings(name: str, known: Scales, values: int) -> list[dict[str, Any]]:
    """Every factor of the step, and so many values of the second parameter, the default's first."""
    method = METHODS[name]
    rungs = [method.rung, *(rung for rung in method.first if rung != method.rung)][:values]
    return [method.settings(known, 10 ** (power / 2), method.ladder[rung]) for rung in rungs for power in range(-4, 5)]


def stacked(algorithms: list[Algorithm]) -> Algorithm:
    joined: Algorithm = jax.tree.map(lambda *leaves: jnp.array(leaves, float), *algorithms)
    return joined


def words(first: int, count: int) -> jax.Array:
    return jnp.asarray(seed_words(list(range(first, first + count))))


def rows_of(problem: Any, algorithms: list[Algorithm], seeds: jax.Array, steps: int, budgets: tuple[int, ...]) -> Any:
    x = jax.tree.map(jnp.asarray, problem.start())
    return np.asarray(walk(problem, stacked(algorithms), x, seeds, steps, budgets))


def own(name: str, table: bool, budgets: tuple[int, ...]) -> dict[str, Any]:
    """Kalman-STORM as it is."""
    problem = problem_of(name)
    most = max(budgets) + 1
    found = rows_of(problem, [CATALOGUE["kalman_storm"](table=table)], words(*REPORTED), most, budgets)[0]
    known = {"start": float(problem.value(problem.start())), "seeds": REPORTED[1]}
    return {str(b): {**summary(found[:, j]), **known} for j, b in enumerate(budgets)}


def summary(rows: np.ndarray) -> dict[str, Any]:
    """Of (seeds, numbers)."""
    rows = np.where(np.isfinite(rows), rows, np.inf)
    average, last, F, error, V, alarms = rows.T
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.median(error / V)
    return {
        "average": float(np.mean(average)),
        "last": float(np.median(last)),
        "value": float(np.median(F)),
        "error_over_V": float(ratio) if np.isfinite(ratio) else None,
        "alarms": float(np.median(alarms)),
    }


def rival(name: str, method: str, budgets: tuple[int, ...], values: int, seeds: int) -> dict[str, Any]:
    """Default, and the best setting for either goal among those that descend."""
    problem, most = problem_of(name), max(budgets)
    known = measured_scales(problem, most) if name in holdout.PROBLEMS else scales(problem, most)
    given = settings(method, known, values)
    tried = [CATALOGUE[method](**s) for s in given]
    steps = tried[0].steps(most, known.size)
    start, usual = float(problem.value(problem.start())), given.index(METHODS[method].default(known))
    found = rows_of(problem, tried, words(0, seeds), steps + 1, budgets)
    found = np.where(np.isfinite(found), found, np.inf)  # (settings, seeds, budgets, numbers)
    falls = np.median(found[..., 2], axis=1) <= start
    goals = {"average": 0, "last": 1}
    scores = {goal: np.where(falls, np.mean(found[..., column], axis=1), np.inf) for goal, column in goals.items()}
    best = {goal: np.argmin(score, axis=0) for goal, score in scores.items()}
    shown = sorted({usual, *(int(i) for chosen in best.values() for i in chosen)})
    again = rows_of(problem, [tried[i] for i in shown], words(*REPORTED), steps + 1, budgets)
    out = {}
    for j, budget in enumerate(budgets):
        rows = dict(zip(shown, np.where(np.isfinite(again[:, :, j]), again[:, :, j], np.inf), strict=True))
        entry: dict[str, Any] = {"refused": int(np.sum(~falls[:, j])), "settings": len(tried), "seeds": REPORTED[1]}
        entry["default"] = {**summary(rows[usual]), "descends": bool(np.median(rows[usual][:, 2]) <= start)}
        for goal in goals:
            i = int(best[goal][j])
            seen = summary(rows[i]) if np.isfinite(scores[goal][i, j]) else {}
            entry[goal], entry[goal + "_value"] = seen.get(goal), seen.get("value")
            entry[goal + "_edge"], entry[goal + "_setting"] = i % 9 in (0, 8), jsonable(given[i])
        out[str(budget)] = entry
    return out


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rescaled:
    """The same problem in other units: y = a x, and b F."""

    inner: Any
    a: float
    b: float

    def sample(self, key: jax.Array, n: int) -> Any:
        return self.inner.sample(key, n)

    def _back(self, y: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf / self.a, y)

    def grad(self, y: Any, batch: Any) -> Any:
        return jax.tree.map(lambda g: g * self.b / self.a, self.inner.grad(self._back(y), batch))

    def full_grad(self, y: Any) -> Any:
        return jax.tree.map(lambda g: g * self.b / self.a, self.inner.full_grad(self._back(y)))

    def value(self, y: Any) -> jax.Array:
        return self.b * self.inner.value(self._back(y))


def rescaled(name: str, units: str, steps: int = 1000) -> float:
    """The largest relative difference of the average over so many sample gradients, two seeds.

    Powers of 2 round nothing: what is left then is no rounding that grows along the path.
    """
    problem, algorithm = problem_of(name), stacked([CATALOGUE["kalman_storm"]()])

    def average(a: float, b: float) -> np.ndarray:
        x = jax.tree.map(lambda leaf: jnp.asarray(leaf) * a, problem.start())
        found = walk(Rescaled(problem, a, b), algorithm, x, words(0, 2), steps, (steps,))
        return np.asarray(found)[0, :, 0, 0] * a / b

    plain = average(1.0, 1.0)
    return float(max(np.max(np.abs(average(a, b) / plain - 1)) for a, b in UNITS[units]))


@pytree
@dataclass(frozen=True)
class Falling(Filtered):
    """The gain of the theory, t^(-2/3), in place of the filter's."""

    def gain(self, state: Filter) -> tuple[jax.Array, jax.Array]:
        V, _ = super().gain(state)
        return V, state.seen ** (-2 / 3)


def variant(part: str) -> Algorithm:
    """Kalman-STORM without a part, or with another number."""
    whole: Algorithm = CATALOGUE["kalman_storm"]()
    filtered, steps = whole.estimator, whole.schedule

    def looking(**values: Any) -> Algorithm:
        return replace(whole, estimator=replace(filtered, **values))

    def stepping(**values: Any) -> Algorithm:
        return replace(whole, schedule=replace(steps, **values))

    words = {
        "as it is": whole,
        "gain t^(-2/3)": replace(whole, estimator=Falling(filtered.K, filtered.k)),
        "moves at every measurement": stepping(share=0.0),
        "moves twice as often": stepping(share=0.5),
        "moves half as often": stepping(share=2.0),
        "steps grow by 8": stepping(growth=8.0),
        "no heed of agreement": stepping(least=1.0),
        "noise does not move with x": looking(drift=0.0),
        "V unchecked": looking(alarm=math.inf),
        "long memory of curvature": looking(agreed=0.0, certain=0.0),
        "short memory of curvature": looking(bend_memory=0.03, spread_memory=0.05),
        "steps half as long": stepping(part=0.25),
        "steps twice as long": stepping(part=1.0),
        "6 first samples": looking(first=6),
    }
    return words[part]


VARIANTS = (
    *(
        "as it is",
        "gain t^(-2/3)",
        "moves at every measurement",
        "moves twice as often",
        "moves half as often",
        "steps grow by 8",
        "no heed of agreement",
    ),
    *("noise does not move with x", "V unchecked", "long memory of curvature", "short memory of curvature"),
    *("steps half as long", "steps twice as long", "6 first samples"),
)


def without(name: str, budget: int) -> dict[str, float]:
    """The average of every variant; those that differ by numbers alone are one program."""
    groups: dict[Any, list[str]] = {}
    for part in VARIANTS:
        groups.setdefault(jax.tree.structure(variant(part)), []).append(part)
    found = {}
    for parts in groups.values():
        rows = rows_of(problem_of(name), [variant(p) for p in parts], words(100, 8), budget + 1, (budget,))[:, :, 0, 0]
        averages = np.mean(np.where(np.isfinite(rows), rows, np.inf), axis=1)
        found |= dict(zip(parts, map(float, averages), strict=True))
    return {part: found[part] for part in VARIANTS}


def tasks(given: Any, budgets: tuple[int, ...]) -> Iterator[tuple[str, str, str, Any]]:
    """(part, problem, what, call)"""
    names, rivals = given.problems.split(","), [r for r in given.rivals.split(",") if r]
    for name in names:
        finite = getattr(problem_of(name), "size", None) is not None
        if given.only in (None, "own"):
            yield "own", name, "plain", partial(own, name, False, budgets)
        if given.only in (None, "table") and finite:
            yield "own", name, "table", partial(own, name, True, budgets)
            yield "rivals", name, "saga", partial(rival, name, "saga", budgets, given.values, given.seeds)
        if given.only in (None, "race"):
            for method in rivals:
                yield "rivals", name, method, partial(rival, name, method, budgets, given.values, given.seeds)
        if given.only in (None, "ablation") and name in DESIGN:
            yield "ablation", name, "parts", partial(without, name, budgets[0])
        if given.only in (None, "rescaling"):
            for units in UNITS:
                yield "rescaling", name, units, partial(rescaled, name, units)


def _single() -> None:
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1".strip()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)


def _call(task: Any) -> Any:
    return task()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("own", "table", "race", "ablation", "rescaling"))
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--budget", default="10000,100000")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--values", type=int, default=3, help="of a rival's second parameter")
    parser.add_argument("--seeds", type=int, default=4, help="by which a setting is chosen")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", default=str(RESULT))
    given = parser.parse_args()
    _single()
    budgets = tuple(int(b) for b in given.budget.split(","))
    todo = list(tasks(given, budgets))
    out = Path(given.out)
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    found |= {"date": date.today().isoformat(), "machine": describe(), "held_out": list(holdout.FRESH)}
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn"), initializer=_single) as pool:
        running = {pool.submit(_call, call): (part, name, what) for part, name, what, call in todo}
        for future in as_completed(running):
            part, name, what = running[future]
            try:
                result = future.result()
            except Exception as error:
                result = {"failed": f"{type(error).__name__}: {error}"[:200]}
            entry = found.setdefault(part, {}).setdefault(name, {})
            if part in ("own", "rivals"):  # other budgets of an earlier run stay
                entry = entry.setdefault(what, {})
            entry.update({what: result} if part == "rescaling" else result)
            print(part, name, what, str(result)[:160], flush=True)
            out.write_text(json.dumps(found, indent=1) + "\n")
    if out.resolve() == RESULT.resolve():
        show(found)


def show(report: dict[str, Any]) -> None:
    """Put the tables into the page."""
    fill("how-to-choose.md", "selftuning-counts", selftuning_counts(report))
    fill("how-to-choose.md", "selftuning", selftuning_table(report))
    fill("how-to-choose.md", "selftuning-rivals", selftuning_rivals(report))
    fill("how-to-choose.md", "selftuning-calibration", calibration_chart(report))
    fill("how-to-choose.md", "selftuning-table", filter_table(report))
    fill("how-to-choose.md", "selftuning-ablation", ablation_table(report))
    fill("how-to-choose.md", "selftuning-units", rescaling_line(report))


if __name__ == "__main__":
    main()
