"""What rounding can have changed: the plan's bound for a run in floating-point numbers, measured at points of the run.

With u the unit roundoff, X the largest ||x||, e the largest error of a computed mini-batch gradient and M the largest
norm of one or of an estimate,

    rho = u (X/eta + sqrt d + 10)                     at most this part of a step is lost or added
    q   = e (1 + 2 beta/alpha) + 6 u M/alpha          at most this is added to the error of an estimate m_t

and a run with these two numbers obeys the bound of `rounded_bound`, proved in docs/theory/rounding.md. X, e and M are
the largest values among the points that the run has kept; that is a measurement and no proof for all others.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.jsonable import jsonable
from normstorm.engine.results import Trace
from normstorm.problems.protocol import Problem
from normstorm.theory.certificates import bound
from normstorm.theory.plan import Plan, round_up

from .precision_modes import ask, in_precision

Tree = Any
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
TOLERATED = 0.1  # of the bound
LOST = 0.25  # of a step
KEY = 2**31 + 2**30  # neither a run nor a certificate draws with it
# The paper's step sizes lie on the boundary of its constraints; these certificates are never above its own.
STANDS_IN = {"paper": "union", "paper_expectation": "expectation"}


@dataclass(frozen=True)
class Precision:
    """What single or double precision does to a plan's bound.

    dtype            of the iterates;   unit_roundoff  the largest relative error of one operation
    step_lost        rho, in parts of a step;   gradient_error  e;   estimate_error  q
    bound            of the average with rounding counted, next to the plan's `exact_bound`; infinite if none follows
    points           where this was measured
    """

    dtype: str
    unit_roundoff: float
    step_lost: float
    gradient_error: float
    estimate_error: float
    bound: float
    exact_bound: float
    points: int

    @property
    def adequate(self) -> bool:
        """Rounding raises the bound by a tenth at most."""
        return self.bound <= (1 + TOLERATED) * self.exact_bound

    @property
    def statement(self) -> str:
        """In a sentence or two, with what to do if the precision is not enough."""
        if self.adequate:
            more = round_up(100 * max(self.bound / self.exact_bound - 1, 0.0), 2)
            return (
                f"The guarantee is a theorem about exact arithmetic. With the rounding errors of {self.dtype}, as "
                f"measured at {self.points} points of the run, its bound rises by at most {more} %."
            )
        if self.step_lost < LOST:
            why = f"rounding of gradients can add {self.estimate_error:.2g} to the error of an estimate"
        else:
            why = f"rounding of x can change a step by {self.step_lost:.2g} of its length"
        proven = "no bound follows" if math.isinf(self.bound) else f"the bound rises to {round_up(self.bound)}"
        cure = "float64 is needed" if self.dtype == "float32" else "the problem needs other units or a looser target"
        return f"The guarantee is not kept in {self.dtype}: {why}, so that {proven}; {cure}."

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = jsonable(asdict(self) | {"adequate": self.adequate, "statement": self.statement})
        return found


def assess(problem: Problem, plan: Plan, x1: Tree, trace: Trace) -> Precision:
    """Measure at the start and at the kept iterates; gradients at the start and at the first seed's candidates."""
    start = jax.tree.map(lambda leaf: np.asarray(leaf)[None], x1)
    kept = [trace.last, trace.uniform.x, trace.smallest.x, jax.tree.map(np.concatenate, trace.candidates.x)]
    points = jax.tree.map(lambda one, many: np.concatenate([one, many[0]]), start, trace.candidates.x)
    error, size = gradient_errors(problem, points, plan.batch, plan.sub_batch)
    fine = trace.diverged_at == 0
    if fine.any():
        size = max(size, _largest(jax.tree.map(lambda leaf: leaf[fine], trace.estimate)))
    leaves = jax.tree.leaves(trace.last)
    unit = UNIT[str(leaves[0].dtype)]
    # Errors were measured in single precision; to first order they are proportional to the unit roundoff.
    error *= unit / UNIT["float32"]
    dimension = sum(leaf[0].size for leaf in leaves)
    rho = unit * (max(map(_largest, (start, *kept))) / plan.eta + math.sqrt(dimension) + 10)
    q = error * (1 + 2 * plan.beta / plan.alpha) + 6 * unit * size / plan.alpha
    number = len(jax.tree.leaves(points)[0])
    return Precision(str(leaves[0].dtype), unit, rho, error, q, rounded_bound(plan, rho, q), plan.bound, number)


def rounded_bound(plan: Plan, rho: float, q: float) -> float:
    """The plan's bound if steps are off by a share rho and estimates by q: docs/theory/rounding.md, rounded runs."""
    if not (rho < 1 and q < math.inf):
        return math.inf
    c, eta, first = plan.constants, plan.eta * (1 + rho), plan.constants.first_gradient
    moved, slope = rho * plan.eta, c.L0 + c.L1 * first
    gap = c.gap + first * moved + slope * moved**2 / 2 + 2 * eta * plan.horizon * q
    found = bound(
        STANDS_IN.get(plan.certificate, plan.certificate),
        replace(c, gap=gap, grad_norm=first + slope * moved),
        T=plan.horizon,
        alpha=plan.alpha,
        eta=eta,
        K=plan.batch,
        k=plan.sub_batch,
        delta=None if plan.confidence is None else 1 - plan.confidence,
        free=None if plan.certificate in STANDS_IN else plan.free,
    )
    left = float(found.descent) - 2 * rho
    return float(found.value) * float(found.descent) / left if left > 0 else math.inf


def gradient_errors(problem: Problem, points: Tree, K: int, k: int) -> tuple[float, float]:
    """The largest error of a mean of K or of k sample gradients in single precision, and their largest norm."""
    # A problem that JAX does not know as a pytree cannot be an argument of a compiled function.
    known = not jax.tree_util.all_leaves([problem])
    plain, compiled = (partial(f, problem, k=k) for f in (_gradients, _compiled_gradients))
    both = partial(ask, plain, compiled if known else None)
    with in_precision(problem):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), KEY), len(jax.tree.leaves(points)[0]))
        # Numbers that both types hold: only what is computed from them differs.
        at, drawn = jax.tree.map(_single, (points, jax.vmap(lambda key: problem.sample(key, K))(keys)))
        exact = both(jax.tree.map(_double, at), jax.tree.map(_double, drawn))
    with in_precision(problem, False):
        rounded = both(at, drawn)
    error = _largest(jax.tree.map(lambda a, b: _flat(a) - _flat(b), exact, rounded))
    return error, _largest(jax.tree.map(_flat, exact))


def _gradients(problem: Problem, points: Tree, drawn: Tree, k: int) -> Tree:
    """At each point the means over all samples and over the first k."""

    def both(x: Tree, samples: Tree) -> Tree:
        pair = problem.grad(x, samples), problem.grad(x, jax.tree.map(lambda leaf: leaf[:k], samples))
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *pair)

    return jax.vmap(both)(points, drawn)


_compiled_gradients = jax.jit(_gradients, static_argnames="k")


def _single(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _double(leaf: np.ndarray) -> np.ndarray:
    return leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf


def _flat(leaf: Any) -> np.ndarray:
    """The two first axes as one, in double precision."""
    return np.concatenate(np.asarray(leaf, np.float64))


def _largest(tree: Tree) -> float:
    """The largest Euclidean norm over the first axis; infinite if a number is not finite."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    with np.errstate(over="ignore", invalid="ignore"):
        largest = float(np.max(sum((leaf**2).reshape(len(leaf), -1).sum(axis=1) for leaf in leaves))) ** 0.5
    return largest if math.isfinite(largest) else math.inf
