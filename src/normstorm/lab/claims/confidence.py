"""What confidence costs: log(1/delta) in place of 1/delta, and no log T."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from normstorm.algorithms.catalogue import from_plan
from normstorm.problems import registry
from normstorm.theory.certificates import bound
from normstorm.theory.constants import Constants
from normstorm.theory.planner.planner import plan

from .base import Chart, Claim, Rule, Seen, largest, least, line, run_from_start

DELTAS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
ANCHOR = 0.1
DELTA = 0.01  # of the plans that are run here
FAR = tuple(10**e for e in range(4, 15, 2))


def growth(deltas: Sequence[float], values: Sequence[float]) -> float:
    """(q(least delta) - q(1/2)) / (q(0.1) - q(1/2)) over the same ratio of log(1/delta): above 1 is faster than log."""
    first, anchor, last = (values[deltas.index(d)] for d in (0.5, ANCHOR, min(deltas)))
    logs = math.log(0.5 / min(deltas)) / math.log(0.5 / ANCHOR)
    return (last - first) / (anchor - first) / logs


def price_of_confidence(
    objectives: Sequence[str] = ("exp-quad", "double-well"), steps: int = 1000, seeds: int = 10_000
) -> Seen:
    rows: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    for name in objectives:
        problem = registry.get(name)
        constants = problem.constants()
        planned = plan(constants, horizon=steps, confidence=1 - DELTA, batch=1, sub_batch=1)
        found = run_from_start(problem, from_plan(planned), steps, seeds).mean_grad_norm
        seen = [float(np.quantile(found, 1 - d, method="higher")) for d in DELTAS]
        given = {"T": steps, "alpha": planned.alpha, "eta": planned.eta}
        proven = [float(bound(planned.certificate, constants, **given, delta=d).value) for d in DELTAS]
        mean = float(found.mean())
        for i, d in enumerate(DELTAS):
            rows.append(
                {"objective": name, "delta": d, "quantile / mean": seen[i] / mean, "Markov": 1 / d}
                | {"certificate / mean": proven[i] / mean}
            )
        points += line(f"{name}, observed", [1 / d for d in DELTAS], [q / mean for q in seen])
        points += line(f"{name}, certificate", [1 / d for d in DELTAS], [b / mean for b in proven])
        new = {
            "growth": growth(DELTAS, seen),
            "certificate_growth": growth(DELTAS, proven),
            "tail": seen[-1] / mean,
            "above": largest(q - b for q, b in zip(seen, proven, strict=True)),
        }
        figures = {key: largest((figures.get(key, value), value)) for key, value in new.items()}
    points += line("Markov's inequality", [1 / d for d in DELTAS], [1 / d for d in DELTAS])
    figures["markov"] = 1 / min(DELTAS)
    return Seen(figures, rows, Chart("1/delta", "quantile over mean", points))


def no_log_t(
    horizons: Sequence[int] = FAR, steps: int = 10_000, seeds: int = 256, objective: str = "quadratic"
) -> Seen:
    cases = {"L1 = sigma1 = 0": Constants(1, 0, 1, 0, 1, 1), "L1 = 1, sigma1 = 0.5": Constants(1, 1, 1, 0.5, 1, 1)}
    rows, points, exponents, flatness = [], [], [], []
    logs = np.log(np.log(4 * np.array(horizons, float) / DELTA))
    for name, known in cases.items():
        theirs, ours = (
            np.array([plan(known, horizon=T, confidence=1 - DELTA, rule=rule).bound * T ** (1 / 3) for T in horizons])
            for rule in ("paper", "sharp")
        )
        rows += [
            {"constants": name, "T": T, "paper's bound x T^(1/3)": theirs[i], "ours x T^(1/3)": ours[i]}
            | {"ratio": theirs[i] / ours[i]}
            for i, T in enumerate(horizons)
        ]
        points += line(f"paper over ours, {name}", horizons, theirs / ours)
        exponents.append(float(np.polyfit(logs, np.log(theirs), 1)[0]))
        flatness.append(float(np.max(np.diff(ours))))
    problem = registry.get(objective)
    runs = {}
    for rule in ("paper", "sharp"):
        planned = plan(problem.constants(), horizon=steps, confidence=1 - DELTA, rule=rule, batch=1)
        means = run_from_start(problem, from_plan(planned), steps, seeds).mean_grad_norm
        runs[rule] = int(np.sum(means > planned.bound))
    figures = {
        "log_exponent_low": least(exponents),
        "log_exponent_high": largest(exponents),
        "largest_rise": largest(flatness),
        "violations_paper": runs["paper"],
        "violations_ours": runs["sharp"],
        "allowed": DELTA * seeds,
    }
    return Seen(figures, rows, Chart("horizon T", "paper's bound over ours", points, ("log", "linear")))


CONFIDENCE = Claim(
    "confidence",
    "The price of confidence is log(1/delta), not 1/delta",
    "theorem in high probability, Section 3.2",
    "The bound depends on the failure probability delta through log(1/delta) only. Markov's inequality, which turns a "
    "bound in expectation into one in probability, would pay 1/delta.",
    price_of_confidence,
    (
        Rule(
            "observed quantiles grow no faster than log(1/delta): from delta = 0.5 to 0.001 at most as much as the "
            "growth from 0.5 to 0.1, extended linearly in log(1/delta)",
            lambda f: f["growth"] <= 1,
        ),
        Rule(
            "the certificate for the same parameters grows no faster either",
            lambda f: f["certificate_growth"] <= 1,
        ),
        Rule(
            "the quantile at delta = 0.001 is at most twice the mean; Markov's inequality says a thousand times",
            lambda f: f["tail"] <= 2,
        ),
        Rule(
            "every quantile lies below the certificate for its delta",
            lambda f: f["above"] <= 0,
        ),
    ),
    (
        "K = k = 1, one plan for all delta. The smallest quantile has ten of the 10,000 seeds above it; for a normal "
        "law the first ratio would be 0.62 with a standard error of 0.02.",
    ),
)
NO_LOG_T = Claim(
    "no-log-t",
    "The paper's bound pays log T, the certificates here do not",
    "conclusion, which leaves the removal of log T open",
    "In high probability the paper's rate is (log(T/delta)/T)^(1/3). The certificates of this project keep "
    "log(1/delta) and have no log T.",
    no_log_t,
    (
        Rule(
            "T^(1/3) times the paper's bound grows like log(4T/delta) to the power 1/3, within 0.01, from T = 10^4 to "
            "10^14 at delta = 0.01",
            lambda f: largest(abs(f[key] - 1 / 3) for key in ("log_exponent_low", "log_exponent_high")) <= 0.01,
        ),
        Rule("T^(1/3) times the bound here never rises", lambda f: f["largest_rise"] <= 0),
        Rule(
            "both hold on runs with their own parameters: at most 1 % of the seeds above",
            lambda f: largest((f["violations_paper"], f["violations_ours"])) <= f["allowed"],
        ),
    ),
)
