"""A comparison in words and short numbers, for the page and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from normstorm.lab.compare.board import THEOREM, Board, Row
from normstorm.lab.compare.quantiles import Estimate
from normstorm.lab.compare.tables import Comparison

MOST_NAMED = 4
NOT_REACHED, DIVERGED, CANNOT = "not reached", "diverged", "cannot run"


def short_number(value: float) -> str:
    """Three significant digits, thousands separated."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if 100 <= abs(rounded) < 1e12 else f"{rounded:.3g}"


def short_count(value: float) -> str:
    """A number of sample gradients."""
    return short_number(value) if math.isfinite(value) else "> budget"


def average(value: float) -> str:
    """An average gradient norm."""
    return short_number(value) if math.isfinite(value) else DIVERGED


def interval_text(seen: Estimate, goal: float | None) -> str:
    """The value and its interval; an end that the sample does not bound is infinite, which is not a divergence."""
    write = average if goal is None else short_count
    if math.isinf(seen.low):
        return write(seen.value)
    low, high = short_number(seen.low), write(seen.high) if goal is not None or math.isfinite(seen.high) else "∞"
    return f"{write(seen.value)} [{low}, {high}]"


def listed(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """The first few, and how many more."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def verdict_text(board: Board, goal: float | None) -> tuple[str, str]:
    """Who wins, and the median with its interval of the winner, or of the first of those who cannot be told apart."""
    found = board.verdict(goal)
    best = found.winner or next(iter(found.tied), None)
    if best is None:
        return ("nobody: all diverged" if goal is None else "nobody within the budget"), ""
    names = [row.algorithm for row in found.tied]
    said = best.algorithm if found.winner is not None else f"undecided: {listed(names)}"
    return said, interval_text(board.seen(best, goal), goal)


def goal_words(goal: float | None) -> str:
    return "average at the budget" if goal is None else f"{goal:g}"


def setting(row: Row) -> str:
    return f"theorem: {row.label}" if row.kind == THEOREM else row.label


def state_text(board: Board, row: Row, goal: float | None) -> str | None:
    """Why there is no finite median, in two words."""
    if row.measured is None:
        return CANNOT
    if goal is not None and math.isfinite(board.seen(row, goal).value):
        return None
    return NOT_REACHED if math.isfinite(board.seen(row, None).value) else DIVERGED


def ranking(board: Board, rows: Sequence[Row], goal: float | None) -> list[Row]:
    """The best first: sample gradients to the goal, then the average at the budget."""

    def key(row: Row) -> tuple[float, float]:
        return board.seen(row, goal).value, board.seen(row, None).value

    return sorted((row for row in rows if row.measured is not None), key=key)


def contest(board: Board) -> list[Row]:
    """One row an algorithm, for the hardest target that somebody reaches, the best first."""
    goal = board.hardest
    return ranking(board, [row for row, _ in board.contest(goal)], goal)


def reason(row: Row) -> str:
    """Without the name of who says it."""
    assert row.reason is not None
    return row.reason.partition(": ")[2] or row.reason


def refusals(board: Board) -> list[str]:
    """One sentence for every reason."""
    groups: dict[str, list[str]] = {}
    for row in board.rows:
        if row.reason is not None:
            groups.setdefault(reason(row), []).append(row.algorithm)
    return [f"Cannot run: {', '.join(names)} ({why})." for why, names in groups.items()]


def measured(board: Board) -> str:
    """How averages were taken."""
    if board.exact:
        return "Averages are exact: over all steps, with the gradient of F itself."
    return (
        "F is a finite sum, whose gradient costs as much as all its components: averages are over the recorded "
        "iterates, each with the weight of the steps since the one before."
    )


def lost(board: Board) -> str:
    """Who diverged, among all rows; empty if nobody did."""
    found = [row for row in board.rows if row.measured is not None and row.measured.diverged]
    if not found:
        return ""
    counts = sum(row.measured.diverged for row in found if row.measured is not None)
    names = listed([*dict.fromkeys(row.algorithm for row in found)], 12)
    return f"{counts:,} diverged seeds count as infinite, in settings of {names}."


def summary(found: Comparison) -> str:
    """What was run and what it cost, as a paragraph."""
    request = found.request
    last = request.first_seed + request.seeds
    told = [
        f"{_plural(len(request.algorithms), 'algorithm')} on {_plural(len(request.problems), 'problem')}: "
        f"{request.budget:,} sample gradients for every run, "
        f"seeds {request.first_seed} to {last - 1} for every setting.",
        f"In all {found.asked:,} sample gradients in {found.seconds:,.0f} seconds",
    ]
    if request.tune:
        told[-1] += (
            f"; of these the search asked {found.searched:,}, with seeds {last} to {last + request.tune_seeds - 1}, "
            "which the comparison does not use."
        )
    else:
        told[-1] += ", without a search: settings are defaults and those of theorems."
    told.append(
        "An algorithm wins only if the 95 % interval of its median lies below those of all others. Runs that diverge "
        "or do not arrive count as infinite."
    )
    return " ".join(told)


def mean_ranks(found: Comparison) -> dict[str, float]:
    """Over the problems; whoever cannot run has the last rank."""
    names = found.request.algorithms
    ranks: dict[str, list[float]] = {name: [] for name in names}
    for board in found.boards:
        order = [row.algorithm for row in contest(board)]
        for name in names:
            ranks[name].append(order.index(name) + 1 if name in order else len(names))
    return {name: float(np.mean(values)) for name, values in ranks.items()}


def _plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
