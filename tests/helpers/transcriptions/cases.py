"""A small problem, its tables, and one setting of every algorithm with what it costs in all."""

from __future__ import annotations

from typing import Any

import numpy as np

import transcriptions as tr

N, D, T = 12, 4, 24
BIG, B = 7, 2
X1 = np.linspace(-1, 1.5, D)
W1 = np.outer([1.0, -0.5, 0.25], X1) + np.eye(3, D)
DIAGONALS = np.random.default_rng(0).uniform(0.5, 1.5, (N, D))
SHIFTS = np.random.default_rng(1).normal(0, 0.7, (N, D))
RNG = np.random.default_rng(2)
TABLES: dict[str, Any] = {
    "samples": RNG.integers(0, N, (T, 16)),
    "large": RNG.integers(0, N, (T, 16)),
    "second": RNG.integers(0, N, (T, 16)),
    "coins": RNG.uniform(size=T),
    "picks": RNG.uniform(size=T),
    "sketch": RNG.normal(size=(T, D, 3)),
}


def oracle(noise: float = 1.0) -> tr.Oracle:
    """A finite sum of quadratics with a common quartic; without noise all components are equal."""
    slopes, shifts = 1 + noise * (DIAGONALS - 1), noise * SHIFTS

    def grad(x: np.ndarray, i: int) -> np.ndarray:
        return slopes[i] * x + 0.3 * x**3 + shifts[i]

    return tr.Oracle(grad, n=N, **TABLES)


def run(name: str, x1: np.ndarray = X1, noise: float = 1.0, **parameters: Any) -> tr.Path:
    return getattr(tr, name)(oracle(noise), x1, T, **parameters)


MOVE = {"eta": 0.05, "b": B}
SPIDER: dict[str, Any] = {"eps": 0.1, "S1": BIG, "S2": B, "q": 5}
RESTARTS, TWICE = 5, B + 2 * B * (T - 1)
CASES: dict[str, tuple[str, dict[str, Any], int]] = {  # name: function, parameters, sample gradients in all
    "sgd": ("sgd", MOVE, B * T),
    "mean of sgd": ("averaged_sgd", MOVE, B * T),
    "ema of sgd": ("averaged_sgd", MOVE | {"ema": 0.9}, B * T),
    "schedule free": ("schedule_free_sgd", MOVE | {"beta": 0.9}, B * T),
    "ema": ("momentum_sgd", MOVE | {"beta": 0.9}, B * T),
    "ema first": ("momentum_sgd", MOVE | {"beta": 0.9, "init": "first"}, B * T),
    "heavy ball": ("momentum_sgd", MOVE | {"beta": 0.9, "form": "heavy_ball"}, B * T),
    "nesterov": ("momentum_sgd", MOVE | {"beta": 0.9, "nesterov": True}, B * T),
    "clipped": ("clipped_sgd", MOVE | {"threshold": 0.8}, B * T),
    "clipped with offset": ("clipped_sgd", MOVE | {"threshold": 0.8, "offset": 0.5}, B * T),
    "soft": ("soft_clipped_sgd", MOVE | {"gamma": 0.04}, B * T),
    "mixed": ("mixed_clipping", MOVE | {"gamma": 0.04, "beta": 0.9, "nu": 0.7}, B * T),
    "mixed soft": ("mixed_clipping", MOVE | {"gamma": 0.04, "beta": 0.9, "nu": 0.7, "soft": True}, B * T),
    "nsgd": ("normalized_sgd", {"eta": 0.05, "K": 3}, 3 * T),
    "nsgd momentum": ("nsgd_momentum", MOVE | {"beta": 0.9}, B * T),
    "sngm": ("sngm", MOVE | {"beta": 0.9}, B * T),
    "nigt": ("nigt", MOVE | {"beta": 0.9}, B * T),
    "agnostic": ("nsgd_agnostic", {"c": 0.1, "b": B}, B * T),
    "beta gd": ("beta_gd", {"gamma": 0.05, "beta": 2 / 3}, N * T),
    "signsgd": ("generalized_signsgd", MOVE | {"b1": 0.9, "b2": 0.99}, B * T),
    "ssvr": ("ssvr", MOVE | {"alpha": 0.2, "b_first": BIG}, BIG + 2 * B * (T - 1)),
    "signstorm": ("generalized_signstorm", MOVE | {"alpha": 0.2, "b2": 0.9}, TWICE),
    "mars": ("mars", MOVE, TWICE),
    "mars lion": ("mars", MOVE | {"flavour": "lion"}, TWICE),
    "mars approximate": ("mars", MOVE | {"exact": False}, B * T),
    "adagrad": ("adagrad_norm", MOVE | {"b0": 0.1}, B * T),
    "super adam": ("super_adam", {"gamma": 0.5, "k": 1, "m": 10, "c": 1, "b": B}, TWICE),
    "super adam average": ("super_adam", {"gamma": 0.5, "k": 1, "m": 10, "c": 1, "b": B, "tau": 0}, B * T),
    "super adam global": ("super_adam", {"gamma": 0.5, "k": 1, "m": 10, "c": 1, "b": B, "H": "global"}, TWICE),
    "svrg": ("svrg", MOVE | {"period": 5}, RESTARTS * N + 2 * B * T),
    "svrg picked": ("svrg", MOVE | {"period": 5, "picked": True}, RESTARTS * N + 2 * B * T),
    "saga": ("saga", MOVE, N + B * T),
    "saga with two": ("saga_two_indices", {"eta": 0.05}, N + 2 * T),
    "sarah": ("sarah", MOVE | {"period": 5}, RESTARTS * N + 2 * B * (T - RESTARTS)),
    "sarah picked": ("sarah", MOVE | {"period": 5, "picked": True}, RESTARTS * N + 2 * B * (T - RESTARTS)),
    "spider 1": ("spider_1", SPIDER | {"L": 2, "n0": 1, "stop": 0}, RESTARTS * BIG + 2 * B * (T - RESTARTS)),
    "spider 2": ("spider_2", SPIDER | {"L": 2, "n0": 1}, RESTARTS * BIG + 2 * B * (T - RESTARTS)),
    "spider whole": ("spider_2", SPIDER | {"L": 2, "n0": 1, "S1": None}, RESTARTS * N + 2 * B * (T - RESTARTS)),
    "l0l1": ("l0l1_spider", SPIDER | {"L0": 2, "L1": 1}, RESTARTS * BIG + 2 * B * (T - RESTARTS)),
    "symmetric": (
        "symmetric_spider",
        {"gamma": 0.05, "S1": BIG, "S2": B, "q": 5, "beta": 2 / 3},
        RESTARTS * BIG + 2 * B * (T - RESTARTS),
    ),
    "storm": ("storm", {"k": 0.1, "w": 0.1, "c": 20, "b": B}, TWICE),
    "storm plus": ("storm_plus", {"b": B}, TWICE),
    "meta storm": ("meta_storm", MOVE | {"p": 0.3, "a0": 0.8, "b0": 1.1}, TWICE),
    "meta storm sg": ("meta_storm_sg", MOVE | {"p": 0.3, "a0": 0.8, "b0": 1.1}, TWICE),
    "meta storm na": ("meta_storm_na", MOVE | {"p": 0.3, "a0": 0.8, "b0": 1.1}, TWICE),
    "hybrid": ("hybrid_sarah_sgd", MOVE | {"beta": 0.8, "b_first": BIG}, BIG + 3 * B * (T - 1)),
    "hybrid same": ("hybrid_sarah_sgd", MOVE | {"beta": 0.8, "b_first": BIG, "same": True}, BIG + 2 * B * (T - 1)),
    "anytime": ("normalized_storm_anytime", {"a": 0.4, "w": 0.5, "s0": 3.0, "K": 4, "k": 3}, 4 + 7 * (T - 1)),
    "agnostic storm": ("normalized_storm_anytime", {"a": 0.2, "w": 0.5, "s0": 0.0, "K": B}, TWICE),
    "clipped storm": ("clipped_storm", {"c": 0.05, "tau": 0.8, "beta": 0.9, "K": 4, "k": 3}, 4 + 7 * (T - 1)),
    "measured storm": (
        "measured_storm",
        {"L0": 3.0, "L1": 0.5, "longest": 0.3, "s0": 4.0, "K": 4, "k": 3},
        4 + 7 * (T - 1),
    ),
    "normalized storm": ("normalized_storm", {"eta": 0.05, "beta": 0.9, "K": 4, "k": 3}, 4 + 7 * (T - 1)),
}
MATRIX_CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "muon": ("muon", MOVE, B * T),
    "mvr2": ("muon_mvr", MOVE | {"beta": 0.9, "gamma": 0.5}, TWICE),
    "mvr1": ("muon_mvr", MOVE | {"beta": 0.9, "gamma": 0.5, "exact": False, "init": "zero"}, B * T),
    "limuon 1": ("limuon", MOVE | {"alpha": 0.2}, TWICE),
    "limuon 2": ("limuon", MOVE | {"alpha": 0.2, "rank": 2, "sketched": True}, TWICE),
    "mars shampoo": ("mars", MOVE | {"flavour": "shampoo"}, TWICE),
} | {
    f"scion {norm}": ("scion", MOVE | {"alpha": 0.2, "norm": norm, "constrained": norm == "row"}, B * T)
    for norm in ("euclidean", "sign", "mean_sign", "spectral", "column", "row", "rms")
}
ALL = {name: (*case, X1) for name, case in CASES.items()} | {name: (*c, W1) for name, c in MATRIX_CASES.items()}
