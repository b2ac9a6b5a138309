"""A plan for a model: the theory's constants, given or estimated by a probe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from normstorm._shared.validate import number, whole
from normstorm.theory import Constants, Plan, plan
from normstorm.theory.envelopes import line_above

from .diagnosis.oracle import Gradient, GradientOracle, batch_size, inner, minus, restore_after

WHO = "plan_for"
REACH = 1e-2  # the longest probing step, as a part of ||x||
MARGIN = 1.5  # estimated constants are multiplied by this: the largest of a few draws is not the largest


def plan_for(
    model: nn.Module,
    loss: Callable[..., Any],
    data: Any,
    *,
    budget: int | None = None,
    horizon: int | None = None,
    target: float | None = None,
    confidence: float | None = None,
    constants: Constants | None = None,
    lower: float = 0.0,
    probes: int = 12,
    seed: int = 0,
    **options: Any,
) -> Plan:
    """The theory's plan for NormalizedStorm on this model (`NormalizedStorm.from_plan`).

    budget, horizon, target, confidence and options (rule, batch, sub_batch, certificate) are those of `normstorm.plan`.
    A sample of the plan is one sample of a batch: plan.batch and plan.sub_batch are K and k.

    constants   what is proven about the loss. Then the plan's bound is a theorem. None: `estimate_constants` measures
                them. **The bound is then conditional**: it holds if the constants do, and measuring at some points
                proves nothing about others. Estimates hold in mean square (3B, 4B), so that `confidence` must be None.
    lower       a lower bound of the loss
    """
    if constants is None:
        if confidence is not None:
            raise ValueError(
                f"{WHO}: confidence must be None unless constants are given, since estimates hold in mean square; got "
                f"confidence={confidence!r}"
            )
        constants = estimate_constants(model, loss, data, lower=lower, probes=probes, seed=seed)
    found: Plan = plan(constants, budget=budget, horizon=horizon, target=target, confidence=confidence, **options)
    return found


def estimate_constants(
    model: nn.Module, loss: Callable[..., Any], data: Any, *, lower: float = 0.0, probes: int = 12, seed: int = 0
) -> Constants:
    """L0, L1, sigma0, sigma1, gap and grad_norm in mean square (3B, 4B), measured; the model is left untouched.

    From the model's point, `probes` points along the way down the gradient and as many in random directions, each with
    two fresh batches. Smoothness is the change of a sample's gradient over the length of the step, noise the spread
    between samples; each is fitted by a line (smoothness) or by squares (noise) in ||grad F|| that lies above all
    points, and multiplied by 1.5. A sample's moments are a batch's, times its size for the noise.
    """
    oracle = GradientOracle(WHO, model, loss, data)
    floor, probes = number(WHO, "lower", lower), whole(WHO, "probes", probes, 4)
    with restore_after(model):
        torch.manual_seed(seed)
        K = batch_size(WHO, oracle.batches())
        value, first = _start(oracle, 4 * probes)
        seen = np.array(list(_measure(oracle, K, probes)))
    if not floor < value:
        raise ValueError(f"{WHO}: lower must be below the loss, {value:.6g}; got lower={lower!r}")
    slope, noise, smooth = seen.T
    if not smooth.max() > 0:
        raise ValueError(f"{WHO}: loss must have a gradient that changes along the probe; got one that stays")
    L0, L1 = line_above(slope, smooth)
    sigma0, sigma1 = (math.sqrt(v) for v in line_above(slope**2, noise**2))
    return Constants(
        L0=MARGIN * L0,
        L1=MARGIN * L1,
        sigma0=MARGIN * sigma0,
        sigma1=MARGIN * sigma1,
        gap=value - floor,
        grad_norm=MARGIN * first,
        noise="mean-square",
    )


def _start(oracle: GradientOracle, draws: int) -> tuple[float, float]:
    """Mean loss, and the length of the mean gradient, which the noise that is left makes too long rather than short."""
    values, total = [], [torch.zeros_like(p) for p in oracle.params]
    for _ in range(draws):
        batch = oracle.batches()
        with torch.no_grad():
            values.append(float(oracle.value(batch).detach()))
        total = [a + g / draws for a, g in zip(total, oracle.gradient(batch, 0), strict=True)]
    return float(np.mean(values)), math.sqrt(inner(total, total))


def _measure(oracle: GradientOracle, K: int, probes: int) -> Iterator[tuple[float, float, float]]:
    """||grad F||, noise of a sample, and root mean square smoothness of a sample, at each pair of points."""
    x = oracle.point()
    reach = REACH * max(math.sqrt(inner(x, x)), 1.0)
    for i in range(2 * probes):
        batches, seeds = [oracle.batches(), oracle.batches()], torch.randint(2**31, (2,)).tolist()
        oracle.move(x)
        here = [oracle.gradient(b, s) for b, s in zip(batches, seeds, strict=True)]
        way = here[0] if i % 2 == 0 else [torch.randn_like(p) for p in x]
        size = math.sqrt(inner(way, way))
        length = reach / 10 ** ((i // 2) % 3)
        y = [a - b * (length / size) for a, b in zip(x, way, strict=True)] if size > 0 else x
        oracle.move(y)
        changes = [minus(oracle.gradient(b, s), g) for b, s, g in zip(batches, seeds, here, strict=True)]
        yield _moments(here, changes, K, math.sqrt(inner(minus(y, x), minus(y, x))))
        if i % 2 == 0:
            x = y


def _moments(here: list[Gradient], changes: list[Gradient], K: int, length: float) -> tuple[float, float, float]:
    gap = minus(here[0], here[1])
    noise = K * inner(gap, gap) / 2
    slope = max(inner(here[0], here[1]), 0.0)
    spread = minus(changes[0], changes[1])
    # A sample's mean square: the mean's square, and K times the variance of a batch of K.
    smooth = max(inner(changes[0], changes[1]), 0.0) + K * inner(spread, spread) / 2
    return math.sqrt(slope), math.sqrt(noise), math.sqrt(smooth) / length if length > 0 else 0.0
