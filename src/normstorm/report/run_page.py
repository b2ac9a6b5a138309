"""A run as one page that needs nothing else: charts, tables, and the command that repeats it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from normstorm._shared import files
from normstorm._shared.versions import versions
from normstorm.theory.constants import Constants
from normstorm.theory.plan import round_up

from . import curves
from . import html as pages
from .html import Row
from .run_report import RunReport

QUANTILES = "Median (line), 5 % to 95 % (band) and maximum (dotted) of the seeds."
NO_CHARTS = (
    "There are no charts: gradient norms, values and errors of the estimate can only be drawn where F itself is known, "
    "and this problem gives samples alone. What the run has reached is certified below from fresh samples; a formula "
    "of F, given to from_loss as objective, would show the rest."
)
MOST_LISTED = 20


def save(found: RunReport, path: Path) -> None:
    """Write the page; the file is whole or not there."""
    files.write(path, page(found).encode("utf-8"))


def page(found: RunReport) -> str:
    """The whole page. Every string that is not this module's own is escaped."""
    body, name = "\n".join(_sections(found)), found.problem.name
    title = f"normstorm run: {name}, {found.date:%d %B %Y}"
    return pages.document(title, name, f"{found.date:%d %B %Y, %H:%M}", body, _charts(found))


def _sections(found: RunReport) -> Iterator[str]:
    result = found.result
    yield f"<p>{escape(summary(found))}</p>"
    if not result.precision.adequate:
        yield f"<p><strong>Warning.</strong> {escape(result.precision.statement)}</p>"
    yield _tiles(found)
    if found.problem.is_exact:
        yield pages.figure("gradient", "Gradient norm against cost", _gradient_caption(found))
        yield pages.figure("value", "Value against cost", QUANTILES)
        yield pages.figure(
            "error", "Error of the estimate against cost", f"How far m_t is from grad F(x_t). {QUANTILES}"
        )
    else:
        yield f"<p>{escape(NO_CHARTS)}</p>"
    yield pages.table("Observed beside guaranteed", ("", "observed", "guaranteed"), observed_rows(found))
    yield _diverged(found)
    yield pages.table("The returned point", ("", ""), choice_rows(found))
    yield pages.table("Certificate from fresh samples", ("", ""), certificate_rows(found))
    yield pages.table("Precision", ("", ""), precision_rows(found))
    yield pages.table("Plan", ("", ""), plan_rows(found))
    terms = [(t.name, f"{t.value:.4g}", f"{t.value / result.plan.bound:.1%}", t.meaning) for t in result.plan.terms]
    yield pages.table("What the bound is made of", ("term", "value", "share", "meaning"), terms)
    yield pages.table("Constants", ("constant", "value", "assumption"), constant_rows(result.plan.constants))
    yield pages.table("Versions", ("", ""), [*versions().items()])
    yield f"<h2>Repeat it</h2>\n<pre>{escape(found.command)}</pre>"


def summary(found: RunReport) -> str:
    """One paragraph in words."""
    plan, certificate, seen = found.result.plan, found.result.certificate, found.observed
    parts = [
        f"Normalized STORM on {found.request.problem}: {found.description}, {found.dimension:,} unknowns, "
        f"{seen['seeds']:,} seeds of {plan.horizon:,} steps in {found.seconds:.1f} seconds.",
        plan.guarantee,
    ]
    if found.problem.is_exact:
        largest = seen["mean_grad_norm"]["max"]
        parts.append(
            f"Observed: the largest average over the seeds is {round_up(largest)}; {seen['violations']:,} of "
            f"{seen['seeds']:,} seeds exceed the bound."
        )
    else:
        parts.append("F is only sampled here, so averages of ||grad F(x_t)|| are not observable.")
    parts.append(certificate.guarantee)
    return " ".join(parts)


def _tiles(found: RunReport) -> str:
    plan, seen = found.result.plan, found.observed
    tiles = [("proven bound of the average", round_up(plan.bound))]
    if found.problem.is_exact:
        tiles.append(("largest average observed", round_up(seen["mean_grad_norm"]["max"])))
        tiles.append(("seeds above the bound", f"{seen['violations']:,} of {seen['seeds']:,}"))
    tiles.append(("certified at the returned point", round_up(found.result.certificate.upper_bound)))
    tiles.append(("sample gradients for that point", f"{found.result.sample_gradients:,}"))
    return pages.tiles(tiles)


def _gradient_caption(found: RunReport) -> str:
    last = f"{found.result.plan.horizon:,}"
    return f"{QUANTILES} Averages are over all steps up to t; the bound speaks of the one at the last, t = {last}."


def observed_rows(found: RunReport) -> list[Row]:
    plan, seen = found.result.plan, found.observed
    promise = f"at most {round_up(plan.bound)}"
    diverged = f"{seen['diverged']:,} of {seen['seeds']:,}"
    if not found.problem.is_exact:
        unseen = ("average of ||grad F(x_t)||", "not observable: F is only sampled", promise)
        return [unseen, ("diverged seeds", diverged, "above the bound, all of them")]
    labels = {"median": "median of the seeds", "q95": "95 %", "q99": "99 %", "max": "maximum"}
    rows: list[Row] = [(labels[key], round_up(seen["mean_grad_norm"][key]), promise) for key in labels]
    share = "none promised" if plan.confidence is None else f"at most {1 - plan.confidence:.4g} of the seeds, expected"
    rows.append(("seeds above the bound", f"{seen['violations']:,} of {seen['seeds']:,}", share))
    rows.append(("diverged seeds", diverged, "counted as above the bound"))
    return rows


def _diverged(found: RunReport) -> str:
    trace = found.result.trace
    lost = [(int(s), int(t)) for s, t in zip(trace.seeds, trace.diverged_at, strict=True) if t > 0]
    if not lost:
        return ""
    rows: list[Row] = [(f"{seed}", f"{step:,}") for seed, step in lost[:MOST_LISTED]]
    more = f"<p>And {len(lost) - MOST_LISTED:,} more.</p>" if len(lost) > MOST_LISTED else ""
    return pages.table("Diverged seeds", ("seed", "step of the first number that is not finite"), rows) + more


def choice_rows(found: RunReport) -> list[Row]:
    result = found.result
    return [
        ("rule", found.request.choose),
        ("why this point", result.reason),
        ("what the plan promises for it", result.promise),
        ("what fresh samples certify of it", result.certificate.guarantee),
    ]


def certificate_rows(found: RunReport) -> list[Row]:
    certificate = found.result.certificate
    return [
        ("||grad F(x)|| is at most", round_up(certificate.upper_bound)),
        ("confidence", f"{certificate.confidence:.12g}"),
        ("fresh samples at the point", f"{certificate.samples:,}"),
        ("norm of their mean gradient", f"{certificate.mean_norm:.4g}"),
        ("noise", f"{certificate.sense} (assumption {'4A' if certificate.sense == 'almost-sure' else '4B'})"),
    ]


def precision_rows(found: RunReport) -> list[Row]:
    precision = found.result.precision
    return [
        ("what rounding means for the guarantee", precision.statement),
        ("type of the iterates", precision.dtype),
        ("rounding of x, in parts of a step", f"{precision.step_lost:.2g}"),
        ("error of a mini-batch gradient", f"{precision.gradient_error:.2g}"),
        ("what that can add to an estimate", f"{precision.estimate_error:.2g}"),
        ("bound with rounding counted", round_up(precision.bound, 6)),
    ]


def plan_rows(found: RunReport) -> list[Row]:
    plan = found.result.plan
    return [
        ("guarantee", plan.guarantee),
        ("certificate, rule", f"{plan.certificate}, {plan.rule}"),
        ("alpha = 1 - beta", f"{plan.alpha!r}"),
        ("step size eta", f"{plan.eta!r}"),
        ("horizon T", f"{plan.horizon:,}"),
        ("batch K, sub-batch k", f"{plan.batch:,}, {plan.sub_batch:,}"),
        ("sample gradients of one seed", f"{plan.sample_gradients:,}"),
        *(("note", note) for note in plan.notes),
    ]


def constant_rows(known: Constants) -> list[Row]:
    letter = "B" if known.noise == "mean-square" else "A"
    sense = "in mean square" if letter == "B" else "almost surely"
    first = "not given" if known.grad_norm is None else f"{known.grad_norm:.6g}"
    return [
        ("L0", f"{known.L0:.6g}", f"3{letter}, smoothness {sense}: constant part"),
        ("L1", f"{known.L1:.6g}", f"3{letter}, smoothness {sense}: per unit of ||grad F||"),
        ("sigma0", f"{known.sigma0:.6g}", f"4{letter}, noise {sense}: constant part"),
        ("sigma1", f"{known.sigma1:.6g}", f"4{letter}, noise {sense}: per unit of ||grad F||"),
        ("gap", f"{known.gap:.6g}", "1, F bounded below: F(x1) - F* or an upper bound of it"),
        ("grad norm", first, "||grad F(x1)|| at the start, or an upper bound of it"),
    ]


def _charts(found: RunReport) -> dict[str, dict[str, Any]]:
    if not found.problem.is_exact:
        return {}
    trace, plan, problem = found.result.trace, found.result.plan, found.problem
    charts = {
        "gradient": curves.gradient_chart(trace, plan, found.request.target),
        "value": curves.value_chart(trace, plan, problem.infimum, problem.infimum_kind),
        "error": curves.error_chart(trace, plan),
    }
    return {name: chart.to_dict() for name, chart in charts.items()}
