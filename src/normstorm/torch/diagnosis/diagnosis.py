"""Does the two-point term pay, on this model, with these data and this step size? A probe measures and answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from normstorm._shared.jsonable import jsonable
from normstorm._shared.validate import whole

from ..optimizer import NormalizedStorm
from ..options import ALLOWED
from . import probe, race
from .forecast import Forecast, forecast
from .oracle import Gradient, GradientOracle, batch_size, restore_after

WHO = "diagnose"
PAYS, NOT = "pays", "does not pay"
RATIO = 0.7  # two points must have at most so much of momentum's error
GAIN = 1.05  # and so much more progress a step
MEMORIES = 5  # of 1 / (1 - beta) steps: how long accuracy takes to tell
LEAST = 0.002  # of momentum's loss: what a lead must be to count
LEAST_STEPS = 48


@dataclass(frozen=True)
class Diagnosis(probe.Probe):
    """What a probe saw along a two-point run, and what it means.

    Lengths are Euclidean; those of noise belong to a batch of K samples.

    loss             mean loss along the run
    gradient         ||grad F||
    noise            sqrt E||g - grad F||^2 of a batch
    drift            ||grad F(x_t) - grad F(x_{t-1})||
    window_drift     the same over `window` steps, min(1/(1 - beta), steps/16)
    exponent         h in window_drift = drift window^h, in [0, 1]: 1 a steady drift, 0 one that leads nowhere
    curvature_noise  sqrt of the variance of g(x_t) - g(x_{t-1}) on one batch
    bounce           cosine of successive changes of grad F; negative: the iterates jump to and fro
    change           ||g(x_t) - g(x_{t-1})|| / ||g(x_t)|| on one batch
    lead             loss of momentum less loss of two points at the horizon, each at its best, on the same fresh
                     batches, at the same number of gradients; positive: two points are ahead.   lead_error: its
                     standard error.   race_loss: that loss of momentum
    two_point_beta, momentum_beta, momentum_way   who was best: momentum with "more steps" or "larger batches"
    rounding         relative error of that difference against double precision; None: not measurable
    forecast         best beta of both methods, best k, predicted errors
    ratio, gain      of the forecast, with the 10 % and 90 % quantiles of the ratio when measurements are drawn again
    verdict          "pays" or "does not pay"
    reason           race, bounce, noise, signal, close, horizon or accuracy: which rule decided
    seconds          of one gradient of a batch
    parameters       how many numbers the model has
    """

    lr: float
    beta: float
    geometry: str
    batch: int
    steps: int
    horizon: int
    window: int
    measurements: int
    loss: float
    lead: float
    lead_error: float
    race_loss: float
    two_point_beta: float
    momentum_beta: float
    momentum_way: str
    rounding: float | None
    forecast: Forecast
    ratio: float
    ratio_low: float
    ratio_high: float
    gain: float
    verdict: str
    reason: str
    seconds: float
    parameters: int

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values; what is not finite is None."""
        found: dict[str, Any] = jsonable(asdict(self))
        return found

    def explain(self) -> str:
        """The answer in words, with the numbers behind it."""
        from .page import explain

        return explain(self)

    def show(self) -> None:
        """Print the answer and a table."""
        from .page import show

        show(self)

    def save(self, path: Any) -> None:
        """Write a page that needs nothing else; the name ends in .html."""
        from .page import save

        save(self, path)


def diagnose(
    model: nn.Module,
    loss: Callable[..., Any],
    data: Any,
    lr: float,
    beta: float = 0.9,
    geometry: str = "euclidean",
    *,
    steps: int = 200,
    horizon: int | None = None,
    params: Any = None,
    seed: int = 0,
) -> Diagnosis:
    """Measure whether the two-point term pays here, at this step size, over the next `horizon` steps.

    model     stands where the question is asked: the answer is about the next stretch of training. It is left
              untouched, with its gradients, its statistics and all random numbers; whatever the loss changes must
              belong to it.
    loss      as for `NormalizedStorm.step(loss, batch=...)`: loss(*batch) is the mean loss of a batch's samples
    data      batches, iterable (begun again when it ends) or a function that returns one; independent draws
    lr, beta, geometry   the step in question
    steps     of the probe. It costs at most 10 steps + 8 steps / window + 6 gradients of a batch and 1,920 losses
              (3,520 if the horizon is longer), and memory for at most eight copies of the parameters, the model's own
              among them.
    horizon   how many steps of two points are to come; None: as many as the probe makes. Far ahead accuracy counts,
              nearby the number of steps. Beyond the probe the race is continued by a line over the logarithm of steps,
              which is rough: probe as long as you can afford.
    params    parameter groups as the optimizer takes them; None: the model's parameters in one group

    The probe walks with correction 1 and measures on fresh batches, in pairs: products of independent pairs have no
    noise in the mean. Then momentum and two points race from the same start over the same gradients, each with the
    beta in question and with the one that the forecast names, momentum with more steps and with larger batches. Rules,
    in this order (docs/diagnose.md):

    race      two points end lower by more than two standard errors and 0.2 %: pays.
    bounce    successive changes of grad F point against each other (cosine < 0): does not pay. Steps jump across
              sharp directions; momentum's lag damps that, an accurate gradient follows it.
    noise     predicted error not below momentum's at equal cost: does not pay.
    race      momentum ends lower by more than two standard errors: does not pay (yet).
    signal    the gradient is so long that better accuracy gains less than 5 % of progress: does not pay.
    close     error more than 0.7 of momentum's: does not pay.
    horizon   shorter than five times the memory 1 / (1 - beta) that two points need for it: does not pay (yet).
    accuracy  else the race has not decided, and the forecast does: pays.
    """
    oracle = GradientOracle(WHO, model, loss, data)
    _check(lr, beta, geometry)
    steps = whole(WHO, "steps", steps, LEAST_STEPS)
    facts = {"lr": float(lr), "beta": float(beta), "geometry": geometry, "steps": steps}
    facts["horizon"] = steps if horizon is None else whole(WHO, "horizon", horizon, 1)
    facts["window"] = max(3, min(round(1 / (1 - beta)), steps // 16))
    facts["parameters"] = sum(p.numel() for p in oracle.params)
    groups = list(oracle.params if params is None else params)
    foreign = {p for part in groups for p in _members(part)} - set(model.parameters())
    if foreign:
        raise ValueError(f"{WHO}: params must be parameters of the model; got {len(foreign)} others")
    with restore_after(model) as start:
        torch.manual_seed(seed)
        facts["batch"] = batch_size(WHO, oracle.batches())
        return _diagnosis(*_runs(oracle, start, groups, facts, seed))


def _members(part: Any) -> list[Any]:
    """The tensors of a group, of a tensor, or of a tensor with its name."""
    found = part["params"] if isinstance(part, dict) else part
    found = [found] if isinstance(found, torch.Tensor) else list(found)
    return [p for one in found for p in (one if isinstance(one, tuple) else (one,)) if isinstance(p, torch.Tensor)]


def _runs(
    oracle: GradientOracle, start: Gradient, groups: list[Any], facts: dict[str, Any], seed: int
) -> tuple[probe.Products, dict[str, Any]]:
    """Walk with two points and measure; race the others from the same start; compare precisions."""
    steps, K = facts["steps"], facts["batch"]

    def optimizer(correction: float, beta: float) -> NormalizedStorm:
        # Copies, because an optimizer writes its defaults into the dictionaries that it is given.
        own = [
            {**group, "correction": correction, "beta": beta} if isinstance(group, dict) else group for group in groups
        ]
        options = {"geometry": facts["geometry"], "correction": correction, "module": oracle.model}
        return NormalizedStorm(own, facts["lr"], beta, **options)

    judge, losses = race.Judge(oracle, math.log2(max(1.0, facts["horizon"] / steps))), []
    watch = probe.Watch(oracle, facts["window"], steps, seed)

    def step(t: int, walker: NormalizedStorm = optimizer(1.0, facts["beta"])) -> None:  # noqa: B008
        losses.append(float(walker.step(oracle.loss, batch=oracle.batches())))
        watch(t)

    entrants = [race.along(judge, race.TWO, facts["beta"], steps, step)]
    del step
    found = _forecast(K, watch.measured(), k=K)
    others = [(race.TWO, found.beta), (race.STEPS, facts["beta"]), (race.STEPS, found.momentum_beta)]
    for way, beta in [*others, (race.BATCHES, found.momentum_beta)]:
        if (way, beta) not in {(one.way, one.beta) for one in entrants}:
            oracle.move(start)
            entrants.append(race.run(oracle, judge, optimizer(float(way == race.TWO), beta), way, beta, steps))
    oracle.move(start)
    mover = optimizer(1.0, facts["beta"])
    for _ in range(2):  # the first one moves nothing
        mover.step(oracle.loss, batch=oracle.batches())
    del mover
    lost = probe.rounding(oracle, start)
    seen = {"loss": float(np.mean(losses)), "rounding": lost, "seconds": oracle.seconds / oracle.passes}
    return watch.products, facts | seen | _race(entrants)


def _race(entrants: list[race.Entrant]) -> dict[str, Any]:
    lead, doubt = race.lead(entrants)
    two, other = race.best(entrants, True), race.best(entrants, False)
    best = {"two_point_beta": two.beta, "momentum_beta": other.beta, "momentum_way": other.way}
    return {"lead": lead, "lead_error": doubt, "race_loss": float(other.at_horizon.mean()), **best}


def _forecast(K: int, found: probe.Probe, k: int | None = None) -> Forecast:
    return forecast(K, found.noise, found.drift, found.exponent, found.curvature_noise, k)


def _diagnosis(products: probe.Products, facts: dict[str, Any]) -> Diagnosis:
    K, window, n = facts["batch"], facts["window"], len(products.own)
    measured = probe.from_products(products.own.mean(0), products.cross.mean(0), window)
    found = _forecast(K, measured)
    again = np.random.default_rng(0).integers(n, size=(100, n))
    drawn = [probe.from_products(products.own[i].mean(0), products.cross[i].mean(0), window) for i in again]
    ratios = [_forecast(K, other).ratio for other in drawn]
    gain = found.gain(measured.gradient)
    verdict, reason = _verdict(found, measured.bounce, gain, facts)
    return Diagnosis(
        **facts,
        **asdict(measured),
        measurements=n,
        forecast=found,
        ratio=found.ratio,
        ratio_low=float(np.quantile(ratios, 0.1, method="lower")),
        ratio_high=float(np.quantile(ratios, 0.9, method="higher")),
        gain=gain,
        verdict=verdict,
        reason=reason,
    )


def _verdict(found: Forecast, bounce: float, gain: float, facts: dict[str, Any]) -> tuple[str, str]:
    doubt = 2 * facts["lead_error"]
    if facts["lead"] > max(doubt, LEAST * abs(facts["race_loss"])):
        return PAYS, "race"
    if bounce < 0:
        return NOT, "bounce"
    if found.ratio >= 1:
        return NOT, "noise"
    if facts["lead"] < -doubt:
        return NOT, "race"
    if gain < GAIN:
        return NOT, "signal"
    if found.ratio > RATIO:
        return NOT, "close"
    return (NOT, "horizon") if facts["horizon"] * (1 - found.beta) < MEMORIES else (PAYS, "accuracy")


def _check(lr: Any, beta: Any, geometry: Any) -> None:
    for name, value in (("lr", lr), ("beta", beta), ("geometry", geometry)):
        fits, allowed = ALLOWED[name]
        if not fits(value) or (name == "lr" and value == 0):
            allowed = "a number > 0" if name == "lr" else allowed
            raise ValueError(f"{WHO}: {name} must be {allowed}; got {name}={value!r}")
