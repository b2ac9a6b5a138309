"""Tables of measured figures, and the documentation pages that show them between markers."""

from __future__ import annotations

import datetime
import json
import math
import statistics
import textwrap
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = Path(__file__).parent / "results"
LONG = 100  # rows of a table whose columns are named once
SUMS = ("saga", "svrg", "sarah", "beta_gd")  # methods that need a finite sum
ASTRAY = "↗ "  # before figures of a setting that ends above F(x_1)


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
    out.write_text(stored(dated), encoding="utf-8")
    fill(page, name, table)
    print(f"written: {out}")


def stored(report: dict[str, Any]) -> str:
    """The text of a report's file. Of a long table the columns are named once, and every row has a line."""
    parts = []
    for name, value in report.items():
        text = json.dumps(value, indent=2).replace("\n", "\n  ")
        if (
            isinstance(value, list)
            and len(value) >= LONG
            and all(isinstance(row, dict) and row.keys() == value[0].keys() for row in value)
        ):
            lines = ",\n      ".join(json.dumps(list(row.values())) for row in value)
            text = f'{{\n    "columns": {json.dumps(list(value[0]))},\n    "rows": [\n      {lines}\n    ]\n  }}'
        parts.append(f"  {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _is_table(rows: list[Any]) -> bool:
    return all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows)


def loaded(file: Path) -> dict[str, Any]:
    """A report as it was before it was stored."""
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    for name, value in report.items():
        if isinstance(value, dict) and value.keys() == {"columns", "rows"}:
            report[name] = [dict(zip(value["columns"], row, strict=True)) for row in value["rows"]]
    return report


def engine_table(report: dict[str, Any]) -> str:
    """Seed-steps per CPU second of the engine, its ratio to the others, and the milliseconds of a short run."""
    others = ("numpy", "numba", "optax")
    head = f"| case | engine | over {' | over '.join(others)} | ms of a run of 100 steps |"
    lines = [head, "|---" * (3 + len(others)) + "|"]
    for row in report["rows"]:
        ratios = [row["engine_over"].get(name) for name in others]
        cells = ["-" if r is None else f"{r:.3g}" for r in ratios]
        engine = f"{row['per_cpu_second']['engine']:.3g}"
        lines.append(f"| {row['case']} | {engine} | {' | '.join(cells)} | {row['short_run_ms']:.1f} |")
    return "\n".join(lines)


def engine_registry_table(report: dict[str, Any]) -> str:
    """Engine / plain loop in seed-steps per CPU second, problem by problem, and of the first call."""
    columns = [(batches, seeds) for batches in ("K = k = 1", "plan") for seeds in (1, 32, 1024)]
    head = " | ".join(f"{batches}, {seeds:,} seed{'s' if seeds > 1 else ''}" for batches, seeds in columns)
    lines = [f"| problem | {head} | first call, at most |", "|---" * (2 + len(columns)) + "|"]
    for name in dict.fromkeys(row["problem"] for row in report["rows"]):
        rows = {(row["batches"], row["seeds"]): row for row in report["rows"] if row["problem"] == name}
        cells = " | ".join(f"{rows[column]['ratio']:.2f}" for column in columns)
        lines.append(f"| {name} | {cells} | {max(row['first_call'] for row in rows.values()):.2f} |")
    for words, ratio in (("median", "ratio"), ("median, usual records", "usual"), ("median, the mean alone", "bare")):
        found = [[r[ratio] for r in report["rows"] if (r["batches"], r["seeds"]) == column] for column in columns]
        lines.append(f"| {words} | {' | '.join(f'{statistics.median(cells):.2f}' for cells in found)} | |")
    return "\n".join(lines)


def engine_loops_table(report: dict[str, Any]) -> str:
    """Microseconds of a step of one seed with XLA's limit and with ours, and both first calls in seconds."""
    methods = list(dict.fromkeys(case.split()[1] for case in report["rows"]))
    head = " | ".join(f"{method}, limit {limit:,}" for method in methods for limit in report["limits"].values())
    lines = [f"| problem | {head} |", "|---" * (1 + 2 * len(methods)) + "|"]
    for name in dict.fromkeys(case.split()[0] for case in report["rows"]):
        rows = [report["rows"][f"{name} {method}"][which] for method in methods for which in report["limits"]]
        cells = " | ".join(f"{row['step']:.2f}" for row in rows)
        lines.append(f"| {name} | {cells} |")
    words = []
    for key in ("step", "first"):
        ratios = [row["usual"][key] / row["ours"][key] for row in report["rows"].values()]
        words.append((min(ratios), max(ratios), statistics.median(ratios)))
    (low, high, mid), (first_low, first_high, first_mid) = words
    return "\n".join(lines) + (
        f"\n\nMicroseconds of a step. XLA's limit takes {low:.2f} to {high:.2f} times as long, {mid:.2f} in the median,"
        f" and a first call {first_low:.2f} to {first_high:.2f} times, {first_mid:.2f} in the median."
    )


def gpu_table(report: dict[str, Any]) -> str:
    """Seed-steps per second on chip, in the ordinary loop, and as first written."""
    lines = ["| seeds | on chip | ordinary loop | first thought in JAX |", "|---" * 4 + "|"]
    for row in report["speed"]:
        rates = row["seed_steps_per_second"]
        cells = " | ".join(f"{rates[name]:.3g}" for name in ("chip", "plain", "first thought"))
        lines.append(f"| {row['seeds']:,} | {cells} |")
    return "\n".join(lines)


def choice_table(report: dict[str, Any]) -> str:
    """Sample gradients to a target on every problem, tuned alike; the sharp plan of Normalized STORM too.

    The target is the smallest that half of the algorithms that can run there reach. Rows are ordered by the mean of
    their ranks over the problems where they can run; a row that ends above F(x_1) is marked and has the last ranks.
    """
    chosen = {p["problem"]: _common_target(report, p) for p in report["problems"]}
    budget, cells, values = report["spec"]["budget"], {}, {}
    for row in report["targets"]:
        tuned, plan = row["tuned_for_it"], row["setting"] == "sharp plan, probability 0.95"
        if row["target"] != chosen[row["problem"]] or not (tuned or plan):
            continue
        name = f"{row['algorithm']} (sharp plan)" if plan else row["algorithm"]
        astray = row.get("runaway", False)
        cells[name, row["problem"]] = ASTRAY * astray + _samples(row, budget)
        values[name, row["problem"]] = (astray, row["median"] is None, row["median"] or 1 - row["reached"])
    heads = [f"{problem}, {target:g}" for problem, target in chosen.items()]
    lines = [f"| algorithm | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    lines += [f"| {name} | {' | '.join(cells.get((name, p), '-') for p in chosen)} |" for name in _by_rank(values)]
    return "\n".join(lines)


def finals_table(report: dict[str, Any]) -> str:
    """Medians of the average gradient norm at the budget: tuned / default; the sharp plan of Normalized STORM too."""
    return _medians_table(report, "final_median", "the budget")


def taken_home_table(report: dict[str, Any]) -> str:
    """Medians of the gradient norm at the last point, and F there: tuned for it / default."""
    return _medians_table(report, "last_gradient_median", "the last point", "last_value_median")


def _medians_table(report: dict[str, Any], column: str, goal: str, beside: str | None = None) -> str:
    """A column of the rows that are tuned for a goal, and of the defaults; those that end above F(x_1) are marked."""
    problems = [p["problem"] for p in report["problems"]]
    tuned: dict[tuple[str, str], tuple[bool, float, str]] = {}
    defaults: dict[tuple[str, str], tuple[bool, float, str]] = {}
    for row in report["rows"]:
        if row["reason"] is not None:
            continue
        plan, astray = row["setting"] == "sharp plan, probability 0.95", row.get("runaway", False)
        value = math.inf if row[column] is None else row[column]
        said = "diverged" if row[column] is None else f"{ASTRAY * astray}{value:.3g}"
        if beside is not None and row[beside] is not None:
            said += f" ({row[beside]:.3g})"
        if row["kind"] == "default":
            defaults[row["algorithm"], row["problem"]] = astray, value, said
        elif plan or (row["kind"] == "tuned" and goal in row["setting"]):
            name = f"{row['algorithm']} (sharp plan)" if plan else row["algorithm"]
            tuned[name, row["problem"]] = astray, value, said

    def cell(place: tuple[str, str]) -> str:
        return " / ".join(values[place][-1] for values in (tuned, defaults) if place in values) or "-"

    lines = [f"| algorithm | {' | '.join(problems)} |", "|---" * (1 + len(problems)) + "|"]
    lines += [f"| {name} | {' | '.join(cell((name, p)) for p in problems)} |" for name in _by_rank(tuned)]
    return "\n".join(lines)


def refused_line(report: dict[str, Any]) -> str:
    """How many settings the searches tried, and how many ended above the start."""
    told = [f"{p['settings_refused']:,} of {p['settings_tried']:,} on {p['problem']}" for p in report["problems"]]
    rows = [r for r in report["rows"] if r["runaway"] and r["final_median"] is not None]
    kinds = [f"{sum(r['kind'] == kind for r in rows)} {kind}" for kind in ("default", "theorem", "tuned")]
    return (
        f"Settings that the searches refused because their median ends above $F(x_1)$: {', '.join(told)}. Rows that "
        f"are marked for it: {', '.join(kinds)}."
    )


def comparison_words(report: dict[str, Any]) -> str:
    """Who comes first, what Kalman-STORM reaches untuned, and what the correction gains with steps of one length."""
    tuned, default = (_averages(report, kind) for kind in ("tuned", "default"))
    first = [line.split(" | ")[0].removeprefix("| ") for line in choice_table(report).splitlines()[2:6]]
    others, best, own, plain, momentum = [], [], [], [], []
    for problem in tuned:
        mine = default[problem]["kalman_storm"]
        rivals = {name: value for name, value in default[problem].items() if name != "kalman_storm"}
        for told, found in ((others, rivals), (best, tuned[problem])):
            name = min(found, key=lambda name: found[name])
            told.append(f"{mine / found[name]:.2f} on {problem} (`{name}`)")
        own.append(mine / tuned[problem]["kalman_storm"])
        one = tuned[problem]["normalized_storm"]
        for told, name in ((plain, "sgd"), (momentum, "momentum_nsgd")):
            told.append(f"{one / tuned[problem][name]:.2f}")
    said = [
        f"By mean rank the first are {', '.join(f'`{name}`' for name in first)}.",
        f"The average of `kalman_storm` without any tuning, over that of the best other default that only samples: "
        f"{', '.join(others)}; over the best tuned one: {', '.join(best)}; "
        f"over its own tuned one: at most {max(own):.2f}.",
        "The average of Normalized STORM with steps of one length, which is what the theorem is about, tuned, over "
        f"that of tuned SGD: {', '.join(plain)}; of normalised SGD with momentum: {', '.join(momentum)}, "
        "in the order of the columns.",
    ]
    return textwrap.fill(" ".join(said), 118, break_on_hyphens=False)


def _averages(report: dict[str, Any], kind: str) -> dict[str, dict[str, float]]:
    """Of every problem and algorithm that only samples and does not end above F(x_1), at the budget."""
    found: dict[str, dict[str, float]] = {p["problem"]: {} for p in report["problems"]}
    for row in report["rows"]:
        wanted = row["kind"] == kind and (kind == "default" or "the budget" in row["setting"])
        if wanted and row["algorithm"] not in SUMS and row["final_median"] is not None and not row["runaway"]:
            found[row["problem"]][row["algorithm"]] = row["final_median"]
    return found


def comparison_time(report: dict[str, Any]) -> str:
    """What the tables of the comparison took."""
    spec, tried = report["spec"], sum(p["settings_tried"] for p in report["problems"])
    return textwrap.fill(
        f"The tables of the comparison: {len(report['problems'])} problems, {tried:,} settings tried with "
        f"{spec['tune_seeds']} seeds, {spec['seeds']} seeds of all that is shown, {spec['budget']:,} sample gradients "
        f"a run: {report['seconds']:.0f} seconds on {report['machine']['cores']} cores{_worked(report)}, compilation "
        "included.",
        118,
    )


def _worked(report: dict[str, Any]) -> str:
    """Processor time, which does not count what else the machine did."""
    return f" ({report['core_seconds']:.0f} seconds of processor time)" if "core_seconds" in report else ""


def _by_rank(values: dict[tuple[str, str], Any]) -> list[str]:
    """Names by the mean of their ranks over the problems where they have a value, equal ones by the alphabet."""
    ranks: dict[str, list[float]] = {}
    for problem in {p for _, p in values}:
        own = sorted(v for (_, p), v in values.items() if p == problem)
        for (name, p), value in values.items():
            if p == problem:
                ranks.setdefault(name, []).append(own.index(value) / len(own))
    return sorted(ranks, key=lambda name: (round(math.fsum(ranks[name]) / len(ranks[name]), 9), name))


def _common_target(report: dict[str, Any], problem: dict[str, Any]) -> float:
    def share(target: float) -> float:
        rows = [r for r in report["targets"] if (r["problem"], r["target"]) == (problem["problem"], target)]
        reached = [r["median"] is not None and not r.get("runaway") for r in rows if r["tuned_for_it"]]
        return sum(reached) / len(reached)

    found: float = min((t for t in problem["targets"] if share(t) >= 0.5), default=max(problem["targets"]))
    return found


def _samples(row: dict[str, Any], budget: int) -> str:
    if row["median"] is None:
        share = f", {row['reached']:.0%} of the runs" if row["reached"] else ""
        return f"> {_short(budget)}{share}"
    high = f"> {_short(budget)}" if row["high"] is None else _short(row["high"])
    return f"{_short(row['median'])} [{_short(row['low'])}, {high}]"


def _short(number: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def rates_table(report: dict[str, Any]) -> str:
    """The average gradient norm at every budget, and its slope over all decades and over the last one."""
    budgets = sorted({row["budget"] for row in report["rows"]})
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in report["rows"]:
        found.setdefault(row["algorithm"], {})[row["budget"]] = row
    heads = [f"{budget:,}" for budget in budgets]
    lines = [f"| tuned | {' | '.join(heads)} | slope | last decade |", "|---" * (3 + len(heads)) + "|"]
    for name in sorted(found, key=lambda name: found[name][budgets[-1]]["value"]):
        own = found[name]
        shown = [f"{own[b]['value']:.3g} [{own[b]['low']:.3g}, {own[b]['high']:.3g}]" for b in budgets]
        slopes = [_slope(own, budgets[first], budgets[-1]) for first in (0, -2)]
        lines.append(f"| {name} | {' | '.join(shown)} | {slopes[0]:.3f} | {slopes[1]:.3f} |")
    return "\n".join(lines)


def _slope(rows: dict[int, dict[str, Any]], first: int, last: int) -> float:
    return math.log(rows[last]["value"] / rows[first]["value"]) / math.log(last / first)


def speed_line(report: dict[str, Any]) -> str:
    """How long a comparison takes, in words."""
    spec = report["spec"]
    algorithms, problems = len(spec["algorithms"]), len(spec["problems"])
    return (
        f"{algorithms} algorithms on {problems} problems ({', '.join(spec['problems'])}), {spec['seeds']} seeds, "
        f"{spec['budget']:,} sample gradients each, default settings: {report['seconds']:.0f} seconds on "
        f"{report['machine']['cores']} cores, compilation included."
    )


def diagnosis_table(report: dict[str, Any]) -> str:
    """Verdicts beside what training did: who ended lower and by how much of momentum's loss."""
    head = (
        "task",
        "geometry",
        "lr",
        "error ratio",
        "bounce",
        "lead",
        "verdict (rule)",
        "seeds",
        "lower at the end",
        "agrees",
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in report["rows"]:
        found = row["diagnosis"]
        ratio = "-" if found["ratio"] is None else f"{found['ratio']:.2f}"
        doubt = f" ± {row['gap_error']:.1%}" if row["gap_error"] > 0 else ", one seed"
        end = f"{row['winner']} ({row['gap']:+.1%}{doubt})"
        lead = f"{found['lead']:.2g} ± {found['lead_error']:.1g}"
        agrees = "yes" if row["agrees"] else "**no**"
        same = f"{row['verdicts'].count(row['verdict'])} of {len(row['verdicts'])}"
        cells = (row["task"], row["geometry"], f"{row['lr']:g}", ratio, f"{found['bounce']:.2f}", lead)
        lines.append(f"| {' | '.join(cells)} | {row['verdict']} ({found['reason']}) | {same} | {end} | {agrees} |")
    rows = report["rows"]
    right, yes = (sum(row[name] == value for row in rows) for name, value in (("agrees", True), ("verdict", "pays")))
    asked = [verdict == row["verdict"] for row in rows for verdict in row["verdicts"]]
    same = f"{sum(asked)} of {len(asked)} answers with other seeds of the probe are those of the table"
    return "\n".join([*lines, "", f"{right} of {len(rows)} verdicts agree, answers that it pays: {yes}; {same}."])


def anytime_table(report: dict[str, Any]) -> str:
    """One schedule for all horizons over the best plan for each horizon alone."""
    head = (
        "constants",
        "K, k",
        "eta",
        "alpha",
        "shift",
        "bounds",
        "ratios",
        "blocks above the exact sum, at 10^6 steps",
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in report["ratios"]:
        known = ", ".join(f"{value:g}" for value in row["constants"])
        bounds, ratios = (", ".join(f"{v:.4g}" for v in row[name]) for name in ("bounds", "ratios"))
        numbers = " | ".join(f"{row[name]:.4g}" for name in ("eta", "alpha", "shift"))
        lines.append(f"| {known} | {row['K']}, {row['k']} | {numbers} | {bounds} | {ratios} | {row['blocks']:.1e} |")
    return "\n".join(lines)


def attack_line(report: dict[str, Any]) -> str:
    """What the attempts to violate the certificate found, in words."""
    found = report["attack"]
    return (
        f"{found['settings']} settings, {found['runs']:,} runs each, every t: {found['violations']} violations. The "
        f"least total over the left side is {found['least']:.4f}. The event of the proof failed at most "
        f"{found['largest_event_over_delta']:.3f} delta often ({found['event_settings']} settings with one sample a "
        "step, where its frequency is counted exactly)."
    )


def points_table(report: dict[str, Any]) -> str:
    """Samples until a target is certified, on a sphere and on problems; and false certificates."""
    lines = ["| noise on a sphere: d, target | median | least | most | method |", "|---" * 5 + "|"]
    for r in report["sphere"]:
        cells = f"{r['median']:.3f} | {r['least']:.3f} | {r['most']:.3f} | `{r['method']}`"
        lines.append(f"| {r['dimension']}, {r['target']} | {cells} |")
    lines += ["", "| problem, target | gradient norm | median | least | most | fixed, trace | fixed, top eigenvalue |"]
    lines.append("|---" * 7 + "|")
    for r in report["problems"]:
        cells = f"{r['norm']:.2g} | {r['median']:,.0f} | {r['least']:,.0f} | {r['most']:,.0f}"
        lines.append(f"| {r['problem']}, {r['target']} | {cells} | {r['fixed']['trace']:,} | {r['fixed']['top']:,} |")
    lines += ["", "| noise, true norm just above the target | method | false certificates | frequency / delta |"]
    lines.append("|---" * 4 + "|")
    for r in report["coverage"]:
        lines.append(f"| {r['noise']} | `{r['method']}` | {r['wrong']} of {r['runs']} | {r['over_delta']:.2f} |")
    return "\n".join(lines)


def stopping_table(report: dict[str, Any]) -> str:
    """Sample gradients until the certificate along the run reaches a target, beside the plan's for the same one."""
    head = ("problem, target", "median", "least", "most", "aim", "the plan's", "plan / median", "certified", "true")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for r in report["rows"]:
        costs = " | ".join(f"{r[name]:,.0f}" for name in ("median", "least", "most", "aim", "plan"))
        ended = "" if r["ended"] == r["seeds"] else f" ({r['ended']} of {r['seeds']} ended)"
        ratio = f"{r['plan'] / r['median']:.1f}"
        lines.append(
            f"| {r['problem']}, {r['target']}{ended} | {costs} | {ratio} | {r['bound']:.4g} | {r['true']:.4g} |"
        )
    return "\n".join(lines)


def _tuned(report: dict[str, Any], problem: str, budget: str, goal: str) -> dict[str, float]:
    """Of every rival that has a setting which descends; those of a finite sum are not among them."""
    rivals = report["rivals"].get(problem, {})
    found = {name: entry[budget][goal] for name, entry in rivals.items() if name != "saga" and budget in entry}
    return {name: value for name, value in found.items() if value is not None}


def _defaults(report: dict[str, Any], problem: str, budget: str) -> dict[str, float]:
    rivals = report["rivals"].get(problem, {})
    rows = {name: entry[budget]["default"] for name, entry in rivals.items() if name != "saga" and budget in entry}
    return {name: row["average"] for name, row in rows.items() if row["descends"]}


def selftuning_table(report: dict[str, Any], budget: str = "100000") -> str:
    """Kalman-STORM untuned beside the best tuned rival, for the average and for the last point."""
    lines = [
        "| problem | average | best tuned | ratio | best default, ratio | last point, ratio | error^2/V | alarms |"
    ]
    lines.append("|---" * 8 + "|")
    for problem in report["own"]:
        mine = report["own"][problem]["plain"][budget]
        tuned, last = (_tuned(report, problem, budget, goal) for goal in ("average", "last"))
        if not tuned:
            continue
        best = min(tuned, key=lambda name: tuned[name])
        usual = _defaults(report, problem, budget)
        shown = [f"{mine['average']:.3g}", f"{tuned[best]:.3g} {best}", f"{mine['average'] / tuned[best]:.2f}"]
        shown += [f"{mine['average'] / min(usual.values()):.2f}" if usual else "-"]
        shown += [f"{mine['last'] / min(last.values()):.2f}"]
        shown += ["-" if mine["error_over_V"] is None else f"{mine['error_over_V']:.2g}", f"{mine['alarms']:.0f}"]
        held = ", held out" if problem in report["held_out"] else ""
        lines.append(f"| {problem}{held} | {' | '.join(shown)} |")
    return "\n".join(lines)


def selftuning_rivals(report: dict[str, Any], budget: str = "100000") -> str:
    """Who was tuned on how many problems, who is the best tuned one how often, and where Kalman-STORM is above 1.2."""
    tuned = {problem: _tuned(report, problem, budget, "average") for problem in report["own"]}
    names = sorted({name for found in tuned.values() for name in found})
    counts = {name: sum(name in found for found in tuned.values()) for name in names}
    best = [min(found, key=lambda name: found[name]) for found in tuned.values() if found]
    told = [
        f"`{n}` {counts[n]} ({best.count(n)})" for n in sorted(names, key=lambda n: (-best.count(n), -counts[n], n))
    ]
    ratios = {p: report["own"][p]["plain"][budget]["average"] / min(f.values()) for p, f in tuned.items() if f}
    above = [f"{p} {ratio:.2f}" for p, ratio in sorted(ratios.items(), key=lambda pair: pair[1]) if ratio > 1.2]
    return textwrap.fill(
        f"Rivals with the number of problems on which they were tuned, and in brackets on how many they are the best: "
        f"{', '.join(told)}. After {int(budget):,} sample gradients the ratio is at most 1.3 on "
        f"{sum(ratio <= 1.3 for ratio in ratios.values())} of {len(ratios)}, and above 1.2 on {', '.join(above)}.",
        118,
        break_on_hyphens=False,
    )


def calibration_chart(report: dict[str, Any], budget: str = "100000") -> str:
    """The squared error of m over V, on a scale of powers of 2; a number that is off the scale stands at its end."""
    places = 3  # for a factor of 2
    ends = ["1/16", "1/4", "1", "4", "16"]
    rows = [f"{'':24}" + "".join(f"{end:<{2 * places}}" for end in ends).rstrip()]
    for problem, mine in report["own"].items():
        ratio = mine["plain"][budget]["error_over_V"]
        if ratio is None:
            continue
        at = round(places * math.log2(ratio)) if ratio > 0 else -math.inf
        at = int(max(-4 * places, min(4 * places, at))) + 4 * places
        line = ["."] * (8 * places + 1)
        line[4 * places] = "|"
        line[at] = "o" if 0 < at < 8 * places else "<" if at == 0 else ">"
        rows.append(f"{problem:24}{''.join(line)}")
    ratios = [mine["plain"][budget]["error_over_V"] for mine in report["own"].values()]
    known = [ratio for ratio in ratios if ratio is not None]
    within = sum(0.5 <= ratio <= 2 for ratio in known)
    said = f"Median {statistics.median(known):.2f}; within a factor of 2 on {within} of {len(known)} problems."
    return "\n".join(["```text", *rows, "```", "", said])


def selftuning_counts(report: dict[str, Any]) -> str:
    """On how many problems which factor holds, at every budget; and the mean rank among the tuned."""
    lines = ["| sample gradients | goal | problems | at most 1.2 | at most 3 | below every default | mean rank |"]
    lines.append("|---" * 7 + "|")
    for budget in report["own"]["quadratic"]["plain"]:
        for goal in ("average", "last"):
            ratios, ranks, beaten = [], [], 0
            for problem in report["own"]:
                tuned, mine = _tuned(report, problem, budget, goal), report["own"][problem]["plain"].get(budget)
                if not tuned or mine is None:
                    continue
                ratios.append(mine[goal] / min(tuned.values()))
                ranks.append(1 + sum(value < mine[goal] for value in tuned.values()))
                beaten += mine["average"] < min(_defaults(report, problem, budget).values(), default=math.inf)
            within = [f"{sum(r <= most for r in ratios)}" for most in (1.2, 3)]
            usual = str(beaten) if goal == "average" else "-"
            cells = [f"{int(budget):,}", goal, str(len(ratios)), *within, usual, f"{statistics.mean(ranks):.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def filter_table(report: dict[str, Any], budget: str = "100000") -> str:
    """With the table of a finite sum, beside tuned SAGA, and plain."""
    lines = ["| finite sum | plain | with the table | SAGA, tuned | ratio |", "|---" * 5 + "|"]
    for problem, mine in report["own"].items():
        if "table" not in mine or "saga" not in report["rivals"].get(problem, {}):
            continue
        saga, own = report["rivals"][problem]["saga"][budget]["average"], mine["table"][budget]["average"]
        cells = [f"{mine['plain'][budget]['average']:.3g}", f"{own:.3g}", f"{saga:.3g}", f"{own / saga:.2f}"]
        lines.append(f"| {problem} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ablation_table(report: dict[str, Any]) -> str:
    """The average without one part, over that of the whole."""
    problems = list(report["ablation"])
    lines = [f"| | {' | '.join(problems)} |", "|---" * (1 + len(problems)) + "|"]
    for part in report["ablation"][problems[0]]:
        ratios = [report["ablation"][p].get(part, math.nan) / report["ablation"][p]["as it is"] for p in problems]
        lines.append(f"| {part} | {' | '.join(f'{r:.2f}' if r < 100 else '> 100' for r in ratios)} |")
    return "\n".join(lines)


def forms_table(report: dict[str, Any]) -> str:
    """Averages of other forms over that of the plain one, and of the last gradient in brackets."""
    forms = ["coordinates", "sign", "spectral", "mean", "shaken", "ahead"]
    lines = [f"| | sample gradients | {' | '.join(forms)} |", "|---" * (2 + len(forms)) + "|"]
    for problem, found in report["forms"].items():
        ratios = {
            f: [found[f][goal] / found["plain"][goal] for goal in ("average", "last")] for f in found if f in forms
        }
        cells = ["{:.2f} ({:.2f})".format(*ratios[f]) if f in ratios else "-" for f in forms]
        lines.append(f"| {problem} | {found['budget']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rescaling_line(report: dict[str, Any]) -> str:
    """The largest difference under other units, and what is left of it where they round nothing."""
    found = {name: entry["difference"] for name, entry in report["rescaling"].items()}
    exact = [entry["binary"] for entry in report["rescaling"].values() if "binary" in entry]
    worst = max(found, key=lambda name: found[name])
    return (
        f"Largest relative difference over {len(found)} problems: {found[worst]:.1e} ({worst}). With factors of 1024, "
        f"which change no digit: {max(exact):.1g} over {len(exact)} problems."
    )


def datasets_table(report: dict[str, Any]) -> str:
    """Certified gradient norms on real data: ours, L-BFGS and scikit-learn, with seconds."""
    head = ("data and loss", "rows", "numbers in x", "target", "normstorm", "s by the clock, CPU (again)", "passes")
    head += ("L-BFGS", "s", "scikit-learn", "s")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for r in report["rows"]:
        mine, cells = r["ours"], [r["name"], f"{r['rows']:,}", f"{r['numbers']:,}", f"{r['target']:.2g}"]
        cells += [
            f"{mine['bound']:.2g}",
            f"{mine['wall']:.1f}, {mine['seconds']:.1f} ({mine['again']:.1f})",
            f"{mine['passes']:,.0f}",
        ]
        for name in ("lbfgs", "sklearn"):
            found = r.get(name)
            cells += ["-", "-"] if found is None else [f"{found['bound']:.2g}", f"{found['seconds']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def race_table(report: dict[str, Any]) -> str:
    """Cost of a race to a certified point, beside the plan, the promise and the limit."""
    head = ["problem", "target", "race, median", "largest", "search, test of the first", "plan", "plan / race"]
    head += ["promise", "limit", "race / limit", "wrong"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    known = race_limits(report)
    for row in report["targets"]:
        limit = known.get((row["problem"], row["part"]))
        plan = ["-", "-"] if row["plan"] is None else [f"{row['plan']:.2g}", f"{row['plan_over_race']:,.0f}"]
        beside = ["-", "-"] if limit is None else [f"{limit:,.0f}", f"{row['cost'] / limit:.2f}"]
        promise = f"{row['promise']:.2g} {row['promised_by']}"
        cells = [
            row["problem"],
            f"{row['part']:g} g_1 = {row['target']:.3g}",
            f"{row['cost']:,.0f}",
            f"{row['most']:,}",
        ]
        cells += [f"{row['search']:,}, {row['testing']:,}", *plan, promise, *beside]
        cells.append(f"{row['violations']} of {row['seeds']}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def race_limits(report: dict[str, Any]) -> dict[tuple[str, float], float]:
    """By problem and part: the cheapest search and the test."""
    return {(row["problem"], row["part"]): row["search"] + row["test"] for row in report.get("limits", ())}


def race_limits_table(report: dict[str, Any]) -> str:
    """What each search costs to half of a tenth of the first gradient norm, the test, and who was cheapest."""
    rows = [row for row in report["limits"] if row["part"] == 0.1]
    names = list(dict.fromkeys(name for row in rows for name in row["searches"]))
    lines = [f"| problem | {' | '.join(names)} | test | limit |", "|---" * (3 + len(names)) + "|"]
    for row in rows:
        each = (row["searches"].get(name) for name in names)
        cells = ["-" if cost is None else f"{'**' if cost == row['search'] else ''}{cost:,.0f}" for cost in each]
        cells = [f"{cell}**" if cell.startswith("**") else cell for cell in cells]
        cells += [f"{row['test']:,.0f}", f"{row['search'] + row['test']:,.0f}"]
        lines.append(f"| {row['problem']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def race_summary(report: dict[str, Any]) -> str:
    """Medians over problems and targets, and the largest of what must not be large."""
    rows = report["targets"]
    over = [row["plan_over_race"] for row in rows if row["plan_over_race"] is not None]
    limits = race_limits(report)
    places = [(row["problem"], row["part"]) for row in rows]
    tenth = [row["cost"] / limits[at] for row, at in zip(rows, places, strict=True) if at[1] == 0.1 and at in limits]
    wrong, seeds = sum(row["violations"] for row in rows), sum(row["seeds"] for row in rows)
    certified = sum(row["certified"] for row in rows)
    return (
        f"Over {len(rows)} cases of {rows[0]['seeds']} seeds: the plan asks {statistics.median(over):,.0f} times as "
        f"much in the median, {min(over):,.0f} at least; certified points {certified:,} of {seeds:,}, wrong ones "
        f"{wrong}. The largest cost of a seed is {max(row['most_over_promise'] for row in rows):.2g} of what a race "
        f"may cost. At a tenth of the first gradient norm the race costs {statistics.median(tenth):.2f} times the "
        f"limit in the median of the {len(tenth)} problems whose limit was measured, {max(tenth):.2f} at most."
    )


def race_splits_table(report: dict[str, Any]) -> str:
    """What is certified for a budget by the rule, and over it by fixed parts for the search."""
    parts = list(report["splits"][0]["fixed"])
    lines = [f"| problem | by the rule | its search | {' | '.join(parts)} |", "|---" * (3 + len(parts)) + "|"]
    for row in report["splits"]:
        ratios = [f"{row['fixed'][part] / row['bound']:.2f}" for part in parts]
        lines.append(f"| {row['problem']} | {row['bound']:.3g} | {row['search']:,.0f} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def race_rules_table(report: dict[str, Any]) -> str:
    """Mean cost of a race whose tests begin at other heights of the error bar, and over that of the rule."""
    heights = list(report["rules"][0]["costs"])
    lines = [f"| problem | {' | '.join(heights)} |", "|---" * (1 + len(heights)) + "|"]
    for row in report["rules"]:
        cells = [f"{row['costs'][h]:,.0f} ({row['costs'][h] / row['costs']['1.0']:.2f})" for h in heights]
        lines.append(f"| {row['problem']} | {' | '.join(cells)} |")
    return "\n".join(lines)
