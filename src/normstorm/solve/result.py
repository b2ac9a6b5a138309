"""What `minimize` returns."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from normstorm._shared.jsonable import jsonable
from normstorm._shared.pytrees import dimension
from normstorm.engine.results import Trace
from normstorm.theory.plan import Plan, round_up

from .certify import PointCertificate
from .export import as_dataframe, as_html, as_text, save_result
from .precision import Precision
from .trajectory import TrajectoryCertificate
from .value import Value
from .watch import Contradictions

Tree = Any


class Race(NamedTuple):
    """How a race went, in sample gradients of the first seed.

    search, testing    of the fast arm's run, and of all tests;   tests  how many were made
    ended_by           "fast arm", "plan", "exact descent", "SPIDER" (what was promised had to be run), or "nobody"
    promised_run       of what was promised, if it had to be run
    promised_by        "plan", "exact descent" or "SPIDER", the cheapest; None: nothing was promised
    promise_cost       of what was promised, tests included;   plan_cost  of the plan, if there is one
    passes             exact gradients that exact descent is promised to take at most, of a finite sum
    rows               of a finite sum;   algorithm  of the fast arm
    costs, bounds      every seed's cost, and what is certified of its point
    contradicted       samples of every seed's tests that contradict the stated constants
    norms              ||grad F|| at every seed's point, where F is known; no certificate rests on it
    start_value, start_norm    F(x_1), exact or a mean over fresh samples, and ||grad F(x_1)||, where they are known
    """

    search: int
    testing: int
    tests: int
    ended_by: str
    promised_run: int = 0
    promised_by: str | None = None
    promise_cost: int | None = None
    plan_cost: int | None = None
    passes: int | None = None
    rows: int | None = None
    algorithm: str = ""
    costs: tuple[int, ...] = ()
    bounds: tuple[float, ...] = ()
    contradicted: tuple[int, ...] = ()
    norms: tuple[float, ...] | None = None
    start_value: float | None = None
    start_norm: float | None = None

    @property
    def cost(self) -> int:
        return self.search + self.testing + self.promised_run

    def reason(self, steps: int) -> str:
        """Why this point."""
        tests = f"{self.tests} test{'' if self.tests == 1 else 's'}"
        if self.ended_by == "fast arm":
            return f"x_t with t = {steps} of {self.algorithm}, certified by the last of {tests}"
        if self.ended_by == "nobody":
            return f"the point with the smallest bound; no test reached the target, of {tests}"
        return f"{self.algorithm} gave up, and what was promised was run ({self.ended_by})"

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = jsonable(self._asdict() | {"cost": self.cost, "violations": self.violations})
        return found

    @property
    def violations(self) -> int | None:
        """Seeds whose exact gradient norm exceeds what was certified of it; None where it is not known."""
        if self.norms is None:
            return None
        return sum(norm > bound for norm, bound in zip(self.norms, self.bounds, strict=True))


@dataclass(frozen=True)
class Result:
    """What `minimize` returns.

    x             the chosen point, of the first seed;   reason  why this one
    plan          parameters and what was guaranteed before the run
    promise       what the plan's bound says of the chosen point, in a sentence
    trajectory    what is certified along the run, of the average over its steps
    certificate   what is certified of it after the run, by fresh samples or a pass over all rows
    precision     what rounding can have done to the plan's bound in this run; None if the plan was not run
    trace         every seed's record;   sample_gradients  asked by the first seed's run and by the certificate
    stop          whether the plan was run, or the run ended when it was certified, or it was a race
    value         F(x), exact or with its standard error; None if the problem cannot say
    method        "race" or "plan";   race  what it cost and who ended it
    contradictions    of samples to constants that the problem's author has stated; None if there are no such constants
    beside        what was asked beside sample_gradients, by kind (beside.py): checks, charts and F itself
    """

    x: Tree
    reason: str
    plan: Plan | None
    promise: str
    trajectory: TrajectoryCertificate
    certificate: PointCertificate
    precision: Precision | None
    trace: Trace
    sample_gradients: int
    stop: str = "plan"
    value: Value | None = None
    method: str = "plan"
    race: Race | None = None
    contradictions: Contradictions | None = None
    beside: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def save(self, file: str | os.PathLike[str]) -> None:
        """x as .csv, or x with its value and certificate as .json."""
        save_result(self, file)

    def to_dataframe(self) -> Any:
        """The numbers of x as a pandas table."""
        return as_dataframe(self)

    @property
    def void(self) -> str:
        """Why nothing is guaranteed that rests on the stated constants; empty if no sample contradicts them."""
        if self.contradictions is not None and self.contradictions.found:
            return self.contradictions.statement
        if beyond := max(self.certificate.contradicted, 0 if self.race is None else sum(self.race.contradicted)):
            whose = "fresh samples" if self.race is None or len(self.race.costs) == 1 else "fresh samples of all seeds"
            return f"Nothing that rests on the stated noise is guaranteed: {beyond:,} {whose} contradict it."
        if self.value is not None and not math.isfinite(self.value.value):
            return f"Nothing is guaranteed of a loss that is not finite: F(x) was {self.value.value} in fresh samples."
        return ""

    @property
    def planned(self) -> Plan:
        """The plan, where there is one."""
        assert self.plan is not None
        return self.plan

    @property
    def bound(self) -> float:
        """Of the average of ||grad F(x_t)||: the plan's, or that of the trajectory if the plan was not run."""
        return self.planned.bound if self.stop == "plan" else self.trajectory.bound

    @property
    def observed_bounds(self) -> np.ndarray | None:
        """For each seed a bound of its average gradient norm from its own mean of ||m_t||; None if there is none.

        Each holds with the plan's confidence, together with the plan's bound. The mean is raised by what its norms can
        have lost to rounding: half a unit for each number of x, and a few more.
        """
        if self.precision is None or self.planned.error is None:
            return None
        margin = 1 + (dimension(self.x) / 2 + 16) * self.precision.unit_roundoff
        means = self.trace.mean_estimate_norm * margin
        return np.array([self.planned.observed_bound(m) if np.isfinite(m) else np.inf for m in means])

    def observed_bound(self) -> dict[str, Any] | None:
        """The first seed's, the median and the largest of them, and the first seed's in a sentence."""
        bounds = self.observed_bounds
        if bounds is None:
            return None
        first, mean = float(bounds[0]), float(self.trace.mean_estimate_norm[0])
        statement = (
            f"From the estimates of this run: with probability at least {self.planned.confidence!r}, the average of "
            f"||grad F(x_t)|| is at most {round_up(first)}, as that of ||m_t|| is {mean:.4g} (for each seed by itself, "
            "on the event of the plan's bound)."
        )
        median = float(np.quantile(bounds, 0.5, method="higher"))
        largest = {"median": median, "max": float(bounds.max())}
        return {"bound": first, "mean_estimate_norm": mean, **largest, "statement": statement}

    @property
    def violations(self) -> int:
        """Seeds whose average gradient norm exceeds the bound, diverged ones included; unknown ones are not.

        Of a run that ended when it was certified, the average has the weights of its bound. Of a race: whose gradient
        norm at its point exceeds what is certified of it.
        """
        if self.race is not None:
            return self.race.violations or 0
        if self.stop == "plan":
            return int(np.sum(self.trace.mean_grad_norm > self.planned.bound))
        averages = np.where(self.trace.diverged_at > 0, np.inf, self.trajectory.averages)
        return int(np.sum(averages > np.array(self.trajectory.bounds)))

    def observed(self) -> dict[str, Any]:
        """Quantiles over seeds of the average gradient norm, beside the bound; a race does not ask for averages."""
        means = self.trace.mean_grad_norm
        if self.race is not None:
            unknown: dict[str, Any] = dict.fromkeys(("median", "q95", "q99", "max"))
            diverged = int(np.sum(self.trace.diverged_at > 0))
            return {"seeds": len(means), "diverged": diverged, "mean_grad_norm": unknown, "violations": self.violations}
        median, q95, q99 = (float(np.quantile(means, q, method="higher")) for q in (0.5, 0.95, 0.99))
        return {
            "seeds": len(means),
            "diverged": int(np.sum(self.trace.diverged_at > 0)),
            "mean_grad_norm": {"median": median, "q95": q95, "q99": q99, "max": float(means.max())},
            "violations": self.violations,
        }
