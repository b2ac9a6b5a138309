"""The catalogue: names to problems, each with bounded noise and a start that a plan can be made for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from normstorm._shared.validate import one_of

from . import chain, dro, linear, network, phase, synthetic
from .protocol import Problem


class Entry(NamedTuple):
    make: Callable[..., Problem]
    description: str


PROBLEMS: dict[str, Entry] = {
    "dro-regression": Entry(dro.dro_regression, "chi-square robust regression on the diabetes data of scikit-learn"),
    "quadratic": Entry(synthetic.quadratic, "sum a_j x_j^2/2, curvatures from 0.1 to 10"),
    "quartic": Entry(synthetic.quartic, "||x||^(2p)/(2p), p = 2"),
    "quartic-sum": Entry(synthetic.quartic_sum, "sum x_j^(2p)/(2p), p = 2"),
    "cosh": Entry(synthetic.cosh, "sum cosh(c x_j) - 1, c = 2"),
    "double-well": Entry(synthetic.double_well, "sum (x_j^2 - 1)^2/4, non-convex"),
    "cosh-cosine": Entry(synthetic.cosh_cosine, "sum cosh(x_j) + 2 cos(3 x_j), non-convex"),
    "exp-quad": Entry(synthetic.exp_quad, "quadratic inside, exponential outside; (l0, l1) are free"),
    "noisy-valley": Entry(synthetic.noisy_valley, "a long gentle slope beside sharp directions"),
    "chain": Entry(chain.chain, "the zero-chain of the lower bounds, gated oracle"),
    "least-squares": Entry(linear.least_squares, "linear regression on unit rows"),
    "separable-logistic": Entry(linear.separable_logistic, "logistic loss on separable data: L0 = sigma0 = 0"),
    "separable-exponential": Entry(linear.separable_exponential, "exponential loss on separable data: L0 = sigma0 = 0"),
    "logistic-nonconvex": Entry(linear.logistic_nonconvex, "logistic loss with a bounded non-convex regulariser"),
    "phase-retrieval": Entry(phase.phase_retrieval, "((a'x)^2 - y)^2/4 without measurement noise"),
    "dro-chi2": Entry(dro.dro_chi2, "chi-square robust regression on synthetic data with outliers"),
    "dro-cvar": Entry(dro.dro_cvar, "smoothed CVaR regression on synthetic data with outliers"),
    "tanh-network": Entry(network.tanh_network, "two-layer tanh network with a quartic regulariser"),
    "matrix-regression": Entry(linear.matrix_regression, "linear regression on unit rows with a matrix of unknowns"),
}


def get(name: str, **options: Any) -> Problem:
    """The problem of this name; options are the arguments of its factory, such as dim or noise."""
    return PROBLEMS[one_of("get", "problem", name, tuple(PROBLEMS))].make(**options)
