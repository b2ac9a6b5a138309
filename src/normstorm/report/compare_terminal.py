"""A comparison as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from normstorm.lab.compare.board import Board
from normstorm.lab.compare.tables import SPEC, TABLES, Comparison

from .compare_words import average, contest, goal_words, lost, measured, refusals, short_count, summary, verdict_text


def compare_parts(found: Comparison) -> Iterator[RenderableType]:
    """What was run, the winners, every problem, and where the rest is."""
    yield Text(summary(found))
    yield _winners(found)
    for board in found.boards:
        yield _board(board)
        yield Text(" ".join((measured(board), *refusals(board), lost(board))).strip())
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
        for goal in (*board.targets, None):
            table.add_row(board.problem_spec, goal_words(goal), *verdict_text(board, goal))
    return table


def _board(board: Board) -> Table:
    """One line an algorithm, each column with the setting of its own contest; other settings are on the page."""
    title = f"{board.problem_spec}: average at the budget, and median sample gradients to each target"
    table = _table(title, "algorithm", "setting", "average", *(f"{t:g}" for t in board.targets), "diverged")
    for column in table.columns[2:]:
        column.justify = "right"
    columns = [{row.algorithm: (row, seen) for row, seen in board.contest(g)} for g in (None, *board.targets)]
    for row in contest(board):
        final, *reached = (column[row.algorithm][1].value for column in columns)
        lost = max(one.measured.diverged for one, _ in (c[row.algorithm] for c in columns) if one.measured is not None)
        table.add_row(row.algorithm, row.kind, average(final), *map(short_count, reached), f"{lost:,}")
    return table
