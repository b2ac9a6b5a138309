"""The command `normstorm plan`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from normstorm._shared import files
from normstorm.theory.anytime_plan import AnytimePlan
from normstorm.theory.constants import Constants
from normstorm.theory.plan import DEFAULT_CONFIDENCE, Plan
from normstorm.theory.planner.planner import one_horizon_plans, other_rule
from normstorm.theory.planner.planner import plan as make_plan

from .options import Params, parsed, with_options
from .output import JSON_HELP, exit_on_error, show

CONSTANTS = tuple(field.name for field in fields(Constants))
NEEDED = tuple(field.name for field in fields(Constants) if field.default is MISSING)
KINDS: dict[str, tuple[Any, str]] = {"noise": (str, "a string"), "mean-square": (list, "a list of four numbers")}
KEYS = tuple(name.replace("_", "-") for name in CONSTANTS)


@dataclass(frozen=True)
class PlanRequest:
    """The constants, as numbers or in a file, and what the plan is for."""

    L0: Annotated[float | None, "Smoothness, constant part."] = None
    L1: Annotated[float | None, "Smoothness, per unit of gradient norm."] = None
    sigma0: Annotated[float | None, "Noise, constant part."] = None
    sigma1: Annotated[float | None, "Noise, per unit of gradient norm."] = None
    gap: Annotated[float | None, "F(x1) - F*, or an upper bound."] = None
    grad_norm: Annotated[float | None, "Norm of grad F(x1), if known."] = None
    noise: Annotated[str | None, "almost-sure or mean-square.", "SENSE"] = None
    mean_square: Annotated[tuple[float, ...] | None, "L0,L1,sigma0,sigma1 in mean square, beside the others."] = None
    constants: Annotated[str | None, "TOML file of the above.", "FILE"] = None
    target: Annotated[float | None, "Bound to reach, at the least cost."] = None
    horizon: Annotated[int | None, "Number T of iterations."] = None
    budget: Annotated[int | None, "Sample gradients to spend."] = None
    confidence: Annotated[float | None, f"Probability; {DEFAULT_CONFIDENCE} if left out."] = None
    expectation: Annotated[bool, "Bound the mean."] = False
    rule: Annotated[str, "sharp (if left out) or paper.", "RULE"] = "sharp"
    batch: Annotated[int | None, "Batch K."] = None
    sub_batch: Annotated[int | None, "Sub-batch k <= K."] = None
    certificate: Annotated[str | None, "Use only this one.", "NAME"] = None
    anytime: Annotated[bool, "One schedule, a bound at every t."] = False

    @property
    def question(self) -> dict[str, Any]:
        """What `plan` is asked beside the constants: every other field, so that none can be forgotten."""
        if self.expectation and self.confidence is not None:
            raise ValueError(f"confidence must be left out with --expectation; got confidence={self.confidence}")
        own = (*CONSTANTS, "constants", "expectation")
        asked = {name: value for name, value in asdict(self).items() if name not in own}
        return asked | ({} if self.expectation or self.confidence is not None else {"confidence": DEFAULT_CONFIDENCE})

    @property
    def known(self) -> Constants:
        """The constants of the file, below those that were given themselves."""
        values = {} if self.constants is None else _from_file(self.constants)
        values |= {name: getattr(self, name) for name in CONSTANTS if getattr(self, name) is not None}
        if missing := [name for name in NEEDED if name not in values]:
            allowed = f"{', '.join(NEEDED)} must all be given, as flags or in a --constants file"
            raise ValueError(f"{allowed}; missing {', '.join(missing)}")
        return Constants(**values)


@dataclass(frozen=True)
class PlanInvocation:
    """What belongs to one call and not to what is asked."""

    json: Annotated[bool, JSON_HELP] = False
    chart: Annotated[str | None, "Draw .html, .svg, .png or .pdf.", "FILE"] = None


@with_options(PlanRequest, PlanInvocation)
def plan(params: Params) -> None:
    """Choose beta, eta, T, K and k, with a proven bound on the average gradient norm.

    Give the constants and one of --target, --horizon and --budget. With --anytime: steps that shrink, and a bound that
    holds after any number of them.
    """
    with exit_on_error("plan"):
        request = parsed(PlanRequest, params)
        call = parsed(PlanInvocation, params)
        found, comparison = _answer(request, call.chart)
    show(
        lambda: found.to_dict() | {"comparison": comparison},
        lambda: _parts(found, comparison, call.chart),
        as_json=call.json,
    )


def _answer(request: PlanRequest, chart: str | None) -> tuple[Plan | AnytimePlan, dict[str, Any]]:
    """The plan and its comparison; the chart, if one is asked for, is drawn on the way."""
    question, constants = request.question, request.known
    if request.anytime and chart is not None:
        raise ValueError(f"chart must be left out with --anytime; got chart={chart!r}")
    path = None if chart is None else _chart_path(chart)
    found: Plan | AnytimePlan = make_plan(constants, **question)
    if isinstance(found, AnytimePlan):
        return found, one_horizon_plans(found)
    same = {name: value for name, value in question.items() if name not in ("rule", "certificate")}
    comparison = other_rule(found, **same)
    if path is not None:
        _draw(found, path, request)
    return found, comparison


def _from_file(file: str) -> dict[str, Any]:
    table = files.toml_table("constants", file)
    for key, value in table.items():
        if key not in KEYS:
            raise ValueError(f"keys of {file} must be among {', '.join(KEYS)}; got {key}")
        wanted, kind = KINDS.get(key, (int | float, "a number"))
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise ValueError(f"{key} in {file} must be {kind}; got {key}={value!r}")
    return {key.replace("-", "_"): value for key, value in table.items()}


def _chart_path(file: str) -> Path:
    from normstorm.report import charts

    return charts.checked_path(file)


def _draw(found: Plan, path: Path, request: PlanRequest) -> None:
    from normstorm.report import charts

    try:
        charts.save(charts.bound_chart(found, target=request.target, certificate=request.certificate), path)
    except OSError as error:
        raise ValueError(f"chart must be a writable file; got {path} ({error.strerror})") from None


def _parts(found: Plan | AnytimePlan, comparison: dict[str, Any], chart: str | None) -> Iterator[Any]:
    from normstorm.report import terminal

    if isinstance(found, AnytimePlan):
        yield from terminal.anytime_parts(found, comparison)
    else:
        yield from terminal.plan_parts(found, comparison)
    if chart is not None:
        yield f"chart: {chart}"
