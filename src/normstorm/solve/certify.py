"""An upper bound of ||grad F(x)|| at a given point, from fresh samples alone.

The samples are drawn with keys that no run uses, and evaluated in double precision. Statements and proofs:
docs/theory/fresh-samples.md.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared import validate
from normstorm._shared.jsonable import jsonable
from normstorm._shared.pytrees import misfit
from normstorm.problems.protocol import Problem
from normstorm.theory.fresh_samples import Sense, Summary, groups_for, samples_for, upper_bound
from normstorm.theory.plan import DEFAULT_CONFIDENCE, round_up

from .precision_modes import ask

Tree = Any
CHUNK = 2048
MOST_SAMPLES = 10**8
SEEDS = -(2**63), 2**63 - 1
# Steps of a run are below 2^30: these keys are nobody else's.
FRESH = 2**31


@dataclass(frozen=True)
class PointCertificate:
    """||grad F(x)|| <= upper_bound, with probability at least `confidence` over the fresh samples."""

    upper_bound: float
    confidence: float
    samples: int
    mean_norm: float
    sense: str

    @property
    def guarantee(self) -> str:
        if math.isinf(self.upper_bound):
            return (
                f"No bound of ||grad F(x)|| at the returned point follows from {self.samples} fresh samples: they are "
                "too few, or a gradient is not finite."
            )
        assumption = "4A" if self.sense == "almost-sure" else "4B"
        return (
            f"With probability at least {self.confidence:.12g} over {self.samples} fresh samples, ||grad F(x)|| is at "
            f"most {round_up(self.upper_bound)} at the returned point, if assumptions 2 and {assumption} hold."
        )

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = jsonable(asdict(self) | {"guarantee": self.guarantee})
        return found


def certify(
    problem: Problem,
    x: Tree,
    confidence: float = DEFAULT_CONFIDENCE,
    samples: int | None = None,
    *,
    precision: float | None = None,
    sense: Sense = "almost-sure",
    seed: int = 0,
) -> PointCertificate:
    """Bound ||grad F(x)|| from fresh samples; x must not depend on them (another `seed` draws others).

    Give `samples`, or `precision`: as many samples as bring the bound within `precision` of the norm of their mean,
    in the worst case that the noise constants allow at ||grad F(x1)||.
    sense   "almost-sure" uses assumption 4A, "mean-square" only 4B
    """
    confidence = validate.confidence("certify", confidence)
    seed = validate.whole("certify", "seed", seed, *SEEDS)
    if words := misfit(problem, x):
        raise ValueError(f"certify: x must {words}")
    if (samples is None) == (precision is None):
        raise ValueError(
            "certify: exactly one of samples, precision must be given; "
            f"got samples={samples!r}, precision={precision!r}"
        )
    delta = 1 - confidence
    noise = problem.constants(None, sense)
    if samples is None:
        width = validate.number("certify", "precision", precision, validate.POSITIVE)
        samples = samples_for(width, noise.first_gradient, noise.sigma0, noise.sigma1, delta, sense)
    samples = sample_count(samples)
    groups = groups_for(delta) if sense == "mean-square" and samples >= groups_for(delta) else 1
    summary = summarise(problem, x, samples, groups, seed)
    bound = upper_bound(summary, noise.sigma0, noise.sigma1, delta, sense)
    return PointCertificate(bound, confidence, summary.samples, summary.mean_norm, sense)


def summarise(problem: Problem, x: Tree, samples: int, groups: int, seed: int) -> Summary:
    """Norms and spread of fresh sample gradients at x, in as many equal groups (a remainder is not drawn)."""
    with jax.enable_x64(True):
        point = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), x)
        key = jax.random.fold_in(jax.random.key(seed), FRESH)
        each = samples // groups
        means, scatter = [], 0.0
        for group in range(groups):
            total, squares = _group(problem, point, jax.random.fold_in(key, group), each)
            means.append(total / each)
            scatter += squares
    stacked = np.array(means)
    mean = stacked.mean(axis=0)
    scatter += each * float(((stacked - mean) ** 2).sum())
    n = each * groups
    norms = tuple(float(np.linalg.norm(m)) for m in means)
    return Summary(n, float(np.linalg.norm(mean)), scatter / max(n - 1, 1), norms if groups > 1 else ())


def _group(problem: Problem, x: Tree, key: jax.Array, n: int) -> tuple[np.ndarray, float]:
    """The sum of n sample gradients and the sum of their squared distances from their mean, chunk by chunk."""
    # A problem that JAX does not know as a pytree cannot be an argument of a compiled function.
    known = not jax.tree_util.all_leaves([problem])
    total, count, scatter = None, 0, 0.0
    while count < n:
        size = min(CHUNK, n - count)
        plain, compiled = (partial(f, problem, n=size) for f in (_gradients, _compiled_gradients))
        gradients = np.asarray(ask(plain, compiled if known else None, x, jax.random.fold_in(key, count)))
        part = gradients.sum(axis=0)
        scatter += float(((gradients - part / size) ** 2).sum())
        if total is None:
            total = part
        else:  # Chan's update of a sum of squares
            gap = part / size - total / count
            scatter += float(gap @ gap) * size * count / (size + count)
            total = total + part
        count += size
    assert total is not None
    return total, scatter


def _gradients(problem: Problem, x: Tree, key: jax.Array, n: int) -> jax.Array:
    """(n, d): one row for the gradient at each of n samples."""
    batch = problem.sample(key, n)

    def one(sample: Tree) -> jax.Array:
        gradient = problem.grad(x, jax.tree.map(lambda leaf: leaf[None], sample))
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(gradient)])

    return jax.vmap(one)(batch)


_compiled_gradients = jax.jit(_gradients, static_argnames="n")


def sample_count(samples: Any) -> int:
    """A number of fresh samples that can be drawn."""
    return validate.whole("certify", "samples", samples, 2, MOST_SAMPLES)
