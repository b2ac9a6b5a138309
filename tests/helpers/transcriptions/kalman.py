"""Kalman-STORM, from docs/theory/filtered.md. Plain numbers; the filter is a dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np

from .common import Array, Oracle, Path, norm


def kalman_storm(oracle: Oracle, x1: Array, T: int, *, K: int = 1, k: int | None = None, table: bool = False) -> Path:
    """m <- m + c + a (g_K(x) - m - c) with a = V/S, steps of a length that m is good for.

    Cost: 3 K + 3 k at the first step; later K + k, or K if x stayed; n more at step n with a table.
    Source: none but this catalogue.
    Departures: none.
    """
    k = K if k is None else k
    path, rows = Path.start(x1), oracle.large(1, 3 * K)
    x = before = path.x[0]
    batches = [oracle.mean(x, rows[i * K : (i + 1) * K]) for i in range(3)]
    m = np.mean(batches, axis=0)
    s2 = sum(norm(g - m) ** 2 for g in batches) / 2
    f: dict[str, Any] = {
        "V": s2 / 3,
        "S": 4 * s2 / 3,
        "a": 1.0,
        "N": 3,
        "moves": 0,
        "most": 0.0,
        "waited": 0.0,
        "L2": 0.0,
        "l2": 0.0,
        "h": 0.0,
        "M": 0.0,
    }
    f |= {"D": 0 * x, "sum": 0 * x, "gains": 0.0, "since": 0, "table": table}
    _probe(oracle, x, m, rows[:k], f)
    kept: list[Array] = []
    for t in range(1, T + 1):
        if t > 1:
            batch, d = oracle.samples(t, K), norm(x - before)
            each = [oracle.grad(x, s) for s in batch]
            change = np.mean(each[:k], axis=0) - (
                oracle.mean(before, batch[:k]) if d > 0 else np.mean(each[:k], axis=0)
            )
            fresh = np.mean(each, axis=0)
            if kept:
                fresh = fresh - np.mean([kept[i] for i in batch], axis=0) + np.mean(kept, axis=0)
            m = _measure(f, m, fresh, change, x - before, d, k / K)
            for i in batch if kept else ():
                kept[i] = oracle._grad(x, i)
            if table and t == oracle.n:
                kept = [oracle.grad(x, i) for i in range(oracle.n)]
                m, f["V"], f["S"], f["sum"] = np.mean(kept, axis=0), 0.0, 0.0, 0 * x
            if f["most"] == 0 and norm(m) > 0:
                _probe(oracle, x, m, batch[:k], f)
        n, L, V = norm(m), max(f["L2"], f["l2"]) ** 0.5, f["V"]
        d, w = f["most"], 1.0 if V == 0 else min(1.0, n**2 / V)
        q = min(1.0, f["l2"] / (2 * f["h"] * L)) if f["h"] > 0 and L > 0 else 1.0
        if L > 0:
            shorter = min(1.0, w / q) if q > 0 else 1.0
            d = min(d, n / (2 * L) * min(1.0, max(1 / 8, 2 * L * abs(f["h"]) / min(f["M"], L * L))) * shorter)
        f["waited"] += w
        if n == 0 or f["waited"] < k / K:
            d = 0.0
        else:
            f["waited"] = 0.0
        f["most"] = max(f["most"], 2 * d)
        before, x = x, x - d * m / n if d > 0 else x
        path.step(oracle, m, x)
    path.bar = f["V"] ** 0.5
    return path


def _probe(oracle: Oracle, x: Array, m: Array, head: Any, f: dict[str, Any]) -> None:
    """Derivatives along m by differences that are exact for cubic gradients, counted as three gradients each."""
    n = norm(m)
    if n == 0:
        return
    oracle.asked += 3 * len(head)
    u = m / n
    at = {j: np.mean([oracle._grad(x + j / 4 * u, s) for s in head], axis=0) for j in range(-2, 3)}
    first = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / 3
    second = (at[1] - 2 * at[0] + at[-1]) * 16
    r = min(n / norm(first), norm(first) / norm(second)) / 8
    D = first - r / 2 * second
    f |= {"D": D, "moves": 1, "most": r, "h": float(np.sum(D * u))} | dict.fromkeys(("L2", "l2", "M"), norm(D) ** 2)


def _curvature(f: dict[str, Any], m: Array, change: Array, step: Array, d: float) -> dict[str, Any]:
    D, moves = -change / d, f["moves"] + 1
    square = norm(D) ** 2
    twist = min(norm(D - f["D"]) ** 2 / 2, square)
    fall = max(0.003, 0.1 * (1 - twist / square) ** 4, 0 if f["table"] else 1 - f["S"] / norm(m) ** 2)
    share = max(0.1 if square > f["L2"] else fall, 1 / moves)
    L2 = f["L2"] + share * (square - f["L2"])
    slow, h = max(0.005, 1 / moves), float(np.sum(change * step)) / d**2
    return {
        "L2": L2,
        "l2": f["l2"] + slow * (twist - f["l2"]),
        "h": f["h"] + slow * (h - f["h"]),
        "M": f["M"] + slow * (square - f["M"]),
        "D": D,
        "moves": moves,
    }


def _measure(f: dict[str, Any], m: Array, fresh: Array, change: Array, step: Array, d: float, part: float) -> Array:
    N = f["N"] + 1
    V = max(f["V"], f["S"] / N)
    a = min(1.0, V / f["S"]) if f["S"] > 0 else 1 / N
    apart = fresh - m - change
    forget = min(0.3, max(min(0.02, 10 / N), 1 / N, f["a"]))
    more = 2 * float(np.sum(apart * change)) + (2 - part) * f["l2"] * d**2
    S = min(max(f["S"] + more, f["S"] / 2), 2 * f["S"])
    if d > 0:
        f |= _curvature(f, m, change, step, d)
    f["S"] = S + forget * (norm(apart) ** 2 - S)
    f |= {"V": min((1 - a) * V + f["l2"] * d**2, f["S"]), "a": a, "N": N}
    f |= {"sum": f["sum"] + apart, "gains": f["gains"] + a, "since": f["since"] + 1}
    found = m + change + a * apart
    if f["gains"] >= 1:
        noisy = f["S"] ** 0.5 > 64 * 2.0**-52 * norm(found)
        excess = norm(f["sum"]) ** 2 / (f["since"] * f["S"]) if noisy else 1.0
        if excess > 3:
            f["V"] = min(f["S"], max(f["V"], (excess - 1) * f["S"] / f["since"]))
            f["l2"] = max(f["l2"], min(2 * f["l2"], f["L2"]))
        f |= {"sum": 0 * apart, "gains": 0.0, "since": 0}
    return found
