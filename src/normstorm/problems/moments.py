"""A lower bound of the mean of r^2/(1 + r^2), r_i = a_i'x - b_i, at every x: by fourth moments, in closed form.

Write xi = (x, -1) and A_i = (a_i, b_i), so that r_i = A_i'xi, and phi(v) = v/(1 + v).

**A minorant.** For all u, v >= 0, phi(v) >= [(1 + 2 u) v - v^2]/(1 + u)^2: the difference is v (v - u)^2/((1 + v)(1 +
u)^2). With u_i = t h_i for fixed h_i > 0 and any t > 0, therefore,

    E phi(r^2) >= T - Q,   T = E c(u) r^2,   c(u) = (1 + 2 u)/(1 + u)^2,   Q = E r^4/(1 + u)^2.

**Fourth moments.** T is a quadratic form; let y be xi in coordinates in which it is ||y||^2, and r_i = z_i'y. Let Y be
the matrix yy' as a vector of its entries on and above the diagonal, those above it times sqrt 2, and e the unit matrix
in the same form. Both ||Y|| and e'Y = trace yy' are ||y||^2. Hence Y'(I - ee')Y = 0, and for every theta

    Q = Y'MY <= kappa ||y||^4 = kappa T^2,   kappa = largest eigenvalue of M + theta (I - ee'),

where M is the mean of the vectors of zz', each times itself, divided by (1 + u)^2. So E phi >= T - kappa T^2, which is
at least g for T in [low, high] = [1 -+ sqrt(1 - 4 kappa g)]/(2 kappa), if 4 kappa g <= 1.

**Every x.** Take t_1 < t_2 < ... < t_k, and mark T, kappa, low and high with them. The least T_1 of all x is 1 over the
last entry of the inverse of the matrix of T_1; let it be at least low_1. c decreases, and T_{j+1} >= q_j T_j with q_j =
min_i c(t_{j+1} h_i)/c(t_j h_i): if q_j high_j >= low_{j+1}, then at every x some T_j lies in its interval, or T_k >
high_k. In the last case let S = E r^2/h, E (r^2/h)^2 <= K S^2 (K is the kappa of the form S), and f = u (1 + 2 u)/(2
(1 + u)^2) at the least u_i of t_k. This increases with u, so 2 f/u <= c(u) <= 2/u for t >= t_k, and E phi >= 2 f S/t -
K S^2/t^2 = f^2/K at t = K S/f, if that is at least t_k. It is: otherwise T_k <= 2 S/t_k < 2 f/K, and we require 2 f/K
<= high_k.

So g is a lower bound of E phi if g <= f^2/K and these inequalities hold. h makes kappa small where A_i/sqrt(h_i) are
equally long in the coordinates of S (Tyler's iteration); any h is valid, and so is any theta.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
MOST = 16  # columns of the data: matrices have about half the square of them
SCALES = np.geomspace(3.0, 2000, 12)  # t_1, t_2, ...
ROUNDS = 50  # of Tyler's iteration
HALVINGS = 20  # of an interval that holds the bound
THETAS = 0.75, 0.85, 0.95, 1.05  # of the theta that would be best without directions
STEEP = 1e4  # condition of the rows up to which rounding, its square times 2^-52, is far below LOST
LEAST = 1e-30  # of the largest entry: fourth powers keep their digits
LOST = 1e-6  # by which rounding may have made kappa or the bound wrong, and more


class Form(NamedTuple):
    """T and kappa of one t: the least T, and kappa."""

    least: float
    kappa: float


def moment_bound(a: Matrix, b: Matrix) -> float:
    """A number below the mean of r^2/(1 + r^2) at every x; at worst 0."""
    rows = np.column_stack([a, b])
    d = rows.shape[1]
    sized = bool(np.all(np.any(rows, axis=1))) and LEAST < float(np.max(np.abs(rows))) < 1 / LEAST
    if d > MOST or not sized or not np.linalg.cond(rows) < STEEP:
        return 0.0
    h = even_lengths(rows)
    us = SCALES[:, None] * h
    forms = [form(rows, (1 + 2 * u) / (1 + u) ** 2, 1 / (1 + u) ** 2) for u in us]
    last = form(rows, 1 / h, 1 / h**2).kappa
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle, us, forms, last) else (low, middle)
    return low * (1 - LOST)


def even_lengths(rows: Matrix) -> Matrix:
    """h, so that the rows divided by sqrt(h) are about equally long where their second moment is 1."""
    h = np.ones(len(rows))
    for _ in range(ROUNDS):
        moment = (rows / h[:, None]).T @ rows / len(rows)
        h = np.einsum("ij,ij->i", rows, np.linalg.solve(moment, rows.T).T)
        h = np.maximum(h / np.mean(h), 1e-3)
    return h


def form(rows: Matrix, weights: Matrix, squared: Matrix) -> Form:
    """Of E weights r^2, the least value; and kappa with E squared r^4 <= kappa (E weights r^2)^2."""
    n, d = rows.shape
    matrix = (rows * weights[:, None]).T @ rows / n
    z = np.linalg.solve(np.linalg.cholesky(matrix), rows.T).T
    i, j = np.triu_indices(d)
    pairs = z[:, i] * z[:, j] * np.where(i == j, 1, math.sqrt(2))
    M, e = (pairs * squared[:, None]).T @ pairs / n, (i == j).astype(float)
    turned = np.eye(len(e)) - np.outer(e, e)

    usual = float(e @ M @ e) / (d * (d + 2))  # the best one, if the z_i had no direction
    kappa = min(float(np.linalg.eigvalsh(M + theta * usual * turned)[-1]) for theta in THETAS)
    least = 1 / float(np.linalg.inv(matrix)[-1, -1])
    return Form(least * (1 - LOST), kappa * (1 + LOST))


def holds(g: float, us: Matrix, forms: list[Form], last: float) -> bool:
    """Whether the inequalities of the proof do, for the bound g."""
    if 4 * g * max(form.kappa for form in forms) > 1:
        return False
    roots = [math.sqrt(1 - 4 * form.kappa * g) for form in forms]
    low, high = (
        [(1 + sign * root) / (2 * form.kappa) for root, form in zip(roots, forms, strict=True)] for sign in (-1, 1)
    )
    c = (1 + 2 * us) / (1 + us) ** 2
    q = np.min(c[1:] / c[:-1], axis=1) * (1 - LOST)
    u = float(np.min(us[-1]))
    f = u * (1 + 2 * u) / (2 * (1 + u) ** 2)
    covered = all(share * high[j] >= low[j + 1] for j, share in enumerate(q))
    return bool(forms[0].least >= low[0] and covered and g <= f**2 / last and 2 * f / last <= high[-1])
