"""Comparisons made by hand, for tests of what is said about them."""

from datetime import UTC, datetime

import numpy as np

from normstorm import Constants
from normstorm.algorithms.catalogue import CATALOGUE
from normstorm.lab.compare.board import DEFAULT, ENDS, THEOREM, TUNED, Board, MethodRun, Row
from normstorm.lab.compare.ends import Ends
from normstorm.lab.compare.methods import Scales
from normstorm.lab.compare.paths import Paths
from normstorm.lab.compare.request import CompareRequest
from normstorm.lab.compare.search import Choice
from normstorm.lab.compare.tables import Comparison

BUDGET, SEEDS, TARGETS, START = 1000, 20, (0.4, 0.2), 1.0
GOALS = (*TARGETS, *ENDS)
COSTS = np.unique(np.rint(np.geomspace(1, BUDGET, 24)))
KNOWN = Constants(L0=1, L1=0, sigma0=1, sigma1=0, gap=1, grad_norm=1, noise="mean-square")
SCALES = {"L0": 1.0, "L1": 0.0, "grad_norm": 1.0, "sigma": 1.0, "gap": 1.0, "budget": BUDGET, "size": None}
REASON = "algorithm: x must be a matrix or a pytree of matrices; got a leaf of shape (3,)"
assert Scales(**SCALES).length == 1


def measured(speed: float, lost: int = 0, seeds: int = SEEDS, value: float = 0.5) -> MethodRun:
    """Averages 1/(1 + speed * cost), a little different from seed to seed; the last seeds diverge in the middle.

    The last point has half of the average, the other one a third, and F is `value` at both.
    """
    speeds = speed * np.linspace(0.9, 1.1, seeds)
    mean = 1 / (1 + speeds[:, None] * COSTS)
    mean[seeds - lost :, len(COSTS) // 2 :] = np.inf
    cost = np.tile(COSTS, (seeds, 1))
    values = np.where(np.isfinite(mean[:, -1]), value, np.inf)
    last, best = (Ends(mean[:, -1] / share, values) for share in (2, 3))
    far = np.where(np.isfinite(values), 3.0, np.inf)
    return MethodRun({"eta": speed, "K": 1}, BUDGET, lost, seeds * BUDGET, Paths(cost, mean), last, best, far)


def board(
    problem_spec: str,
    speeds: dict[str, float | None],
    *,
    lost: dict[str, int] | None = None,
    tune: bool = True,
    astray: tuple[str, ...] = (),
) -> Board:
    """Default, theorem and (with `tune`) tuned rows of these speeds; None: cannot run. Some end above F(x_1)."""
    rows = []
    for name, speed in speeds.items():
        if speed is None:
            rows.append(Row(problem_spec, name, DEFAULT, DEFAULT, reason=REASON))
            continue
        gone, value = (lost or {}).get(name, 0), 1.5 if name in astray else 0.5

        def ran(factor: float, speed: float = speed, gone: int = gone, value: float = value) -> MethodRun:
            return measured(factor * speed, gone, value=value)

        rows.append(Row(problem_spec, name, DEFAULT, DEFAULT, ran(1)))
        rows.append(Row(problem_spec, name, THEOREM, "constants known, expectation", ran(1 / 3)))
        if tune:
            label = "tuned for 0.4, 0.2, the budget, the last point, the best point"
            choices = {goal: Choice(np.inf, 0.0, 0.75, 2, "eta 0.1 to 0.3", ("step",)) for goal in GOALS}
            counts = 54_000, 16, 3
            rows.append(Row(problem_spec, name, TUNED, label, ran(2), None, GOALS, *counts, choices))
    return Board(problem_spec, True, START, BUDGET, TARGETS, KNOWN.to_dict(), SCALES, tuple(rows))


def comparison(boards: list[Board], *, tune: bool = True, report: str = "there/compare.html") -> Comparison:
    names = tuple(name for name in CATALOGUE if any(name == row.algorithm for b in boards for row in b.rows))
    request = CompareRequest(tuple(b.problem_spec for b in boards), names, BUDGET, SEEDS, TARGETS, tune)
    return Comparison(request, tuple(boards), 12.5, datetime(2026, 1, 2, tzinfo=UTC), report)
