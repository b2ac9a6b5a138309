"""A race from beginning to end: the promise, the fast arm, what was promised if it gave up, and the result.

Let C be the cost of the promise. The fast arm searches for at most rho C/2 sample gradients (but makes its first step)
and tests for at most rho C/2; then the promise is kept. So a race costs at most (1 + rho) C and that step, ends with a
certified point with probability at least 1 - 3 delta (or for sure, if the promise is exact descent), and what it
certifies is wrong with probability at most delta. A problem without constants has no promise, and a race there ends
with its budget. Proofs: docs/theory/race.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared import validate
from normstorm.algorithms.catalogue import CATALOGUE
from normstorm.algorithms.core import Algorithm
from normstorm.engine.run import LONGEST
from normstorm.problems.protocol import Problem
from normstorm.theory.constants import Constants
from normstorm.theory.plan import Plan
from normstorm.theory.planner.planner import plan as make_plan

from .beside import asked_beside
from .certify import PointCertificate, observed_spread
from .export import ABOVE
from .fast_arm import Allowance, FastArm, fast_algorithm, run_fast_arm
from .fingerprint import fingerprint
from .fresh import whole_size
from .precision_modes import ask, in_precision
from .progress import Progress
from .promise import Kept, Promise, keep, promise_of
from .result import Race, Result
from .trajectory import TrajectoryCertificate
from .value import is_above, value_at
from .watch import Contradictions, of_tests, run_check, stated
from .witness import witnessed

Tree = Any
SPARE = 16  # part of a budget that a second pass may be kept for, over the start
UNKNOWN, PASSES = 10**6, 100  # sample gradients without constants, or so many passes over the data if they are more
THE_START = "the start, as the run has left the finite numbers"
RUN_AWAY = "the start, as F is larger where the run has ended and nothing is certified there"
NO_BETTER = "the start, as the bound is larger where the run has ended"
NOTHING_ALONG = "a race certifies its point, not the way to it"
MOST = 2**62  # sample gradients: beyond it they cannot be counted in an array
NOBODY = PointCertificate(np.inf, 1.0, 0, np.nan, "almost-sure", "none")


def run_race(
    problem: Problem,
    x0: Tree | None,
    target: float | None,
    budget: int | None,
    confidence: float,
    seeds: int | Sequence[int],
    algorithm: str | Algorithm | None,
    rho: float,
    progress: bool | Callable[[int, int], None],
    checkpoint: str | os.PathLike[str] | None,
    width: int | None,
) -> Result:
    """See `minimize`."""
    x1, constants = problem.start() if x0 is None else x0, known_constants(problem, x0)
    known = stated(problem, constants)
    arm = witnessed(named_algorithm(algorithm, problem, x1), known)
    promise, plan = None, None
    if target is not None and constants is not None:
        promise = promise_of(constants, target, confidence, problem)
        plan = None if promise is None or promise.two_phase is None else promise.two_phase.plan
    elif constants is not None and constants.noise != "mean-square":
        plan = make_plan(constants, budget=budget, confidence=confidence)
    if promise is not None and budget is not None and (1 + rho) * promise.cost > budget:
        promise = None
    first = int(arm.cost(1, getattr(problem, "size", None)))
    limits = allowance_of(whole_size(problem), target, budget, 1 - confidence, promise, rho, first)
    todo, kept, more = validate.seed_list("minimize", seeds, LONGEST), {}, None
    with Progress(progress, "race") as shown:
        options: dict[str, Any] = {"width": width, "checkpoint": checkpoint, "fingerprint": fingerprint(problem)}
        fast = run_fast_arm(problem, x1, arm, todo, limits, progress=shown, **options)
        if promise is not None:
            lost = [i for i in range(len(todo)) if not _passed(fast.certificates[i])]
            found = keep(promise, problem, x1, [todo[i] for i in lost], checkpoint, shown, known) if lost else None
            if found is not None:
                kept, more = dict(zip(lost, found[0], strict=True)), found[1]
    result = _result(problem, x1, promise, plan, fast, kept, arm, len(todo))
    contradictions = run_check(problem, fast.trace, constants, x1, result.x, arm, fast.standing.testimony)
    if contradictions is not None:
        tested = int(fast.standing.held.sum()) + sum(one.held for one in kept.values())
        beyond = () if result.race is None else result.race.contradicted
        loud = next((seed for seed, count in zip(todo, beyond, strict=True) if count), 0)
        contradictions = contradictions.joined(of_tests(tested, sum(beyond), f"in a test of seed {loud}"))
        contradictions = contradictions if more is None else contradictions.joined(more)
    result = _weighed(result, contradictions, target, promise)
    recorded = int(np.sum(fast.trace.record_steps <= fast.trace.stopped_at.max()))
    exact = recorded + 1 if problem.is_exact else 0  # and the returned point
    tests = 0 if result.race is None else result.race.tests
    beside = asked_beside(problem, fast.trace, tests, contradictions, result.value, exact)
    return replace(result, contradictions=contradictions, beside=beside)


def _weighed(result: Result, against: Contradictions | None, target: float | None, promise: Promise | None) -> Result:
    """With what contradictions, of any seed, leave of certificate, promise and reason."""
    assert result.race is not None
    found = max(0 if against is None else against.found, sum(result.race.contradicted))
    certificate, promised, reason = (
        replace(result.certificate, target=target).beside(found),
        result.promise,
        result.reason,
    )
    if found and promise is not None:
        promised = f"Void, as it rests on contradicted constants: {promised[0].lower()}{promised[1:]}"
    if certificate.passed and not certificate.certified:
        reason = reason.replace("certified by", "the bound is that of") + ", which rests on contradicted constants"
    return replace(result, certificate=certificate, promise=promised, reason=reason)


def known_constants(problem: Problem, x0: Tree | None) -> Constants | None:
    """Almost sure, or else in mean square; None if the problem has none."""
    for sense in ("almost-sure", "mean-square"):
        try:
            return problem.constants(x0, sense)
        except (AttributeError, ValueError):
            continue
    return None


def named_algorithm(algorithm: str | Algorithm | None, problem: Problem, x: Tree) -> Algorithm:
    """By its name, with default settings, or as it is given; kalman_storm if nothing is."""
    if algorithm is None:
        return fast_algorithm(problem, x)
    if isinstance(algorithm, Algorithm):
        return algorithm
    make: Any = CATALOGUE.get(algorithm) if isinstance(algorithm, str) else None
    if make is None:
        allowed = f"None, an Algorithm or one of {', '.join(CATALOGUE)}"
        validate.refuse("minimize", "algorithm", allowed, algorithm)
    try:
        found: Algorithm = make()
        return found
    except TypeError as error:
        raise ValueError(
            f"minimize: algorithm must be one that needs no arguments, or an Algorithm; got {algorithm!r} ({error})"
        ) from None


def allowance_of(
    rows: int | None,
    target: float | None,
    budget: int | None,
    delta: float,
    promise: Promise | None,
    rho: float,
    first: int,
) -> Allowance:
    """What search and tests of a seed may cost; the first step of the search, which costs `first`, is always made."""
    if budget is not None:
        budget = validate.whole("minimize", "budget", budget, 2 * first + 4)
        if budget > MOST:
            raise ValueError(f"minimize: budget must be at most 2**62; got budget={budget}")
    if target is None:
        assert budget is not None
        tests = rows if rows is not None and rows <= budget // 2 else budget - budget // 2
        if rows is not None and rows <= budget // SPARE:
            tests = 2 * rows
        return Allowance(None, delta, budget - tests, tests)
    if promise is not None:
        half = int(min(rho * promise.cost, MOST)) // 2
        return Allowance(target, delta, max(half, first), half)
    total = budget if budget is not None else max(UNKNOWN, PASSES * (rows or 0), 4 * first)
    return Allowance(target, delta, total - total // 2, total // 2)


def _passed(certificate: PointCertificate | None) -> bool:
    return certificate is not None and certificate.passed


def _result(
    problem: Problem,
    x1: Tree,
    promise: Promise | None,
    plan: Plan | None,
    fast: FastArm,
    kept: dict[int, Kept],
    arm: Algorithm,
    seeds: int,
) -> Result:
    every = [_ended(fast, kept.get(i), promise, i) for i in range(seeds)]
    x, certificate, race = every[0]
    start = jax.tree.map(np.asarray, x1)
    points = jax.tree.map(lambda *leaves: np.stack(leaves), start, *(point for point, _, _ in every))
    norms, value, first = exact_norms(problem, points), value_at(problem, x), value_at(problem, start)
    race = race._replace(
        algorithm=arm.name,
        rows=whole_size(problem),
        costs=tuple(one.cost for _, _, one in every),
        bounds=tuple(found.upper_bound for _, found, _ in every),
        contradicted=tuple(
            int(count) + (kept[i].against if i in kept else 0) for i, count in enumerate(fast.standing.against)
        ),
        norms=None if norms is None else norms[1:],
        start_norm=None if norms is None else norms[0],
        start_value=None if first is None else first.value,
    )
    if promise is not None:
        race = race._replace(
            promised_by=promise.by, promise_cost=promise.cost, plan_cost=promise.plan_cost, passes=promise.passes
        )
    sentence = promise.statement if promise is not None else nothing_promised(problem, x, certificate)
    steps = int(fast.standing.ended[0])
    none = TrajectoryCertificate(
        np.inf, (np.inf,) * seeds, certificate.confidence, "nothing", "of no weight", steps, NOTHING_ALONG
    )
    seen: dict[str, Any] = {"stop": "race", "value": value, "method": "race", "race": race}
    reason = race.reason(steps)
    if 0 not in kept and (fast.lost[0] or fast.above[0]):
        reason = THE_START if fast.lost[0] else RUN_AWAY
    elif 0 not in kept and fast.worse[0]:
        reason = NO_BETTER
    elif is_above(problem, x, start):
        reason += ABOVE
    return Result(x, reason, plan, sentence, none, certificate, None, fast.trace, race.cost, **seen)


def _ended(fast: FastArm, kept: Kept | None, promise: Promise | None, i: int) -> tuple[Tree, Any, Race]:
    """Point, certificate and cost of one seed."""
    at, found = fast.standing, fast.certificates[i]
    search, testing, tests = int(at.search[i]), int(at.spent[i]), int(at.tests[i])
    if kept is not None and promise is not None:
        ended = promise.by if kept.certificate.passed else "nobody"
        race = Race(search, testing + kept.spent, tests + kept.tests, ended, promised_run=kept.run)
        return kept.x, kept.certificate, race
    return fast.point(i), found or NOBODY, Race(search, testing, tests, "fast arm" if _passed(found) else "nobody")


def nothing_promised(problem: Problem, x: Tree, certificate: PointCertificate) -> str:
    if certificate.sense != "estimated":
        return "Nothing was promised before the run: its budget ends it."
    seen, samples = observed_spread(problem, x)
    return (
        "Nothing was promised before the run, and its certificate rests on an estimate of the noise: give the problem "
        "constants (sigma0, sigma1) or a method range(x, radius) for a proof; at the returned point none of "
        f"{samples} sample gradients was farther than {seen:.3g} from their mean."
    )


def exact_norms(problem: Problem, points: Tree) -> tuple[float, ...] | None:
    """||grad F|| at every seed's point, where F is known; for comparison, no certificate."""
    if not problem.is_exact:
        return None
    known = not jax.tree_util.all_leaves([problem])
    with in_precision(problem):
        at = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), points)
        found = ask(partial(_norms, problem), partial(_compiled_norms, problem) if known else None, at)
    return tuple(float(norm) for norm in np.asarray(found))


def _norms(problem: Problem, points: Tree) -> jax.Array:
    def one(x: Tree) -> jax.Array:
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(problem.full_grad(x))))

    found: jax.Array = jax.lax.map(one, points)
    return found


_compiled_norms = jax.jit(_norms)
