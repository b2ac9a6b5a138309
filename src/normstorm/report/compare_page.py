"""A comparison as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from normstorm._shared.versions import versions
from normstorm.lab.compare.board import AVERAGE, BEST, LAST, Board
from normstorm.lab.compare.board import Row as Result
from normstorm.lab.compare.quantiles import estimate
from normstorm.lab.compare.search import RESAMPLES
from normstorm.lab.compare.tables import Comparison

from . import compare_charts, html
from .compare_words import (
    astray,
    average,
    goal_words,
    interval_text,
    leading,
    lost,
    marked,
    measured,
    ranking,
    refusals,
    rising,
    setting,
    short_number,
    summary,
    value_text,
    verdict_text,
)
from .html import Row

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
    """The whole page, of templates/compare.html."""
    names = tuple(board.problem_spec for board in found.boards)
    drawn = any(board.hardest is not None for board in found.boards)
    charts = {"heat": compare_charts.heat_map(found)} if drawn else {}
    charts |= {_chart(i): compare_charts.curves(found, board) for i, board in enumerate(found.boards)}
    return html.render(
        "compare.html",
        f"normstorm compare: {', '.join(names)}",
        "Algorithms at equal sample gradients",
        f"{found.date:%d %B %Y, %H:%M}",
        charts,
        summary=summary(found),
        resamples=RESAMPLES,
        winners=[*winners(found)],
        unreached=[board.problem_spec for board in found.boards if board.hardest is None],
        boards=[_section(i, board, found) for i, board in enumerate(found.boards)],
        search_head=("algorithm", *names),
        searches=searches(found) if found.searched else None,
        versions=[*versions().items()],
        specification=found.request.to_toml(),
        command=found.command,
    )


def _chart(i: int) -> str:
    return f"curves-{i}"


def _section(i: int, board: Board, found: Comparison) -> dict[str, Any]:
    """What the template shows of one problem."""
    rows = ranking(board, board.rows, leading(board))
    return {
        "name": board.problem_spec,
        "words": " ".join(filter(None, (measured(board), *refusals(board), lost(board), astray(board)))),
        "rising": rising(board, found.bands),
        "chart": _chart(i),
        "legend": compare_charts.legend(board),
        "kinds": [row.kind for row in rows],
        "target_head": _target_head(board),
        "targets": [target_row(board, row) for row in rows] if board.targets else None,
        "finals": [final_row(board, row) for row in rows],
        "start_value": short_number(board.start_value),
        "points": [point_row(board, row) for row in rows],
        "choices": [choice for row in rows for choice in choice_rows(row)],
        "constants": constant_rows(board),
    }


def winners(found: Comparison) -> Iterator[Row]:
    for board in found.boards:
        for goal in board.goals:
            yield board.problem_spec, goal_words(goal), *verdict_text(board, goal)


def searches(found: Comparison) -> list[Row]:
    """Sample gradients of every search."""
    costs = [board.searches for board in found.boards]
    named = [name for name in found.request.algorithms if any(name in asked for asked in costs)]
    return [(name, *(f"{asked[name]:,}" if name in asked else "–" for asked in costs)) for name in named]


def _target_head(board: Board) -> Row:
    parts = ((f"{t:g}: median [interval]", "95 % [interval]", "reached") for t in reversed(board.targets))
    return "algorithm", "setting", *(part for three in parts for part in three)


def target_row(board: Board, row: Result) -> Row:
    """Median, 95 % and share of seeds, from the hardest target to the easiest."""
    cells = [row.algorithm, marked(board, row, setting(row))]
    for goal in reversed(board.targets):
        middle, tail = board.seen(row, goal), board.seen(row, goal, 0.95)
        cells += [interval_text(middle, goal), interval_text(tail, goal), f"{board.reached(row, goal):.0%}"]
    return tuple(cells)


def final_row(board: Board, row: Result) -> Row:
    assert row.measured is not None
    seeds = len(row.measured.paths.cost)
    middle, tail = (interval_text(board.seen(row, AVERAGE, p), AVERAGE) for p in (0.5, 0.95))
    settings = ", ".join(f"{name} = {_value(value)}" for name, value in row.measured.settings.items())
    diverged = f"{row.measured.diverged:,} of {seeds:,}"
    name = marked(board, row, setting(row))
    return row.algorithm, name, middle, tail, diverged, f"{row.measured.steps:,}", settings


def point_row(board: Board, row: Result) -> Row:
    """Gradient norm and F at the last point and at the one with the smallest estimate, and how far the last one is."""
    assert row.measured is not None
    cells = [row.algorithm, marked(board, row, setting(row))]
    for point in (LAST, BEST):
        cells += [interval_text(board.seen(row, point), point), value_text(board.value_seen(row, point))]
    return *cells, average(estimate(row.measured.distance, 0.5).value)


def choice_rows(row: Result) -> Iterator[Row]:
    """For every goal of a tuned setting, how sure its choice is."""
    for goal, choice in row.choices.items():
        edge = f"on the edge: {', '.join(choice.edge)}" if choice.edge else "inside"
        counts = f"{choice.share:.0%}", f"{choice.settings}", choice.spread or "–"
        yield row.algorithm, goal_words(goal), *counts, edge, f"{row.refused} of {row.tried}"


def constant_rows(board: Board) -> list[Row]:
    values = {**board.constants, **board.scales}
    rows = [(name, _value(values[name]), words) for name, words in CONSTANTS.items() if values.get(name) is not None]
    return [*rows, ("noise", board.constants["noise"] or "not said", "the sense in which the constants are proven")]


def _value(value: Any) -> str:
    return short_number(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
