"""What is promised before a race, and run where its fast arm gives up: a plan with tests, exact descent, or SPIDER.

plan            Normalized STORM by a plan, and a test of each of its candidates (theory/two_phase.py)
exact descent   of a finite sum: steps along exact gradients, a pass each, until one is short enough (theory/descent.py)
SPIDER          of a finite sum: exact gradients now and then, differences of few rows between (theory/restarted.py)

The cheapest is the promise. Statements and proofs: docs/theory/race.md. Where somebody has stated the constants, every
sample that it draws is held to them (witness.py). Exact descent draws none; by 3B a step of length g/(L0 + L1 g)
changes grad F by at most g, its length, and to that every one of its steps is held.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm.algorithms.catalogue import from_plan
from normstorm.algorithms.spider import spider_1
from normstorm.engine.run import LONGEST, run
from normstorm.problems.protocol import Problem
from normstorm.theory.constants import Constants
from normstorm.theory.descent import descent_passes
from normstorm.theory.restarted import RestartedPlan, restarted_plan
from normstorm.theory.two_phase import CANDIDATES, TRUSTED, TwoPhase, two_phase

from .certify import PointCertificate, certify, promised_test
from .fast_arm import MOST_TESTS
from .fingerprint import fingerprint
from .fresh import signed_seed, whole_size
from .held import ROUNDING
from .precision_modes import ask, in_precision
from .stages import Stages
from .watch import Contradictions, steps_check
from .witness import witnessed

Tree = Any
Path = str | os.PathLike[str]
ALL_TESTS = MOST_TESTS + CANDIDATES
PASSES = 64  # of exact descent in one call, so that Ctrl-C is heard


@dataclass(frozen=True)
class Promise:
    """What ends a race for sure, but for rare events.

    cost         sample gradients at most, tests included
    by           "plan", "exact descent" or "SPIDER"
    plan_cost    of the plan with its tests; None if no plan reaches the target
    passes       exact gradients that exact descent takes at most; None if the problem is no finite sum
    """

    constants: Constants
    target: float
    two_phase: TwoPhase | None
    passes: int | None
    rows: int | None
    confidence: float
    restarted: RestartedPlan | None = None

    @property
    def plan_cost(self) -> int | None:
        return None if self.two_phase is None else self.two_phase.cost

    @property
    def descent_cost(self) -> int | None:
        return None if self.passes is None or self.rows is None else (self.passes + 1) * self.rows

    @property
    def costs(self) -> dict[str, int]:
        """Of all that is proven."""
        spider = None if self.restarted is None else self.restarted.cost
        every = {"plan": self.plan_cost, "exact descent": self.descent_cost, "SPIDER": spider}
        return {name: cost for name, cost in every.items() if cost is not None}

    @property
    def by(self) -> str:
        return min(self.costs, key=lambda name: self.costs[name])

    @property
    def cost(self) -> int:
        return self.costs[self.by]

    @property
    def statement(self) -> str:
        """In a sentence or two."""
        others = {name: cost for name, cost in self.costs.items() if name != self.by}
        told = [f"{'the plan' if name == 'plan' else name} would ask {cost:,}" for name, cost in others.items()]
        beside = f" ({', '.join(told)})" if told else ""
        delta = 1 - self.confidence
        if self.by == "exact descent":
            against = beside or " (no plan reaches it)"
            return (
                f"Promised before the run: descent along exact gradients reaches the target for sure within "
                f"{self.passes:,} passes over the data, and one that certifies it, {self.cost:,} sample gradients"
                f"{against}."
            )
        if self.by == "SPIDER":
            return (
                f"Promised before the run: with probability at least {self.confidence:.12g}, SPIDER with exact "
                f"restarts reaches the target within {self.cost:,} sample gradients, a pass that certifies it "
                f"included{beside}."
            )
        return (
            f"Promised before the run: with probability at least {1 - 3 * delta:.12g}, the plan and its tests reach "
            f"the target within {self.cost:,} sample gradients{beside}."
        )


def promise_of(constants: Constants, target: float, confidence: float, problem: Problem) -> Promise | None:
    """The cheaper of what is proven for this target; None if nothing is."""
    rows, share = whole_size(problem), share_of_test(1 - confidence)
    planned = two_phase(constants, target, confidence, share, rows)
    passes = None if rows is None else descent_passes(constants, TRUSTED * target)
    restarted = None if rows is None else restarted_plan(constants, TRUSTED * target, 1 - confidence, rows)
    if planned is None and passes is None and restarted is None:
        return None
    return Promise(constants, target, planned, passes, rows, confidence, restarted)


def share_of_test(delta: float) -> float:
    """Of the failure probability, for one candidate of the plan: tests of the fast arm leave more than all of these."""
    return delta / (ALL_TESTS * (ALL_TESTS + 1))


class Kept(NamedTuple):
    """What the promise gave one seed: a point, its certificate, sample gradients of the run, and tests made.

    against, held    samples of its tests that contradict stated constants, and that were compared with them
    """

    x: Tree
    certificate: PointCertificate
    run: int
    tests: int
    spent: int
    against: int = 0
    held: int = 0


def keep(
    promise: Promise,
    problem: Problem,
    x1: Tree,
    seeds: list[int],
    checkpoint: Path | None,
    progress: Callable[..., None] | None,
    known: Constants | None = None,
) -> tuple[list[Kept], Contradictions | None] | None:
    """Run what was promised, for every one of these seeds; None if it is longer than a run can be.

    What its samples say of constants that somebody has stated, `known`, comes with it.
    """
    if promise.by == "exact descent":
        assert promise.passes is not None and promise.rows is not None
        x, passes, seen = descend(problem, x1, promise.constants, TRUSTED * promise.target, promise.passes)
        found = certify(problem, x, target=promise.target, exact=True)
        return [Kept(x, found, passes * promise.rows, 1, found.samples)] * len(seeds), seen if known else None
    if promise.by == "SPIDER":
        return _restarted(promise, problem, x1, seeds, known)
    assert promise.two_phase is not None
    plan, samples = promise.two_phase.plan, promise.two_phase.samples
    if plan.horizon > LONGEST:
        return None
    algorithm = witnessed(from_plan(plan), known)
    trace = run(
        problem,
        algorithm,
        x1,
        plan.horizon,
        seeds,
        candidates=CANDIDATES,
        average=False,
        progress=progress,
        checkpoint=None if checkpoint is None else f"{os.fspath(checkpoint)}.plan",
        fingerprint=fingerprint(problem),
    )
    kept = [
        _first_that_passes(promise, problem, seed, int(trace.cost[i]), samples, _of(trace.candidates.x, i))
        for i, seed in enumerate(seeds)
    ]
    return kept, _said(problem, algorithm, seeds, trace.observer, known)


def _said(problem: Problem, algorithm: Any, seeds: list[int], seen: Any, known: Constants | None) -> Any:
    """What the steps of a promise say of stated constants."""
    return None if known is None else steps_check(problem, algorithm, seeds, seen, known)


def _restarted(
    promise: Promise, problem: Problem, x1: Tree, seeds: list[int], known: Constants | None
) -> tuple[list[Kept], Contradictions | None] | None:
    """SPIDER by its plan, until every seed has stopped; each one's point is certified by a pass."""
    plan = promise.restarted
    assert plan is not None
    if plan.horizon > LONGEST:
        return None
    spider = spider_1(eps=plan.eta, L=1.0, S1=None, S2=plan.batch, q=plan.period, stop=plan.stop / 2)
    spider = witnessed(spider, known)
    stages = Stages(problem, spider, x1, plan.horizon, seeds, look=lambda state: state.geometry[0])
    while stages.t < plan.horizon and not (stages.t and np.all(stages.seen)):
        stages.go(min(max(2 * stages.t, 1), stages.t + plan.period, plan.horizon))
    points, costs, kept = stages.point, stages.cost, []
    for i in range(len(seeds)):
        found = certify(problem, _of(points, i), target=promise.target, exact=True)
        kept.append(Kept(_of(points, i), found, int(costs[i]), 1, found.samples))
    return kept, _said(problem, spider, seeds, stages.observed, known)


def _of(tree: Tree, i: int) -> Tree:
    return jax.tree.map(lambda leaf: leaf[i], tree)


def _first_that_passes(promise: Promise, problem: Problem, seed: int, cost: int, samples: int, points: Tree) -> Kept:
    """The candidates one after the other, the latest first, until one is certified; else the one of least bound."""
    share, signed, spent, tests = share_of_test(1 - promise.confidence), signed_seed(seed), 0, 0
    against = held = 0
    best: PointCertificate | None = None
    for j in reversed(range(len(jax.tree.leaves(points)[0]))):
        found = promised_test(problem, _of(points, j), promise.target, share, samples, signed, MOST_TESTS + 1 + j)
        spent, tests = spent + found.samples, tests + 1
        against, held = against + found.contradicted, held + found.held
        if best is None or found.upper_bound <= best.upper_bound:
            best, x = found, _of(points, j)
        if found.passed:  # where samples contradict the constants, no other candidate would do better
            break
    assert best is not None
    best = best if best.sense == "exact" else replace(best, confidence=promise.confidence)
    return Kept(x, best, cost, tests, spent, against, held)


class _Descent(NamedTuple):
    """Where it is, its last gradient and the length of that, gradients asked in this call and in all.

    over, first    steps that changed the gradient by more than its length; the number of the first of them
    seen, allowed  of that step
    """

    x: Tree
    gradient: Tree
    length: Any
    asked: Any
    total: Any
    over: Any
    first: Any
    seen: Any
    allowed: Any


def descend(
    problem: Problem, x1: Tree, constants: Constants, target: float, passes: int
) -> tuple[Tree, int, Contradictions]:
    """Steps of length g/(L0 + L1 g) along exact gradients until g <= target: the point, gradients asked, and what the
    steps say of L0 and L1."""
    smooth = constants.in_mean_square
    known = not jax.tree_util.all_leaves([problem])
    plain, compiled = (partial(f, problem) for f in (_descended, _compiled_descended))
    with in_precision(problem):
        x = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), x1)
        zero, none = jnp.zeros(()), jnp.asarray(0)
        at = _Descent(x, jax.tree.map(jnp.zeros_like, x), zero + jnp.inf, none, none, none, none, zero, zero)
        while True:
            most = min(PASSES, passes - int(at.total))
            at = ask(plain, compiled if known else None, at, smooth.L0, smooth.L1, target, most)
            g, asked = float(at.length), int(at.total)
            if g <= target or asked >= passes or not np.isfinite(g):
                return jax.tree.map(np.asarray, at.x), asked, _turned(at)


def _turned(at: _Descent) -> Contradictions:
    words = (
        f"in step {int(at.first)} of exact descent, where grad F changes by {float(at.seen):.4g} and L0 + L1 "
        f"||grad F|| allows {float(at.allowed):.4g} for this way"
    )
    return Contradictions(int(at.total) - 1, 0, int(at.over), words if at.over else "", 0)


def _descended(problem: Problem, begun: _Descent, L0: Any, L1: Any, target: Any, most: Any) -> _Descent:
    """At most so many exact gradients; the last one is at the point that is returned, if it is short enough."""

    def norm(tree: Tree) -> jax.Array:
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))

    def body(at: _Descent) -> _Descent:
        direction = problem.full_grad(at.x)
        g, seen = norm(direction), norm(jax.tree.map(jnp.subtract, direction, at.gradient))
        # What x loses to rounding is a part of the way.
        lost = ROUNDING**2 * norm(at.x) * (L0 + L1 * at.length)
        allowed = at.length * (1 + ROUNDING) + lost  # infinite for the first one
        over = seen > allowed
        is_first = over & (at.over == 0)
        eta = jnp.where(g > target, 1 / (L0 + L1 * g), 0)
        x = jax.tree.map(lambda z, u: z - eta * u, at.x, direction)
        first, seen, allowed = (
            jnp.where(is_first, new, old) for new, old in ((at.total, at.first), (seen, at.seen), (allowed, at.allowed))
        )
        return _Descent(x, direction, g, at.asked + 1, at.total + 1, at.over + over, first, seen, allowed)

    done: _Descent = jax.lax.while_loop(
        lambda at: (at.length > target) & (at.asked < most), body, begun._replace(asked=0 * begun.asked)
    )
    return done


_compiled_descended = jax.jit(_descended)
