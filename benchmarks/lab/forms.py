"""Kalman-STORM with other directions than that of m, each made as long as m, or other points; all else is as it is.

    python -m benchmarks.lab.forms [--problems a,b] [--budget n] [--out benchmarks/results/selftuning.json]

coordinates   m over the root of the mean square of each coordinate's fresh gradients
sign          the sign of every coordinate
spectral      an orthogonal factor of every matrix, if x is made of matrices
mean          the mean of all iterates is handed out: asked where schedule-free SGD leads most
shaken        gradients are asked at x + rho u, u uniform on the sphere, rho = (V S)^(1/4)/L: F is smoothed over rho
ahead         x - (h/M) m is handed out, where m says that the gradient is least; nothing is asked there

Averages over that of the plain form go into the part `forms` of the file, and into docs/how-to-choose.md.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.lab.selftuning import RESULT, problem_of, rows_of, words
from benchmarks.pages import fill, forms_table
from normstorm._shared.pytrees import pytree
from normstorm.algorithms import CATALOGUE
from normstorm.algorithms.averaging import PolyakRuppert
from normstorm.algorithms.core import Algorithm, State
from normstorm.algorithms.estimators import Sampled, static
from normstorm.algorithms.filtering import Filter, Filtered
from normstorm.algorithms.geometries import Geometry, norm
from normstorm.algorithms.matrices import polar

DIRECTIONS = ("coordinates", "sign")
FORMS = {
    "matrix-regression": (*DIRECTIONS, "spectral"),
    **dict.fromkeys(("scaled-regression", "rare-words"), DIRECTIONS),
    **dict.fromkeys(("quartic", "quartic-sum", "robust-regression"), ("mean", "shaken", "ahead")),
    **dict.fromkeys(("quadratic", "noisy-valley", "phase-retrieval", "dro-chi2"), ("shaken", "ahead")),
}
SEEDS = 4


@pytree
@dataclass(frozen=True)
class AsLong(Geometry):
    """Another direction, as long as m."""

    form: str = static()

    def init(self, x: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, x)

    def step(self, t: Any, x: Any, m: Any, g: Any, state: Any) -> tuple[Any, Any]:
        if self.form == "coordinates":
            state = jax.tree.map(lambda v, g: v + (g * g - v) / t, state, g)
            way = jax.tree.map(lambda m, v: jnp.where(v > 0, m / jnp.sqrt(jnp.where(v > 0, v, 1)), 0), m, state)
        else:
            way = jax.tree.map(jnp.sign if self.form == "sign" else polar, m)
        size = norm(way)
        scale = jnp.where(size > 0, norm(m) / jnp.where(size > 0, size, 1), 0)
        return jax.tree.map(lambda leaf: leaf * scale, way), state


def _curvature(f: Filter) -> tuple[jax.Array, jax.Array]:
    """L^2 and M."""
    high = jnp.maximum(f.bend, f.spread)
    return high, jnp.minimum(f.square, high)


@pytree
@dataclass(frozen=True)
class Shaken(Filtered):
    """Gradients of both points are asked at the same distance from them, drawn anew at every step."""

    def draw(self, problem: Any, key: jax.Array) -> Any:
        return *super().draw(problem, key), jax.random.fold_in(key, 1)

    def sample_gradients(self, problem: Any, t: Any, x: Any, x_prev: Any, state: Filter, samples: Any) -> Sampled:
        *rest, key = samples
        leaves, shape = jax.tree.flatten(x)
        keys = jax.random.split(key, len(leaves))
        way = [jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
        high, _ = _curvature(state)
        radius = (state.V * state.S) ** 0.25 / jnp.sqrt(jnp.where(high > 0, high, jnp.inf)) / norm(way)
        way = jax.tree.unflatten(shape, way)
        x, x_prev = (jax.tree.map(lambda p, u: p + radius * u, point, way) for point in (x, x_prev))
        return super().sample_gradients(problem, t, x, x_prev, state, tuple(rest))


@pytree
@dataclass(frozen=True)
class Ahead(Algorithm):
    """Hands out a point at which no gradient is asked."""

    def point(self, state: State) -> Any:
        f = state.estimator
        _, M = _curvature(f)
        far = jnp.maximum(f.along, 0) / jnp.where(M > 0, M, jnp.inf)
        return jax.tree.map(lambda x, m: x - far * m, state.x_prev, f.m)


def formed(form: str) -> Algorithm:
    plain: Algorithm = CATALOGUE["kalman_storm"]()
    if form == "plain":
        return plain
    if form == "ahead":
        return Ahead(plain.estimator, plain.geometry, plain.schedule, plain.name)
    if form == "shaken":
        return replace(plain, estimator=Shaken(plain.estimator.K, plain.estimator.k))
    return replace(plain, **({"averaging": PolyakRuppert()} if form == "mean" else {"geometry": AsLong(form)}))


def measured(name: str, budget: int) -> dict[str, dict[str, float]]:
    """Average and last gradient norm of every form."""
    problem, found = problem_of(name), {}
    for form in ("plain", *FORMS[name]):
        rows = rows_of(problem, [formed(form)], words(100, SEEDS), budget + 1, (budget,))[0, :, 0]
        rows = np.where(np.isfinite(rows), rows, np.inf)
        found[form] = {"average": float(np.mean(rows[:, 0])), "last": float(np.median(rows[:, 1]))}
        print(name, form, found[form], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", default=",".join(FORMS))
    parser.add_argument("--budget", type=int, default=20_000)
    parser.add_argument("--out", default=str(RESULT))
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    out = Path(given.out)
    report = json.loads(out.read_text())
    for name in given.problems.split(","):
        report.setdefault("forms", {})[name] = {"budget": given.budget, **measured(name, given.budget)}
        out.write_text(json.dumps(report, indent=1) + "\n")
    if out.resolve() == RESULT.resolve():
        fill("how-to-choose.md", "selftuning-forms", forms_table(report))


if __name__ == "__main__":
    main()
