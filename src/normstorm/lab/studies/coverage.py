"""Coverage: how often, and by how much, does a run's average gradient norm stay below the bound of its plan?

One rule for every problem: its default parameters and start, the sharp plan in high probability for one common budget
of sample gradients (the planner chooses T, K and k), and one run per seed with exactly that plan. A violation is a
seed whose mean of ||grad F(x_t)|| over all t = 1..T exceeds the bound, or that diverged. The plan allows a fraction
delta = 1 - confidence of them. Beside the promise stand the bounds that follow the run: from its estimates, along its
trajectory, and at the point with the smallest estimate of the first seed. The certificate along the trajectory gives
the first steps no weight, and is compared with the average over the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import jax
import numpy as np

from normstorm.algorithms.catalogue import from_plan
from normstorm.algorithms.core import Algorithm
from normstorm.engine.results import Trace
from normstorm.engine.run import run
from normstorm.problems import registry
from normstorm.problems.protocol import Problem
from normstorm.solve.certify import certify
from normstorm.solve.trajectory import certificate_of, watched
from normstorm.theory.plan import DEFAULT_CONFIDENCE, Plan
from normstorm.theory.planner.planner import plan
from normstorm.theory.trajectory import steps_to_settle

BUDGET, CONFIDENCE, SEEDS = 100_000, 0.95, 1000
LARGEST_MEDIAN = 4.0
FRESH = 10_000  # samples at the point
COUNTED = ("violations", "following_violations")


def table(
    names: Sequence[str] = tuple(registry.PROBLEMS),
    *,
    budget: int = BUDGET,
    confidence: float = CONFIDENCE,
    seeds: int | Sequence[int] = SEEDS,
    threads: int | None = None,
) -> Iterator[dict[str, Any]]:
    """`row` for every name, as they come."""
    for name in names:
        yield row(name, budget=budget, confidence=confidence, seeds=seeds, threads=threads)


def row(
    name: str, *, budget: int, confidence: float, seeds: int | Sequence[int], threads: int | None = None
) -> dict[str, Any]:
    """One problem of the registry: constants, plan, and what `observe` saw; or the reason why it has no plan.

    A problem has no row of figures when its data are not installed, its noise is not bounded almost surely, or
    grad F can only be sampled.
    """
    try:
        problem = registry.get(name)
        constants = problem.constants(None, "almost-sure")
    except ValueError as error:
        return {"problem": name, "reason": str(error)}
    if not problem.is_exact:
        return {"problem": name, "reason": "grad F can only be sampled"}
    found = plan(constants, budget=budget, confidence=confidence)
    started = time.monotonic()
    seen = observe(problem, found, seeds, threads=threads)
    return {
        "problem": name,
        "dimension": int(np.size(problem.start())),
        "constants": constants.to_dict(),
        "horizon": found.horizon,
        "batch": found.batch,
        "sub_batch": found.sub_batch,
        "alpha": found.alpha,
        "eta": found.eta,
        "sample_gradients": found.sample_gradients,
        "confidence": confidence,
        "certificate": found.certificate,
        "bound": found.bound,
        "first_gradient": constants.first_gradient,
        **seen,
        "seconds": round(time.monotonic() - started, 1),
    }


def _over_steps_with_weight(
    problem: Problem, planned: Plan, algorithm: Algorithm, trace: Trace, seeds: int | Sequence[int], threads: int | None
) -> np.ndarray:
    """Averages over the steps that have a weight in the certificate along the run: not over the first ones.

    A run of these alone, which is the beginning of the long one, says what they add to the average of all.
    """
    T, first_w = planned.horizon, getattr(algorithm.observer, "first_w", None)
    begins = 0 if first_w is None else steps_to_settle(first_w, planned.alpha)
    if not begins:
        return trace.mean_grad_norm
    early = run(problem, from_plan(planned), problem.start(), begins, seeds, candidates=1, records=2, threads=threads)
    every = trace.mean_grad_norm
    rest = T * every - begins * np.where(
        np.isfinite(every), early.mean_grad_norm, 0.0
    )  # one that diverged stays infinite
    found: np.ndarray = rest / (T - begins)
    return found


def _over(bounds: np.ndarray, averages: np.ndarray) -> np.ndarray:
    """Bounds over averages; 0 where there is no average, or an infinite one."""
    usable = (averages > 0) & np.isfinite(averages)
    found: np.ndarray = np.where(usable, bounds, 0.0) / np.where(usable, averages, 1.0)
    return found


def observe(
    problem: Problem, planned: Plan, seeds: int | Sequence[int], *, threads: int | None = None
) -> dict[str, Any]:
    """Run the plan once for every seed, in double precision, and compare the average gradient norms with its bound."""
    level = float(planned.confidence or DEFAULT_CONFIDENCE)
    with jax.enable_x64(True):
        x, T = problem.start(), planned.horizon
        algorithm, reason = watched(from_plan(planned), problem, x, T, level, planned.constants)
        trace = run(problem, algorithm, x, T, seeds, threads=threads)
        along = np.array(certificate_of(algorithm, trace, level, reason).bounds)
        weighted = _over_steps_with_weight(problem, planned, algorithm, trace, seeds, threads)
        point = certify(problem, jax.tree.map(lambda leaf: leaf[0], trace.smallest.x), confidence=level, samples=FRESH)
    means = trace.mean_grad_norm
    middle, q99 = (float(np.quantile(means, q, method="higher")) for q in (0.5, 0.99))
    sizes = trace.mean_estimate_norm
    estimates = np.array([planned.observed_bound(m) if np.isfinite(m) else np.inf for m in sizes])
    ratios = np.minimum(_over(np.minimum(estimates, planned.bound), means), _over(along, weighted))
    return {
        "estimates": float(np.median(estimates)),
        "along": float(np.median(along)),
        "point": point.upper_bound,
        "following_ratio": float(np.median(ratios)),
        "following_violations": int(np.sum((means > estimates) | (weighted > along) | np.isinf(means))),
        "seeds": len(means),
        "median": middle,
        "q99": q99,
        "max": float(means.max()),
        "ratio": planned.bound / q99,
        "violations": int(np.sum(means > planned.bound)),
    }


def verdict(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is claimed of the whole table: violations within what each plan allows, and the median of bound / q99."""
    seen = [r for r in rows if "reason" not in r]
    middle = median(r["ratio"] for r in seen)
    fair = all(r[name] <= (1 - r["confidence"]) * r["seeds"] for r in seen for name in COUNTED)
    return {
        "problems": len(seen),
        "runs": sum(r["seeds"] for r in seen),
        "violations": sum(r["violations"] for r in seen),
        "median_ratio": middle,
        "following_ratio": median(r["following_ratio"] for r in seen),
        "following_violations": sum(r["following_violations"] for r in seen),
        "above_start": sum(r["bound"] >= r["first_gradient"] for r in seen),
        "holds": fair and middle <= LARGEST_MEDIAN,
    }


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table and its verdict as a page shows them."""
    letters = "$d$", "$L_0$", "$L_1$", "$\\sigma_0$", "$\\sigma_1$", "$\\Delta_1$", "$T$", "$K$", "$k$"
    bounds = "start", "promised", "from estimates", "along the run", "at the point"
    ratios = "promised / 99 %", "smallest / average", "violations"
    columns = "problem", *letters, "certificate", *bounds, "median", "99 %", "max", *ratios
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for r in rows:
        if "reason" in r:
            lines.append(f"| {r['problem']} | {r['reason']} {'|' * (len(columns) - 1)}")
            continue
        c = r["constants"]
        known = [f"{c[name]:.3g}" for name in ("L0", "L1", "sigma0", "sigma1", "gap")]
        sizes = [str(r[name]) for name in ("horizon", "batch", "sub_batch", "certificate")]
        above = " (above the start)" if r["bound"] >= r["first_gradient"] else ""
        seen = [f"{r['first_gradient']:.3g}", f"{r['bound']:.3g}{above}"]
        seen += [f"{r[name]:.3g}" for name in ("estimates", "along", "point", "median", "q99", "max")]
        counts = ", ".join(str(r[name]) for name in COUNTED)
        ratio = f"{r['ratio']:.2f}", f"{r['following_ratio']:.2f}"
        cells = r["problem"], str(r["dimension"]), *known, *sizes, *seen, *ratio, counts
        lines.append(f"| {' | '.join(cells)} |")
    v = verdict(rows)
    total = f"{v['problems']} problems, {v['runs']} runs, {v['violations']} violations of what was promised and"
    total += (
        f" {v['following_violations']} of what follows the run; {v['above_start']} promises are not below the start."
    )
    middle = f"Median of promised / 99 % quantile: {v['median_ratio']:.2f}, of the smallest bound / average:"
    return "\n".join([*lines, "", f"{total} {middle} {v['following_ratio']:.2f}."])
