"""Plans, runs and catalogues as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from normstorm.theory.anytime_plan import AnytimePlan
from normstorm.theory.plan import Plan, round_up

if TYPE_CHECKING:
    from .run_report import RunReport

RULES = {"paper": "paper's rule", "sharp": "sharp rule"}


def plan_parts(plan: Plan, comparison: dict[str, Any]) -> Iterator[RenderableType]:
    """Guarantee, parameters, terms of the bound, comparison and notes, in this order."""
    yield Text(plan.guarantee)
    yield _parameters(plan)
    yield _terms(plan)
    if "reason" in comparison:
        yield Text(f"No comparison with the {RULES[comparison['rule']]}: {comparison['reason']}.")
    else:
        yield _comparison(plan, comparison)
    yield from map(Text, plan.notes)


def anytime_parts(plan: AnytimePlan, comparison: dict[str, Any]) -> Iterator[RenderableType]:
    """Guarantee, schedule, bound at some t beside the best plan for that t alone, terms and notes."""
    yield Text(plan.guarantee)
    yield Text("eta_t = eta r, alpha_(t+1) = alpha r, r = ((1 + s0)/(t + s0))^(2/3)")
    table = _table("Plan", "", "", header=False)
    table.add_row("alpha, of step 2", repr(plan.alpha))
    table.add_row("step size eta, of step 1", repr(plan.eta))
    table.add_row("shift s0", repr(plan.shift))
    table.add_row("batch K, sub-batch k", f"{plan.batch:,}, {plan.sub_batch:,}")
    table.add_row("chosen for runs of", f"{plan.shortest:,} to {plan.longest:,} steps")
    table.add_row("certificate", plan.certificate)
    yield table
    table = _table("After t steps", "t", "sample gradients", "bound", "best for this t alone", "ratio")
    for row in comparison["rows"]:
        bounds = round_up(row["bound"]), round_up(row["one_horizon_bound"])
        table.add_row(f"{row['t']:,}", f"{row['sample_gradients']:,}", *bounds, _ratio(row["ratio"]))
    yield table
    yield _terms(plan, f"What the bound at t = {plan.horizon:,} is made of")
    yield from map(Text, plan.notes)


def _table(title: str, *columns: str, header: bool = True) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE)
    table.show_edge, table.show_header = False, header
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", overflow="fold")
    return table


def _parameters(plan: Plan) -> Table:
    table = _table("Plan", "", "", header=False)
    table.add_row("beta", repr(plan.beta))
    table.add_row("alpha = 1 - beta", repr(plan.alpha))
    table.add_row("step size eta", repr(plan.eta))
    table.add_row("horizon T", f"{plan.horizon:,}")
    table.add_row("batch K, sub-batch k", f"{plan.batch:,}, {plan.sub_batch:,}")
    table.add_row("sample gradients", f"{plan.sample_gradients:,}")
    table.add_row("bound", round_up(plan.bound))
    table.add_row("certificate", plan.certificate)
    return table


def _terms(plan: Plan | AnytimePlan, title: str = "What the bound is made of") -> Table:
    table = _table(title, "term", "value", "share", "meaning")
    table.columns[-1].justify = "left"
    for term in plan.terms:
        share = term.value / plan.bound
        shown = f"{share:.0%}" if share >= 0.005 else "<1%"
        table.add_row(term.name, f"{term.value:.4g}", shown, term.meaning)
    return table


def _comparison(plan: Plan, other: dict[str, Any]) -> Table:
    table = _table(f"At {other['at']}", "", "this plan", RULES[other["rule"]], "ratio")
    bounds = round_up(plan.bound), round_up(other["bound"])
    table.add_row("bound", *bounds, _ratio(other["bound_ratio"]))
    costs = f"{plan.sample_gradients:,}", f"{other['sample_gradients']:,}"
    table.add_row("sample gradients", *costs, _ratio(other["sample_gradients_ratio"]))
    table.add_row("horizon", f"{plan.horizon:,}", f"{other['horizon']:,}")
    batches = f"{other['batch']:,}, {other['sub_batch']:,}"
    table.add_row("batch, sub-batch", f"{plan.batch:,}, {plan.sub_batch:,}", batches)
    return table


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 1e15 else f"{value:.4g}"


def run_parts(found: RunReport) -> Iterator[RenderableType]:
    """Guarantee, plan, observation beside the bound, certificate, cost and where the page is."""
    result = found.result
    yield Text(_asked(found))
    if result.contradictions is not None:
        yield Text(result.contradictions.statement, style="bold" if result.void else "")
    if result.race is not None:
        yield from _race_parts(found)
        return
    yield Text(found.promise)
    if result.stop == "plan":
        yield _parameters(result.planned)
    yield _observed(found)
    if follows := result.observed_bound():
        yield Text(follows["statement"])
    if result.precision is not None and not result.precision.adequate:
        yield Text(result.precision.statement)
    yield Text(result.trajectory.guarantee)
    yield Text(f"Returned: {result.reason}. {result.promise}")
    yield Text(result.certificate.guarantee)
    yield _cost(found)
    yield from map(Text, result.planned.notes)
    yield f"report: {found.report}"


def _race_parts(found: RunReport) -> Iterator[RenderableType]:
    """The point and its certificate, then what it cost, beside what was promised, and what the seeds say."""
    from . import race_rows

    yield Text(found.result.certificate.guarantee)
    table = _table("The returned point", "", "", header=False)
    table.columns[1].justify = "left"
    for row in race_rows.point_rows(found):
        table.add_row(*row)
    yield table
    yield Text(found.promise)
    table = _table("Cost in sample gradients", "", "", header=False)
    for row in race_rows.cost_rows(found):
        table.add_row(*row)
    table.add_row("seconds, compilation included", f"{found.seconds:.1f}")
    yield table
    if beside := race_rows.beside_sentence(found):
        yield Text(beside)
    table = _table("All seeds", "", "", "", header=False)
    for seeds in race_rows.seed_rows(found):
        table.add_row(*seeds)
    yield table
    yield f"report: {found.report}"


def _asked(found: RunReport) -> str:
    """The request in a sentence, with what was left to the command."""
    shown = found.request.shown
    words = [f"{name} {value}" for name, value in shown.items() if value is not None and name != "problem"]
    sentence = f"{found.request.problem} ({found.description}): {', '.join(words)}."
    return f"{sentence} Defaults: {', '.join(found.defaults)}." if found.defaults else sentence


def _observed(found: RunReport) -> RenderableType:
    observed, bound = found.observed, found.result.bound
    if not found.problem.is_exact:
        return Text("F is only sampled here: the averages of ||grad F(x_t)|| cannot be observed, only certified.")
    table = _table(f"Average gradient norm, {observed['seeds']:,} seeds", "", "observed", "bound", "ratio")
    for label, key in (("median", "median"), ("95 %", "q95"), ("99 %", "q99"), ("maximum", "max")):
        value = observed["mean_grad_norm"][key]
        ratio = _ratio(bound / value) if 0 < value < float("inf") else "-"
        table.add_row(label, round_up(value), round_up(bound), ratio)
    table.add_row("violations", f"{observed['violations']:,} of {observed['seeds']:,}")
    table.add_row("diverged", f"{observed['diverged']:,} of {observed['seeds']:,}")
    return table


def _cost(found: RunReport) -> Table:
    result = found.result
    table = _table("Cost in sample gradients", "", "", header=False)
    table.add_row("run of one seed", f"{int(result.trace.cost[0]):,}")
    table.add_row("gradients of the certificate", f"{found.fresh:,}")
    table.add_row("the returned point", f"{result.sample_gradients:,}")
    table.add_row("all seeds", f"{int(result.trace.cost.sum()) + found.fresh:,}")
    table.add_row("seconds, compilation included", f"{found.seconds:.1f}")
    return table


def problem_parts(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    """Names with descriptions, then the constants in both senses."""
    names = _table("Problems", "name", "dimension", "infimum", "description")
    names.columns[2].justify = names.columns[3].justify = "left"
    for row in rows:
        known = (f"{row['dimension']:,}", row["infimum_kind"]) if "constants" in row else ("-", "-")
        names.add_row(row["name"], *known, row.get("reason", row["description"]))
    yield names
    yield _constants("almost-sure", "Proven almost surely (3A and 4A), at the default start", rows)
    yield _constants("mean-square", "Proven in mean square (3B and 4B), at the default start", rows)
    yield Text("Constants are rounded up to three digits; normstorm problems --json has all of them.")


def _constants(sense: str, title: str, rows: list[dict[str, Any]]) -> Table:
    columns = ("L0", "L1", "sigma0", "sigma1", "gap", "grad_norm")
    table = _table(title, "name", *columns)
    table.columns[0].no_wrap = True
    for row in rows:
        if known := row.get("constants", {}).get(sense):
            table.add_row(row["name"], *(_known(known[name]) for name in columns))
    return table


def _known(value: float | None) -> str:
    return "-" if value is None else round_up(value, 3)


def algorithm_parts(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    """One small table for each algorithm."""
    for row in rows:
        table = _table(row["name"], "", "", header=False)
        table.columns[1].justify = "left"
        table.add_row("what", row["description"])
        for key in ("cost", "assumes", "rate", "source", "departures"):
            if row[key]:
                table.add_row(key, row[key])
        table.add_row("state", f"{row['state']} numbers beside x, which has d")
        for need, when in row["needs"].items():
            table.add_row("needs", need if when == "always" else f"{need} ({when})")
        yield table
