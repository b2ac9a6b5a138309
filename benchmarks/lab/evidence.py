"""The evidence behind two claims: bounds that hold and are not far off, and rates that are really seen.

    python -m benchmarks.lab.evidence [--only coverage|slopes] [--problems a,b] [--budget N] [--seeds n] [--threads n]

Prints both tables, writes results/coverage.json and results/slopes.json with the date and the kind of machine, and
puts the tables into docs/evidence.md between their markers. The default scale takes some ten minutes on two
cores; --budget and --seeds change the scale of the coverage study. With --problems only these rows of the coverage
study are measured again, after a change of their constants; the others stay as they are in results/coverage.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax

from benchmarks.machine import describe
from benchmarks.pages import RESULTS, fill
from normstorm.lab.studies import coverage, slopes
from normstorm.problems import registry


def study(name: str, scale: dict[str, Any], rows: Iterator[dict[str, Any]], show: Callable[[Any], str]) -> None:
    """Every row carries its own date; a row that was there before and is not measured now is kept."""
    file, today = RESULTS / f"{name}.json", datetime.date.today().isoformat()
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    seen = {identity(row): row for row in known.get("rows", ()) if known["scale"] == scale}
    for row in rows:
        seen[identity(row)] = {**row, "date": today}
        print(show([row]).splitlines()[2], flush=True)
    machine = {**describe(), "jax": jax.__version__}
    report = {"date": today, "machine": machine, "scale": scale, "rows": list(seen.values())}
    file.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    fill("evidence.md", name, show(report["rows"]))
    print(show(report["rows"]))


def identity(row: dict[str, Any]) -> tuple[str, str]:
    return row.get("law", ""), row["problem"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["coverage", "slopes"])
    parser.add_argument("--problems", type=lambda text: text.split(","), default=list(registry.PROBLEMS))
    parser.add_argument("--budget", type=int, default=coverage.BUDGET)
    parser.add_argument("--seeds", type=int, default=coverage.SEEDS)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    if given.only != "slopes":
        scale = {"budget": given.budget, "confidence": coverage.CONFIDENCE, "seeds": given.seeds}
        study("coverage", scale, coverage.table(given.problems, **scale, threads=given.threads), coverage.markdown)
    if given.only != "coverage":
        rows = slopes.table(threads=given.threads)
        study("slopes", {"horizons": list(slopes.HORIZONS), "seeds": slopes.SEEDS}, rows, slopes.markdown)


if __name__ == "__main__":
    main()
