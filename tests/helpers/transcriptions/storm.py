"""The STORM family: one loop, two points, the same samples. g_t = g(x_t; xi_t), h_t = g(x_{t-1}; xi_t), b samples.

d_1 = g_1,      d_t = g_t + (1 - a_t) (d_{t-1} - h_t)        a_t: the weight of the fresh gradient
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .common import Array, Oracle, Path, norm, unit


def normalized_storm(
    oracle: Oracle, x1: Array, T: int, *, eta: float, beta: float, K: int = 1, k: int | None = None
) -> Path:
    """Normalized STORM: K samples at x_t, the first k of them also at x_{t-1}.

        m_1 = g_K(x_1)
        m_t = beta m_{t-1} + (1 - beta) g_K(x_t) + beta (g_k(x_t) - g_k(x_{t-1}))        for t >= 2
        x_{t+1} = x_t - eta m_t / ||m_t||

    Cost: K + (T - 1) (K + k); g_k(x_t) is part of g_K(x_t) and is not asked again.
    Source: Liu, Jagabathula and Zhou, "Near-optimal non-convex stochastic optimization under generalized smoothness",
    Algorithm 1.
    Departures: m_t = 0 means "stay".
    """
    return _corrected(oracle, x1, T, lambda t: 1 - beta, lambda t, m: eta * unit(m), K, k)


def normalized_storm_anytime(
    oracle: Oracle, x1: Array, T: int, *, a: float, w: float, s0: float, K: int = 1, k: int | None = None
) -> Path:
    """Normalized STORM with eta_t = a (t + s0)^{-2/3}, alpha_{t+1} = eta_t / w.

    Cost: K + (T - 1) (K + k).
    Source: docs/theory/any-schedule.md.
    Departures: none.
    """

    def step(t: int) -> float:
        return a * (t + s0) ** (-2 / 3)

    return _corrected(oracle, x1, T, lambda t: step(t - 1) / w, lambda t, m: step(t) * unit(m), K, k)


def clipped_storm(
    oracle: Oracle, x1: Array, T: int, *, c: float, tau: float, beta: float, K: int = 1, k: int | None = None
) -> Path:
    """x_{t+1} = x_t - c m_t / max{ ||m_t||, tau }.

    Cost: K + (T - 1) (K + k).
    Source: docs/theory/any-schedule.md.
    Departures: none.
    """
    return _corrected(oracle, x1, T, lambda t: 1 - beta, lambda t, m: c * m / max(norm(m), tau), K, k)


def measured_storm(
    oracle: Oracle, x1: Array, T: int, *, L0: float, L1: float, longest: float, s0: float, K: int, k: int
) -> Path:
    """a_{t+1} = (1 + (t - 1)/s0)^{-2/3}, x_{t+1} = x_t - min{sqrt(a_{t+1}) ||m_t||/L_t, longest a_{t+1}} m_t/||m_t||.

    L_1 = L0 + L1 ||m_1||; later L_t^2 is the mean of the squared ratios of the change of the mean over k samples to the
    step, and after 20 of them .95 of the last mean and .05 of the new ratio.

    Cost: K + (T - 1) (K + k).
    Source: none but this catalogue.
    Departures: none.
    """
    path, square, measured = Path.start(x1), 0.0, 0
    for t in range(1, T + 1):
        x, batch = path.x[-1], oracle.samples(t, K)
        each = np.array([oracle.grad(x, sample) for sample in batch])
        m = np.mean(each, axis=0)
        fresh, later = (1 if n < 2 else (1 + (n - 2) / s0) ** (-2 / 3) for n in (t, t + 1))
        L = L0 + L1 * norm(m)
        if t > 1:
            change = np.mean(each[:k], axis=0) - oracle.mean(path.x[-2], batch[:k])
            m = fresh * m + (1 - fresh) * (path.m[-1] + change)
            moved = norm(x - path.x[-2])
            L = L0 + L1 * norm(m)
            if moved > 0:
                measured += 1
                share = max(1 / measured, 1 / 20)
                square = (1 - share) * square + share * (norm(change) / moved) ** 2
            L = square**0.5 if measured else L
        path.step(oracle, m, x - min(later**0.5 * norm(m) / L, longest * later) * unit(m))
    return path


def _corrected(
    oracle: Oracle,
    x1: Array,
    T: int,
    weight: Callable[[int], float],
    step: Callable[[int, Array], Array],
    K: int,
    k: int | None,
) -> Path:
    k = K if k is None else k
    path = Path.start(x1)
    for t in range(1, T + 1):
        x, batch = path.x[-1], oracle.samples(t, K)
        each = np.array([oracle.grad(x, sample) for sample in batch])
        m = np.mean(each, axis=0)
        if t > 1:
            alpha = weight(t)
            correction = np.mean(each[:k], axis=0) - oracle.mean(path.x[-2], batch[:k])
            m = (1 - alpha) * path.m[-1] + alpha * m + (1 - alpha) * correction
        path.step(oracle, m, x - step(t, m))
    return path


def _recursion(g: Array, h: Array, d: Array, a: float) -> Array:
    return g + (1 - a) * (d - h)


def storm(oracle: Oracle, x1: Array, T: int, *, k: float, w: float, c: float, b: int = 1) -> Path:
    """STORM, with the step size from the gradients seen.

        eta_t = k / (w + sum_{i <= t} ||g_i||^2)^{1/3},      x_{t+1} = x_t - eta_t d_t,      a_{t+1} = c eta_t^2

    Cost: b + 2 b (T - 1).
    Source: Cutkosky and Orabona, "Momentum-based variance reduction in non-convex SGD" (2019), Algorithm 1.
    Departures: a is cut at 1, which the paper's w makes needless; mini-batches.
    """
    path, total, a = Path.start(x1), 0.0, 1.0
    for t in range(1, T + 1):
        x, batch = path.x[-1], oracle.samples(t, b)
        g = oracle.mean(x, batch)
        d = g if t == 1 else _recursion(g, oracle.mean(path.x[-2], batch), path.m[-1], a)
        total += np.sum(g * g)
        eta = k / (w + total) ** (1 / 3)
        a = min(1.0, c * eta * eta)
        path.step(oracle, d, x - eta * d)
    return path


def storm_plus(oracle: Oracle, x1: Array, T: int, *, scale: float = 1.0, b: int = 1) -> Path:
    """STORM+: nothing to tune.

        a_{t+1} = (1 + sum_{i <= t} ||g_i||^2)^{-2/3},      eta_t = (sum_{i <= t} ||d_i||^2 / a_{i+1})^{-1/3}
        x_{t+1} = x_t - eta_t d_t

    Cost: b + 2 b (T - 1).
    Source: Levy, Kavis and Cevher, "STORM+: fully adaptive SGD with recursive momentum for nonconvex optimization"
    (2021).
    Departures: as long as every d is zero the path stays; eta_t times `scale`, which is 1 in the paper; mini-batches.
    """
    path, seen, moved, a = Path.start(x1), 0.0, 0.0, 1.0
    for t in range(1, T + 1):
        x, batch = path.x[-1], oracle.samples(t, b)
        g = oracle.mean(x, batch)
        d = g if t == 1 else _recursion(g, oracle.mean(path.x[-2], batch), path.m[-1], a)
        seen += np.sum(g * g)
        a = (1 + seen) ** (-2 / 3)
        moved += np.sum(d * d) / a
        path.step(oracle, d, x - scale * moved ** (-1 / 3) * d if moved > 0 else x)
    return path


def meta_storm(
    oracle: Oracle, x1: Array, T: int, *, eta: float, p: float = 0.5, a0: float = 1.0, b0: float = 1.0, b: int = 1
) -> Path:
    """META-STORM: the weight from differences of gradients at one point on two samples; q = (1 - p) / 2.

        b_t = (b0^{1/p} + sum_{i <= t} ||d_i||^2)^p / a_t^q,      a_1 = 1,      x_{t+1} = x_t - (eta / b_t) d_t
        a_{t+1} = (1 + sum_{i <= t} ||g(x_i; xi_i) - g(x_i; xi_{i+1})||^2 / a0^2)^{-2/3}

    a_{t+1} depends on xi_{t+1}, so x_{t+1} must not; g(x_i; xi_{i+1}) is the old-point gradient of the recursion.

    Cost: b + 2 b (T - 1).
    Source: Liu, Nguyen, Nguyen, Ene and Nguyen, "META-STORM: generalized fully-adaptive variance reduced SGD for
    unbounded functions" (2022).
    Departures: mini-batches.
    """
    path, apart, moved, a = Path.start(x1), 0.0, 0.0, 1.0
    last = np.zeros_like(path.x[0])
    for t in range(1, T + 1):
        x, batch = path.x[-1], oracle.samples(t, b)
        g = oracle.mean(x, batch)
        d = g
        if t > 1:
            h = oracle.mean(path.x[-2], batch)
            apart += np.sum((last - h) ** 2)
            a = (1 + apart / a0**2) ** (-2 / 3)
            d = _recursion(g, h, path.m[-1], a)
        last = g
        moved += np.sum(d * d)
        path.step(oracle, d, x - eta / _denominator(b0, moved, p, a) * d)
    return path


def _denominator(b0: float, moved: float, p: float, a: float) -> float:
    return (b0 ** (1 / p) + moved) ** p / a ** ((1 - p) / 2)


def meta_storm_sg(
    oracle: Oracle, x1: Array, T: int, *, eta: float, p: float = 0.5, a0: float = 1.0, b0: float = 1.0, b: int = 1
) -> Path:
    """META-STORM-SG: the weight from gradient norms, known before the step; q = (1 - p) / 2.

        a_{t+1} = (1 + sum_{i <= t} ||g_i||^2 / a0^2)^{-2/3}
        b_t = (b0^{1/p} + sum_{i <= t} ||d_i||^2)^p / a_{t+1}^q,      x_{t+1} = x_t - (eta / b_t) d_t

    Cost: b + 2 b (T - 1).
    Source: as for META-STORM.
    Departures: mini-batches.
    """
    return _known_weight(oracle, x1, T, True, eta, p, a0, b0, b)


def meta_storm_na(
    oracle: Oracle, x1: Array, T: int, *, eta: float, p: float = 0.5, a0: float = 1.0, b0: float = 1.0, b: int = 1
) -> Path:
    """META-STORM-NA: the weight does not adapt, only the step does; q = (1 - p) / 2.

        a_{t+1} = (1 + t / a0^2)^{-2/3}
        b_t = (b0^{1/p} + sum_{i <= t} ||d_i||^2)^p / a_{t+1}^q,      x_{t+1} = x_t - (eta / b_t) d_t

    Cost: b + 2 b (T - 1).
    Source: as for META-STORM; this variant is not in the authors' code, its form is not checked word by word.
    Departures: mini-batches.
    """
    return _known_weight(oracle, x1, T, False, eta, p, a0, b0, b)


def _known_weight(
    oracle: Oracle, x1: Array, T: int, adapts: bool, eta: float, p: float, a0: float, b0: float, b: int
) -> Path:
    path, seen, moved, a = Path.start(x1), 0.0, 0.0, 1.0
    for t in range(1, T + 1):
        x, batch = path.x[-1], oracle.samples(t, b)
        g = oracle.mean(x, batch)
        d = g if t == 1 else _recursion(g, oracle.mean(path.x[-2], batch), path.m[-1], a)
        seen += np.sum(g * g) if adapts else 1.0
        a = (1 + seen / a0**2) ** (-2 / 3)
        moved += np.sum(d * d)
        path.step(oracle, d, x - eta / _denominator(b0, moved, p, a) * d)
    return path


def hybrid_sarah_sgd(
    oracle: Oracle, x1: Array, T: int, *, eta: float, beta: float, b_first: int, b: int = 1, same: bool = False
) -> Path:
    """Hybrid SARAH-SGD: a mixture of the recursive estimate and of an independent gradient.

        v_1 = g(x_1; the big batch, b_first samples)
        v_t = beta (v_{t-1} + g(x_t; xi_t) - g(x_{t-1}; xi_t)) + (1 - beta) g(x_t; zeta_t)        for t >= 2
        x_{t+1} = x_t - eta v_t

    zeta_t is `second`, independent of xi_t; `same` takes zeta_t = xi_t, which is STORM with a = 1 - beta.

    Cost: b_first + 3 b (T - 1); `same`: b_first + 2 b (T - 1).
    Source: Tran-Dinh, Pham, Phan and Nguyen, "Hybrid stochastic gradient descent algorithms for stochastic nonconvex
    optimization" (2019).
    Departures: constant parameters; mini-batches.
    """
    path = Path.start(x1)
    for t in range(1, T + 1):
        x = path.x[-1]
        if t == 1:
            v = oracle.mean(x, oracle.large(1, b_first))
        else:
            batch = oracle.samples(t, b)
            here, there = oracle.mean(x, batch), oracle.mean(path.x[-2], batch)
            fresh = here if same else oracle.mean(x, oracle.second(t, b))
            v = beta * (path.m[-1] + here - there) + (1 - beta) * fresh
        path.step(oracle, v, x - eta * v)
    return path
