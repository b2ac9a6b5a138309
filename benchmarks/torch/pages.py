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
    "spectral": "`spectral_storm`",
    "spectral-lean": "`spectral_storm`, lean",
    "neurons": "`spectral_storm`, neurons",
    "neurons-lean": "`spectral_storm`, neurons, lean",
    "stale": "`spectral_storm`, stale difference, correction 0.05",
    "exact": "`spectral_storm`, exact difference, correction 1",
    "exact-usual": "`spectral_storm`, exact difference, momentum of correction 0",
    "euclidean": "`NormalizedStorm`, correction 0",
    "euclidean-exact": "`NormalizedStorm`, correction 1",
    "euclidean-exact-usual": "`NormalizedStorm`, correction 1, momentum of correction 0",
    "muon": "Muon, batched, split",
    "normuon": "NorMuon, batched, split",
    "mars": "MARS-M style, batched, split",
    "adamw": "AdamW",
    "schedule-free": "schedule-free AdamW",
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


def slashed(losses: list[float]) -> str:
    return " / ".join(f"{loss:.4f}" for loss in losses) or "-"


def race_table(report: Report) -> str:
    """Equal tokens and, where it was run, equal time; ordered by the mean loss at equal tokens."""
    timed = any(run["by"] == "seconds" for run in report["runs"])
    rows = [row for name in RACERS if (row := race_row(report, name, timed)) is not None]
    heads = ["", "equal tokens", "rate, ratio", "rate / 2, x 2"]
    heads += (["equal time", "million tokens"] if timed else []) + [
        "ms a step",
        "state, bytes per parameter",
        "peak, GB",
    ]
    seconds = f", or {report['seconds']:g} seconds" if timed else ""
    words = (
        f"{report['machine']['device']}; {report['parameters'] / 1e6:.1f} million parameters, "
        f"{report['batch']} x {report['context']} bytes a step, {report['steps']} steps{seconds}; the rate rises over "
        f"the first {report['warm']:.0%}, "
        f"embeddings begin with deviation {report['embedding']:g}."
    )
    before = [earlier(i, runs) for i, runs in enumerate(report.get("earlier_by_seconds", []))]
    return "\n\n".join([table(heads, [cells for _, cells in sorted(rows)]), words, *before])


def race_memory_table(report: Report) -> str:
    """The entrants of the race, least first at the larger size."""
    sizes = list(dict.fromkeys(row["size"] for row in report["rows"]))
    found = {(row["name"], row["size"]): row["peak_bytes_per_parameter"] for row in report["rows"]}
    names = sorted({row["name"] for row in report["rows"]}, key=lambda name: found[name, sizes[-1]])
    rows = [[RACERS[name], *(f"{found[name, size]:.2f}" for size in sizes)] for name in names]
    words = f"{report['machine']['device']}; bytes per parameter, one window of {report['window']} bytes a step."
    return f"{table(['', *(f'{size} million' for size in sizes)], rows)}\n\n{words}"


def start_table(report: Report) -> str:
    """What a run owes to its start."""
    heads = ["", "rate, ratio", "rate rises over", "embeddings begin with", "matrices clipped at", "loss"]
    rows = []
    for row in report["rows"]:
        clip = f"{row['clip']:.0%} a step" if row["clip"] else "-"
        cells = [RACERS[row["name"]], f"{row['rate']:g}, {row['ratio']:g}", f"{row['warm']:.0%}"]
        rows.append([*cells, f"{row['embedding']:g}", clip, f"{row['loss']:.4f}"])
    return f"{table(heads, rows)}\n\n{report['machine']['device']}; {report['steps']} steps, seed 0."


def compiled_table(report: Report) -> str:
    rows = []
    for row in report["rows"]:
        times = [f"{row[kind]['median']:.2f}" for kind in ("eager_ms", "compiled_ms")]
        rows.append([row["name"], *times, f"{row['ratio']:.2f}x", str(row["graphs"])])
    where = report["machine"].get("device", "a CPU core")
    words = f"{where}; {report['rows'][0]['parameters'] / 1e6:.1f} million parameters, medians of {report['repeats']}."
    return f"{table(['`step()`', 'plain, ms', 'compiled, ms', 'ratio', 'graphs'], rows)}\n\n{words}"


def earlier(number: int, runs: list[Report]) -> str:
    """Another attempt at equal time, before that of the table."""
    names = [name for name in RACERS if any(run["name"] == name for run in runs)]
    shown = [f"{RACERS[name]} {slashed([run['loss'] for run in runs if run['name'] == name])}" for name in names]
    return f"Equal time in a {('first', 'second', 'third', 'fourth', 'fifth')[number]} attempt: {'; '.join(shown)}."


def race_row(report: Report, name: str, timed: bool) -> tuple[float, list[str]] | None:
    known = [run for run in report["runs"] if run["name"] == name and run["loss"] is not None]
    by = {
        kind: sorted((r for r in known if r["by"] == kind), key=lambda r: r["seed"]) for kind in ("tokens", "seconds")
    }
    if not known:
        return None
    first = [run for run in by["tokens"] if run["seed"] == 0]
    best = min(first, key=lambda run: run["loss"]) if first else by["seconds"][0]
    chosen = [r["loss"] for r in by["tokens"] if (r["rate"], r["ratio"]) == (best["rate"], best["ratio"])]
    cells = [RACERS[name], slashed(chosen), f"{best['rate']:g}, {best['ratio']:g}", beside(first)]
    if timed:
        tokens = [run["tokens"] / 1e6 for run in by["seconds"]]
        cells += [slashed([run["loss"] for run in by["seconds"]]), " / ".join(f"{n:.1f}" for n in tokens) or "-"]
    alone = by["seconds"] or [best]
    own = report.get("pace", {}).get(name)
    paces = [statistics.median(own)] if own else [run["trained_seconds"] / run["steps"] for run in alone]
    cells += [" / ".join(f"{pace * 1e3:.1f}" for pace in paces)]
    cells += [f"{alone[0]['state_bytes_per_parameter']:.2f}", f"{alone[0]['peak_bytes'] / 1e9:.2f}"]
    fast = [run["loss"] for run in report["runs"] if alike(run, name.removesuffix("-lean"), best)]
    return (statistics.fmean(chosen or fast or [best["loss"]]), cells)


def alike(run: Report, name: str, best: Report) -> bool:
    """By tokens, at the same setting: where a lean row belongs, as lean memory takes the same steps."""
    return (run["name"], run["by"], run["rate"], run["ratio"]) == (name, "tokens", best["rate"], best["ratio"])


def beside(runs: list[Report]) -> str:
    """Losses at half and twice the best rate, at the ratio with which the rates were tried, less the loss there."""
    if not runs:
        return "-"
    ratio = runs[0]["ratio"]
    losses = {run["rate"]: run["loss"] for run in runs if run["ratio"] == ratio}
    best = min(losses, key=lambda rate: losses[rate])
    found = [losses.get(rate) for rate in (best / 2, best * 2)]
    return ", ".join("-" if loss is None else f"{loss - losses[best]:+.4f}" for loss in found)


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


def kalman_table(report: Report) -> str:
    """Losses at the end; AdamW with about torch's default rate, and with the best rate of each task."""
    tasks = list(dict.fromkeys(row["task"] for row in report["rows"]))
    names = [name for name in dict.fromkeys(row["name"] for row in report["rows"]) if name != "AdamW"]

    def losses(row: Report) -> str:
        return " / ".join(f"{run['loss']:.{4 if run['loss'] > 1 else 3}g}" for run in row["runs"])

    rows = []
    for name in names:
        own = [row for row in report["rows"] if row["name"] == name]
        shown = name.replace("KalmanStorm", "`KalmanStorm`")
        rows.append([shown, *map(losses, own)])
    adam = {task: [r for r in report["rows"] if (r["task"], r["name"]) == (task, "AdamW")] for task in tasks}
    usual = sorted(report["rates"])[1]
    rows.append([f"AdamW, {usual:.2g}", *(losses(next(r for r in own if r["lr"] == usual)) for own in adam.values())])
    best = [min(own, key=lambda r: statistics.fmean(run["loss"] for run in r["runs"])) for own in adam.values()]
    rows.append(["AdamW, best rate", *(f"{losses(row)} at {row['lr']:.2g}" for row in best)])
    rates = ", ".join(f"{rate:.2g}" for rate in report["rates"])
    words = (
        f"{report['gradients']:,} gradients of {report['batch']} samples; AdamW's rates are {rates}; "
        f"torch {report['machine']['torch']} on {report['machine'].get('device', 'a CPU')}"
    )
    words += f", Prodigy and AdamW with torch {report['others']['torch']}." if "others" in report else "."
    return f"{table(['', *tasks], rows)}\n\n{words}"


TABLES: dict[str, Callable[[Report], str]] = {
    "torch-memory": memory_table,
    "torch-update": update_table,
    "torch-step": step_table,
    "torch-compiled": compiled_table,
    "torch-race-25": race_table,
    "torch-race-memory": race_memory_table,
    "torch-start": start_table,
    "torch-race-120": race_table,
    "torch-race-120-long": race_table,
    "torch-correction": race_table,
    "torch-tasks": tasks_table,
    "torch-tasks-fixed": tasks_table,
    "torch-presets": presets_table,
    "torch-kalman": kalman_table,
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
