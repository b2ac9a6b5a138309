"""The lowest line above points, against a search over all pairs of them."""

import numpy as np

from normstorm.theory.envelopes import line_above


def test_the_lowest_line_is_that_of_a_search() -> None:
    """Against all pairs of points, levels and lines from 0, and never below a point."""
    rng = np.random.default_rng(0)
    for trial in range(60):
        x, y = rng.uniform(0, 2, 12), rng.uniform(0, 1, 12) + rng.choice([0, 1, -0.4]) * rng.uniform(0, 2, 12)
        x, y = (np.round(x, 1), np.abs(np.round(y, 1))) if trial % 2 else (x, np.abs(y))
        a, b = line_above(x, y)
        assert a >= 0 and b >= 0 and np.all(a + b * x >= y - 1e-12)
        lines = [(y.max(), 0.0)] + ([(0.0, np.max(y / x))] if np.all(x > 0) else [])
        for i, j in np.argwhere(x[:, None] < x):
            slope = (y[j] - y[i]) / (x[j] - x[i])
            lines.append((y[i] - slope * x[i], slope))
        fits = [p for p in lines if min(p) >= 0 and np.all(p[0] + p[1] * x >= y - 1e-12)]
        assert np.sum(a + b * x) <= min(np.sum(p + q * x) for p, q in fits) + 1e-9


def test_a_line_above_points_at_zero() -> None:
    assert line_above([0, 1], [0, 2]) == (0.0, 2.0)
    assert line_above([0, 0], [3, 1]) == (3.0, 0.0)
    assert line_above([1, 2], [0, 0]) == (0.0, 0.0)
