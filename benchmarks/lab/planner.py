"""How long planning takes, on one core, and how far the plans are from the paper's.

    python -m benchmarks.lab.planner [--repeats 7] [--out benchmarks/results/planner.json]

Prints, for several sets of constants, the median time of a plan for a fixed horizon, for a budget and for a target
(both over T, K and k), and the paper's bound over ours. CPU seconds of this process, so that a busy machine matters
less.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.pages import RESULTS
from normstorm.theory import Constants, plan

CONSTANTS = (
    (1, 0, 1, 0, 1, 1),
    (1, 1, 1, 0, 1, 1),
    (1, 1, 1, 0.5, 1, 1),
    (10, 2, 0.1, 0.1, 5, 10),
    (1, 1, 0, 0, 1, 1),
    (1, 1, 1, 2, 1, 1),
)
QUESTIONS = {"horizon": 100_000, "budget": 200_000, "target": 0.05}


def median_seconds(constants: Constants, question: dict[str, float], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        plan(constants, **question)
        times.append(time.process_time() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS / "planner.json")
    given = parser.parse_args()
    plan(Constants(*CONSTANTS[0]), horizon=10)  # imports and caches
    rows = []
    for values in CONSTANTS:
        constants = Constants(*values)
        row: dict[str, object] = {"constants": values}
        for name, amount in QUESTIONS.items():
            row[f"{name}_seconds"] = median_seconds(constants, {name: amount}, given.repeats)
            row[f"{name}_seconds_expectation"] = median_seconds(constants, {name: amount, "confidence": None}, 3)
        ours, paper = (plan(constants, horizon=100_000, rule=rule).bound for rule in ("sharp", "paper"))
        row |= {"bound": ours, "paper_over_ours": paper / ours}
        rows.append(row)
        times = "  ".join(f"{name} {row[f'{name}_seconds']:.3f} s" for name in QUESTIONS)
        print(f"{values!s:28}  {times}  bound {ours:.4g}  paper/ours {paper / ours:.1f}")
    worst = {name: max(row[f"{name}_seconds"] for row in rows) for name in QUESTIONS}
    print("slowest:", "  ".join(f"{name} {seconds:.3f} s" for name, seconds in worst.items()))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"date": datetime.date.today().isoformat(), "machine": describe(), "repeats": given.repeats, "rows": rows}
    given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
