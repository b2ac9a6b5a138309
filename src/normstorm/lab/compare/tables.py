"""A comparison as flat tables: what JSON, Parquet files, the terminal and the page are made of.

Infinite stands for "not within the budget" and for divergence; in JSON it is null.
"""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from normstorm._shared.jsonable import jsonable
from normstorm._shared.versions import versions

from .board import AVERAGE, BEST, LAST, TUNED, Board, Goal, Row, seed_scores
from .quantiles import estimate, rank
from .request import CompareRequest

SPEC = "spec.toml"
PLACES = 60  # of a curve
LEVELS = {"q05": 0.05, "median": 0.5, "q95": 0.95}
NAMES = ("problem", "algorithm", "kind", "setting")
GOALS = ("goal", "target")
COUNTS = ("steps", "seeds", "diverged", "searched", "tried", "refused")
QUANTILES = ("median", "low", "high", "q95", "q95_low", "q95_high")
FINALS = tuple(f"final_{part}" for part in QUANTILES)
POINTS = tuple(
    f"{point}_{what}_{part}"
    for point in (LAST, BEST)
    for what in ("gradient", "value")
    for part in ("median", "low", "high")
)
TABLES = {
    "rows": (*NAMES, "reason", "parameters", *COUNTS, *FINALS, *POINTS, "distance", "runaway"),
    "targets": (*NAMES, "target", "tuned_for_it", "runaway", "reached", *QUANTILES),
    "choices": (*NAMES, *GOALS, "runaway", "share", "settings", "spread", "edge", "low", "high"),
    "verdicts": ("problem", *GOALS, "winner", "winner_setting", "tied"),
    "bands": (*NAMES, "cost", *LEVELS),
    "seeds": (*NAMES, "seed", "final", "last_gradient", "last_value", "best_gradient", "best_value", "distance"),
}
TYPES = {
    **dict.fromkeys((*NAMES, "goal", "reason", "parameters", "winner", "winner_setting", "spread"), pa.string()),
    **dict.fromkeys((*COUNTS, "settings", "cost"), pa.int64()),
    "seed": pa.uint64(),
    **dict.fromkeys(("tuned_for_it", "runaway"), pa.bool_()),
    **dict.fromkeys(("tied", "edge"), pa.list_(pa.string())),
}  # all other columns are float64
Table = list[dict[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """Boards, and everything that is told of them."""

    request: CompareRequest
    boards: tuple[Board, ...]
    seconds: float
    date: datetime
    report: str

    @property
    def directory(self) -> Path:
        """The directory of the page and the tables."""
        return Path(self.report).parent

    @property
    def command(self) -> str:
        """Repeats the comparison, whatever the defaults become."""
        return shlex.join(["normstorm", "compare", "--spec", str(self.directory / SPEC), "--out", str(self.directory)])

    @property
    def asked(self) -> int:
        """Sample gradients of all runs, searches included."""
        return sum(board.asked for board in self.boards)

    @property
    def searched(self) -> int:
        """Sample gradients of all searches."""
        return sum(sum(board.searches.values()) for board in self.boards)

    @cached_property
    def rows(self) -> Table:
        return rows(self.boards)

    @cached_property
    def targets(self) -> Table:
        return targets(self.boards)

    @cached_property
    def choices(self) -> Table:
        return choices(self.boards)

    @cached_property
    def verdicts(self) -> Table:
        return verdicts(self.boards)

    @cached_property
    def bands(self) -> Table:
        return bands(self.boards)

    @cached_property
    def seeds(self) -> Table:
        return seeds(self.boards, self.request.first_seed)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the tables that have a row for every seed or every point of a curve."""
        found: dict[str, Any] = {
            "spec": asdict(self.request),
            "problems": [problem_facts(board) for board in self.boards],
            **{name: getattr(self, name) for name in ("rows", "targets", "choices", "verdicts")},
            "sample_gradients": self.asked,
            "searched": self.searched,
            "seconds": self.seconds,
            "date": self.date.isoformat(timespec="seconds"),
            "versions": versions(),
            "command": self.command,
            "report": self.report,
        }
        plain: dict[str, Any] = jsonable(found)
        return plain


def problem_facts(board: Board) -> dict[str, Any]:
    """What is told of a problem beside its rows."""
    tried, refused = board.searched_settings
    return {
        "problem": board.problem_spec,
        "exact": board.exact,
        "targets": list(board.targets),
        "start_value": board.start_value,
        "settings_tried": tried,
        "settings_refused": refused,
        "constants": board.constants,
        "scales": board.scales,
    }


def rows(boards: Sequence[Board]) -> Table:
    """One row for every setting that ran, and for every algorithm that could not."""
    return [_row(board, row) for board in boards for row in board.rows]


def _name(row: Row) -> dict[str, Any]:
    return {"problem": row.problem_spec, "algorithm": row.algorithm, "kind": row.kind, "setting": row.label}


def _row(board: Board, row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {**_name(row), "reason": row.reason, "parameters": None}
    found |= dict.fromkeys((*COUNTS, *FINALS, *POINTS, "distance", "runaway"))
    if row.measured is None:
        return found
    m = row.measured
    middle, tail = board.seen(row, AVERAGE), board.seen(row, AVERAGE, 0.95)
    found["parameters"] = json.dumps(m.settings)
    counted = m.steps, len(m.distance), m.diverged, row.searched, row.tried, row.refused
    points = (part for point in (LAST, BEST) for part in (*board.seen(row, point), *board.value_seen(row, point)))
    found |= dict(zip(COUNTS, counted, strict=True)) | dict(zip(FINALS, (*middle, *tail), strict=True))
    found |= dict(zip(POINTS, points, strict=True))
    return found | {"distance": estimate(m.distance, 0.5).value, "runaway": board.astray(row)}


def targets(boards: Sequence[Board]) -> Table:
    """For every setting and target the sample gradients to reach it: median, 95 %, their intervals, share of seeds."""
    return [
        _target(board, row, goal)
        for board in boards
        for row in board.rows
        if row.measured is not None
        for goal in board.targets
    ]


def _target(board: Board, row: Row, goal: float) -> dict[str, Any]:
    assert row.measured is not None
    middle, tail = board.seen(row, goal), board.seen(row, goal, 0.95)
    return {
        **_name(row),
        "target": goal,
        "tuned_for_it": row.kind == TUNED and goal in row.goals,
        "runaway": board.astray(row),
        "reached": board.reached(row, goal),
        **dict(zip(QUANTILES, (*middle, *tail), strict=True)),
    }


def _goal(goal: Goal) -> dict[str, Any]:
    """A target, or what is wanted at the budget."""
    return {"goal": goal, "target": None} if isinstance(goal, str) else {"goal": "target", "target": goal}


def choices(boards: Sequence[Board]) -> Table:
    """For every goal of a tuned setting how sure its choice is."""
    found = []
    for board in boards:
        for row in board.rows:
            for goal, choice in row.choices.items():
                told = {**asdict(choice), "edge": list(choice.edge)}
                named = {**_name(row), **_goal(goal), "runaway": board.astray(row)}
                found.append({**named, **{k: told[k] for k in TABLES["choices"] if k in told}})
    return found


def verdicts(boards: Sequence[Board]) -> Table:
    """For every problem and goal the winner with its setting, or who cannot be told."""
    found = []
    for board in boards:
        for goal in board.goals:
            verdict = board.verdict(goal)
            won = verdict.winner
            named = {
                "winner": None if won is None else won.algorithm,
                "winner_setting": None if won is None else won.label,
            }
            tied = [row.algorithm for row in verdict.tied]
            found.append({"problem": board.problem_spec, **_goal(goal), **named, "tied": tied})
    return found


def bands(boards: Sequence[Board]) -> Table:
    """Quantiles over the seeds of the average gradient norm, at costs common to all settings of a problem."""
    return [band for board in boards for row in board.rows if row.measured is not None for band in _band(board, row)]


def _band(board: Board, row: Row) -> Iterator[dict[str, Any]]:
    assert row.measured is not None
    seen = row.measured.paths
    first, last = np.max(seen.cost[:, 0]), np.max(seen.cost[:, -1])  # a seed that diverges asks no more
    costs = np.unique(np.rint(np.geomspace(1, board.budget, PLACES)))
    costs = np.unique([*costs[(costs >= first) & (costs <= last)], min(last, board.budget)])
    values = np.sort(seen.at(costs), axis=0)
    counted = {name: values[rank(len(values), q) - 1] for name, q in LEVELS.items()}
    for i, cost in enumerate(costs):
        yield {**_name(row), "cost": int(cost), **{name: float(v[i]) for name, v in counted.items()}}


def seeds(boards: Sequence[Board], first_seed: int) -> Table:
    """For every setting and seed what the budget gave; infinite if it diverged."""
    return [
        {**_name(row), "seed": first_seed + i, **dict(zip(TABLES["seeds"][-6:], map(float, numbers), strict=True))}
        for board in boards
        for row in board.rows
        if (m := row.measured) is not None
        for i, numbers in enumerate(
            zip(
                *(seed_scores(m, AVERAGE, board.budget), m.last.grad_norm, m.last.value),
                *(m.best.grad_norm, m.best.value, m.distance),
                strict=True,
            )
        )
    ]


def parquet(found: Comparison, name: str) -> bytes:
    """The content of a Parquet file, with the same columns and types whatever came out."""
    schema = pa.schema([(column, TYPES.get(column, pa.float64())) for column in TABLES[name]])
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(getattr(found, name), schema), sink, compression="zstd")
    return sink.getvalue()
