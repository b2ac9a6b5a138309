"""Algorithm 1 in NumPy, float64, line by line from the paper; it shares nothing with the engine but the samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Gradient = Callable[[np.ndarray, np.ndarray], np.ndarray]


def algorithm_1(
    x1: np.ndarray, batches: list[np.ndarray], gradient: Gradient, k: int, beta: float, eta: float
) -> tuple[np.ndarray, np.ndarray]:
    """Iterates x_1..x_{T+1} and estimates m_1..m_T; batches[t][i] is sample i of step t + 1."""
    xs, ms = [x1], []
    for t, batch in enumerate(batches):
        x = xs[-1]
        everything = np.mean([gradient(x, xi) for xi in batch], axis=0)
        if t == 0:
            m = everything
        else:
            here = np.mean([gradient(x, xi) for xi in batch[:k]], axis=0)
            there = np.mean([gradient(xs[-2], xi) for xi in batch[:k]], axis=0)
            m = beta * ms[-1] + (1 - beta) * everything + beta * (here - there)
        ms.append(m)
        size = np.linalg.norm(m)
        xs.append(x - eta * m / size if size > 0 else x)
    return np.array(xs), np.array(ms)
