"""From what is known of a problem to the parameters of Normalized STORM with a proven bound."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import numpy as np

from normstorm._shared import validate

from .. import rules
from ..anytime_plan import AnytimePlan
from ..certificates import CATALOGUE, EXPECTATION, HIGH_PROBABILITY, Case
from ..constants import Constants
from ..plan import DEFAULT_CONFIDENCE, Plan, mean_error, round_up, sorted_terms
from .allocate import MAX_HORIZON, Allocator, smallest
from .anytime import anytime_plan
from .solver import Answer, Solver, Triple, natural_units

RULES = ("sharp", "paper")
QUESTIONS = ("target", "horizon", "budget")


@overload
def plan(
    constants: Constants,
    *,
    anytime: Literal[True],
    target: float | None = ...,
    horizon: int | None = ...,
    budget: int | None = ...,
    confidence: float | None = ...,
    rule: str = ...,
    batch: int | None = ...,
    sub_batch: int | None = ...,
    certificate: str | None = ...,
) -> AnytimePlan: ...
@overload
def plan(
    constants: Constants,
    *,
    target: float | None = ...,
    horizon: int | None = ...,
    budget: int | None = ...,
    confidence: float | None = ...,
    rule: str = ...,
    batch: int | None = ...,
    sub_batch: int | None = ...,
    certificate: str | None = ...,
    anytime: Literal[False] = ...,
) -> Plan: ...
def plan(
    constants: Constants,
    *,
    target: float | None = None,
    horizon: int | None = None,
    budget: int | None = None,
    confidence: float | None = DEFAULT_CONFIDENCE,
    rule: str = "sharp",
    batch: int | None = None,
    sub_batch: int | None = None,
    certificate: str | None = None,
    anytime: bool = False,
) -> Plan | AnytimePlan:
    """The parameters with the smallest proven bound of the average gradient norm.

    Give exactly one of
    target   the bound to reach: the plan with the fewest sample gradients over T, K and k; one step if x1 is known to
             reach it
    horizon  the number T of steps; K = k = 1 unless batch or sub_batch say otherwise (k = K if only batch is given)
    budget   the sample gradients to spend, K + (T-1)(K+k): the smallest bound over T, K and k

    confidence   the guarantee holds with at least this probability; None asks for a guarantee in expectation
    rule         "sharp" minimises over (alpha, eta) and over all certificates; "paper" takes the paper's own
                 parameters and explicit bound, with K = k = 1 (in expectation the smallest K that it admits)
    certificate  only this one (rule="sharp")
    anytime      one schedule of shrinking steps with a bound at every t at once (an AnytimePlan), chosen for runs up to
                 the horizon or budget and down to four decades less; for a target, the first t that reaches it

    >>> from normstorm import Constants, plan
    >>> p = plan(Constants(L0=1, L1=0, sigma0=1, sigma1=0, gap=1, grad_norm=1), horizon=100_000)
    >>> p.certificate, round(p.bound, 4)
    ('ville2', 0.121)
    """
    _check_choice(target, horizon, budget)
    target = None if target is None else validate.number("plan", "target", target, validate.POSITIVE)
    horizon, budget, batch = (
        None if value is None else validate.whole("plan", name, value, 1, MAX_HORIZON)
        for name, value in (("horizon", horizon), ("budget", budget), ("batch", batch))
    )
    if sub_batch is not None:
        most, limit = (MAX_HORIZON, None) if batch is None else (batch, "batch")
        sub_batch = validate.whole("plan", "sub_batch", sub_batch, 1, most, limit)
    _check_constants(constants)
    confidence = None if confidence is None else _check_confidence(constants, confidence)
    delta = None if confidence is None else 1 - confidence
    rule = validate.one_of("plan", "rule", rule, RULES)
    if budget is not None and budget < (batch or sub_batch or 1):
        raise ValueError(f"plan: budget must be an integer >= batch = {batch or sub_batch}; got budget={budget}")
    if validate.flag("plan", "anytime", anytime):
        level = _check_anytime(rule, certificate, confidence)
        return anytime_plan(constants, target, horizon, budget, level, batch, sub_batch)
    if rule == "paper":
        if certificate is not None:
            raise ValueError(f"plan: certificate must be left out with rule='paper'; got certificate={certificate!r}")
        return _paper_plan(constants, target, horizon, budget, confidence, delta, batch, sub_batch)
    _check_certificate(certificate, delta)
    solver = Solver(constants, delta, certificate)
    if target is not None and certificate is None and constants.first_gradient <= target:
        # The start is good enough, and one step the fewest.
        answer = solver.solve([Triple(1, batch or sub_batch or 1, sub_batch or 1)])[0]
    else:
        answer = _searched(solver, target, horizon, budget, batch, sub_batch)
        _check_reached(answer.value * solver.slope, target, horizon, budget, certificate)
    return _sharp_plan(constants, solver, answer, confidence, chosen=certificate is not None)


def _searched(
    solver: Solver, target: float | None, horizon: int | None, budget: int | None, batch: int | None, sub: int | None
) -> Answer:
    """The best parameters for the one question that was asked."""
    if horizon is not None:
        K = batch or sub or 1
        return solver.solve([Triple(horizon, K, sub or K)])[0]
    allocator = Allocator(solver, batch, sub)
    if budget is not None:
        return allocator.for_budget(budget)
    assert target is not None
    # Raising by an ulp on the way back to the caller's units must not step over the target.
    return allocator.for_target(target / solver.slope * (1 - 1e-14))


def other_rule(found: Plan, **question: Any) -> dict[str, Any]:
    """What the other rule answers to the question that led to this plan; `reason` in place of numbers if nothing."""
    rule = "paper" if found.rule == "sharp" else "sharp"
    asked = next(name for name in QUESTIONS if question.get(name) is not None)
    answer: dict[str, Any] = {"rule": rule, "at": f"the same {asked}"}
    try:
        other = plan(found.constants, rule=rule, **question)
    except ValueError as error:
        return answer | {"reason": str(error).removeprefix("plan: ")}
    for name in ("bound", "certificate", "horizon", "batch", "sub_batch", "sample_gradients"):
        answer[name] = getattr(other, name)
    return answer | {
        "bound_ratio": other.bound / found.bound,
        "sample_gradients_ratio": other.sample_gradients / found.sample_gradients,
    }


def one_horizon_plans(found: AnytimePlan) -> dict[str, Any]:
    """At every milestone the best plan for that horizon alone at the same cost, over all batches."""
    rows = []
    for t, bound in found.bounds.items():
        own = plan(found.constants, budget=found.cost_at(t), confidence=found.confidence)
        sizes = {"batch": own.batch, "sub_batch": own.sub_batch}
        row = {"t": t, "sample_gradients": found.cost_at(t), "bound": bound, "one_horizon_bound": own.bound}
        rows.append(row | {"ratio": bound / own.bound, "certificate": own.certificate, "horizon": own.horizon} | sizes)
    return {"rule": "sharp", "at": "the same sample gradients", "rows": rows}


def _sharp_plan(constants: Constants, solver: Solver, answer: Answer, confidence: float | None, chosen: bool) -> Plan:
    """The plan at an answer; if its certificate was not `chosen` by the caller, the trivial one may lower its bound."""
    found, alpha, eta, free = solver.bound(answer)
    name, bound = answer.certificate, found
    if not chosen:
        trivial = solver.trivial(answer.triple, alpha, eta)
        name, bound = trivial if float(trivial[1]) < float(found) else (name, bound)
    if free is not None and CATALOGUE[answer.certificate].free == "lam":
        free /= solver.slope
    # A run of one step has the first gradient as its average: no arithmetic stands between the two.
    only_start = name != answer.certificate and answer.triple.T == 1
    value = constants.first_gradient if only_start else float(bound) * solver.slope * (1 + 1e-15)
    return Plan(
        constants=constants,
        rule="sharp",
        certificate=name,
        horizon=answer.triple.T,
        alpha=alpha,
        eta=eta / solver.length,
        batch=answer.triple.K,
        sub_batch=answer.triple.k,
        confidence=confidence,
        bound=value,
        terms=sorted_terms(bound.terms(), solver.slope),
        free=free if name == answer.certificate else None,
        **mean_error(found, answer.triple.T, solver.slope, confidence),
    )


def _paper_plan(
    constants: Constants,
    target: float | None,
    horizon: int | None,
    budget: int | None,
    confidence: float | None,
    delta: float | None,
    batch: int | None,
    sub_batch: int | None,
) -> Plan:
    """The paper's parameters and explicit bound; with a target its corollaries' T_eps."""
    needed = 1 if delta is not None else rules.expectation_batch(constants.in_mean_square.sigma1)
    K = batch if batch is not None else max(needed, sub_batch or 1)
    k = sub_batch if sub_batch is not None else K
    if needed > K:
        raise ValueError(
            f"plan: batch must be an integer >= max(ceil(64 sigma1^2), 1) = {needed} for the paper's rule in "
            f"expectation; got batch={K}"
        )
    if budget is not None and budget < K:
        raise ValueError(f"plan: budget must be an integer >= batch = {K} for the paper's rule; got budget={budget}")
    length, value = natural_units(constants)
    scaled = constants.scaled(length=length, value=value)
    slope = length / value

    def evaluate(T: int) -> Plan:
        if delta is not None:
            name, parameters = "paper", rules.paper_high_probability(scaled, T, delta)
        else:
            name, parameters = "paper_expectation", rules.paper_expectation(scaled, T, K, k)
        t, alpha, eta, K_, k_ = (np.asarray(float(n)) for n in (T, *parameters, K, k))
        bound = CATALOGUE[name](Case(scaled, t, alpha, eta, K_, k_, delta))
        _check_finite(float(bound), "the paper's rule", horizon, budget)
        return Plan(
            constants=constants,
            rule="paper",
            certificate=name,
            horizon=T,
            alpha=parameters.alpha,
            eta=parameters.eta / length,
            batch=K,
            sub_batch=k,
            confidence=confidence,
            bound=float(bound) * slope * (1 + 1e-15),
            terms=sorted_terms(bound.terms(), slope),
            **mean_error(bound, T, slope, confidence),
        )

    if horizon is not None:
        return evaluate(horizon)
    if budget is not None:
        return evaluate(1 + (budget - K) // (K + k))
    assert target is not None

    def at_horizon(T: int) -> Answer:
        return Answer(Triple(T, K, k), "paper", np.zeros(3), evaluate(T).bound)

    answer = smallest(at_horizon, target, 1000, MAX_HORIZON, 0.0)
    _check_reached(answer.value, target, None, None, None)
    return evaluate(answer.triple.T)


def _check_choice(target: object, horizon: object, budget: object) -> None:
    given = {"target": target, "horizon": horizon, "budget": budget}
    named = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise ValueError(
            f"plan: exactly one of target, horizon, budget must be given; got {', '.join(named) or 'none'}"
        )


def _check_confidence(constants: Constants, confidence: object) -> float:
    level = validate.confidence("plan", confidence, ", or None for a guarantee in expectation")
    if constants.noise == "mean-square":
        raise ValueError(
            "plan: confidence must be None for constants with noise='mean-square', since high probability needs "
            f"almost-sure constants; got confidence={confidence!r}"
        )
    return level


def _check_constants(constants: object) -> None:
    if not isinstance(constants, Constants):
        validate.refuse("plan", "constants", "a normstorm.Constants", constants)
    if constants.gap == 0:
        raise ValueError(
            "plan: gap must be > 0; got gap=0.0, which says that x1 already minimises F and nothing is left to do"
        )
    length, value = natural_units(constants)
    if not (0 < length < math.inf and 0 < value < math.inf and 1e-250 < length / value < 1e250):
        raise ValueError(
            "plan: L0, L1 and gap must be of sizes whose ratios are finite numbers; got "
            f"L0={constants.L0}, L1={constants.L1}, gap={constants.gap}"
        )


def _check_certificate(name: str | None, delta: float | None) -> None:
    kind = EXPECTATION if delta is None else HIGH_PROBABILITY
    allowed = [c.name for c in CATALOGUE.values() if c.kind == kind]
    if name is not None and (not isinstance(name, str) or name not in allowed):
        raise ValueError(
            f"plan: certificate must be one of {', '.join(allowed)} for a guarantee in {kind}; got certificate={name!r}"
        )


def _check_anytime(rule: str, certificate: object, confidence: float | None) -> float:
    if rule != "sharp":
        raise ValueError(f"plan: rule must be 'sharp' with anytime=True; got rule={rule!r}")
    if certificate is not None:
        raise ValueError(f"plan: certificate must be left out with anytime=True; got certificate={certificate!r}")
    if confidence is None:
        raise ValueError(
            "plan: confidence must be a number in (0, 1) with anytime=True, since its bound is in high probability; "
            "got confidence=None"
        )
    return confidence


def _check_reached(
    value: float, target: float | None, horizon: int | None, budget: int | None, certificate: str | None
) -> None:
    which = f"certificate {certificate}" if certificate else "any certificate"
    if target is not None and not value <= target:
        raise ValueError(
            f"plan: target must be at least {round_up(value)}, which {MAX_HORIZON:.0e} steps or sample gradients can "
            f"prove; got target={target}"
        )
    _check_finite(value, which, horizon, budget)


def _check_finite(value: float, which: str, horizon: int | None, budget: int | None) -> None:
    asked = horizon is not None or budget is not None
    if asked and not math.isfinite(value):
        given = f"horizon={horizon}" if horizon is not None else f"budget={budget}"
        raise ValueError(
            f"plan: horizon, budget and batch must be large enough for a finite bound by {which}; got {given}"
        )
