"""Settings that follow from a problem's constants and a budget of sample gradients, for the algorithms that have them.

Only rules whose constants are certain are here: those of the certificates of these pages, and those whose argument is
short enough to stand beside the function. Published rules with constants that could not be checked are not. A rule that
does not apply to a problem (L1 > 0, noise that grows with the gradient, no finite sum) says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from normstorm.problems.protocol import Problem
from normstorm.theory.constants import Constants
from normstorm.theory.planner.planner import plan
from normstorm.theory.rules import expectation_batch

CONFIDENCE = 0.95


class Theorem(NamedTuple):
    """A setting in words and in numbers."""

    label: str
    settings: dict[str, Any]


def theorems(name: str, problem: Problem, budget: int) -> list[Theorem]:
    """Those that apply, often none."""
    found = THEOREMS.get(name)
    return [] if found is None else list(found(problem, budget))


def _constants(problem: Problem, sense: str) -> Constants | None:
    try:
        known: Constants = problem.constants(None, sense)
    except ValueError:
        return None
    return known


def _storm(problem: Problem, budget: int) -> Iterator[Theorem]:
    """The plans of the planner: sharp and the paper's, in high probability and in expectation."""
    for sense, confidence, words in (
        ("almost-sure", CONFIDENCE, f"probability {CONFIDENCE}"),
        ("mean-square", None, "expectation"),
    ):
        known = _constants(problem, sense)
        if known is None:
            continue
        for rule in ("sharp", "paper"):
            try:
                found = plan(known, budget=budget, confidence=confidence, rule=rule)
            except ValueError:  # a budget below what the rule admits
                continue
            sizes = {"K": found.batch, "k": found.sub_batch}
            yield Theorem(f"{rule} plan, {words}", {"alpha": found.alpha, "eta": found.eta, **sizes})


def _anytime(problem: Problem, budget: int) -> Iterator[Theorem]:
    """The planner's schedule for all horizons up to the budget, with one sample a step."""
    known = _constants(problem, "almost-sure")
    if known is None:
        return
    try:
        found = plan(known, horizon=1 + (budget - 1) // 2, confidence=CONFIDENCE, anytime=True)
    except ValueError:  # no finite bound
        return
    yield Theorem(
        f"anytime plan, probability {CONFIDENCE}", {"alpha": found.alpha, "eta": found.eta, "shift": found.shift}
    )


def _momentum_nsgd(problem: Problem, budget: int) -> Iterator[Theorem]:
    """E||m_t - grad F(x_t)|| has a lag eta (L0 + L1 ||grad F||)/alpha where STORM has a noise eta L/sqrt(alpha).

    With it in the paper's argument in expectation: K >= 64 sigma1^2, alpha = min{1, sqrt(K gap L0 / (sigma0^2 T))},
    eta = min{ sqrt(gap alpha / (L0 T)), alpha / (2 (4 + alpha) L1) }.
    """
    c = _constants(problem, "mean-square")
    if c is None:
        return
    K = expectation_batch(c.sigma1)
    T = budget // K
    if T < 1:
        return
    alpha = 1.0 if c.sigma0 == 0 else min(1.0, math.sqrt(K * c.gap * c.L0 / (c.sigma0**2 * T)))
    if alpha == 0:  # L0 = 0
        return
    lengths = [math.sqrt(c.gap * alpha / (c.L0 * T))] if c.L0 > 0 else []
    lengths += [alpha / (2 * (4 + alpha) * c.L1)] if c.L1 > 0 else []
    yield Theorem("constants known, expectation", {"alpha": alpha, "eta": min(lengths), "K": K})


def _normalized_sgd(problem: Problem, budget: int) -> Iterator[Theorem]:
    """alpha = 1 in the paper's argument in expectation, with the batch that makes its bound the smallest.

    (1/T) sum E||grad F|| <= 2 sqrt(2 gap L0 / T) + 4 L1 gap / T + 4 sigma0 / sqrt(K)    for K >= 64 sigma1^2 and
    eta = min{ sqrt(2 gap / (L0 T)), 1 / (2 L1) };    K runs over powers of 2 from the smallest on, T = budget / K.
    """
    c = _constants(problem, "mean-square")
    if c is None:
        return
    least = expectation_batch(c.sigma1)
    batches = [least * 2**j for j in range(64) if least * 2**j <= budget]
    if not batches:
        return

    def bound(K: int) -> float:
        T = budget // K
        return 2 * math.sqrt(2 * c.gap * c.L0 / T) + 4 * c.L1 * c.gap / T + 4 * c.sigma0 / math.sqrt(K)

    K = min(batches, key=bound)
    lengths = [math.sqrt(2 * c.gap / (c.L0 * (budget // K)))] if c.L0 > 0 else []
    lengths += [1 / (2 * c.L1)] if c.L1 > 0 else []
    yield Theorem("constants known, expectation", {"eta": min(lengths), "K": K})


def _sgd(problem: Problem, budget: int) -> Iterator[Theorem]:
    """L1 = 0: E F(x_{t+1}) <= E F(x_t) - eta ||grad F||^2 + (L/2) eta^2 ((1 + sigma1^2) ||grad F||^2 + sigma0^2).

    For eta <= 1/(L (1 + sigma1^2)) the mean of E||grad F||^2 is at most 2 gap/(eta T) + eta L sigma0^2, which
    eta = sqrt(2 gap / (L sigma0^2 T)) makes the smallest.
    """
    c = _constants(problem, "mean-square")
    if c is None or c.L1 > 0:
        return
    L = problem.objective_smoothness()[0] if hasattr(problem, "objective_smoothness") else c.L0
    free = math.sqrt(2 * c.gap / (L * budget)) / c.sigma0 if c.sigma0 > 0 else math.inf
    yield Theorem("constants known, expectation", {"eta": min(1 / (L * (1 + c.sigma1**2)), free)})


def _page(problem: Problem, budget: int) -> Iterator[Theorem]:
    """L1 = sigma1 = 0: e_t = v_t - grad F(x_t) has E e_{t+1}^2 <= (1-p) (E e_t^2 + L^2 E||x_{t+1} - x_t||^2/S2) + p s,
    s = sigma0^2/S1. With F + eta e^2/(2p) as potential and eta = 1/(L (1 + sqrt((1-p)/(p S2)))) the mean of
    E||grad F||^2 is at most 2 gap/(eta T) + s/(p T) + s.

    S1 is the power of 2 with the smallest bound; S2 = sqrt(S1) and p = S2/(S1 + S2), as in its source.
    """
    c = _constants(problem, "mean-square")
    if c is None or c.L1 > 0 or c.sigma1 > 0:
        return
    L, gap, variance = c.L0, c.gap, c.sigma0**2

    def setting(S1: int) -> dict[str, Any]:
        S2 = max(1, math.isqrt(S1))
        p = S2 / (S1 + S2)
        return {"eta": 1 / (L * (1 + math.sqrt((1 - p) / (p * S2)))), "chance": p, "S1": S1, "S2": S2}

    def bound(S1: int) -> float:
        found = setting(S1)
        p = found["chance"]
        T = (budget - S1) / (p * S1 + 2 * (1 - p) * found["S2"])
        return float(2 * gap / (found["eta"] * T) + variance / (S1 * p * T) + variance / S1)

    batches = [2**j for j in range(64) if 2 * 2**j <= budget]
    if batches:
        yield Theorem("constants known, expectation", setting(min(batches, key=bound)))


def _spider_2(problem: Problem, budget: int) -> Iterator[Theorem]:
    """L1 = sigma1 = 0: the online setting of its source for the smallest eps whose run fits into the budget.

    S1 = 2 sigma^2/eps^2, S2 = 2 sigma/eps, q = sigma/eps, n0 = 1, and 4 L gap/eps^2 + 1 steps.
    """
    c = _constants(problem, "mean-square")
    if c is None or c.L1 > 0 or c.sigma1 > 0 or c.sigma0 == 0:
        return

    def setting(eps: float) -> dict[str, Any]:
        S1, S2 = math.ceil(2 * (c.sigma0 / eps) ** 2), math.ceil(2 * c.sigma0 / eps)
        return {"eps": eps, "L": c.L0, "S1": S1, "S2": S2, "q": max(1, math.ceil(c.sigma0 / eps))}

    def cost(eps: float) -> float:
        s, steps = setting(eps), 4 * c.L0 * c.gap / eps**2 + 1
        return float(s["S1"] + steps * (s["S1"] + 2 * s["S2"] * (s["q"] - 1)) / s["q"])

    low, high = 1e-6 * c.sigma0, 1e3 * c.sigma0
    if cost(high) > budget:
        return
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= budget else (middle, high)
    yield Theorem(f"as published, eps {high:.3g}", setting(high))


def _sarah(problem: Problem, budget: int) -> Iterator[Theorem]:
    """L1 = 0, a finite sum: sum of E||v_t - grad F(x_t)||^2 over a period m is at most L^2 eta^2 m sum of E||v_t||^2.

    Then E F falls by (eta/2) sum E||grad F||^2 in every period, if 1 - L eta - L^2 eta^2 m >= 0, that is for
    eta = 2/(L (1 + sqrt(1 + 4 m))); here m = n.
    """
    c, n = _constants(problem, "mean-square"), getattr(problem, "size", None)
    if c is None or c.L1 > 0 or n is None:
        return
    yield Theorem("constants known, expectation", {"eta": 2 / (c.L0 * (1 + math.sqrt(1 + 4 * n))), "period": n})


THEOREMS: dict[str, Callable[[Any, int], Iterator[Theorem]]] = {
    "normalized_storm": _storm,
    "normalized_storm_anytime": _anytime,
    "momentum_nsgd": _momentum_nsgd,
    "normalized_sgd": _normalized_sgd,
    "sgd": _sgd,
    "page": _page,
    "spider_2": _spider_2,
    "sarah": _sarah,
}
