"""What a run asks beside its sample gradients: nothing of it moves the point, and nobody who needs only x would ask it.

Sample gradients that are counted are those of the steps and of the tests. Beside them are, in sample gradients:

rounding    48 at each point of the first seed that was tested: what another rounding of x changes in them
constants   of the comparison with constants that the problem's author has stated
record      of all seeds, where F is a finite sum: exact gradients at recorded steps, for charts, and at returned points
losses      not gradients: of F(x_1) and F(x)
"""

from __future__ import annotations

from typing import Any

from normstorm.engine.results import Trace

from .fresh import CHECKED, whole_size
from .value import Value
from .watch import Contradictions

POINTS_OF_ROUNDING = 3
MEANINGS = {
    "rounding": "whether another rounding of x changes a test",
    "constants": "comparison of samples with the stated constants",
    "record": "exact gradients for charts and for comparison, all seeds",
    "losses": "F(x_1) and F(x), in losses, not gradients",
}


def asked_beside(
    problem: Any, trace: Trace, tests: int, against: Contradictions | None, value: Value | None, exact: int
) -> dict[str, int]:
    """By the names above, without what is 0; `exact` is how many exact gradients a seed was asked."""
    rows = whole_size(problem) or 0
    losses = 0 if value is None else 2 * (value.samples or rows)
    found = {
        "rounding": POINTS_OF_ROUNDING * CHECKED * tests,
        "constants": 0 if against is None else against.sample_gradients,
        "record": exact * rows * len(trace.seeds),
        "losses": losses,
    }
    return {name: count for name, count in found.items() if count}
