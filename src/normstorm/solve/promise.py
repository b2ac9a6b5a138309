"""What is promised before a race, and run where its fast arm gives up: a plan with tests, exact descent, or SPIDER.

plan            Normalized STORM by a plan, and a test of each of its candidates (theory/two_phase.py)
exact descent   of a finite sum: steps along exact gradients, a pass each, until one is short enough (theory/descent.py)
SPIDER          of a finite sum: exact gradients now and then, differences of few rows between (theory/restarted.py)

The cheapest is the promise. Statements and proofs: docs/theory/race.md.
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
from .precision_modes import ask, in_precision
from .stages import Stages

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
    """What the promise gave one seed: a point, its certificate, sample gradients of the run, and tests made."""

    x: Tree
    certificate: PointCertificate
    run: int
    tests: int
    spent: int


def keep(
    promise: Promise,
    problem: Problem,
    x1: Tree,
    seeds: list[int],
    checkpoint: Path | None,
    progress: Callable[..., None] | None,
) -> list[Kept] | None:
    """Run what was promised, for every one of these seeds; None if it is longer than a run can be."""
    if promise.by == "exact descent":
        assert promise.passes is not None and promise.rows is not None
        x, passes = descend(problem, x1, promise.constants, TRUSTED * promise.target, promise.passes)
        found = certify(problem, x, target=promise.target, exact=True)
        return [Kept(x, found, passes * promise.rows, 1, found.samples)] * len(seeds)
    if promise.by == "SPIDER":
        return _restarted(promise, problem, x1, seeds)
    assert promise.two_phase is not None
    plan, samples = promise.two_phase.plan, promise.two_phase.samples
    if plan.horizon > LONGEST:
        return None
    trace = run(
        problem,
        from_plan(plan),
        x1,
        plan.horizon,
        seeds,
        candidates=CANDIDATES,
        average=False,
        progress=progress,
        checkpoint=None if checkpoint is None else f"{os.fspath(checkpoint)}.plan",
        fingerprint=fingerprint(problem),
    )
    return [
        _first_that_passes(promise, problem, seed, int(trace.cost[i]), samples, _of(trace.candidates.x, i))
        for i, seed in enumerate(seeds)
    ]


def _restarted(promise: Promise, problem: Problem, x1: Tree, seeds: list[int]) -> list[Kept] | None:
    """SPIDER by its plan, until every seed has stopped; each one's point is certified by a pass."""
    plan = promise.restarted
    assert plan is not None
    if plan.horizon > LONGEST:
        return None
    spider = spider_1(eps=plan.eta, L=1.0, S1=None, S2=plan.batch, q=plan.period, stop=plan.stop / 2)
    stages = Stages(problem, spider, x1, plan.horizon, seeds, look=lambda state: state.geometry[0])
    while stages.t < plan.horizon and not (stages.t and np.all(stages.seen)):
        stages.go(min(max(2 * stages.t, 1), stages.t + plan.period, plan.horizon))
    points, costs, kept = stages.point, stages.cost, []
    for i in range(len(seeds)):
        found = certify(problem, _of(points, i), target=promise.target, exact=True)
        kept.append(Kept(_of(points, i), found, int(costs[i]), 1, found.samples))
    return kept


def _of(tree: Tree, i: int) -> Tree:
    return jax.tree.map(lambda leaf: leaf[i], tree)


def _first_that_passes(promise: Promise, problem: Problem, seed: int, cost: int, samples: int, points: Tree) -> Kept:
    """The candidates one after the other, the latest first, until one is certified; else the one of least bound."""
    share, signed, spent, tests = share_of_test(1 - promise.confidence), signed_seed(seed), 0, 0
    best: PointCertificate | None = None
    for j in reversed(range(len(jax.tree.leaves(points)[0]))):
        found = promised_test(problem, _of(points, j), promise.target, share, samples, signed, MOST_TESTS + 1 + j)
        spent, tests = spent + found.samples, tests + 1
        if best is None or found.upper_bound <= best.upper_bound:
            best, x = found, _of(points, j)
        if found.passed:  # where samples contradict the constants, no other candidate would do better
            break
    assert best is not None
    return Kept(x, best if best.sense == "exact" else replace(best, confidence=promise.confidence), cost, tests, spent)


def descend(problem: Problem, x1: Tree, constants: Constants, target: float, passes: int) -> tuple[Tree, int]:
    """Steps of length g/(L0 + L1 g) along exact gradients until g <= target: the point, and gradients asked."""
    smooth = constants.in_mean_square
    known = not jax.tree_util.all_leaves([problem])
    plain, compiled = (partial(f, problem) for f in (_descended, _compiled_descended))
    with in_precision(problem):
        x = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), x1)
        asked = 0
        while True:
            most = min(PASSES, passes - asked)
            x, g, more = ask(plain, compiled if known else None, x, smooth.L0, smooth.L1, target, most)
            asked += int(more)
            if float(g) <= target or asked >= passes or not np.isfinite(float(g)):
                return jax.tree.map(np.asarray, x), asked


def _descended(
    problem: Problem, x: Tree, L0: Any, L1: Any, target: Any, most: Any
) -> tuple[Tree, jax.Array, jax.Array]:
    """At most so many exact gradients; the last one is at the point that is returned, if it is short enough."""

    def gradient(x: Tree) -> tuple[Tree, jax.Array]:
        found = problem.full_grad(x)
        return found, jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(found)))

    def body(carry: tuple[Tree, Any, Any, Any]) -> tuple[Tree, Any, Any, Any]:
        x, _, _, i = carry
        direction, g = gradient(x)
        eta = jnp.where(g > target, 1 / (L0 + L1 * g), 0)
        return jax.tree.map(lambda z, u: z - eta * u, x, direction), g, g > target, i + 1

    x, g, _, asked = jax.lax.while_loop(
        lambda carry: carry[2] & (carry[3] < most), body, (x, jnp.asarray(jnp.inf), jnp.asarray(True), jnp.asarray(0))
    )
    return x, g, asked


_compiled_descended = jax.jit(_descended)
