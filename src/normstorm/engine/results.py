"""What a run returns: plain numpy arrays, one row per seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Tree = Any


@dataclass(frozen=True)
class Pick:
    """Chosen iterates: x_t for t = step. Every leaf of x starts with the axes of `step`."""

    step: np.ndarray
    x: Tree


@dataclass(frozen=True)
class Trace:
    """A run of one algorithm on one problem from one x_1, for many seeds.

    seeds             (n,)  the seeds, in the order given
    steps             T, the number of steps that were asked for;   algorithm, problem: names
    width             seeds of a batch: with the same width, any of the seeds alone gives the same bits
    diverged_at       (n,)  the step t at which a non-finite number appeared; 0: never. Such a seed stays at x_t.
    stopped_at        (n,)  the last step of a seed that its observer ended; 0: it was not. Nothing is asked after it,
                      and means are over the steps up to it
    mean_grad_norm    (n,)  mean of ||grad F(x_t)|| over t = 1..T; infinite if the seed diverged, nan if not asked for
    mean_by_cost      (n,)  the same mean with x_t counted as often as step t asked sample gradients: what runs of equal
                      cost are compared by. Bounds are about mean_grad_norm; if every step costs the same, both are one
    mean_estimate_norm (n,) mean of ||m_t|| over t = 1..T; infinite if the seed diverged
    min_grad_norm     (n,)  the smallest ||grad F(x_t)||, up to the divergence
    cost              (n,)  sample gradients asked
    record_steps      (r,)  the recorded t; the next six are (n, r), nan after a divergence or the end
    grad_norm, running_mean, running_mean_by_cost, value, error, record_cost    ||grad F(x_t)||, its mean over 1..t,
                      the same by cost, F(x_t), ||m_t - grad F(x_t)||, cost of steps 1..t
    last              x_{T+1}, the point where the run stands
    uniform           x_t with t uniform on 1..T
    smallest          x_t with the smallest ||m_t||
    candidates        x_t with t uniform in each of R slices of 1..T that are as equal as integers allow, (n, R)
    estimate          m_T; not finite if the seed diverged
    error_bar         (n,)  what the estimator itself says of ||m_T - grad F(x_T)||, as a root mean square; or nan
    observer          the state of the algorithm's observer after the last step
    """

    algorithm: str
    problem: str
    seeds: np.ndarray
    steps: int
    width: int
    diverged_at: np.ndarray
    stopped_at: np.ndarray
    mean_grad_norm: np.ndarray
    mean_by_cost: np.ndarray
    mean_estimate_norm: np.ndarray
    min_grad_norm: np.ndarray
    cost: np.ndarray
    record_steps: np.ndarray
    grad_norm: np.ndarray
    running_mean: np.ndarray
    running_mean_by_cost: np.ndarray
    value: np.ndarray
    error: np.ndarray
    record_cost: np.ndarray
    last: Tree
    uniform: Pick
    smallest: Pick
    candidates: Pick
    estimate: Tree = field(repr=False)
    error_bar: np.ndarray
    observer: Tree = field(repr=False, default=())

    @property
    def status(self) -> np.ndarray:
        """ "ok" or "diverged" for every seed."""
        return np.where(self.diverged_at > 0, "diverged", "ok")
