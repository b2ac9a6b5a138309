"""Scion: steps from a linear minimisation oracle over a norm ball, free or averaged with x."""

from __future__ import annotations

import numpy as np

from .common import Array, Oracle, Path, unit
from .muon import orthogonal

FLOOR = 1e-8


def ball(d: Array, norm: str, method: str = "svd") -> Array:
    """The point of the unit ball that has the largest inner product with d; a matrix is d_out x d_in.

    euclidean        d / ||d||                         sign       sign(d)
    spectral         sqrt(d_out / d_in) orthogonal(d)  mean_sign  sign(d) / d_in
    column           each column c: c / (rms(c) + floor)
    row              each row r: r / (sqrt(d_in) ||r|| + floor)
    rms (vectors)    d / (rms(d) + floor)
    """
    if norm == "euclidean":
        return unit(d)
    if norm == "sign":
        return np.sign(d)
    if norm == "mean_sign":
        return np.sign(d) / d.shape[1]
    if norm == "spectral":
        return np.sqrt(d.shape[0] / d.shape[1]) * orthogonal(d, method)
    if norm == "column":
        return d / (np.sqrt(np.mean(d * d, axis=0, keepdims=True)) + FLOOR)
    if norm == "row":
        return d / (np.sqrt(np.sum(d * d, axis=1, keepdims=True)) * np.sqrt(d.shape[1]) + FLOOR)
    if norm == "rms":
        return d / (np.sqrt(np.mean(d * d)) + FLOOR)
    raise ValueError(f"ball: norm must be the name of a ball; got norm={norm!r}")


def scion(
    oracle: Oracle,
    x1: Array,
    T: int,
    *,
    eta: float,
    alpha: float,
    norm: str = "spectral",
    radius: float = 1.0,
    constrained: bool = False,
    method: str = "svd",
    b: int = 1,
) -> Path:
    """Scion, unconstrained (uSCG) and constrained (SCG, a Frank-Wolfe step).

        d_t = (1 - alpha) d_{t-1} + alpha g_t,      d_0 = 0
        unconstrained:  x_{t+1} = x_t - eta radius ball(d_t)
        constrained:    x_{t+1} = (1 - eta) x_t - eta radius ball(d_t),      x_1 inside the ball

    Cost: b T.
    Source: Pethick, Xie, Antonakopoulos, Zhu, Silveti-Falls and Cevher, "Training deep learning models with
    norm-constrained LMOs" (2025), and its code, of which the balls and their floors are.
    Departures: one matrix (or vector) and one ball; constant parameters; exact orthogonal factor by default, where the
    code has five Newton-Schulz steps.
    """
    path, d = Path.start(x1), np.zeros_like(x1, dtype=np.float64)
    for t in range(1, T + 1):
        x = path.x[-1]
        d = (1 - alpha) * d + alpha * oracle.mean(x, oracle.samples(t, b))
        kept = (1 - eta) * x if constrained else x
        path.step(oracle, d, kept - eta * radius * ball(d, norm, method))
    return path
