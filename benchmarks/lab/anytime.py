"""How much one schedule for all horizons costs, and attempts to violate its certificate.

    python -m benchmarks.lab.anytime [--only ratios|attack] [--settings 210] [--runs 2000]

ratios  for several constants the plan for 10^7 steps with one sample a step, and the one for as many sample gradients
        with batches of its choice: its bound at 10^3, 10^5 and 10^7 steps (or at their cost) over the best plan of the
        planner for that horizon (that cost) alone, at confidence 0.99; and blocks against the exact sum at 10^6 steps.
attack  random settings of `anytime_attack`, checked at every t: violations of the theorem, and the largest frequency
        with which the event of its proof fails, over delta.

Writes results/anytime.json and puts both into docs/theory/any-schedule.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import time
from typing import Any

import numpy as np

from benchmarks.lab.anytime_attack import attack, setting
from benchmarks.machine import describe
from benchmarks.pages import RESULTS, anytime_table, attack_line, fill
from normstorm.theory import AnytimePlan, Constants, plan
from normstorm.theory.schedules.blocks import Cells

CONSTANTS = ((1, 0, 1, 0, 1, 1), (1, 1, 1, 0.5, 1, 1), (10, 2, 0.1, 0.1, 5, 10))
TIMES = (10**3, 10**5, 10**7)
PAGE, FILE = "theory/any-schedule.md", RESULTS / "anytime.json"


def ratios() -> list[dict[str, Any]]:
    """One row a set of constants and question."""
    rows = []
    for values in CONSTANTS:
        known = Constants(*values)
        for question in ("horizon", "budget"):
            start = time.process_time()
            longest = TIMES[-1] if question == "horizon" else 2 * TIMES[-1] - 1
            found = plan(known, anytime=True, **{question: longest})
            seconds = time.process_time() - start
            times = [t if question == "horizon" else steps(2 * t - 1, found) for t in TIMES]
            asked = [{question: t if question == "horizon" else 2 * t - 1} for t in TIMES]
            alone = [plan(known, **one).bound for one in asked]
            bounds = [found.bound_at(t) for t in times]
            row = {"constants": values, "question": question, "K": found.batch, "k": found.sub_batch}
            row |= {"eta": found.eta, "alpha": found.alpha, "shift": found.shift, "lam": found.free, "times": times}
            row |= {"bounds": bounds, "alone": alone, "seconds": round(seconds, 2)}
            row |= {"ratios": [b / a for b, a in zip(bounds, alone, strict=True)], "blocks": blocks(found, 10**6)}
            rows.append(row)
            print(values, question, [round(r, 3) for r in row["ratios"]], f"blocks {row['blocks']:.1e}", flush=True)
    return rows


def steps(cost: int, found: AnytimePlan) -> int:
    return 1 + (cost - found.batch) // (found.batch + found.sub_batch)


def blocks(found: AnytimePlan, t: int) -> float:
    """By how much the bound with blocks is above the one that is summed step by step, relatively."""
    scaled, schedule, slope = found._natural()
    one = np.arange(1.0, t + 1)
    exact = schedule.evaluate(scaled, 1 - found.confidence, Cells(one, one, t)).value[-1] * slope
    return found.bound_at(t) / float(exact) - 1


def attacks(settings: int, runs: int) -> dict[str, Any]:
    """All settings; the frequency of the event is over those with one sample a step, where it is known exactly."""
    violations, least, largest, events = 0, math.inf, 0.0, 0
    for seed in range(settings):
        chosen = setting(seed)
        found = attack(chosen, runs)
        violations += found.violations
        least = min(least, found.least)
        if found.events is not None:
            events += 1
            share = chosen.delta / len(chosen.lam)
            largest = max(largest, max(found.events) / runs / share)
        if found.violations:
            print(seed, chosen, found, flush=True)
    summary = {"settings": settings, "runs": runs, "delta": 0.1, "violations": violations, "least": least}
    return summary | {"event_settings": events, "largest_event_over_delta": largest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["ratios", "attack"])
    parser.add_argument("--settings", type=int, default=210)
    parser.add_argument("--runs", type=int, default=2000)
    given = parser.parse_args()
    report = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    report |= {"date": datetime.date.today().isoformat(), "machine": describe()}
    if given.only != "attack":
        report["ratios"] = ratios()
        print("largest ratio:", max(max(row["ratios"]) for row in report["ratios"]))
    if given.only != "ratios":
        report["attack"] = attacks(given.settings, given.runs)
        print(attack_line(report))
    FILE.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if "ratios" in report and "attack" in report:
        fill(PAGE, "anytime", anytime_table(report))
        fill(PAGE, "attack", attack_line(report))


if __name__ == "__main__":
    main()
