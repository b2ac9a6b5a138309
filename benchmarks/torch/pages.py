"""Tables of the torch benchmarks, and their page.

python -m benchmarks.torch.pages        puts every report of results/torch-*.json into docs/pytorch.md
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.pages import RESULTS, fill

PAGE = "pytorch.md"
RACERS = {
    "AdamW": "AdamW",
    "Muon": "Muon + AdamW",
    "MARS": "MARS-AdamW",
    "spectral-0": "`spectral_storm`, correction 0, fast",
    "spectral-0-lean": "`spectral_storm`, correction 0, lean",
    "spectral-1": "`spectral_storm`, correction 1",
    "euclidean-0": "`NormalizedStorm`, correction 0",
    "euclidean-1": "`NormalizedStorm`, correction 1",
}
Report = dict[str, Any]


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def memory_table(report: Report) -> str:
    """Bytes per parameter without and with autocast, and how much larger a model may be than AdamW's."""
    found: dict[str, dict[bool, Report]] = {}
    for row in report["rows"]:
        found.setdefault(row["name"], {})[row["autocast"]] = row
    rows = []
    for name, own in found.items():
        peaks = [f"{own[autocast]['peak_bytes_per_parameter']:.2f}" for autocast in (False, True)]
        largest = report["largest"].get(name)
        fits = f"{largest['parameters'] / 1e9:.2f} billion, {largest['over_adamw']:.2f}x" if largest else "-"
        rows.append([name, *peaks, fits])
    rest = max(row["rest_bytes_per_parameter"] - 2 * row["autocast"] for row in report["rows"])
    heads = ["", "bytes per parameter", "with bfloat16 autocast", f"largest model in {report['cap_gigabytes']:g} GB"]
    count = report["rows"][0]["parameters"] / 1e9
    words = (
        f"{report['machine']['device']}, {count:.2f} billion parameters. Activations and one gradient tensor are part "
        f"of the figures: at most {rest:.2f} bytes per parameter; autocast's copy of the weights takes 2."
    )
    return f"{table(heads, rows)}\n\n{words}"


def update_table(report: Report) -> str:
    rows = []
    for row in report["rows"]:
        floor = ["-", "-"] if row["floor_ms"] is None else [f"{row['floor_ms']:.2f}", f"{row['over_floor']:.2f}x"]
        rows.append([row["name"], f"{row['ms']['median']:.2f}", *floor])
    speed = report["copy_bytes_per_second"] / 1e12
    words = f"{report['machine']['device']}; a copy moves {speed:.2f} TB/s; medians of {report['repeats']}."
    return f"{table(['update', 'ms', 'floor, ms', 'over the floor'], rows)}\n\n{words}"


def step_table(report: Report) -> str:
    rows = []
    for row in report["rows"]:
        peak = f"{row['peak_bytes'] / 1e9:.1f}" if "peak_bytes" in row else "-"
        rows.append([row["name"], f"{row['ms']['median']:.1f}", f"{row['over_adamw']:.3f}x", peak])
    count = report["rows"][0]["parameters"] / 1e6
    compiled = "compiled blocks" if report["compiled"] else "not compiled"
    words = (
        f"{report['machine']['device']}; {count:.0f} million parameters, {report['batch']} x 1024 tokens, {compiled}."
    )
    return f"{table(['', 'ms a step', 'over AdamW', 'peak, GB'], rows)}\n\n{words}"


def race_table(report: Report) -> str:
    """The best learning rate of everyone, ordered by the mean loss over the seeds."""
    rows = []
    for name, shown in RACERS.items():
        runs = [run for run in report["runs"] if run["name"] == name and run["loss"] is not None]
        if not runs:
            continue
        rate = min((run for run in runs if run["seed"] == 0), key=lambda run: run["loss"])["rate"]
        own = sorted((run for run in runs if run["rate"] == rate), key=lambda run: run["seed"])
        losses, first = [run["loss"] for run in own], own[0]
        peak = f"{first['peak_bytes'] / 1e9:.2f}" if "peak_bytes" in first else "-"
        cells = [shown, " / ".join(f"{loss:.4f}" for loss in losses), f"{rate:g}", str(first["passes"])]
        cells += [f"{first['tokens'] / 1e6:.1f}", f"{first['state_bytes_per_parameter']:.2f}", peak]
        rows.append((statistics.fmean(losses), cells))
    heads = [
        "",
        "validation loss",
        "learning rate",
        "passes",
        "million tokens",
        "state, bytes per parameter",
        "peak, GB",
    ]
    words = (
        f"{report['machine'].get('device', 'CPU')}; {report['parameters'] / 1e6:.1f} million parameters, "
        f"{report['seconds']:g} seconds of training each, {report['batch']} x {report['context']} bytes a step."
    )
    return f"{table(heads, [cells for _, cells in sorted(rows)])}\n\n{words}"


def tasks_table(report: Report) -> str:
    """Each measure of each task in a column, at the setting that was tuned for it."""
    columns = [(task, measure) for task in report["tasks"] for measure in ("mean_gradient_norm", "objective")]
    cells: dict[str, list[str]] = {}
    for task, measure in columns:
        for row in report["tasks"][task]:
            if row["tuned_for"] == measure:
                seen = row[measure]
                shown = f"{seen['median']:.3g} [{seen['low']:.3g}, {seen['high']:.3g}]"
                cells.setdefault(row["method"], []).append(shown)
    words = {"mean_gradient_norm": "mean gradient norm", "objective": "objective at the end"}
    heads = ["", *(f"{task}: {words[measure]}" for task, measure in columns)]
    note = (
        f"{report['budget']:,} sample gradients, K = {report['K']}; {report['rates']} learning rates times "
        f"{len(report['momenta'])} momenta for each method; {report['seeds']} seeds."
    )
    return f"{table(heads, [[name, *own] for name, own in cells.items()])}\n\n{note}"


def presets_table(report: Report) -> str:
    """The best learning rate of everyone on each kind of network, and how far its least moved tensor went."""
    tasks, methods = (list(dict.fromkeys(row[name] for row in report["rows"])) for name in ("task", "method"))
    rows = []
    for method in methods:
        cells = [f"`{method}`" if "_" in method else method]
        for task in tasks:
            own = [row for row in report["rows"] if (row["task"], row["method"]) == (task, method)]
            best = min(own, key=lambda row: statistics.fmean(row["losses"]))
            losses = " / ".join(f"{loss:.3f}" for loss in best["losses"])
            cells.append(f"{losses} at {best['lr']:g}; {best['moved']:.2g}")
        rows.append(cells)
    words = f"{report['steps']} steps with {report['batch']} samples; two seeds; torch {report['torch']} on a CPU."
    return f"{table(['', *tasks], rows)}\n\n{words}"


TABLES: dict[str, Callable[[Report], str]] = {
    "torch-memory": memory_table,
    "torch-update": update_table,
    "torch-step": step_table,
    "torch-race": race_table,
    "torch-tasks": tasks_table,
    "torch-presets": presets_table,
}
MISSING = "Not measured yet."


def shown(name: str) -> str:
    """What the page has to show: the table of the committed report, or that there is none."""
    file = RESULTS / f"{name}.json"
    return TABLES[name](json.loads(file.read_text(encoding="utf-8"))) if file.exists() else MISSING


def main() -> None:
    for name in TABLES:
        fill(PAGE, name, shown(name))
        print(name, "missing" if shown(name) == MISSING else "shown")


if __name__ == "__main__":
    main()
