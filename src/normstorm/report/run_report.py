"""One run of the command as one value: what was asked, what came back, and how to repeat it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jax
import numpy as np

from normstorm._shared.jsonable import jsonable
from normstorm._shared.pytrees import dimension
from normstorm._shared.versions import versions
from normstorm.solve import Result
from normstorm.theory.planner.planner import other_rule

from .requests import RunRequest, command


@dataclass(frozen=True)
class RunReport:
    """What the terminal, the JSON object and the page are made of.

    request      as it was carried out;   defaults  the names of what the command chose itself
    description  of the problem, in words
    seconds      from the request to the certificate, compilation included
    """

    problem: Any
    request: RunRequest
    description: str
    defaults: tuple[str, ...]
    result: Result
    seconds: float
    date: datetime
    report: str

    @property
    def fresh(self) -> int:
        """Sample gradients asked after the run, for the certificate."""
        return self.result.sample_gradients - int(self.result.trace.cost[0])

    @property
    def promise(self) -> str:
        """What was known of the run before it, in a sentence."""
        if self.result.race is not None:
            return self.result.promise
        plan = self.result.planned
        if self.result.stop == "plan":
            return plan.guarantee
        missed = "" if self.reached else "; the run ended at that cost without reaching the target"
        return f"The plan for this target asks {plan.sample_gradients:,} sample gradients, and was not run{missed}."

    @property
    def answered(self) -> bool:
        """Whether there is a certificate, at the target if there is one to reach, and nothing contradicts it.

        An estimate is none.
        """
        along = self.result.race is not None or self.result.stop == "plan" or self.reached
        found = self.result.certificate
        return along and found.certified and found.sense != "estimated" and not self.result.void

    @property
    def reached(self) -> bool:
        """Whether the certificate along the run of the first seed reached the target of the question."""
        target, along = self.request.target, self.result.trajectory
        return target is not None and along is not None and along.bound <= target

    @property
    def dimension(self) -> int:
        return dimension(self.result.x)

    @property
    def observed(self) -> dict[str, Any]:
        """None stands for what cannot be observed, where F is only sampled, and for what is infinite."""
        found = self.result.observed()
        if not self.problem.is_exact:
            unknown = dict.fromkeys(found["mean_grad_norm"])
            return found | {"mean_grad_norm": unknown, "violations": None}
        return found

    @property
    def comparison(self) -> dict[str, Any] | None:
        """The plan beside that of the paper's rule, where the plan was run."""
        asked = self.request
        if self.result.race is not None:
            return None
        budget = None if asked.budget is None else self.result.planned.sample_gradients  # the run's part of it
        return other_rule(self.result.planned, target=asked.target, budget=budget, confidence=asked.confidence)

    @property
    def command(self) -> str:
        """Repeats the run, whatever the defaults become."""
        return command("run", self.request, report=self.report)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values; numbers that are not finite are None."""
        result = self.result
        found = {
            "problem": {
                "name": self.problem.name,
                "place": self.request.problem,
                "description": self.description,
                "dimension": self.dimension,
                "infimum": self.problem.infimum,
                "infimum_kind": self.problem.infimum_kind,
                "is_exact": self.problem.is_exact,
            },
            "question": self.request.question,
            "defaults": list(self.defaults),
            "constants": None if result.plan is None else result.plan.constants.to_dict(),
            "plan": None if result.plan is None else result.plan.to_dict() | {"comparison": self.comparison},
            "observed": self.observed,
            "trajectory": result.trajectory.to_dict(),
            "observed_bound": result.observed_bound(),
            "certificate": result.certificate.to_dict(),
            "precision": None if result.precision is None else result.precision.to_dict(),
            "choice": {
                "rule": self.request.choose,
                "reason": result.reason,
                "promise": result.promise,
                "x": _listed(result.x),
            },
            "x": _listed(result.x),
            "value": None if result.value is None else result.value.to_dict(),
            "method": result.method,
            "contradictions": None if result.contradictions is None else result.contradictions.to_dict(),
            "race": None if result.race is None else result.race.to_dict(),
            "sample_gradients": result.sample_gradients,
            "beside": result.beside,
            "seconds": self.seconds,
            "versions": versions(),
            "command": self.command,
            "report": self.report,
        }
        plain: dict[str, Any] = jsonable(found)
        return plain


def _listed(x: Any) -> Any:
    """An array as lists, any other pytree as a dictionary from paths to lists."""
    leaves = jax.tree_util.tree_leaves_with_path(x)
    named = {jax.tree_util.keystr(path): np.asarray(leaf, np.float64).tolist() for path, leaf in leaves}
    return named.get("", named)
