"""Kalman-STORM with other directions than that of m, each made as long as m, or another point; all else is as it is.

    python -m benchmarks.lab.forms [--problems a,b] [--budget n] [--out benchmarks/results/selftuning.json]

coordinates   m over the root of the mean square of each coordinate's fresh gradients
sign          the sign of every coordinate
spectral      an orthogonal factor of every matrix, if x is made of matrices
mean          the mean of all iterates is handed out: asked where schedule-free SGD leads most

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
from normstorm.algorithms.estimators import static
from normstorm.algorithms.geometries import Geometry, norm
from normstorm.algorithms.matrices import polar

DIRECTIONS = ("coordinates", "sign")
FORMS = {
    "matrix-regression": (*DIRECTIONS, "spectral"),
    **dict.fromkeys(("scaled-regression", "rare-words"), DIRECTIONS),
    **dict.fromkeys(("quartic", "quartic-sum", "robust-regression"), ("mean",)),
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


def measured(name: str, budget: int) -> dict[str, dict[str, float]]:
    """Average and last gradient norm of every form."""
    problem, plain = problem_of(name), CATALOGUE["kalman_storm"]()
    found = {}
    for form in ("plain", *FORMS[name]):
        changed = {"averaging": PolyakRuppert()} if form == "mean" else {"geometry": AsLong(form)}
        algorithm = plain if form == "plain" else replace(plain, **changed)
        rows = rows_of(problem, [algorithm], words(100, SEEDS), budget + 1, (budget,))[0, :, 0]
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
