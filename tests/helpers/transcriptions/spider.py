"""SPIDER and PAGE: recursive estimates that are restarted, every q steps or by a coin.

S1 is the size of the restart's batch; None means the full gradient of a finite sum. Steps are counted from 1, so that
restarts are at steps 1, 1 + q, 1 + 2 q, ...
"""

from __future__ import annotations

from collections.abc import Callable

from .common import Array, Oracle, Path, norm, over, unit


def _estimate(oracle: Oracle, path: Path, t: int, S1: int | None, S2: int, restart: bool) -> Array:
    x = path.x[-1]
    if restart:
        return oracle.refreshed(t, x, S1)
    batch = oracle.samples(t, S2)
    return path.m[-1] + oracle.mean(x, batch) - oracle.mean(path.x[-2], batch)


def _spider(
    oracle: Oracle, x1: Array, T: int, S1: int | None, S2: int, q: int, move: Callable[[Array, Array], Array]
) -> Path:
    path = Path.start(x1)
    for t in range(1, T + 1):
        v = _estimate(oracle, path, t, S1, S2, (t - 1) % q == 0)
        path.step(oracle, v, move(path.x[-1], v))
    return path


def spider_1(
    oracle: Oracle,
    x1: Array,
    T: int,
    *,
    eps: float,
    L: float,
    n0: float,
    stop: float,
    S1: int | None,
    S2: int,
    q: int,
) -> Path:
    """SPIDER, option I: a normalised step, and a stop when the estimate is small.

        v_t = g(x_t; S1 samples)                                     at restarts
        v_t = v_{t-1} + g(x_t; xi_t) - g(x_{t-1}; xi_t)              else, S2 samples
        if ||v_t|| <= 2 stop: return x_t
        x_{t+1} = x_t - eps / (L n0) v_t / ||v_t||

    After the return the path stays: nothing is asked, x and the estimate do not change.

    Cost: S1 at a restart, 2 S2 at any other step, 0 after the return.
    Source: Fang, Li, Lin and Zhang, "SPIDER: near-optimal non-convex optimization via stochastic path-integrated
    differential estimator" (2018), Algorithm 1, option I (stop = its epsilon tilde).
    Departures: none.
    """
    path, stopped = Path.start(x1), False
    for t in range(1, T + 1):
        x = path.x[-1]
        v = path.m[-1] if stopped else _estimate(oracle, path, t, S1, S2, (t - 1) % q == 0)
        stopped = stopped or norm(v) <= 2 * stop
        path.step(oracle, v, x if stopped else x - eps / (L * n0) * unit(v))
    return path


def spider_2(
    oracle: Oracle, x1: Array, T: int, *, eps: float, L: float, n0: float, S1: int | None, S2: int, q: int
) -> Path:
    """SPIDER, option II: the estimate of option I with

        x_{t+1} = x_t - eta_t v_t,      eta_t = min{ eps / (L n0 ||v_t||), 1 / (2 L n0) }

    Cost: S1 at a restart, 2 S2 at any other step.
    Source: Fang, Li, Lin and Zhang (2018), Algorithm 1, option II. Online: S1 = 2 sigma^2 / eps^2,
    S2 = 2 sigma / (eps n0), q = sigma n0 / eps; finite sum: S1 = n, S2 = sqrt(n) / n0, q = n0 sqrt(n).
    Departures: sizes are integers.
    """

    def move(x: Array, v: Array) -> Array:
        return x - min(over(eps, L * n0 * norm(v)), 1 / (2 * L * n0)) * v

    return _spider(oracle, x1, T, S1, S2, q, move)


def l0l1_spider(
    oracle: Oracle, x1: Array, T: int, *, eps: float, L0: float, L1: float, S1: int | None, S2: int, q: int
) -> Path:
    """(L0, L1)-SPIDER: the estimate of SPIDER with one more cap of the step.

        x_{t+1} = x_t - eta_t v_t,      eta_t = min{ 1 / (2 L0), eps / (L0 ||v_t||), eps / (L1 ||v_t||^2) }

    L1 = 0 is SPIDER's option II with n0 = 1.

    Cost: S1 at a restart, 2 S2 at any other step.
    Source: Reisizadeh, Li, Das and Jadbabaie, "Variance-reduced clipping for non-convex optimization" (2023).
    Departures: the three numbers 1/2, 1, 1 in the minimum are ours; that it has a constant, a 1 / ||v|| and a
    1 / ||v||^2 entry agrees with the authors' code.
    """

    def move(x: Array, v: Array) -> Array:
        size = norm(v)
        return x - min(over(1, 2 * L0), over(eps, L0 * size), over(eps, L1 * size * size)) * v

    return _spider(oracle, x1, T, S1, S2, q, move)


def symmetric_spider(
    oracle: Oracle, x1: Array, T: int, *, gamma: float, S1: int | None, S2: int, q: int, beta: float = 1.0
) -> Path:
    """SPIDER for alpha-symmetric smoothness: the estimate of SPIDER with a normalised step.

        x_{t+1} = x_t - gamma v_t / ||v_t||^beta

    Cost: S1 at a restart, 2 S2 at any other step.
    Source: Chen, Zhou, Liang and Lu, "Generalized-smooth nonconvex optimization is as efficient as smooth nonconvex
    optimization" (2023), with beta = 1.
    Departures: other powers than beta = 1 are in experiments only; a zero estimate means "stay".
    """

    def move(x: Array, v: Array) -> Array:
        size = norm(v)
        return x - gamma * v / size**beta if size > 0 else x

    return _spider(oracle, x1, T, S1, S2, q, move)


def page(
    oracle: Oracle, x1: Array, T: int, *, eta: float, p: float, S1: int | None, S2: int, normalized: bool = False
) -> Path:
    """PAGE: a coin decides between a fresh big batch and a recursive update.

        v_1 = g(x_1; S1 samples)
        v_t = g(x_t; S1 fresh samples)                            with probability p, that is if coin_t < p
        v_t = v_{t-1} + g(x_t; xi_t) - g(x_{t-1}; xi_t)           else, S2 samples
        x_{t+1} = x_t - eta v_t          normalized: x_t - eta v_t / ||v_t||

    Cost: S1 at step 1; then S1 with probability p and 2 S2 else, so p S1 + 2 (1 - p) S2 on average.
    Source: Li, Bao, Zhang and Richtarik, "PAGE: a simple and optimal probabilistic gradient estimator for nonconvex
    optimization" (2021), Algorithm 1. eta <= 1 / (L (1 + sqrt((1 - p) / (p S2)))), p = S2 / (S1 + S2).
    Departures: the estimate of x_{T+1} is not asked; the normalised step is ours.
    """
    path = Path.start(x1)
    for t in range(1, T + 1):
        x = path.x[-1]
        v = _estimate(oracle, path, t, S1, S2, t == 1 or oracle.coin(t) < p)
        path.step(oracle, v, x - eta * (unit(v) if normalized else v))
    return path
