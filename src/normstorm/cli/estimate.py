"""The command `normstorm estimate`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from normstorm._shared import files
from normstorm.report.estimate_request import EstimateRequest

from .options import Params, parsed, with_options
from .output import JSON_HELP, exit_on_error, show

if TYPE_CHECKING:
    from normstorm.solve.estimate import EstimatedConstants

DEFAULT_REPORT = Path("build/estimate.html")


@dataclass(frozen=True)
class EstimateInvocation:
    """What belongs to one call and not to what is asked."""

    report: Annotated[str | None, f"The page; {DEFAULT_REPORT} if left out.", "FILE"] = None
    json: Annotated[bool, JSON_HELP] = False


@with_options(EstimateRequest, EstimateInvocation)
def estimate_constants(params: Params) -> None:
    """Estimate L0, L1, sigma0 and sigma1 of a problem from a short run, and write a page with two plots.

    Nothing has to be known of the problem. Every number comes with an interval and one of the words proof, estimate and
    guess.
    """
    with exit_on_error("estimate"):
        request, call = parsed(EstimateRequest, params), parsed(EstimateInvocation, params)
        page = files.page_path(call.report, DEFAULT_REPORT)
        found = _estimated(request)
        from normstorm.report import estimate_page

        try:
            page.parent.mkdir(exist_ok=True)
            estimate_page.save(found, page, request, datetime.now().astimezone())
        except OSError as error:
            raise ValueError(f"report must be a writable file; got {page} ({error.strerror})") from None
    show(found.to_dict, lambda: estimate_page.parts(found, page), as_json=call.json)


def _estimated(request: EstimateRequest) -> EstimatedConstants:
    from . import problem_specs

    problem_specs.check_spec(request.problem)
    import jax

    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
    from normstorm.solve import estimate

    problem, _ = problem_specs.find(request.problem)
    with problem_specs.user_errors(request.problem):
        return estimate.estimate_constants(problem, budget=request.budget, seed=request.seed)
