"""A lineage of algorithms: copy to src/normstorm/algorithms/<lineage>.py and change every line.

The docstring is the recursion in the paper's symbols:

    m_1 = g_1,    m_t = (1 - alpha) m_{t-1} + alpha g_t
    x_{t+1} = x_t - eta m_t / (1 + ||m_t|| / c)

CONTRIBUTING.md, "A new algorithm", names the other files that it touches.
"""

from __future__ import annotations

from normstorm._shared.validate import batch, positive, weight
from normstorm.algorithms.core import Algorithm
from normstorm.algorithms.estimators import Momentum
from normstorm.algorithms.geometries import SoftClipped
from normstorm.algorithms.schedules import Constant


def my_algorithm(*, alpha: float, eta: float, c: float, K: int = 1) -> Algorithm:
    """Softly clipped SGD with momentum: alpha in (0, 1], eta > 0, c > 0, K samples a step.

    Cost: K sample gradients at every step.
    Assumes: what the theorem assumes of F and of the noise.
    Rate: what it promises, "none stated" if nothing.
    Source: authors, "title" (year), the number of the algorithm there.
    Departures: none.
    """
    # Checks first, each of them one sentence that begins with the name. Floats may be tracers: a sweep is a vmap.
    who = "my_algorithm"
    estimator = Momentum(batch(who, "K", K))
    schedule = Constant(weight(who, alpha), positive(who, "eta", eta))
    # How it looks, how it measures, how far it goes; the name is the function's. What a step costs is the estimator's.
    return Algorithm(estimator, SoftClipped(positive(who, "c", c)), schedule, who)
