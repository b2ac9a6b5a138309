"""Variance reduction for a finite sum of n components. Batches are component numbers; grad F costs n."""

from __future__ import annotations

import numpy as np

from .common import Array, Oracle, Path


def svrg(oracle: Oracle, x1: Array, T: int, *, eta: float, period: int, b: int = 1, picked: bool = False) -> Path:
    """SVRG: a snapshot s with its full gradient every `period` steps.

        at steps 1, 1 + period, ...:  s = x_t,  mu = grad F(s)
        v_t = g(x_t; i_t) - g(s; i_t) + mu,      x_{t+1} = x_t - eta v_t

    The new snapshot is the last inner iterate, or, if `picked`, one of the `period` points at which the epoch asked,
    chosen uniformly by the number `picks` holds for the epoch's last step; x_{t+1} of that step is the chosen point.

    Cost: 2 b every step, and n more at every snapshot (where both inner gradients are asked at the same point).
    Source: Johnson and Zhang, "Accelerating stochastic gradient descent using predictive variance reduction" (2013),
    options I (last) and II (picked); the last iterate also in Reddi, Hefny, Sra, Poczos and Smola (2016).
    Departures: mini-batches with replacement.
    """
    path = Path.start(x1)
    for t in range(1, T + 1):
        x, batch = path.x[-1], oracle.index(t, b)
        if (t - 1) % period == 0:
            snapshot, mu = x, oracle.full_grad(x)
        v = oracle.mean(x, batch) - oracle.mean(snapshot, batch) + mu
        moved = x - eta * v
        if picked and t % period == 0:
            moved = path.x[len(path.x) - period + oracle.pick(t, period)]
        path.step(oracle, v, moved)
    return path


def saga(oracle: Oracle, x1: Array, T: int, *, eta: float, b: int = 1) -> Path:
    """SAGA: the last gradient of every component is kept.

        a_i = grad f_i(x_1) for all i
        v_t = mean over i in i_t of (grad f_i(x_t) - a_i) + mean of a;      a_i = grad f_i(x_t) for i in i_t
        x_{t+1} = x_t - eta v_t

    Cost: n + b at step 1, b later.
    Source: Defazio, Bach and Lacoste-Julien, "SAGA: a fast incremental gradient method" (2014), with b = 1.
    Departures: mini-batches with replacement (a number drawn twice is asked twice and stored once); no proximal step.
    """
    path = Path.start(x1)
    table = np.array([oracle.grad(path.x[0], i) for i in range(oracle.n)])
    for t in range(1, T + 1):
        x, batch = path.x[-1], oracle.index(t, b)
        fresh = np.array([oracle.grad(x, i) for i in batch])
        v = np.mean(fresh - table[batch], axis=0) + np.mean(table, axis=0)
        table[batch] = fresh
        path.step(oracle, v, x - eta * v)
    return path


def saga_two_indices(oracle: Oracle, x1: Array, T: int, *, eta: float) -> Path:
    """SAGA for non-convex sums: one component for the step, an independent one for the table.

        a_i = grad f_i(x_1) for all i
        v_t = grad f_i(x_t) - a_i + mean of a,      x_{t+1} = x_t - eta v_t,      then a_j = grad f_j(x_t)

    i is the step's number in `samples`, j the one in `second`.

    Cost: n + 2 at step 1, 2 later.
    Source: Reddi, Sra, Poczos and Smola, "Fast incremental method for nonconvex optimization" (2016).
    Departures: gradients are stored, not points; none in the iterates.
    """
    path = Path.start(x1)
    table = np.array([oracle.grad(path.x[0], i) for i in range(oracle.n)])
    for t in range(1, T + 1):
        x = path.x[-1]
        (i,), (j,) = oracle.index(t, 1), [int(number) for number in oracle.second(t, 1)]
        v = oracle.grad(x, i) - table[i] + np.mean(table, axis=0)
        table[j] = oracle.grad(x, j)
        path.step(oracle, v, x - eta * v)
    return path


def sarah(oracle: Oracle, x1: Array, T: int, *, eta: float, period: int, b: int = 1, picked: bool = False) -> Path:
    """SARAH: a recursive estimate, restarted with a full gradient every `period` steps.

        at steps 1, 1 + period, ...:  v_t = grad F(x_t)
        else:                         v_t = v_{t-1} + g(x_t; i_t) - g(x_{t-1}; i_t)
        x_{t+1} = x_t - eta v_t

    The next epoch begins at the last iterate, or, if `picked`, at one of the period + 1 iterates of the epoch, chosen
    uniformly by the number `picks` holds for the epoch's last step; x_{t+1} of that step is the chosen point.

    Cost: n at a restart, 2 b at any other step.
    Source: Nguyen, Liu, Scheinberg and Takac, "SARAH: a novel method for machine learning problems using stochastic
    recursive gradient" (2017), which picks.
    Departures: mini-batches with replacement.
    """
    path = Path.start(x1)
    for t in range(1, T + 1):
        x = path.x[-1]
        if (t - 1) % period == 0:
            v = oracle.full_grad(x)
        else:
            batch = oracle.index(t, b)
            v = path.m[-1] + oracle.mean(x, batch) - oracle.mean(path.x[-2], batch)
        moved = x - eta * v
        if picked and t % period == 0:
            moved = [*path.x[-period:], moved][oracle.pick(t, period + 1)]
        path.step(oracle, v, moved)
    return path
