"""What the limit of loops that are one program gives: CPU time of a step of one seed with XLA's limit and with ours.

    python -m benchmarks.engine.loops [--steps 30000] [--turns 3] [--out benchmarks/results/engine-loops.json]

Normalized STORM with K = k = 1 and kalman_storm on every problem of the registry, on one core. XLA reads the limit
once, so each has a process of its own; they take turns, and the least time of a step counts. `first` is the first call
of 200 steps, compilation and all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.pages import RESULTS, engine_loops_table, publish
from normstorm._shared.xla_flags import OPTION, OURS, USUAL

LIMITS = {"usual": USUAL, "ours": OURS}


def measure(steps: int) -> dict[str, dict[str, float]]:
    """Microseconds of a step and seconds of the first call, of every problem and method."""
    from benchmarks.machine import one_core_in_double
    from normstorm.algorithms import CATALOGUE
    from normstorm.engine import run
    from normstorm.problems import registry

    one_core_in_double()
    methods = {
        "normalized_storm": CATALOGUE["normalized_storm"](alpha=0.1, eta=1e-3, K=1),
        "kalman_storm": CATALOGUE["kalman_storm"](),
    }

    def spent(problem: Any, algorithm: Any, steps: int) -> float:
        start = time.process_time()
        run(problem, algorithm, problem.start(), steps, 1, threads=1)
        return time.process_time() - start

    found: dict[str, dict[str, float]] = {}
    for name in registry.PROBLEMS:
        problem = registry.get(name)
        for method, algorithm in methods.items():
            first = spent(problem, algorithm, 200)
            short, long = (min(spent(problem, algorithm, n) for _ in range(3)) for n in (200, 200 + steps))
            found[f"{name} {method}"] = {"step": 1e6 * (long - short) / steps, "first": first}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "engine-loops.json")
    parser.add_argument("--one", action="store_true", help="of the limit in force alone, as JSON")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.steps)))
        return
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for _ in range(given.turns):
        for which, limit in LIMITS.items():
            flags = os.environ | {"XLA_FLAGS": f"--xla_backend_extra_options={OPTION}={limit}"}
            command = [sys.executable, "-m", "benchmarks.engine.loops", "--one", "--steps", str(given.steps)]
            done = subprocess.run(command, env=flags, capture_output=True, text=True, check=True)
            for case, seen in json.loads(done.stdout).items():
                best = rows.setdefault(case, {}).setdefault(which, seen)
                rows[case][which] = {key: min(value, best[key]) for key, value in seen.items()}
    for case, row in rows.items():
        print(f"{case:40s} " + ", ".join(f"{which} {seen['step']:.3f} us" for which, seen in row.items()))
    for key in ("step", "first"):
        ratios = [row["usual"][key] / row["ours"][key] for row in rows.values()]
        print(f"{key}: usual / ours {min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}")
    report = {"machine": describe(), "limits": LIMITS, "rows": rows}
    publish(given.out, report, "how-the-engine-runs.md", "engine-loops", engine_loops_table(report))


if __name__ == "__main__":
    main()
