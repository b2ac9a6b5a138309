"""The usual models from arrays, each a problem with proven constants: nothing has to be derived.

`features` is an array with a row for every example; add a column of ones for an intercept. `l2` is the factor of
||x||^2/2, `bounded` that of sum x_j^2/(1 + x_j^2), which is not convex and never large. Losses, constants and proofs:
`models.py`. `problem.advice` says in a sentence what the scale of the rows costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from normstorm._shared.validate import NONNEGATIVE, POSITIVE, number

from .dro import best_multiplier, chi2_weight, lower_bound
from .infima import regularised_bound
from .linear import Matrix, row_lengths, second_moment
from .models import (
    HuberRegression,
    LogCoshRegression,
    LogisticRegression,
    RidgeRegression,
    RobustRegression,
    SoftmaxRegression,
)
from .tables import table_rows

SINGULAR = 1e-10  # a least eigenvalue below this part of the largest one counts as none
LARGEST = 1e60
LONGEST_NEWTON = 500  # columns for which a lower bound of F* is looked for
STEPS = 30
CLOSE = 1e-3  # of F: a lower bound that is near enough


def logistic_regression(features: Any, labels: Any, *, l2: float = 0.0, bounded: float = 0.0) -> LogisticRegression:
    """log(1 + exp(-y a'x)) for labels of two values, of which y = 1 stands for the larger."""
    who = "logistic_regression"
    a, y, (l2, bounded) = *_table(who, features, labels, "labels"), _strengths(who, l2, bounded)
    values = np.unique(y)
    if len(values) != 2:
        raise ValueError(f"{who}: labels must have two values, more are for softmax_regression; got {len(values)}")
    rows, zeros = a * np.where(y == values[1], 1.0, -1.0)[:, None], np.zeros(len(a))
    least = _dual_bound(rows, zeros, l2, _logistic_slope, lambda q: -_entropy(-q), (-1.0, 0.0))
    if bounded > 0 and l2 == 0 and rows.shape[1] <= LONGEST_NEWTON:
        least = max(least, regularised_bound(rows, bounded))
    return LogisticRegression((rows, zeros), l2, bounded, least)


def softmax_regression(features: Any, labels: Any, *, l2: float = 0.0, bounded: float = 0.0) -> SoftmaxRegression:
    """Multinomial logistic loss; labels are 0, 1, ..., C - 1, and x is a matrix with a row for each of C classes."""
    who = "softmax_regression"
    a, y, (l2, bounded) = *_table(who, features, labels, "labels"), _strengths(who, l2, bounded)
    values = np.unique(y)
    if len(values) < 2 or not np.array_equal(values, np.arange(len(values))):
        raise ValueError(f"{who}: labels must be 0, 1, ..., C - 1, every one of them; got {_few(values)}")
    labelled: Any = y.astype(np.int32)
    return SoftmaxRegression((a, labelled), l2, bounded, _softmax_bound(a, labelled, len(values), l2), len(values))


def ridge_regression(features: Any, targets: Any, *, l2: float = 0.0, bounded: float = 0.0) -> RidgeRegression:
    """Least squares, (a'x - b)^2/2; without l2 the columns must be independent."""
    who = "ridge_regression"
    a, b, (l2, bounded) = *_table(who, features, targets, "targets"), _strengths(who, l2, bounded)
    A = second_moment(a)
    eigenvalues = np.linalg.eigvalsh(A) + l2
    if eigenvalues[0] <= SINGULAR * eigenvalues[-1]:
        raise ValueError(
            f"{who}: l2 must be larger where columns depend on each other (noise grows without bound along a direction "
            f"that the rows hardly see); got l2={l2!r}"
        )
    solution = np.linalg.solve(A + l2 * np.eye(len(A)), a.T @ b / len(a))
    least = float(np.mean((a @ solution - b) ** 2) + l2 * solution @ solution) / 2
    return RidgeRegression((a, b), least, np.asarray(solution, float), l2, bounded)


def log_cosh_regression(features: Any, targets: Any, *, l2: float = 0.0, bounded: float = 0.0) -> LogCoshRegression:
    """log cosh(a'x - b): squares for small residuals, absolute values for large ones."""
    who = "log_cosh_regression"
    a, b, (l2, bounded) = *_table(who, features, targets, "targets"), _strengths(who, l2, bounded)

    def conjugate(q: Matrix) -> Matrix:
        return np.asarray(np.log(2) - _entropy((1 + q) / 2))

    least = _dual_bound(a, b, l2, lambda z: (np.tanh(z), 1 - np.tanh(z) ** 2), conjugate, (-1.0, 1.0))
    return LogCoshRegression((a, b), l2, bounded, least)


def huber_regression(
    features: Any, targets: Any, *, k: float = 1.0, l2: float = 0.0, bounded: float = 0.0
) -> HuberRegression:
    """Squares up to |a'x - b| = k, straight lines beyond."""
    who = "huber_regression"
    k = number(who, "k", k, POSITIVE)
    a, b, (l2, bounded) = *_table(who, features, targets, "targets"), _strengths(who, l2, bounded)
    least = _dual_bound(
        a, b, l2, lambda z: (np.clip(z, -k, k), np.asarray(np.abs(z) < k, float)), lambda q: q**2 / 2, (-k, k)
    )
    return HuberRegression((a, b), l2, bounded, least, k)


def robust_regression(
    features: Any, targets: Any, *, lam: float = 0.5, l2: float = 0.0, bounded: float = 0.0
) -> RobustRegression:
    """Chi-square robust regression, with the loss r^2/(1 + r^2): rows must not be longer than 1.

    The last entry of x is the multiplier (`dro.py`); a smaller `lam` lets the worst reweighting of the rows go further.
    """
    who = "robust_regression"
    lam = number(who, "lam", lam, POSITIVE)
    a, b, (l2, bounded) = *_table(who, features, targets, "targets"), _strengths(who, l2, bounded)
    if np.max(row_lengths(a)) > 1 + 1e-9:
        raise ValueError(
            f"{who}: features must have rows of length at most 1, such as unit_rows(features); got a row of length "
            f"{np.max(row_lengths(a)):.3g}"
        )
    rows = a * (1 - 1e-12) if np.max(row_lengths(a)) > 1 - 1e-12 else a
    return RobustRegression((rows, b), lam, best_multiplier(b, lam, chi2_weight), lower_bound(rows, b), l2, bounded)


def unit_rows(features: Any) -> Matrix:
    """Every row divided by its length; rows of zeros stay."""
    a = np.asarray(table_rows("unit_rows", features), float)
    size = row_lengths(a)
    return np.asarray(a / np.where(size > 0, size, 1)[:, None])


def _table(who: str, features: Any, second: Any, name: str) -> tuple[Matrix, Matrix]:
    rows = table_rows(who, {"features": features, name: second})
    a, b = np.asarray(rows["features"]), np.asarray(rows[name])
    if a.ndim != 2 or b.ndim != 1 or "c" in (a.dtype.kind, b.dtype.kind):
        raise ValueError(
            f"{who}: features and {name} must be a table and a column of real numbers; got the shapes {a.shape} and "
            f"{b.shape}"
        )
    if not np.any(a):
        raise ValueError(f"{who}: features must not all be 0; got zeros")
    for which, table in (("features", a), (name, b)):
        if (size := float(np.max(np.abs(table.astype(float))))) > LARGEST:
            raise ValueError(
                f"{who}: {which} must be at most {LARGEST:g} in size, as the constants are made of fourth powers of "
                f"them, so divide them by a number; got {size:.3g}"
            )
    return a.astype(float), b.astype(float)


def _strengths(who: str, l2: float, bounded: float) -> tuple[float, float]:
    return number(who, "l2", l2, NONNEGATIVE), number(who, "bounded", bounded, NONNEGATIVE)


def _few(values: Matrix) -> str:
    return ", ".join(f"{value:g}" for value in values[:6]) + (", ..." if len(values) > 6 else "")


def _dual_bound(
    a: Matrix,
    b: Matrix,
    l2: float,
    slope: Callable[[Matrix], tuple[Matrix, Matrix]],
    conjugate: Callable[[Matrix], Matrix],
    domain: tuple[float, float],
) -> float:
    """A lower bound of F* (see LinearModel), rounded down; 0 where none is found. `slope` has phi' and phi''."""
    n, d = a.shape
    if d > LONGEST_NEWTON:
        return 0.0
    x, tiny = np.zeros(d), 1e-9 * np.trace(second_moment(a)) / d
    for _ in range(STEPS):
        first, second = slope(a @ x - b)
        gradient = a.T @ first / n + l2 * x
        hessian = (a * second[:, None]).T @ a / n + (l2 + tiny) * np.eye(d)
        step = np.linalg.solve(hessian, gradient)
        x = x - step / max(1.0, float(np.max(np.abs(a @ step))) / 2)
    q = slope(a @ x - b)[0]
    if l2 == 0:
        for _ in range(3):
            q = q - a @ np.linalg.lstsq(a, q)[0]
        if domain[0] == -domain[1]:  # a part of q is as good, and still without a pull
            q = q * min(1.0, domain[1] / max(float(np.max(np.abs(q))), domain[1]))
    if not np.all(np.isfinite(q)) or np.min(q) < domain[0] or np.max(q) > domain[1]:
        return 0.0
    pull = float(np.sum((a.T @ q / n) ** 2) / (2 * l2)) if l2 > 0 else 0.0
    least = -conjugate(q) - q * b
    return max(float(np.mean(least)) - pull - 1e-9 * float(np.mean(np.abs(least)) + pull), 0.0)


def _softmax_bound(a: Matrix, y: Any, classes: int, l2: float) -> float:
    """F at a point that gradient steps with momentum find, less what strong convexity leaves open; at worst 0."""
    if l2 == 0:
        return 0.0
    L = 0.5 * np.trace(second_moment(a)) + l2
    keep = (1 - np.sqrt(l2 / L)) / (1 + np.sqrt(l2 / L))
    x = before = np.zeros((classes, a.shape[1]))
    own, least = np.eye(classes)[y], 0.0
    for _ in range(10 * STEPS):
        ahead = x + keep * (x - before)
        scores = a @ ahead.T
        top = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True)
        gradient = (weights / total - own).T @ a / len(a) + l2 * ahead
        value = float(np.mean(np.log(total) + top - np.sum(scores * own, axis=1, keepdims=True)))
        value += l2 / 2 * float(np.sum(ahead**2))
        left = float(np.sum(gradient**2)) / (2 * l2)
        least = max(least, value * (1 - 1e-9) - left)
        if left <= CLOSE * value:
            break
        before, x = x, ahead - gradient / L
    return least


def _logistic_slope(z: Matrix) -> tuple[Matrix, Matrix]:
    p = 0.5 * (1 - np.tanh(z / 2))
    return -p, p * (1 - p)


def _entropy(q: Matrix) -> Matrix:
    """-q log q - (1 - q) log(1 - q), 0 at both ends."""
    inside = np.clip(q, 1e-300, 1)
    other = np.clip(1 - q, 1e-300, 1)
    return np.asarray(-q * np.log(inside) - (1 - q) * np.log(other))
