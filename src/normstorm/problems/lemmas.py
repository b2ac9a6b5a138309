"""Two lemmas behind most constants of this room.

**Hessian lemma.** Let ||H(x, s)|| <= l0 + l1 ||grad F(x)|| for the Hessian of f(., s), almost surely or in root mean
square over s. Then 3A or 3B holds with (L0, L1) = (l0, l1)/ln 2; if l1 = 0, without the factor. With H the Hessian of
F, so does Definition 1.

Proof. First for F, so that Jensen's inequality gives ||H_F|| <= l0 + l1 ||grad F|| in all cases. Let y = x + r u with
||u|| = 1, g(t) = ||grad F(x + t u)|| and p(t) = int_0^t (l0 + l1 g). Then g(t) <= g(0) + p(t), so
p' <= l0 + l1 g(0) + l1 p, and by Gronwall p(r) <= (l0 + l1 g(0)) (e^c - 1)/c * r with c = l1 r. The gradient of f(., s)
moves by at most int_0^r ||H(x + t u, s)|| dt, which is <= p(r) almost surely, and whose root mean square is <= p(r) by
Minkowski's inequality. (e^c - 1)/c increases with c. The admissible radius 1/L1 is ln 2/l1, that is c <= ln 2, where
it equals 1/ln 2. For l1 = 0 it is 1. The factor cannot be improved: F = e^{l1 x} attains it. ∎

**Radial lemma.** Let r = ||x||, let N(r) be a non-decreasing upper bound of some quantity and B(r) a lower bound of
||grad F(x)||. Then N(r) <= n0 + n1 ||grad F(x)|| for every n1 >= 0 with n0 = sup_r [N(r) - n1 max(B(r), 0)].
`largest_excess` bounds the supremum from above: on a cell [a, b] it is at most N(b) - n1 B(a, b), where B(a, b) is a
lower bound of B on the cell; and from the first r on where N(r) <= n1 B(r) nothing positive follows, provided that
N(q r) <= q^m N(r) and B(q r) >= q^m B(r) for some m and all q >= 1, which every caller shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
CELLS = 100_000
DECADES = 8


def from_hessian(l0: float, l1: float) -> tuple[float, float]:
    """Definition 1 (3A, 3B) constants from Hessian constants."""
    return (l0 / math.log(2), l1 / math.log(2)) if l1 > 0 else (l0, 0.0)


def largest_excess(
    upper: Callable[[Vector], Vector], lower: Callable[[Vector, Vector], Vector], slope: float, reach: float
) -> float:
    """An upper bound of sup_r [upper(r) - slope max(lower(r), 0)], r >= 0; `reach` is the least r to look at."""
    top = np.array([reach])
    while upper(top)[0] > slope * lower(top, top)[0]:
        top = 2 * top
        if top[0] > 1e6 * reach:
            raise ValueError(f"largest_excess: slope must make the bound finite; got slope={slope!r}")
    edges = top[0] * np.concatenate([[0.0], np.logspace(-DECADES, 0, CELLS)])
    a, b = edges[1:-1], edges[2:]
    cells = upper(b) - slope * np.maximum(lower(a, b), 0)
    return float(max(cells.max(), upper(edges[1:2])[0], 0.0))
