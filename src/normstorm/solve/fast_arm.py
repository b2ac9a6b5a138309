"""The fast arm of a race: a run that is tested where its own error bar says that a test would pass.

Validity. Test r looks at a point that is known before its fresh samples, and its bound fails with probability at most
delta_r = delta/(r (r + 1)), given all that was before. So with probability at least 1 - delta no test is wrong,
whatever decided when to test, how long, and when to stop: the first bound at or below the target is true.

Safety. The search asks at most `search` sample gradients and the tests at most `tests`, whatever happens; then the arm
gives up, and what was promised beforehand is run (`promise`). Proofs: docs/theory/race.md.

When to test. The filter of `kalman_storm` knows the variance V of its error, so that ||m|| + 2 sqrt(V) is an error bar
of ||grad F(x)||; no proof rests on it. A test by fresh samples begins where the bar is below the target: the gradient
is then near .4 of it, an earlier test would be longer or fail, and a later one would save less than the search costs
(docs/race.md has the neighbours). A pass over all rows, which has one price, begins where ||m|| + sqrt(V) is below the
target. After a test that failed the search goes on for as much as that has cost, and for half of its own cost at least.
Another algorithm, without an error bar, is tested whenever its cost has doubled, for no more than it has cost.

With a budget N instead of a target there is one test, with all that is left. The search ends where another sample
gradient is worth more in the test: where bar/(cost of the search) is below width/(what is left), both falling like one
over the square root; or at half of N. Of a finite sum it ends a pass before N.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.pytrees import dimension
from normstorm.algorithms.core import Algorithm, State
from normstorm.algorithms.filtering import Filter, Filtered
from normstorm.algorithms.geometries import norm
from normstorm.algorithms.kalman import kalman_storm
from normstorm.engine.results import Trace
from normstorm.engine.run import LONGEST
from normstorm.problems.protocol import Problem

from .certify import PointCertificate, best_bound, certify, race_test
from .fresh import is_finite, signed_seed, whole_size
from .stages import Stages
from .value import is_above

Tree = Any
Path = str | os.PathLike[str]
BAR = 1.0  # part of the target below which an error bar has to be
CALM = 4.0  # samples of a test, in units of variance over squared target, above which a pass over all rows is shorter
MOST_TESTS = 32
GROWTH = 1.05  # of steps from one look to the next
LEAST_SEEN = 6  # measurements before an error bar is looked at
FIRST_TEST = 512  # sample gradients, of an algorithm without an error bar
TABLE = 2**20  # numbers of a table of gradients, at most
LONG, BATCH = 256, 32  # numbers of x from which on so many samples of a step cost hardly more time than one
SECONDS = 30.0  # between two checkpoints
METHODS = "fixed", "top", "pairs", "groups", "exact", "none"
SENSES = "almost-sure", "mean-square", "exact", "estimated"


class Allowance(NamedTuple):
    """What is asked of a race: a target, or as much as `tests` after `search`; both in sample gradients."""

    target: float | None
    delta: float
    search: int
    tests: int


class Standing(NamedTuple):
    """A row for every seed, kept beside the run in its checkpoint.

    tests, spent   tests made, and their cost;   after   the cost of the search before which none is made
    ended, search  the step at which the race was over, 0 while it is not, and what the search had cost then
    found, kinds   numbers and words of the last certificate;   x   the point that it speaks of
    against, held  samples of tests that contradict the stated constants, and that were compared with them
    testimony      of the search (witness.py)
    """

    tests: np.ndarray
    spent: np.ndarray
    after: np.ndarray
    ended: np.ndarray
    search: np.ndarray
    found: np.ndarray
    kinds: np.ndarray
    x: Tree
    against: np.ndarray
    held: np.ndarray
    testimony: Tree


@dataclass(frozen=True)
class FastArm:
    """How it went: every seed's certificate and point, what it cost, and the trace of the search.

    `lost` are the seeds whose point was not finite, `above` those without a certificate whose point has a larger F than
    the start, `worse` those of a budget whose bound is larger than what a pass certifies of the start: all of them
    return the start.
    """

    standing: Standing
    certificates: tuple[PointCertificate | None, ...]
    trace: Trace
    algorithm: str
    lost: np.ndarray
    above: np.ndarray
    worse: np.ndarray

    def point(self, seed: int) -> Tree:
        return jax.tree.map(lambda leaf: leaf[seed], self.standing.x)


def fast_algorithm(problem: Problem, x: Tree) -> Algorithm:
    """kalman_storm, with the table of a finite sum that is small enough, and larger batches of one that is not."""
    size, d = whole_size(problem), dimension(x)
    if size is None or size * d <= TABLE:
        return kalman_storm(table=size is not None)
    return kalman_storm(K=BATCH if d >= LONG else 1)


class Bar(NamedTuple):
    """What is seen of a seed: ||m||, the variance of its error, that of a measurement, and how many were made."""

    size: Any
    V: Any
    S: Any
    seen: Any


def error_bar(state: State) -> Bar:
    f = state.estimator
    if isinstance(f, Filter):
        return Bar(norm(f.m), f.V, f.S, f.seen)
    unknown = jnp.full((), jnp.nan)
    return Bar(norm(state.m), unknown, unknown, unknown)


def run_fast_arm(
    problem: Problem,
    x1: Tree,
    algorithm: Algorithm,
    seeds: int | Sequence[int],
    limits: Allowance,
    *,
    width: int | None = None,
    checkpoint: Path | None = None,
    progress: Callable[..., None] | None = None,
    fingerprint: str = "",
) -> FastArm:
    """Every seed's search and tests, until each has ended."""
    arm = _Arm(problem, algorithm, x1, seeds, limits, width, checkpoint, fingerprint)
    saved = time.monotonic()
    try:
        while arm.step():
            if progress is not None:
                progress(*arm.progress())
            if checkpoint is not None and time.monotonic() - saved >= SECONDS:
                arm.save(checkpoint)
                saved = time.monotonic()
    except KeyboardInterrupt:
        if checkpoint is not None:
            arm.back()
            arm.save(checkpoint)
        raise
    if checkpoint is not None:
        arm.save(checkpoint)
    return arm.result()


class _Arm:
    """The run, where every seed stands, and the certificates; a look is a function of these alone, so that a race that
    was interrupted between two looks goes on as if it had not been."""

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        x1: Tree,
        seeds: int | Sequence[int],
        limits: Allowance,
        width: int | None,
        checkpoint: Path | None,
        fingerprint: str,
    ) -> None:
        self.problem, self.algorithm, self.limits, self.whole = problem, algorithm, limits, whole_size(problem)
        self.filtered, self.x1 = isinstance(algorithm.estimator, Filtered), x1
        self.size = getattr(problem, "size", None)
        # A filter's steps may cost less than they can: its looks are cut by what was really spent.
        steps = limits.search if self.filtered else algorithm.steps(limits.search, self.size)
        self.steps = min(steps, LONGEST)
        kept: dict[str, Any] = {"look": error_bar, "width": width, "checkpoint": checkpoint, "fingerprint": fingerprint}
        self.stages = Stages(problem, algorithm, x1, self.steps, seeds, **kept)
        n = len(self.stages.seeds)
        self.certificates: list[PointCertificate | None] = [None] * n
        first = 0 if self.filtered else FIRST_TEST
        zero, point = np.zeros(n, np.int64), self.stages.point
        self.standing = Standing(
            zero,
            zero,
            zero + first,
            zero,
            zero,
            np.zeros((n, 5)),
            np.zeros((n, 5), np.int64),
            point,
            zero,
            zero,
            self.stages.observed,
        )
        self.standing = jax.tree.map(np.array, self.standing)
        if checkpoint is not None and os.path.exists(checkpoint):
            self.standing = self.stages.resume(checkpoint, self.standing, self.identity)
            self.certificates = [self._kept(i) for i in range(n)]
        self.before = self.stages.batches, self.standing

    @property
    def identity(self) -> dict[str, Any]:
        return {"race": list(self.limits)}

    def save(self, path: Path) -> None:
        self.stages.save(path, self.standing, self.identity)

    def back(self) -> None:
        """To where the last look began: one that was broken off has tested some seeds and not others."""
        self.stages.batches, self.standing = self.before

    def step(self) -> bool:
        """One look further; False if nothing is left to do."""
        t, self.before = self.stages.t, (self.stages.batches, jax.tree.map(np.copy, self.standing))
        open_ = np.flatnonzero(self.standing.ended == 0)
        if not len(open_):
            return False
        further = self._affordable(t, open_) if t else 1
        self.stages.go(t + max(further, 1))
        self._tested(open_)
        return True

    def _affordable(self, t: int, open_: np.ndarray) -> int:
        """Steps until the next look: as many as every seed can pay."""
        stride = max(1, math.ceil(t * (GROWTH - 1)))
        if not self.filtered:
            return min(stride, self.steps - t)
        left = self.limits.search - int(self.stages.cost[open_].max())
        return int(min(stride, self.steps - t, (left - self._pending(t)) // self._per_step()))

    def _per_step(self) -> int:
        return int(self.algorithm.cost(3, self.size) - self.algorithm.cost(2, self.size)) or 1

    def _pending(self, t: int) -> int:
        """What a table that is not filled yet will cost."""
        table = getattr(self.algorithm.estimator, "table", False)
        return int(self.size or 0) if table and t < int(self.size or 0) else 0

    def _tested(self, open_: np.ndarray) -> None:
        """Those that are due are tested, and those that can go on no further end."""
        stages, standing, t = self.stages, self.standing, self.stages.t
        cost, bars, diverged = stages.cost, stages.seen, stages.diverged
        points: Tree = None
        for i in open_:
            over = t >= self.steps or (self.filtered and self._room(t, int(cost[i])) < self._per_step())
            bar = Bar(*(float(part[i]) for part in bars))
            due, by_pass = self._due(i, t, bar, int(cost[i]), over)
            if due and not diverged[i]:
                points = stages.point if points is None else points
                x = jax.tree.map(lambda leaf, i=i: leaf[i], points)
                self._test(i, x, int(cost[i]), None if by_pass else (bar.size, bar.S))
            found = self.certificates[i]
            passed = found is not None and found.passed and self.limits.target is not None
            if passed or over or diverged[i] or (due and self.limits.target is None):
                standing.ended[i], standing.search[i] = t, cost[i]
        if len(ended := open_[standing.ended[open_] > 0]):
            now = self.stages.observed  # a seed that has ended goes on beside the others
            for kept, leaf in zip(jax.tree.leaves(standing.testimony), jax.tree.leaves(now), strict=True):
                kept[ended] = leaf[ended]

    def _room(self, t: int, cost: int) -> int:
        return self.limits.search - cost - self._pending(t)

    def _due(self, i: int, t: int, bar: Bar, cost: int, over: bool) -> tuple[bool, bool]:
        """Whether this seed's point is tested now, and whether nothing but a pass over all rows comes into question."""
        standing, target = self.standing, self.limits.target
        if target is None:
            return self._enough(bar, cost) or over, True
        if standing.tests[i] >= MOST_TESTS or self.limits.tests - standing.spent[i] < 2:
            return False, True
        if not self.filtered:
            return cost >= standing.after[i] or over, True
        by_pass = not self._plain(t) or (self.whole is not None and self.whole <= CALM * bar.S / target**2)
        error = math.sqrt(bar.V) * (1 if by_pass else 2)
        due = bar.seen >= LEAST_SEEN and bar.size + error <= BAR * target and cost >= standing.after[i]
        return due or (over and standing.tests[i] == 0), by_pass

    def _plain(self, t: int) -> bool:
        """Whether the filter's measurements are sample gradients, not yet changes since a table was filled."""
        return not getattr(self.algorithm.estimator, "table", False) or t < int(self.size or 0)

    def _enough(self, bar: Bar, cost: int) -> bool:
        """With a budget: whether the next sample gradient is worth more in the test."""
        total = self.limits.search + self.limits.tests
        if (self.whole is not None and self.whole <= self.limits.tests) or bar.seen < LEAST_SEEN or not self.filtered:
            return False
        left = total - cost
        width = math.sqrt(bar.S / left) * (1 + math.sqrt(2 * math.log(4 / self.limits.delta)))
        return math.sqrt(bar.size**2 + bar.V) * left <= width * cost

    def _test(self, i: int, x: Tree, cost: int, seen: tuple[float, float] | None) -> None:
        standing, limits = self.standing, self.limits
        r = int(standing.tests[i]) + 1
        seed = signed_seed(self.stages.seeds[i])
        if limits.target is None:
            left = limits.search + limits.tests - cost
            found = best_bound(self.problem, x, limits.delta, max(left, 2), seed)
        else:
            budget = int(limits.tests - standing.spent[i])
            if not self.filtered:
                budget = min(budget, max(cost, self.whole or 0))
            delta = limits.delta / (r * (r + 1))
            found = race_test(self.problem, x, limits.target, delta, budget, seen, seed, r)
        standing.tests[i], standing.spent[i] = r, standing.spent[i] + found.samples
        standing.against[i], standing.held[i] = standing.against[i] + found.contradicted, standing.held[i] + found.held
        standing.after[i] = cost + max(found.samples, cost if not self.filtered else cost // 2)
        before = self.certificates[i]
        if before is None or found.upper_bound <= before.upper_bound:
            if found.sense != "exact":
                found = replace(found, confidence=1 - limits.delta).beside(int(standing.against[i]))
            self._keep(i, found, x)

    def _keep(self, i: int, found: PointCertificate, x: Tree) -> None:
        self.certificates[i] = found
        numbers = found.upper_bound, found.confidence, found.mean_norm, found.rounding, float(found.lost_digits)
        self.standing.found[i] = numbers
        words = SENSES.index(found.sense), METHODS.index(found.method)
        self.standing.kinds[i] = found.samples, *words, found.contradicted, found.held
        for kept, leaf in zip(jax.tree.leaves(self.standing.x), jax.tree.leaves(x), strict=True):
            kept[i] = leaf

    def _kept(self, i: int) -> PointCertificate | None:
        if self.standing.tests[i] == 0:
            return None
        bound, confidence, mean_norm, rounding, lost = (float(v) for v in self.standing.found[i])
        samples, sense, method, beyond, held = (int(v) for v in self.standing.kinds[i])
        words: dict[str, Any] = {"method": METHODS[method], "target": self.limits.target, "lost_digits": bool(lost)}
        words |= {"contradicted": beyond, "held": held}
        return PointCertificate(bound, confidence, samples, mean_norm, SENSES[sense], rounding=rounding, **words)

    def progress(self) -> tuple[int, int, str]:
        """What the first seed has spent, what it may, and its error bar."""
        cost, bars, found = int(self.stages.cost[0]), self.stages.seen, self.certificates[0]
        words = [] if math.isnan(bars.V[0]) else [f"||grad F|| about {bars.size[0]:.3g} +- {2 * bars.V[0] ** 0.5:.2g}"]
        words += [] if self.limits.target is None else [f"target {self.limits.target:.3g}"]
        if found is not None:
            words.append(f"certified {found.upper_bound:.3g}")
        return cost + int(self.standing.spent[0]), self.limits.search + self.limits.tests, ", ".join(words)

    def result(self) -> FastArm:
        """Points of seeds that were never tested are where they stand, or the start if that is not finite."""
        stages, standing = self.stages, self.standing
        untested = standing.tests == 0
        x = jax.tree.map(lambda kept, now: _where(untested, now, kept), standing.x, stages.point)
        lost = np.array([not is_finite(jax.tree.map(lambda leaf, i=i: leaf[i], x)) for i in range(len(untested))])
        above = self._above_start(x, lost)
        trace, ended = stages.result(), standing.ended
        standing = self._starts_known(np.flatnonzero(lost | above), standing)
        worse, standing = self._worse_than_start(trace, lost | above, standing)
        back = lost | above | worse
        x = jax.tree.map(lambda now, start: _where(back, np.asarray(start, now.dtype)[None], now), x, self.x1)
        late = trace.record_steps[None] > ended[:, None]
        names = "grad_norm", "running_mean", "value", "error"
        shown: dict[str, Any] = {name: np.where(late, np.nan, getattr(trace, name)) for name in names}
        unknown = np.full(len(ended), np.nan)
        means: dict[str, Any] = dict.fromkeys(
            ("mean_grad_norm", "mean_by_cost", "mean_estimate_norm", "min_grad_norm"), unknown
        )
        trace = replace(trace, stopped_at=ended.astype(np.int32), cost=standing.search, last=x, **shown, **means)
        found = standing._replace(x=x), tuple(self.certificates)
        return FastArm(*found, trace, self.algorithm.name, lost, above, worse)

    def _above_start(self, x: Tree, lost: np.ndarray) -> np.ndarray:
        """Seeds without a certificate that have run away: F is larger there than at the start."""
        open_ = [i for i, one in enumerate(self.certificates) if not lost[i] and (one is None or not one.certified)]
        found = np.zeros(len(lost), bool)
        for i in open_:
            found[i] = is_above(self.problem, jax.tree.map(lambda leaf, i=i: leaf[i], x), self.x1)
        return found

    def _worse_than_start(self, trace: Trace, back: np.ndarray, standing: Standing) -> tuple[np.ndarray, Standing]:
        """Seeds of a budget that have a larger bound than the start, if a pass over it can be paid; it is made then.

        Where it is worth a pass, exact gradients on the way say, which are recorded for charts.
        """
        worse = np.zeros(len(back), bool)
        if self.limits.target is not None or self.whole is None or not np.isfinite(trace.grad_norm[:, 0]).all():
            return worse, standing
        total, start = self.limits.search + self.limits.tests, None
        for i, one in enumerate(self.certificates):
            asked = int(standing.search[i] + standing.spent[i]) + self.whole
            if back[i] or one is None or asked > total or one.upper_bound <= trace.grad_norm[i, 0]:
                continue
            start = start or certify(self.problem, self.x1, exact=True)
            worse[i] = start.upper_bound < one.upper_bound
            standing.tests[i], standing.spent[i] = standing.tests[i] + 1, standing.spent[i] + self.whole
            self.certificates[i] = start if worse[i] else one
        return worse, standing

    def _starts_known(self, lost: np.ndarray, standing: Standing) -> Standing:
        """Of those that return the start: what a pass over all rows says of it, if it can be paid; else nothing."""
        tests, spent = standing.tests.copy(), standing.spent.copy()
        for i in lost:
            self.certificates[i] = None
            if self.whole is not None and self.whole <= self.limits.tests - spent[i]:
                self.certificates[i] = certify(self.problem, self.x1, target=self.limits.target, exact=True)
                tests[i], spent[i] = tests[i] + 1, spent[i] + self.whole
        return standing._replace(tests=tests, spent=spent)


def _where(which: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(which.reshape(-1, *(1,) * (one.ndim - 1)), one, other)
