"""A run as one page that needs nothing else: charts, tables, and the command that repeats it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from normstorm._shared import files
from normstorm._shared.versions import versions
from normstorm.solve.certify import ASSUMPTIONS
from normstorm.theory.constants import Constants
from normstorm.theory.plan import Plan, round_up

from . import curves, html, race_chart, race_rows
from .html import Row
from .run_report import RunReport

MOST_LISTED = 20
IN_MEAN_SQUARE = (("L0", 3), ("L1", 3), ("sigma0", 4), ("sigma1", 4))


def save(found: RunReport, path: Path) -> None:
    """Write the page; the file is whole or not there."""
    files.write_atomically(path, page(found))


def page(found: RunReport) -> str:
    """The whole page, of templates/run.html."""
    result, name = found.result, found.problem.name
    lost = diverged_rows(found)
    plan, raced = result.plan, result.race is not None
    return html.render(
        "race.html" if raced else "run.html",
        f"normstorm run: {name}, {found.date:%d %B %Y}",
        name,
        f"{found.date:%d %B %Y, %H:%M}",
        _charts(found),
        summary=race_rows.summary(found) if raced else summary(found),
        warning=" ".join(filter(None, (result.void, _lost_digits(found)))),
        tiles=race_rows.tiles(found) if raced else _tiles(found),
        guarantee=result.certificate.guarantee,
        exact=found.problem.is_exact,
        last_step=f"{result.trajectory.steps:,}",
        observed=[] if raced else observed_rows(found),
        diverged=lost[:MOST_LISTED],
        more_diverged=f"{len(lost) - MOST_LISTED:,}" if len(lost) > MOST_LISTED else "",
        choice=choice_rows(found),
        trajectory=trajectory_rows(found),
        certificate=certificate_rows(found),
        precision=precision_rows(found),
        plan=plan_rows(found) if plan else [],
        terms=[(t.name, f"{t.value:.4g}", f"{t.value / plan.bound:.1%}", t.meaning) for t in plan.terms]
        if plan
        else [],
        constants=constant_rows(plan.constants) if plan else [],
        versions=[*versions().items()],
        command=found.command,
        **(race_rows.page_parts(found) if raced else {}),
    )


def _lost_digits(found: RunReport) -> str:
    precision = found.result.precision
    return "" if precision is None or precision.adequate else precision.statement


def summary(found: RunReport) -> str:
    """One paragraph in words."""
    certificate, seen = found.result.certificate, found.observed
    method = "Normalized STORM" if found.result.stop == "plan" else found.result.trace.algorithm
    parts = [
        f"{method} on {found.request.problem}: {found.description}, {found.dimension:,} unknowns, "
        f"{seen['seeds']:,} seeds of {found.result.trajectory.steps:,} steps in {found.seconds:.1f} seconds.",
        found.promise,
    ]
    if found.problem.is_exact:
        largest = seen["mean_grad_norm"]["max"]
        parts.append(
            f"Observed: the largest average over the seeds is {round_up(largest)}; {seen['violations']:,} of "
            f"{seen['seeds']:,} seeds exceed the bound."
        )
    else:
        parts.append("F is only sampled here, so averages of ||grad F(x_t)|| are not observable.")
    parts += [found.result.trajectory.guarantee, certificate.guarantee]
    return " ".join(parts)


def _tiles(found: RunReport) -> list[tuple[str, str]]:
    plan, seen = found.result.planned, found.observed
    tiles = [("proven bound of the average", round_up(plan.bound))] if found.result.stop == "plan" else []
    if follows := found.result.observed_bound():
        tiles.append(("bound from this run's estimates", round_up(follows["bound"])))
    if found.problem.is_exact:
        tiles.append(("largest average observed", round_up(seen["mean_grad_norm"]["max"])))
        tiles.append(("seeds above the bound", f"{seen['violations']:,} of {seen['seeds']:,}"))
    if not found.result.trajectory.reason:
        tiles.append(("certified along the run", round_up(found.result.trajectory.bound)))
    tiles.append(("certified at the returned point", round_up(found.result.certificate.upper_bound)))
    tiles.append(("sample gradients for that point", f"{found.result.sample_gradients:,}"))
    return tiles


def observed_rows(found: RunReport) -> list[Row]:
    plan, seen = found.result.planned, found.observed
    promise = f"at most {round_up(found.result.bound)}"
    diverged = f"{seen['diverged']:,} of {seen['seeds']:,}"
    follows = found.result.observed_bound()
    own: list[Row] = []
    if follows:
        mean, its = f"{follows['mean_estimate_norm']:.4g}", round_up(follows["bound"])
        own = [("average of ||m_t||, first seed", mean, f"average of ||grad F(x_t)|| at most {its} by this")]
    if not found.problem.is_exact:
        unseen = ("average of ||grad F(x_t)||", "not observable: F is only sampled", promise)
        return [unseen, *own, ("diverged seeds", diverged, "above the bound, all of them")]
    labels = {"median": "median of the seeds", "q95": "95 %", "q99": "99 %", "max": "maximum"}
    rows: list[Row] = [(labels[key], round_up(seen["mean_grad_norm"][key]), promise) for key in labels]
    rows += own
    share = "none promised" if plan.confidence is None else f"at most {1 - plan.confidence:.4g} of the seeds, expected"
    rows.append(("seeds above the bound", f"{seen['violations']:,} of {seen['seeds']:,}", share))
    rows.append(("diverged seeds", diverged, "counted as above the bound"))
    return rows


def diverged_rows(found: RunReport) -> list[Row]:
    trace = found.result.trace
    return [(f"{s}", f"{t:,}") for s, t in zip(trace.seeds, trace.diverged_at, strict=True) if t > 0]


def choice_rows(found: RunReport) -> list[Row]:
    result, rule = found.result, found.request.choose
    return [
        ("rule", "smallest" if result.stop == "certified" and rule == "two-phase" else rule),
        ("why this point", result.reason),
        ("what the plan promises for it", result.promise),
        ("what is certified of it", result.certificate.guarantee),
    ]


def trajectory_rows(found: RunReport) -> list[Row]:
    along = found.result.trajectory
    if along.reason:
        return [("nothing is certified", along.reason)]
    return [
        ("average of ||grad F(x_t)|| is at most", round_up(along.bound)),
        ("largest such bound of a seed", round_up(max(along.bounds))),
        ("confidence, for each seed by itself", f"{along.confidence:.12g}"),
        ("steps of the first seed", f"{along.steps:,}, {along.weights}"),
        ("sure bounds of the samples from", along.ranges),
    ]


def certificate_rows(found: RunReport) -> list[Row]:
    certificate = found.result.certificate
    exact = certificate.sense == "exact"
    assumed = ASSUMPTIONS.get(certificate.sense)
    noise = "none assumed, exact" if exact else certificate.sense + (f" (assumption {assumed})" if assumed else "")
    return [
        ("||grad F(x)|| is at most", round_up(certificate.upper_bound)),
        ("confidence", f"{certificate.confidence:.12g}"),
        ("rows" if exact else "fresh samples at the point", f"{certificate.samples:,}"),
        ("norm of their mean gradient", f"{certificate.mean_norm:.4g}"),
        ("noise", noise),
    ]


def precision_rows(found: RunReport) -> list[Row]:
    precision = found.result.precision
    if precision is None:
        return [("what rounding means for the plan's guarantee", "nothing: the plan was not run")]
    return [
        ("what rounding means for the guarantee", precision.statement),
        ("type of the iterates", precision.dtype),
        ("rounding of x, in parts of a step", f"{precision.step_lost:.2g}"),
        ("error of a mini-batch gradient", f"{precision.gradient_error:.2g}"),
        ("what that can add to an estimate", f"{precision.estimate_error:.2g}"),
        ("bound with rounding counted", round_up(precision.bound, 6)),
    ]


def plan_rows(found: RunReport) -> list[Row]:
    plan = found.result.planned
    return [
        ("guarantee", plan.guarantee if found.result.race is not None else found.promise),
        ("certificate, rule", f"{plan.certificate}, {plan.rule}"),
        ("alpha = 1 - beta", f"{plan.alpha!r}"),
        ("step size eta", f"{plan.eta!r}"),
        ("horizon T", f"{plan.horizon:,}"),
        ("batch K, sub-batch k", f"{plan.batch:,}, {plan.sub_batch:,}"),
        ("sample gradients of one seed", f"{plan.sample_gradients:,}"),
        *(("note", note) for note in plan.notes),
    ]


def term_rows(plan: Plan) -> list[Row]:
    return [(t.name, f"{t.value:.4g}", f"{t.value / plan.bound:.1%}", t.meaning) for t in plan.terms]


def constant_rows(known: Constants) -> list[Row]:
    letter = "B" if known.noise == "mean-square" else "A"
    sense = "in mean square" if letter == "B" else "almost surely"
    first = "not given" if known.grad_norm is None else f"{known.grad_norm:.6g}"
    quiet: list[Row] = []
    if known.mean_square is not None:
        numbers = asdict(known.mean_square)
        quiet = [(name, f"{numbers[name]:.6g}", f"{n}B, the same in mean square") for name, n in IN_MEAN_SQUARE]
    return [
        ("L0", f"{known.L0:.6g}", f"3{letter}, smoothness {sense}: constant part"),
        ("L1", f"{known.L1:.6g}", f"3{letter}, smoothness {sense}: per unit of ||grad F||"),
        ("sigma0", f"{known.sigma0:.6g}", f"4{letter}, noise {sense}: constant part"),
        ("sigma1", f"{known.sigma1:.6g}", f"4{letter}, noise {sense}: per unit of ||grad F||"),
        *quiet,
        ("gap", f"{known.gap:.6g}", "1, F bounded below: F(x1) - F* or an upper bound of it"),
        ("grad norm", first, "||grad F(x1)|| at the start, or an upper bound of it"),
    ]


def _charts(found: RunReport) -> dict[str, dict[str, Any]]:
    result, problem = found.result, found.problem
    charts: dict[str, Any] = {}
    if result.race is not None:
        charts["guarantee"] = race_chart.race_chart(found)
    if problem.is_exact:
        trace, source = curves.while_all_run(result.trace), "proven" if result.stop == "plan" else "certified"
        bound = result.bound if result.race is None else result.certificate.upper_bound
        charts["gradient"] = curves.gradient_chart(trace, bound, source, found.request.target)
        charts["value"] = curves.value_chart(trace, problem.infimum, problem.infimum_kind)
        charts["error"] = curves.error_chart(trace)
    return {name: chart.to_dict() for name, chart in charts.items()}
