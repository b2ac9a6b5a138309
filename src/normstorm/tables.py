"""A plan as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from normstorm.theory.plan import Plan, round_up

RULES = {"paper": "paper's rule", "sharp": "sharp rule"}


def report(plan: Plan, comparison: dict[str, Any]) -> Iterator[RenderableType]:
    """Guarantee, parameters, terms of the bound, comparison and notes, in this order."""
    yield Text(plan.guarantee)
    yield _parameters(plan)
    yield _terms(plan)
    if "reason" in comparison:
        yield Text(f"No comparison with the {RULES[comparison['rule']]}: {comparison['reason']}.")
    else:
        yield _comparison(plan, comparison)
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


def _terms(plan: Plan) -> Table:
    table = _table("What the bound is made of", "term", "value", "share", "meaning")
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
