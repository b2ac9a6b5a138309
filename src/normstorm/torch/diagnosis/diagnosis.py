"""Can the two-point term pay, on this model, with these data and this step size? A probe that measures and answers."""

from __future__ import annotations

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
from . import probe
from .forecast import Forecast, forecast
from .oracle import GradientOracle, batch_size, restore_after

WHO = "diagnose"
PAYS, CLOSE, NOT = "pays", "too close", "does not pay"
RATIO = 0.7  # two points must have at most so much of momentum's error
GAIN = 1.05  # and so much more progress a step
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
    lead             loss at the end of momentum's run less loss at the end of this one, on the same fresh batches, at
                     the same number of gradients; positive: two points are ahead.   lead_error: its standard error
    rounding         relative error of that difference against double precision; None: not measurable
    forecast         best beta of both methods, best k, predicted errors
    ratio, gain      of the forecast, with the 10 % and 90 % quantiles of the ratio when measurements are drawn again
    verdict          "pays", "too close" or "does not pay"
    reason           bounce, noise, race, signal, close or accuracy: which rule decided
    seconds          of one gradient of a batch
    parameters       how many numbers the model has
    """

    lr: float
    beta: float
    geometry: str
    batch: int
    steps: int
    window: int
    measurements: int
    loss: float
    lead: float
    lead_error: float
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
    params: Any = None,
    seed: int = 0,
) -> Diagnosis:
    """Measure for some hundred steps whether the two-point term can pay here, at this step size.

    model     stands where the question is asked: the answer is about the next stretch of training. It is left
              untouched, with its gradients, its statistics and all random numbers; whatever the loss changes must
              belong to it.
    loss      as for `NormalizedStorm.step(loss, batch=...)`: loss(*batch) is the mean loss of a batch's samples
    data      batches, iterable (begun again when it ends) or a function that returns one; independent draws
    lr, beta, geometry   the step in question
    steps     of the probe; each costs two gradients and two more in the race, and every measurement eight. The probe
              needs memory for about seventeen copies of the parameters.
    params    parameter groups as the optimizer takes them; None: the model's parameters in one group

    The probe walks with correction 1 and measures on fresh batches, in pairs: products of independent pairs have no
    noise in the mean. Rules, in this order (docs/diagnose.md):

    bounce    successive changes of grad F point against each other (cosine < 0): does not pay. Steps jump across
              sharp directions; momentum's lag damps that, an accurate gradient follows it.
    noise     predicted error not below momentum's at equal cost: does not pay.
    race      momentum, from the same start and with the same gradients spent on twice as many steps, ends lower by
              more than two standard errors: does not pay (yet). Where there is still a way to go, steps count.
    signal    the gradient is so long that better accuracy gains less than 5 % of progress: too close.
    close     error more than 0.7 of momentum's: too close.
    accuracy  else: pays.
    """
    oracle = GradientOracle(WHO, model, loss, data)
    _check(lr, beta, geometry)
    steps = whole(WHO, "steps", steps, LEAST_STEPS)
    facts = {"lr": float(lr), "beta": float(beta), "geometry": geometry, "steps": steps}
    facts["window"] = max(3, min(round(1 / (1 - beta)), steps // 16))
    facts["parameters"] = sum(p.numel() for p in oracle.params)
    groups = list(oracle.params if params is None else params)
    foreign = {p for part in groups for p in _members(part)} - set(model.parameters())
    if foreign:
        raise ValueError(f"{WHO}: params must be parameters of the model; got {len(foreign)} others")
    with restore_after(model):
        torch.manual_seed(seed)
        facts["batch"] = batch_size(WHO, oracle.batches())
        return _diagnosis(*_runs(oracle, groups, facts))


def _members(part: Any) -> list[Any]:
    """The tensors of a group, of a tensor, or of a tensor with its name."""
    found = part["params"] if isinstance(part, dict) else part
    found = [found] if isinstance(found, torch.Tensor) else list(found)
    return [p for one in found for p in (one if isinstance(one, tuple) else (one,)) if isinstance(p, torch.Tensor)]


def _runs(oracle: GradientOracle, groups: list[Any], facts: dict[str, Any]) -> tuple[probe.Products, dict[str, Any]]:
    """Walk with two points and measure; race momentum from the same start; compare precisions."""
    start, losses, steps = oracle.point(), [], facts["steps"]

    def stepper(correction: float) -> Callable[[Any], None]:
        # Copies, because an optimizer writes its defaults into the dictionaries that it is given.
        own = [{**group, "correction": correction} if isinstance(group, dict) else group for group in groups]
        options = {"geometry": facts["geometry"], "correction": correction, "module": oracle.model}
        optimizer = NormalizedStorm(own, facts["lr"], facts["beta"], **options)
        return lambda batch: losses.append(float(optimizer.step(oracle.loss, batch=batch)))

    step = stepper(1.0)
    products = probe.walk(oracle, step, steps, facts["window"], rest=facts["window"])
    here, mean = oracle.point(), float(np.mean(losses))
    step(oracle.batches())
    ahead = oracle.point()
    oracle.move(start)
    step = stepper(0.0)
    for _ in range(2 * steps):
        step(oracle.batches())
    lead, doubt = probe.lead(oracle, here, oracle.point())
    lost = probe.rounding(oracle, ahead, here)
    race = {"loss": mean, "lead": lead, "lead_error": doubt, "rounding": lost}
    return products, facts | race | {"seconds": oracle.seconds / oracle.passes}


def _forecast(K: int, found: probe.Probe) -> Forecast:
    return forecast(K, found.noise, found.drift, found.exponent, found.curvature_noise)


def _diagnosis(products: probe.Products, facts: dict[str, Any]) -> Diagnosis:
    K, window, n = facts["batch"], facts["window"], len(products.own)
    measured = probe.from_products(products.own.mean(0), products.cross.mean(0), window)
    found = _forecast(K, measured)
    again = np.random.default_rng(0).integers(n, size=(100, n))
    drawn = [probe.from_products(products.own[i].mean(0), products.cross[i].mean(0), window) for i in again]
    ratios = [_forecast(K, other).ratio for other in drawn]
    gain = found.gain(measured.gradient)
    verdict, reason = _verdict(measured.bounce, found.ratio, gain, facts["lead"] + 2 * facts["lead_error"] < 0)
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


def _verdict(bounce: float, ratio: float, gain: float, behind: bool) -> tuple[str, str]:
    if bounce < 0:
        return NOT, "bounce"
    if ratio >= 1:
        return NOT, "noise"
    if behind:
        return NOT, "race"
    if gain < GAIN:
        return CLOSE, "signal"
    return (CLOSE, "close") if ratio > RATIO else (PAYS, "accuracy")


def _check(lr: Any, beta: Any, geometry: Any) -> None:
    for name, value in (("lr", lr), ("beta", beta), ("geometry", geometry)):
        fits, allowed = ALLOWED[name]
        if not fits(value) or (name == "lr" and value == 0):
            allowed = "a number > 0" if name == "lr" else allowed
            raise ValueError(f"{WHO}: {name} must be {allowed}; got {name}={value!r}")
