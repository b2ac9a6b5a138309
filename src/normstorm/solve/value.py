"""F at the returned point: exact, or the mean over fresh samples with its standard error."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.jsonable import jsonable
from normstorm.problems.protocol import Problem

from .fresh import FRESH, whole_size
from .precision_modes import ask, in_precision

Tree = Any
SAMPLES = 4096
VALUE = FRESH + 3  # no run and no certificate draws with it


class Value(NamedTuple):
    """F(x).

    value      the number;   error  its standard error, 0 if it is exact
    kind       "all rows", "formula", or "fresh samples": a mean whose error is estimated
    samples    losses that it is made of, if it is a mean
    """

    value: float
    error: float
    kind: str
    samples: int = 0

    def __str__(self) -> str:
        if self.kind == "fresh samples":
            return f"{self.value:.6g} +- {2 * self.error:.2g} (two standard errors of {self.samples:,} fresh samples)"
        return f"{self.value:.8g} (exact, {self.kind})"

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = jsonable(self._asdict())
        return found


def value_at(problem: Problem, x: Tree) -> Value | None:
    """In double precision; None if the problem knows neither F nor the loss of a sample."""
    loss = getattr(problem, "loss", None)
    with in_precision(problem):
        point = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), x)
        if problem.is_exact:
            found = float(_asked(problem, _exact, _compiled_exact, point))
            return Value(found, 0.0, "formula" if whole_size(problem) is None else "all rows")
        if loss is None:
            return None
        key = jax.random.fold_in(jax.random.key(0), VALUE)
        losses = np.asarray(_asked(problem, _losses, _compiled_losses, point, key))
    return Value(float(losses.mean()), float(losses.std(ddof=1)) / math.sqrt(SAMPLES), "fresh samples", SAMPLES)


def is_above(problem: Problem, x: Tree, start: Tree) -> bool:
    """Whether F(x) is larger than F(start), beyond two standard errors where it is sampled, or not finite alone."""
    here, there = value_at(problem, x), value_at(problem, start)
    if here is None or there is None:
        return False
    if not (math.isfinite(here.value) and math.isfinite(there.value)):
        return math.isfinite(there.value)
    doubt = 2 * (here.error + there.error) + 1e-12 * (abs(here.value) + abs(there.value))
    return not here.value - there.value <= doubt


def _asked(problem: Problem, plain: Callable[..., Tree], compiled: Callable[..., Tree], *arguments: Any) -> Any:
    known = not jax.tree_util.all_leaves([problem])
    return ask(partial(plain, problem), partial(compiled, problem) if known else None, *arguments)


def _exact(problem: Problem, x: Tree) -> jax.Array:
    return problem.value(x)


def _losses(problem: Any, x: Tree, key: jax.Array) -> jax.Array:
    found: jax.Array = jax.vmap(problem.loss, (None, 0))(x, problem.sample(key, SAMPLES))
    return found


_compiled_exact, _compiled_losses = jax.jit(_exact), jax.jit(_losses)
