"""A comparison in words and short numbers, for the page and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from normstorm.lab.compare.board import AVERAGE, BEST, LAST, THEOREM, Board, Goal, Row
from normstorm.lab.compare.quantiles import Estimate
from normstorm.lab.compare.tables import Comparison

MOST_NAMED = 4
NOT_REACHED, DIVERGED, CANNOT, RUNAWAY = "not reached", "diverged", "cannot run", "ends above the start"
ASTRAY = "↗"  # beside numbers of a setting that ends above F(x1)
RISE = 1.05  # so many times its first value, and a curve has risen
GOALS = {
    AVERAGE: "average at the budget",
    LAST: "gradient norm, last point",
    BEST: "gradient norm, best point",
}


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


def interval_text(seen: Estimate, goal: Goal) -> str:
    """The value and its interval; an end that the sample does not bound is infinite, which is not a divergence."""
    counted = not isinstance(goal, str)
    write = short_count if counted else average
    if math.isinf(seen.low):
        return write(seen.value)
    low, high = short_number(seen.low), write(seen.high) if counted or math.isfinite(seen.high) else "∞"
    return f"{write(seen.value)} [{low}, {high}]"


def value_text(seen: Estimate) -> str:
    """F and its interval, with a digit more: close to a minimum values differ little."""
    value, low, high = (f"{v:.4g}" for v in seen)
    return f"{value} [{low}, {high}]".replace("inf", "∞") if math.isfinite(seen.value) else DIVERGED


def listed(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """The first few, and how many more."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def verdict_text(board: Board, goal: Goal) -> tuple[str, str]:
    """Who wins, and the median with its interval of the winner, or of the first of those who cannot be told apart."""
    found = board.verdict(goal)
    best = found.winner or next(iter(found.tied), None)
    if best is None:
        nobody = (
            "nobody: all diverged or ended above the start" if isinstance(goal, str) else "nobody within the budget"
        )
        return nobody, ""
    names = [named(row) for row in found.tied]
    said = named(best) if found.winner is not None else f"undecided: {listed(names)}"
    return said, interval_text(board.seen(best, goal), goal)


def named(row: Row) -> str:
    """The algorithm, with its setting if it is that of a theorem."""
    return f"{row.algorithm} ({row.label})" if row.kind == THEOREM else row.algorithm


def goal_words(goal: Goal) -> str:
    return GOALS[goal] if isinstance(goal, str) else f"{goal:g}"


def setting(row: Row) -> str:
    return f"theorem: {row.label}" if row.kind == THEOREM else row.label


def marked(board: Board, row: Row, text: str) -> str:
    """The text, with a sign if the row ends above F(x1)."""
    return f"{ASTRAY} {text}" if board.astray(row) else text


def state_text(board: Board, row: Row, goal: Goal) -> str | None:
    """Why there is no finite median that counts, in a few words."""
    if row.measured is None:
        return CANNOT
    if not math.isfinite(board.seen(row, AVERAGE).value):
        return DIVERGED
    if board.astray(row):
        return RUNAWAY
    return None if math.isfinite(board.seen(row, goal).value) else NOT_REACHED


def leading(board: Board) -> Goal:
    """The goal that orders tables and charts: the hardest target that somebody reaches, or the average."""
    return AVERAGE if board.hardest is None else board.hardest


def ranking(board: Board, rows: Sequence[Row], goal: Goal) -> list[Row]:
    """The best first: by the goal, then by the average at the budget; those that end above F(x1) come last."""

    def key(row: Row) -> tuple[bool, float, float]:
        return board.astray(row), board.seen(row, goal).value, board.seen(row, AVERAGE).value

    return sorted((row for row in rows if row.measured is not None), key=key)


def contest(board: Board) -> list[Row]:
    """One row an algorithm, for the leading goal, the best first."""
    goal = leading(board)
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
        return "Averages are exact: over all iterates, each counted as often as its step asks sample gradients."
    return (
        "F is a finite sum, whose gradient costs as much as all its components: averages are over the recorded "
        "iterates, each with the weight of the sample gradients since the one before."
    )


def astray(board: Board) -> str:
    """Who ends above the start, and how many settings the search refused for it; empty if there was none."""
    told, (tried, refused) = [], board.searched_settings
    if refused:
        told.append(
            f"The search refused {refused:,} of {tried:,} settings whose median ends above F(x1) = "
            f"{short_number(board.start_value)}."
        )
    rows = [row for row in board.rows if board.astray(row) and math.isfinite(board.seen(row, AVERAGE).value)]
    if rows:
        names = listed([f"{row.algorithm} ({row.kind})" for row in rows], 12)
        told.append(f"{ASTRAY} marks rows that end above F(x1) and do not compete: {names}.")
    return " ".join(told)


def rising(board: Board, bands: Sequence[Mapping[str, Any]]) -> str:
    """A word on curves that rise from the start, if one of the contest does."""
    first: dict[str, float] = {}
    chosen = {(row.algorithm, row.label) for row in contest(board)}
    rise: dict[str, None] = {}
    for band in bands:
        name = band["algorithm"]
        if band["problem"] != board.problem_spec or (name, band["setting"]) not in chosen:
            continue
        if band["median"] > RISE * first.setdefault(name, band["median"]):
            rise[name] = None
    if not rise:
        return ""
    slope = short_number(board.scales["grad_norm"])
    return (
        f"{len(rise)} of {len(chosen)} curves rise above their first value, which is the gradient norm of the start, "
        f"{slope}: the first steps lead, or noise shakes the iterates, to places that are steeper than the start. A "
        "small gradient at the start does not make it a solution."
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
            "which the comparison does not use. Settings of theorems are among those that it may choose, and intervals "
            "of tuned medians count the choice."
        )
    else:
        told[-1] += (
            ", without a search: settings are defaults and those of theorems, and an algorithm enters with its best."
        )
    told.append(
        "An algorithm wins only if the 95 % interval of its median lies below those of all others. Runs that diverge "
        "or do not arrive count as infinite; settings that end above F(x1) do not compete."
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
