"""A comparison as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from normstorm.lab.compare.board import AVERAGE, LAST, Board, Goal
from normstorm.lab.compare.tables import SPEC, TABLES, Comparison

from .compare_words import (
    astray,
    average,
    contest,
    goal_words,
    lost,
    marked,
    measured,
    named,
    refusals,
    short_count,
    summary,
    verdict_text,
)


def compare_parts(found: Comparison) -> Iterator[RenderableType]:
    """What was run, the winners, every problem, and where the rest is."""
    yield Text(summary(found))
    yield _winners(found)
    for board in found.boards:
        yield _board(board)
        yield Text(" ".join(filter(None, (measured(board), *refusals(board), lost(board), astray(board)))))
    yield f"tables: {', '.join(f'{name}.parquet' for name in TABLES)} and {SPEC} in {found.directory}"
    yield f"page: {found.report}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.show_edge = False
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _winners(found: Comparison) -> Table:
    table = _table("Winners", "problem", "goal", "winner", "median [95 % interval]")
    for board in found.boards:
        for goal in board.goals:
            table.add_row(board.problem_spec, goal_words(goal), *verdict_text(board, goal))
    return table


def _board(board: Board) -> Table:
    """One line an algorithm, each column with the setting of its own contest; other settings are on the page."""
    what = "average at the budget, gradient norm and F at the last point"
    what += ", and median sample gradients to each target" if board.targets else ""
    heads = "algorithm", "average", "last", "F", *(f"{t:g}" for t in board.targets)
    table = _table(f"{board.problem_spec}{', tuned' if board.tuned else ''}: {what}", *heads)
    for column in table.columns[1:]:
        column.justify = "right"
    goals: tuple[Goal, ...] = (AVERAGE, LAST, *board.targets)
    columns = [{row.algorithm: row for row, _ in board.contest(g)} for g in goals]
    for row in contest(board):
        own = [column[row.algorithm] for column in columns]
        final, last = (average(board.seen(r, g).value) for r, g in zip(own, (AVERAGE, LAST), strict=False))
        value = average(board.value_seen(own[1], LAST).value)
        reached = [short_count(board.seen(r, g).value) for r, g in zip(own[2:], board.targets, strict=True)]
        table.add_row(marked(board, row, named(row)), final, last, value, *reached)
    return table
