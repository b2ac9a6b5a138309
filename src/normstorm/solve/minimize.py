"""The main job: plan, run, choose a point, certify it.

What each rule of choice guarantees, B being the plan's bound of the average of ||grad F(x_t)|| over t = 1..T, which
holds with probability at least 1 - delta:

two-phase   R candidates, one uniformly random iterate from each of R slices of 1..T, fresh samples at each, and the
            candidate with the smallest fresh-sample bound. By Markov's inequality in each slice and the inequality of
            the means, all R candidates exceed c B with probability at most c^-R x (slices' inequality), so with
            c = delta^(-1/R) one of them is at most c B with probability about 1 - 2 delta; and the bound printed for
            the returned point holds with probability at least 1 - delta, whatever happened before.
random      a uniformly random iterate: over the choice of t, the mean of ||grad F(x_t)|| is the average, hence <= B
smallest    the iterate with the smallest ||m_t||: no promise before the run; the fresh-sample bound after it
last        x_{T+1}: no promise before the run; the fresh-sample bound after it
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from normstorm._shared import checkpoint as storage
from normstorm._shared import validate
from normstorm._shared.pytrees import dimension
from normstorm.algorithms.catalogue import from_plan
from normstorm.algorithms.core import Algorithm
from normstorm.engine.results import Trace
from normstorm.engine.run import run
from normstorm.problems.check import as_point
from normstorm.problems.protocol import Problem
from normstorm.theory.fresh_samples import Sense, samples_for
from normstorm.theory.plan import DEFAULT_CONFIDENCE, Plan, round_up
from normstorm.theory.planner.planner import plan as make_plan

from .certify import PointCertificate, chosen_certificate, sample_count
from .fingerprint import fingerprint
from .precision import Precision, assess
from .progress import Progress
from .trajectory import USUAL_STEPS, TrajectoryCertificate, certificate_of, until_certified, watched

Tree = Any
CHOICES = ("two-phase", "random", "smallest", "last")
STOPS = ("plan", "certified")
UNPROMISED = "The run ends when the certificate of its trajectory reaches the target; the plan is not run."
CANDIDATES = 8
LONGEST = 2**30
HIGHEST = 1 - 2**-50  # confidence of which double precision can still give each candidate its part


@dataclass(frozen=True)
class Result:
    """What `minimize` returns.

    x             the chosen point, of the first seed;   reason  why this one
    plan          parameters and what was guaranteed before the run
    promise       what the plan's bound says of the chosen point, in a sentence
    trajectory    what is certified along the run, of the average over its steps
    certificate   what is certified of it after the run, by fresh samples or a pass over all rows
    precision     what rounding can have done to the plan's bound in this run; None if the plan was not run
    trace         every seed's record;   sample_gradients  asked by the first seed's run and by the certificate
    stop          whether the plan was run, or the run ended when it was certified
    """

    x: Tree
    reason: str
    plan: Plan
    promise: str
    trajectory: TrajectoryCertificate
    certificate: PointCertificate
    precision: Precision | None
    trace: Trace
    sample_gradients: int
    stop: str = "plan"

    @property
    def bound(self) -> float:
        """Of the average of ||grad F(x_t)||: the plan's, or that of the trajectory if the plan was not run."""
        return self.plan.bound if self.stop == "plan" else self.trajectory.bound

    @property
    def observed_bounds(self) -> np.ndarray | None:
        """For each seed a bound of its average gradient norm from its own mean of ||m_t||; None if there is none.

        Each holds with the plan's confidence, together with the plan's bound. The mean is raised by what its norms can
        have lost to rounding: half a unit for each number of x, and a few more.
        """
        if self.plan.error is None or self.precision is None:
            return None
        margin = 1 + (dimension(self.x) / 2 + 16) * self.precision.unit_roundoff
        means = self.trace.mean_estimate_norm * margin
        return np.array([self.plan.observed_bound(m) if np.isfinite(m) else np.inf for m in means])

    def observed_bound(self) -> dict[str, Any] | None:
        """The first seed's, the median and the largest of them, and the first seed's in a sentence."""
        bounds = self.observed_bounds
        if bounds is None:
            return None
        first, mean = float(bounds[0]), float(self.trace.mean_estimate_norm[0])
        statement = (
            f"From the estimates of this run: with probability at least {self.plan.confidence!r}, the average of "
            f"||grad F(x_t)|| is at most {round_up(first)}, as that of ||m_t|| is {mean:.4g} (for each seed by itself, "
            "on the event of the plan's bound)."
        )
        median = float(np.quantile(bounds, 0.5, method="higher"))
        largest = {"median": median, "max": float(bounds.max())}
        return {"bound": first, "mean_estimate_norm": mean, **largest, "statement": statement}

    @property
    def violations(self) -> int:
        """Seeds whose average gradient norm exceeds the bound, diverged ones included; unknown ones are not."""
        bounds = self.plan.bound if self.stop == "plan" else np.array(self.trajectory.bounds)
        return int(np.sum(self.trace.mean_grad_norm > bounds))

    def observed(self) -> dict[str, Any]:
        """Quantiles over seeds of the average gradient norm, beside the bound."""
        means = self.trace.mean_grad_norm
        median, q95, q99 = (float(np.quantile(means, q, method="higher")) for q in (0.5, 0.95, 0.99))
        return {
            "seeds": len(means),
            "diverged": int(np.sum(self.trace.diverged_at > 0)),
            "mean_grad_norm": {"median": median, "q95": q95, "q99": q99, "max": float(means.max())},
            "violations": self.violations,
        }


def minimize(
    problem: Problem,
    x0: Tree | None = None,
    *,
    target: float | None = None,
    budget: int | None = None,
    plan: Plan | None = None,
    confidence: float | None = None,
    seeds: int | Sequence[int] = 1,
    choose: str = "two-phase",
    samples: int | None = None,
    stop: str = "plan",
    progress: bool | Callable[[int, int], None] = True,
    checkpoint: str | os.PathLike[str] | None = None,
    width: int | None = None,
) -> Result:
    """Minimise a problem with proven constants: plan, run Normalized STORM, choose a point and certify it.

    x0           the starting point; the problem's own if not given
    target | budget | plan    exactly one: see `normstorm.plan`
    confidence   of the plan and of the certificate; 0.99, or the given plan's
    seeds        how many runs, or which; the point is the first one's, the others show the spread
    choose       two-phase, random, smallest or last (this module's text says what each guarantees)
    samples      fresh samples at each point that is certified; by default enough for a tenth of the bound, within a
                 tenth of the run's cost; a finite sum of at most so many rows is certified exactly, by a pass
    stop         "plan": the whole plan is run. "certified": the run, by steps of `measured_storm`, ends when the
                 certificate of its trajectory reaches the target, or at the plan's cost; two-phase means smallest there
    progress     a bar on a terminal, or a function of (steps done, steps)
    width        seeds of a batch, see `engine.run`: with that of another result, its seeds are repeated bit by bit
    checkpoint   a file that is resumed if it exists and kept up to date
    """
    validate.has_methods("minimize", "problem", problem, ("sample", "grad", "start", "constants"))
    storage.usable("minimize", checkpoint)
    if x0 is not None:
        as_point("minimize", x0)
    confidence = None if confidence is None else validate.confidence("minimize", confidence)
    samples = None if samples is None else sample_count(samples)
    choose = _check_choice(choose, stop, target, budget)
    x1 = problem.start() if x0 is None else x0
    found = _planned(problem, x0, target, budget, plan, confidence)
    level = _level(found, confidence)
    sense: Sense = "almost-sure" if found.confidence is not None else "mean-square"
    algorithm, steps, reason = _watched(problem, x1, found, level, target if stop == "certified" else None)
    with Progress(progress) as shown:
        trace = run(
            problem,
            algorithm,
            x1,
            steps,
            seeds,
            candidates=CANDIDATES,
            average=problem.is_exact,
            progress=shown,
            width=width,
            checkpoint=checkpoint,
            fingerprint=fingerprint(problem),
        )
    each = samples if samples is not None else default_samples(found, sense)
    trajectory = certificate_of(algorithm, trace, level, reason)
    x, reason, certificate, fresh = _choose(problem, trace, choose, level, each, sense)
    promise = _promise(found, choose, found.horizon) if stop == "plan" else UNPROMISED
    precision = assess(problem, found, x1, trace) if stop == "plan" else None
    if precision is not None and not precision.adequate:
        warnings.warn(precision.statement, RuntimeWarning, stacklevel=2)
    cost = int(trace.cost[0]) + fresh
    return Result(x, reason, found, promise, trajectory, certificate, precision, trace, cost, stop)


def _check_choice(choose: str, stop: str, target: float | None, budget: int | None) -> str:
    """How the point is chosen; where the run may end early, two-phase would choose among steps that never come."""
    choose = validate.one_of("minimize", "choose", choose, CHOICES)
    if validate.one_of("minimize", "stop", stop, STOPS) == "plan":
        return choose
    if target is None:
        raise ValueError(f"minimize: target must be given if stop is 'certified'; got budget={budget!r}, target=None")
    return "smallest" if choose == "two-phase" else choose


def _level(plan: Plan, confidence: float | None) -> float:
    """The confidence of what is certified, and that a plan is not longer than a run can be."""
    level = next(c for c in (plan.confidence, confidence, DEFAULT_CONFIDENCE) if c is not None)
    if level > HIGHEST:
        raise ValueError(f"minimize: confidence must be at most {HIGHEST}; got confidence={level}")
    if plan.horizon > LONGEST:
        raise ValueError(
            f"minimize: target and budget must lead to at most {LONGEST} steps; got a plan of {plan.horizon} steps"
        )
    return level


def _watched(
    problem: Problem, x: Tree, plan: Plan, confidence: float, target: float | None
) -> tuple[Algorithm, int, str]:
    """The algorithm with its observer, its steps, and why it is not observed."""
    if target is None:
        algorithm, reason = watched(from_plan(plan), problem, x, plan.horizon, confidence, plan.constants)
        return algorithm, plan.horizon, reason
    algorithm = until_certified(problem, x, plan.constants)
    steps = algorithm.steps(max(plan.sample_gradients, algorithm.cost(1)))
    algorithm, reason = watched(algorithm, problem, x, USUAL_STEPS, confidence, plan.constants, target)
    return algorithm, steps, reason


def default_samples(plan: Plan, sense: Sense) -> int:
    """Enough for a certificate within a tenth of the bound, but at most a tenth of the run's cost and at least 64."""
    c = plan.constants
    delta = 1 - (DEFAULT_CONFIDENCE if plan.confidence is None else plan.confidence)
    wanted = samples_for(plan.bound / 10, plan.bound, c.sigma0, c.sigma1, delta / CANDIDATES, sense)
    return int(min(max(wanted, 64), max(plan.sample_gradients // (10 * CANDIDATES), 64)))


def _planned(
    problem: Problem,
    x0: Tree | None,
    target: float | None,
    budget: int | None,
    plan: Plan | None,
    confidence: float | None,
) -> Plan:
    if plan is not None:
        if not isinstance(plan, Plan):
            raise ValueError(f"minimize: plan must be a Plan, as normstorm.plan returns it, or None; got plan={plan!r}")
        if target is not None or budget is not None:
            raise ValueError(
                f"minimize: exactly one of target, budget, plan must be given; got target={target!r}, "
                f"budget={budget!r} and a plan"
            )
        if confidence is not None and plan.confidence is not None and confidence != plan.confidence:
            raise ValueError(
                f"minimize: confidence must be left out or the plan's, {plan.confidence}; got confidence={confidence}"
            )
        return plan
    if (target is None) == (budget is None):
        raise ValueError(
            f"minimize: exactly one of target, budget, plan must be given; got target={target!r}, budget={budget!r}"
        )
    level = DEFAULT_CONFIDENCE if confidence is None else confidence
    return make_plan(problem.constants(x0, "almost-sure"), target=target, budget=budget, confidence=level)


def _choose(
    problem: Problem, trace: Trace, choose: str, confidence: float, samples: int, sense: Sense
) -> tuple[Tree, str, PointCertificate, int]:
    """(point, reason, certificate, fresh sample gradients) for the first seed."""

    def first(tree: Tree) -> Tree:
        return jax.tree.map(lambda leaf: leaf[0], tree)

    if choose == "two-phase":
        candidates = first(trace.candidates.x)
        steps = trace.candidates.step[0]
        share = 1 - (1 - confidence) / len(steps)
        certificates = [
            chosen_certificate(problem, jax.tree.map(lambda leaf, j=j: leaf[j], candidates), share, samples, sense, j)
            for j in range(len(steps))
        ]
        best = int(np.argmin([c.upper_bound for c in certificates]))
        chosen = certificates[best]
        exact = chosen.sense == "exact"
        joint = chosen if exact else replace(chosen, confidence=confidence)
        means = f"a pass over all {chosen.samples} rows" if exact else f"the bound from {chosen.samples} fresh samples"
        reason = f"x_t with t = {steps[best]}, the best of {len(steps)} random iterates by {means} at each"
        return jax.tree.map(lambda leaf: leaf[best], candidates), reason, joint, sum(c.samples for c in certificates)
    if choose == "last":
        point, reason = first(trace.last), "the last iterate"
    else:
        pick = trace.uniform if choose == "random" else trace.smallest
        what = "t uniformly random" if choose == "random" else "the smallest estimate ||m_t||"
        point, reason = first(pick.x), f"x_t with t = {pick.step[0]}: {what}"
    certificate = chosen_certificate(problem, point, confidence, samples, sense)
    return point, reason, certificate, certificate.samples


def _promise(plan: Plan, choose: str, T: int) -> str:
    """What the plan's bound says of the chosen point before any gradient is asked."""
    if choose == "random":
        event = "" if plan.confidence is None else f"With probability at least {plan.confidence!r} over the run, "
        mean = f"the mean of ||grad F|| at the returned point, over the choice of t, is at most {round_up(plan.bound)}."
        return event + (mean if event else mean.capitalize())
    if choose != "two-phase":
        return "The plan's bound promises nothing for this choice; the certificate from fresh samples does."
    R = min(CANDIDATES, T)
    delta = 1 - (DEFAULT_CONFIDENCE if plan.confidence is None else plan.confidence)
    # Slices of unequal length weigh unequally in the average; T // R is the shortest.
    uneven = T / (R * (T // R))
    factor = uneven * delta ** (-1 / R)
    if plan.confidence is None:
        return f"In expectation the average over the {R} candidates is at most {round_up(uneven * plan.bound)}."
    return (
        f"With probability at least {1 - 2 * delta:.12g}, one of the {R} candidates has ||grad F|| at most "
        f"{round_up(factor * plan.bound)}."
    )
