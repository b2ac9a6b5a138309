"""How soon a run that ends when its certificate reaches a target does so, beside the cost of the plan for that target.

    python -m benchmarks.lab.stopping [--seeds n] [--out benchmarks/results/stopping.json]

Three problems, confidence .99, `minimize(..., stop="certified")`: the same rule for the steps of all of them. Prints
sample gradients, medians over seeds, beside the aim and the plan's cost; writes them with the date and the kind of
machine, and puts a table into docs/evidence.md.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from benchmarks.machine import describe, one_core_in_double
from benchmarks.pages import RESULTS, publish, stopping_table
from normstorm import minimize
from normstorm.problems import registry

CONFIDENCE = 0.99
AIMS = {("dro-regression", 0.1): 40_000, ("logistic-nonconvex", 0.05): 50_000, ("phase-retrieval", 0.5): 80_000}


def race(name: str, target: float, seeds: int) -> dict[str, Any]:
    """One problem: when each seed's run ended, what was certified then and what was true."""
    found = minimize(
        registry.get(name), target=target, confidence=CONFIDENCE, seeds=seeds, stop="certified", progress=False
    )
    costs = [float(v) for v in found.trace.cost]
    bounds, true = found.trajectory.bounds, found.trajectory.averages  # with the same weights
    row: dict[str, Any] = {"problem": name, "target": target, "seeds": seeds, "aim": AIMS[name, target]}
    row |= {"median": statistics.median(costs), "least": min(costs), "most": max(costs)}
    row |= {"plan": found.plan.sample_gradients, "ended": int((found.trace.stopped_at > 0).sum())}
    row |= {"bound": statistics.median(bounds), "true": statistics.median(true)}
    return row | {"violations": sum(t > b for t, b in zip(true, bounds, strict=True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "stopping.json")
    given = parser.parse_args()
    one_core_in_double()
    report: dict[str, Any] = {"machine": describe(), "confidence": CONFIDENCE, "rows": []}
    for name, target in AIMS:
        row = race(name, target, given.seeds)
        report["rows"].append(row)
        print(f"{name} to {target}: median {row['median']:,.0f} sample gradients ({row['least']:,.0f} to", end=" ")
        print(f"{row['most']:,.0f}), aim {row['aim']:,}, plan {row['plan']:,}", flush=True)
    publish(given.out, report, "evidence.md", "stopping", stopping_table(report))


if __name__ == "__main__":
    main()
