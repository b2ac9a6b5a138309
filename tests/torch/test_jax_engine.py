"""The optimizer against the engine in JAX, fed the same batches: 50 steps, float64, 1e-10."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from normstorm.torch import NormalizedStorm

jax = pytest.importorskip("jax", reason="needs JAX, in which the engine is written")
from normstorm.algorithms import matrices  # noqa: E402
from normstorm.algorithms.catalogue import CATALOGUE, momentum_nsgd, normalized_storm  # noqa: E402
from normstorm.algorithms.core import Algorithm  # noqa: E402
from normstorm.algorithms.estimators import Corrected, Momentum  # noqa: E402
from normstorm.algorithms.geometries import Nesterov, Sign, WeightDecay  # noqa: E402
from normstorm.algorithms.matrices import Ball, ScaledCorrection, Spectral  # noqa: E402
from normstorm.algorithms.muon import GUARD  # noqa: E402
from normstorm.algorithms.schedules import Constant  # noqa: E402

K, STEPS, ETA, ALPHA = 6, 50, 0.03, 0.2
SHAPES = {"first": (4, 5), "second": (6, 4)}
RNG = np.random.default_rng(11)
START = {name: RNG.normal(0, 0.5, shape) for name, shape in SHAPES.items()}
DATA = [(RNG.normal(size=(K, 5)), RNG.normal(size=(K, 6))) for _ in range(STEPS)]
FIXED = Constant(ALPHA, ETA)
QUINTIC = Spectral(GUARD, "newton_schulz", True)


def both(estimator: Any, geometry: Any) -> Algorithm:
    return Algorithm(estimator, geometry, FIXED, "both")


# name: the engine's words, the optimizer's options, k (None: no batch entrance is needed)
CASES: dict[str, tuple[Any, dict[str, Any], int]] = {
    "normalized_storm": (lambda: normalized_storm(alpha=ALPHA, eta=ETA, K=K), {}, K),
    "normalized_storm, k < K": (lambda: normalized_storm(alpha=ALPHA, eta=ETA, K=K, k=2), {}, 2),
    "momentum_nsgd": (lambda: momentum_nsgd(alpha=ALPHA, eta=ETA, K=K), {"correction": 0.0}, K),
    "sign_storm": (lambda: CATALOGUE["sign_storm"](alpha=ALPHA, eta=ETA, K=K), {"geometry": "sign"}, K),
    "sign_storm, k < K": (lambda: both(Corrected(K, 2), Sign()), {"geometry": "sign"}, 2),
    "muon": (
        lambda: CATALOGUE["muon"](alpha=ALPHA, eta=ETA, K=K, decay=0.3),
        {"geometry": "spectral", "correction": 0.0, "nesterov": True, "weight_decay": 0.3, "start": "zero"},
        K,
    ),
    "muon from m_1 = g_1": (
        lambda: both(Momentum(K), WeightDecay(Nesterov(QUINTIC, 1 - ALPHA), 0.3)),
        {"geometry": "spectral", "correction": 0.0, "nesterov": True, "weight_decay": 0.3},
        K,
    ),
    **{
        f"scion, {ball}": (
            lambda ball=ball: CATALOGUE["scion"](alpha=ALPHA, eta=ETA, K=K, ball=ball, radius=2.0, constrained=True),
            {"geometry": ball, "correction": 0.0, "scale": 2.0, "weight_decay": 1.0, "start": "zero"},
            K,
        )
        for ball in ("euclidean", "sign", "rms")
    },
    "muon_mvr": (
        lambda: both(ScaledCorrection(K, False, False, 0.4), WeightDecay(QUINTIC, 0.3)),
        {"geometry": "spectral", "correction": 0.4, "weight_decay": 0.3},
        K,
    ),
    "muon_mvr, one gradient": (
        lambda: both(ScaledCorrection(K, False, True, 0.4), QUINTIC),
        {"geometry": "spectral", "correction": 0.4, "difference": "stale"},
        K,
    ),
    "spectral storm, ahead, k < K": (
        lambda: both(Corrected(K, 3), Nesterov(QUINTIC, 1 - ALPHA)),
        {"geometry": "spectral", "nesterov": True},
        3,
    ),
    "rms storm": (lambda: both(Corrected(K, K), Ball(1.0, "rms")), {"geometry": "rms"}, K),
}


def loss(x: dict[str, Any], batch: tuple[Any, Any]) -> Any:
    """Mean of |second tanh(first a) - b|^2 / 2 over the samples (a, b)."""
    a, b = batch
    return 0.5 * (((jax.numpy.tanh(a @ x["first"].T) @ x["second"].T - b) ** 2).sum(1)).mean()


class Network:
    grad = staticmethod(jax.jit(jax.grad(loss)))


Run = tuple[dict[str, Tensor], NormalizedStorm]


def optimizer(options: dict[str, Any], **more: Any) -> Run:
    x = {name: torch.tensor(value, requires_grad=True) for name, value in START.items()}
    options = {"beta": 1 - ALPHA, "spectral_dtype": torch.float64} | options | more
    return x, NormalizedStorm(list(x.values()), lr=ETA, **options)


def ask(opt: NormalizedStorm, x: dict[str, Tensor], batch: tuple[Any, Any], k: int) -> None:
    def loss(a: Tensor, b: Tensor) -> Tensor:
        return 0.5 * (torch.tanh(a @ x["first"].T) @ x["second"].T - b).pow(2).sum(1).mean()

    opt.step(loss, batch=tuple(torch.tensor(part) for part in batch), k=k)


def compare(algorithm: Algorithm, runs: list[Run], k: int, waits: bool) -> list[float]:
    """For every run the largest distance of the weights, and of the estimate where the optimizer holds it."""
    worst, state = [0.0] * len(runs), None
    for t, batch in enumerate(DATA, 1):
        if state is None:
            state, _ = algorithm.first(Network, START, batch)
        else:
            state, _ = algorithm.step(Network, state, batch, t)
        point = state.x_prev if waits else state.x
        for i, (x, opt) in enumerate(runs):
            ask(opt, x, batch, k)
            for name, value in x.items():
                worst[i] = max(worst[i], float(np.abs(value.detach().numpy() - np.asarray(point[name])).max()))
                if opt.defaults.get("difference", "exact") == "exact" and waits:
                    m = opt.state[value]["momentum"].numpy()
                    worst[i] = max(worst[i], float(np.abs(m - np.asarray(state.m[name])).max()))
    return worst


def waits(options: dict[str, Any]) -> bool:
    return options.get("correction", 1.0) > 0 and options.get("difference") != "stale"


@pytest.mark.parametrize("name", CASES)
def test_same_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The floors that some balls of the engine add to a norm are taken away: the optimizer has none."""
    monkeypatch.setattr(matrices, "FLOOR", 0.0)
    words, options, k = CASES[name]
    with jax.enable_x64(True):
        runs = [optimizer(options, memory=memory) for memory in ("fast", "lean")]
        fast, lean = compare(words(), runs, k, waits(options))
    assert fast < 1e-10
    assert lean < 1e-10


@pytest.mark.parametrize(
    ("shape", "weight"), [("row", lambda shape: shape[1] ** -0.5), ("column", lambda s: s[0] ** 0.5)]
)
def test_balls_of_rows_and_columns(shape: str, weight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's balls carry a factor of the shape, which is the scale of a group here."""
    monkeypatch.setattr(matrices, "FLOOR", 0.0)
    x = {name: torch.tensor(value, requires_grad=True) for name, value in START.items()}
    groups = [{"params": [value], "scale": weight(value.shape)} for value in x.values()]
    opt = NormalizedStorm(groups, lr=ETA, beta=1 - ALPHA, geometry=shape)
    with jax.enable_x64(True):
        assert compare(both(Corrected(K, K), Ball(1.0, shape)), [(x, opt)], K, True)[0] < 1e-10


def test_another_path_is_far_away() -> None:
    """The comparison sees a wrong k, a wrong correction and a lost step of patience."""
    with jax.enable_x64(True):
        for words, options, k, patience in (
            (normalized_storm(alpha=ALPHA, eta=ETA, K=K, k=2), {}, 3, True),
            (normalized_storm(alpha=ALPHA, eta=ETA, K=K), {"correction": 0.99}, K, True),
            (normalized_storm(alpha=ALPHA, eta=ETA, K=K), {}, K, False),
        ):
            assert compare(words, [optimizer(options)], k, patience)[0] > 1e-5
