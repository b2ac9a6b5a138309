"""A comparison as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from normstorm._shared.versions import versions
from normstorm.lab.compare.board import Board
from normstorm.lab.compare.board import Row as Result
from normstorm.lab.compare.tables import Comparison

from . import compare_charts
from .compare_words import goal_words, interval, lost, measured, number, ranking, refusals, setting, summary, verdict
from .html import Row, document, figure, table

WINNERS = (
    "Goals are an average gradient norm to be reached with the fewest sample gradients, and the smallest average at "
    "the budget. Where it is undecided, the best median stands first and its interval is the one shown."
)
HEAT = (
    "The median of the hardest target that somebody reaches, beside the best algorithm of the problem. Grey: – cannot "
    "run there, > does not arrive within the budget, × diverges; reasons show under the pointer. Rows by the mean rank "
    "over the problems: who does not arrive is ranked by the average at the budget, who cannot run comes last."
)
CURVES = (
    "Median (line) and 5 % to 95 % of the seeds (band) of the average of ||grad F|| over the iterates so far. A line "
    "ends, and a band goes to the top, where seeds have diverged. Dashed: the targets. Thin grey lines are all others; "
    "names show under the pointer."
)
KINDS = "Tuned settings are in bold and those of theorems in italics; the best of the hardest target stand first."
CONSTANTS = {
    "L0": "smoothness, constant part",
    "L1": "smoothness, per unit of ||grad F||",
    "sigma0": "noise, constant part",
    "sigma1": "noise, per unit of ||grad F||",
    "gap": "F(x1) - F*, or an upper bound of it",
    "grad_norm": "||grad F(x1)||, or an upper bound of it",
    "sigma": "noise of a sample gradient at the start",
    "budget": "sample gradients of a run",
    "size": "components of the finite sum",
}


def page(found: Comparison) -> str:
    """The whole page. Every string that is not this module's own is escaped."""
    names = [board.problem_spec for board in found.boards]
    heading, date = "Algorithms at equal sample gradients", f"{found.date:%d %B %Y, %H:%M}"
    charts = {"heat": compare_charts.heat_map(found)}
    charts |= {f"curves-{i}": compare_charts.curves(found, board) for i, board in enumerate(found.boards)}
    return document(f"normstorm compare: {', '.join(names)}", heading, date, "\n".join(_sections(found)), charts)


def _sections(found: Comparison) -> Iterator[str]:
    yield f"<p>{escape(summary(found))}</p>"
    head: Row = ("problem", "goal", "winner", "its median [95 % interval]")
    yield table("Winners", head, [*winners(found)], wide=True)
    yield f"<p><small>{escape(WINNERS)}</small></p>"
    yield figure("heat", "All algorithms", HEAT, least=10 + 8 * len(found.boards))
    for i, board in enumerate(found.boards):
        yield f"<h2>{escape(board.problem_spec)}</h2>"
        yield from _problem(f"curves-{i}", board)
    if found.searched:
        head = ("algorithm", *(board.problem_spec for board in found.boards))
        yield table("Sample gradients of the searches", head, searches(found), wide=True)
    yield table("Versions", ("", ""), [*versions().items()])
    yield f"<h2>Specification</h2>\n<pre>{escape(found.request.to_toml())}</pre>"
    yield f"<h2>Repeat it</h2>\n<pre>{escape(found.command)}</pre>"


def winners(found: Comparison) -> Iterator[Row]:
    for board in found.boards:
        for goal in (*board.targets, None):
            yield board.problem_spec, goal_words(goal), *verdict(board, goal)


def searches(found: Comparison) -> list[Row]:
    """Sample gradients of every search."""
    costs = [board.searches for board in found.boards]
    named = [name for name in found.request.algorithms if any(name in asked for asked in costs)]
    return [(name, *(f"{asked[name]:,}" if name in asked else "–" for asked in costs)) for name in named]


def _problem(name: str, board: Board) -> Iterator[str]:
    rows = ranking(board, board.rows, board.hardest)
    kinds = [row.kind for row in rows]
    yield f"<p>{escape(' '.join((measured(board), *refusals(board), lost(board))).strip())}</p>"
    yield figure(name, "Average against sample gradients", CURVES, level=3, above=_legend(board))
    if board.targets:
        head, cells = _target_head(board), [target_row(board, row) for row in rows]
        yield table("Sample gradients to each target", head, cells, level=3, wide=True, kinds=kinds)
        yield f"<p><small>{escape(KINDS)}</small></p>"
    head = ("algorithm", "setting", "median [interval]", "95 % [interval]", "diverged", "steps", "parameters")
    cells = [final_row(board, row) for row in rows]
    yield table("Average at the budget, and settings", head, cells, level=3, wide=True, kinds=kinds)
    yield table("Constants and scales", ("", "value", "meaning"), constant_rows(board), level=3)


def _legend(board: Board) -> str:
    items = "".join(
        f'<li><span style="background: {colour}"></span>{escape(name)}</li>'
        for name, colour in compare_charts.legend(board)
    )
    return f'<ul class="legend">{items}</ul>'


def _target_head(board: Board) -> Row:
    parts = ((f"{t:g}: median [interval]", "95 % [interval]", "reached") for t in reversed(board.targets))
    return "algorithm", "setting", *(part for three in parts for part in three)


def target_row(board: Board, row: Result) -> Row:
    """Median, 95 % and share of seeds, from the hardest target to the easiest."""
    cells = [row.algorithm, setting(row)]
    for goal in reversed(board.targets):
        middle, tail = board.seen(row, goal), board.seen(row, goal, 0.95)
        cells += [interval(middle, goal), interval(tail, goal), f"{board.reached(row, goal):.0%}"]
    return tuple(cells)


def final_row(board: Board, row: Result) -> Row:
    assert row.measured is not None
    seeds = len(row.measured.paths.cost)
    middle, tail = (interval(board.seen(row, None, p), None) for p in (0.5, 0.95))
    settings = ", ".join(f"{name} = {_value(value)}" for name, value in row.measured.settings.items())
    diverged = f"{row.measured.diverged:,} of {seeds:,}"
    return row.algorithm, setting(row), middle, tail, diverged, f"{row.measured.steps:,}", settings


def constant_rows(board: Board) -> list[Row]:
    values = {**board.constants, **board.scales}
    rows = [(name, _value(values[name]), words) for name, words in CONSTANTS.items() if values.get(name) is not None]
    return [*rows, ("noise", board.constants["noise"] or "not said", "the sense in which the constants are proven")]


def _value(value: Any) -> str:
    return number(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
