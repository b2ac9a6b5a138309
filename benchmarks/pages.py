"""Tables of measured figures, and the documentation pages that show them between markers."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def fill(page: str, name: str, table: str) -> None:
    """Put this table between the markers of this name."""
    file = DOCS / page
    text = file.read_text(encoding="utf-8")
    before, after = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    start = text.index(before) + len(before)
    file.write_text(f"{text[:start]}\n{table}\n\n{text[text.index(after) :]}", encoding="utf-8")


def publish(out: Path, report: dict[str, Any], page: str, name: str, table: str) -> None:
    """Write a report with its date, and its table into a page."""
    dated = {"date": datetime.date.today().isoformat(), **report}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(dated, indent=2) + "\n", encoding="utf-8")
    fill(page, name, table)
    print(f"written: {out}")


def engine_table(report: dict[str, Any]) -> str:
    """Seed-steps per CPU second of the engine, and its ratio to the others."""
    others = ("numpy", "numba", "optax", "floor")
    lines = [f"| case | engine | over {' | over '.join(others)} |", "|---" * (2 + len(others)) + "|"]
    for row in report["rows"]:
        ratios = [row["engine_over"].get(name) for name in others]
        cells = ["-" if r is None else f"{r:.3g}" for r in ratios]
        lines.append(f"| {row['case']} | {row['per_cpu_second']['engine']:.3g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gpu_table(report: dict[str, Any]) -> str:
    """Seed-steps per second on chip, in the ordinary loop, and as first written."""
    lines = ["| seeds | on chip | ordinary loop | first thought in JAX |", "|---" * 4 + "|"]
    for row in report["speed"]:
        rates = row["seed_steps_per_second"]
        cells = " | ".join(f"{rates[name]:.3g}" for name in ("chip", "plain", "first thought"))
        lines.append(f"| {row['seeds']:,} | {cells} |")
    return "\n".join(lines)
