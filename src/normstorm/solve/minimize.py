"""The main job: a race to a certified point, or a plan that is run, and its point chosen and certified.

race.py describes the race. Of a plan, what each rule of choice guarantees, B being the plan's bound of the average of
||grad F(x_t)|| over t = 1..T, which holds with probability at least 1 - delta:

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
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from normstorm._shared import checkpoint as storage
from normstorm._shared import validate
from normstorm.algorithms.catalogue import from_plan
from normstorm.algorithms.core import Algorithm
from normstorm.engine.execution import widths
from normstorm.engine.results import Trace
from normstorm.engine.run import run
from normstorm.problems.check import as_point, with_floats
from normstorm.problems.protocol import Problem
from normstorm.problems.user import as_problem
from normstorm.theory.fresh_samples import Sense, samples_for
from normstorm.theory.plan import DEFAULT_CONFIDENCE, Plan, round_up
from normstorm.theory.planner.planner import plan as make_plan
from normstorm.theory.two_phase import CANDIDATES, candidate_factor

from .beside import asked_beside
from .certify import PointCertificate, chosen_certificate, sample_count
from .fingerprint import fingerprint
from .precision import assess
from .precision_modes import in_precision
from .progress import Progress
from .race import run_race
from .result import Result
from .trajectory import USUAL_STEPS, certificate_of, until_certified, watched
from .value import value_at
from .watch import of_tests, run_check, stated
from .witness import witnessed

Tree = Any
METHODS = ("race", "plan")
CHOICES = ("two-phase", "random", "smallest", "last")
STOPS = ("plan", "certified")
UNPROMISED = "The run ends when the certificate of its trajectory reaches the target; the plan is not run."
LONGEST = 2**30
HIGHEST = 1 - 2**-50  # confidence of which double precision can still give each candidate its part
FARTHEST = 1e100  # a target of a race, and one over the least


def minimize(
    problem: Problem,
    data: Tree | None = None,
    x0: Tree | None = None,
    *,
    target: float | None = None,
    budget: int | None = None,
    plan: Plan | None = None,
    confidence: float | None = None,
    seeds: int | Sequence[int] = 1,
    method: str | None = None,
    algorithm: str | Algorithm | None = None,
    rho: float = 1.0,
    choose: str = "two-phase",
    samples: int | None = None,
    stop: str = "plan",
    progress: bool | Callable[[int, int], None] = True,
    checkpoint: str | os.PathLike[str] | None = None,
    width: int | None = None,
) -> Result:
    """A point with a certificate of ||grad F||, for as few sample gradients as the problem allows.

    problem      `minimize(problem)`, `minimize(problem, x0)`, or `minimize(loss, data, x0)`: the loss of x and one row,
                 whose mean over all rows is F (see `from_loss`); needs no constants
    x0           the starting point; the problem's own if not given. A race runs in double precision, as the command
                 does, whatever JAX is set to, unless all of x0 is float32; a plan in the precision that JAX is set to,
                 of which its result says what it means
    target | budget | plan    exactly one. target: what ||grad F(x)|| is to be certified at. budget: sample gradients to
                 spend on the smallest bound; a race with a target may have one beside it. plan: see `normstorm.plan`
    confidence   of the certificate, and of the plan; 0.99, or the given plan's
    seeds        how many runs, or which; the point is the first one's, the others show the spread
    method       "race", unless a plan or stop="certified" is given: a fast method without proof is tested by fresh
                 samples or by a pass over all rows, and what constants promise is run where it gives up (race.py).
                 "plan": Normalized STORM by a plan, whose bound is proven before the run; needs constants
    algorithm    of a race: a name of the catalogue that needs no arguments, or an Algorithm; kalman_storm if not given
    rho          of a race: what the fast method and its tests may cost, in parts of what was promised

    With method="plan":

    choose       two-phase, random, smallest or last (this module's text says what each guarantees)
    samples      fresh samples at each point that is certified; by default enough for a tenth of the bound, within a
                 tenth of the run's cost; a finite sum of at most so many rows is certified exactly, by a pass
    stop         "plan": the whole plan is run. "certified": the run, by steps of `measured_storm`, ends when the
                 certificate of its trajectory reaches the target, or at the plan's cost; two-phase means smallest there

    In both:

    progress     a bar on a terminal, or a function of (steps done, steps); in a race of sample gradients, not steps
    width        seeds of a batch, see `engine.run`: with that of another result, its seeds are repeated bit by bit
    checkpoint   a file that is resumed if it exists and kept up to date
    """
    problem, x0 = as_problem("minimize", problem, data, x0)
    validate.has_methods("minimize", "problem", problem, ("sample", "grad", "start"))
    storage.usable("minimize", checkpoint)
    if width is not None and validate.integer(width) not in widths():
        validate.refuse("minimize", "width", f"one of {', '.join(map(str, widths()))}, or None", width)
    confidence = None if confidence is None else validate.confidence("minimize", confidence)
    samples = None if samples is None else sample_count(samples, "minimize")
    choose = _check_choice(choose, stop, target, budget)
    if _method(method, plan, stop, choose, samples) == "race":
        target, level = _check_race(target, budget, confidence)
        rho = validate.number("minimize", "rho", rho, validate.POSITIVE)
        with in_precision(problem):  # a start that is single stays so; what the loss mentions keeps its digits
            x0 = None if x0 is None else as_point("minimize", with_floats(x0), problem)
            return run_race(problem, x0, target, budget, level, seeds, algorithm, rho, progress, checkpoint, width)
    x0 = None if x0 is None else as_point("minimize", with_floats(x0), problem)
    validate.has_methods("minimize", "problem", problem, ("constants",))
    if algorithm is not None:
        raise ValueError(f"minimize: algorithm must be None unless method is 'race'; got algorithm={algorithm!r}")
    if rho != 1.0:
        raise ValueError(f"minimize: rho must be left out unless method is 'race'; got rho={rho!r}")
    x1 = problem.start() if x0 is None else x0
    tests = CANDIDATES if choose == "two-phase" else 1
    whole = budget if target is not None or plan is not None else _of_the_run(budget, samples, tests)
    found = _planned(problem, x0, target, whole, plan, confidence)
    level = _level(found, confidence)
    sense: Sense = "almost-sure" if found.confidence is not None else "mean-square"
    algorithm, steps, reason = _watched(problem, x1, found, level, target if stop == "certified" else None)
    algorithm = witnessed(algorithm, stated(problem, found.constants))
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
    if budget is not None:
        each = min(each, (budget - found.sample_gradients) // tests)
    trajectory = certificate_of(algorithm, trace, level, reason)
    x, reason, certificate, tested = _choose(problem, trace, choose, level, each, sense)
    promise = _promise(found, choose, found.horizon) if stop == "plan" else UNPROMISED
    precision = assess(problem, found, x1, trace) if stop == "plan" else None
    if precision is not None and not precision.adequate:
        warnings.warn(precision.statement, RuntimeWarning, stacklevel=2)
    cost = int(trace.cost[0]) + sum(one.samples for one in tested)
    against = run_check(problem, trace, found.constants, x1, x, algorithm, trace.observer)
    if against is not None:
        held, beyond = sum(one.held for one in tested), sum(one.contradicted for one in tested)
        against = against.joined(of_tests(held, beyond, "in a test of a point"))
        certificate = certificate.beside(against.found)
    seen: dict[str, Any] = {"value": value_at(problem, x), "contradictions": against}
    exact = trace.steps if problem.is_exact else 0
    seen["beside"] = asked_beside(problem, trace, tests, against, seen["value"], exact)
    return Result(x, reason, found, promise, trajectory, certificate, precision, trace, cost, stop, **seen)


def _method(method: str | None, plan: Plan | None, stop: str, choose: str, samples: int | None) -> str:
    """Which of both; what belongs to the other is refused."""
    if method is None:
        method = "race" if plan is None and stop == "plan" else "plan"
    if validate.one_of("minimize", "method", method, METHODS) == "plan":
        return method
    given = {"plan": plan, "samples": samples, "stop": None if stop == "plan" else stop}
    given["choose"] = None if choose == "two-phase" else choose
    for name, value in given.items():
        if value is not None:
            words = "a Plan" if name == "plan" else f"{name}={value!r}"
            raise ValueError(f"minimize: {name} must be left out if method is 'race'; got {words}")
    return method


def _check_race(target: float | None, budget: int | None, confidence: float | None) -> tuple[float | None, float]:
    if target is None and budget is None:
        raise ValueError(
            f"minimize: exactly one of target, budget, plan must be given; got target={target!r}, budget={budget!r}"
        )
    level = DEFAULT_CONFIDENCE if confidence is None else confidence
    if level > HIGHEST:
        raise ValueError(f"minimize: confidence must be at most {HIGHEST}; got confidence={level}")
    if target is None:
        return None, level
    target = validate.number("minimize", "target", target, validate.POSITIVE)
    if not 1 / FARTHEST <= target <= FARTHEST:  # its square is a number
        raise ValueError(f"minimize: target must lie in [{1 / FARTHEST:g}, {FARTHEST:g}]; got target={target}")
    return target, level


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


def _of_the_run(budget: int | None, samples: int | None, tests: int) -> int | None:
    """What of a budget the run of a plan may ask: the rest is for its tests, an eleventh if nothing else is asked."""
    if budget is None:
        return None
    given = validate.whole("minimize", "budget", budget)
    left = given - tests * samples if samples is not None else given - max(given // 11, 2 * tests)
    if left < 1:
        what = f"{tests} test{'' if tests == 1 else 's'} of {2 if samples is None else samples} samples"
        raise ValueError(f"minimize: budget must be more than {what}; got budget={budget}")
    return left


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
) -> tuple[Tree, str, PointCertificate, list[PointCertificate]]:
    """(point, reason, certificate, all that were tested) for the first seed."""

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
        return jax.tree.map(lambda leaf: leaf[best], candidates), reason, joint, certificates
    if choose == "last":
        point, reason = first(trace.last), "the last iterate"
    else:
        pick = trace.uniform if choose == "random" else trace.smallest
        what = "t uniformly random" if choose == "random" else "the smallest estimate ||m_t||"
        point, reason = first(pick.x), f"x_t with t = {pick.step[0]}: {what}"
    certificate = chosen_certificate(problem, point, confidence, samples, sense)
    return point, reason, certificate, [certificate]


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
    if plan.confidence is None:
        even = candidate_factor(T, 1.0) * plan.bound
        return f"In expectation the average over the {R} candidates is at most {round_up(even)}."
    return (
        f"With probability at least {1 - 2 * delta:.12g}, one of the {R} candidates has ||grad F|| at most "
        f"{round_up(candidate_factor(T, delta) * plan.bound)}."
    )
