"""Kalman-STORM for PyTorch, experimental: no learning rate, no momentum, no horizon.

    first three steps    x stays;  m = mean of their gradients, s2 their sample variance;  V = s2/3, S = 4 s2/3
    a = V/S,             V <- (1 - a) V + l^2 d^2,        m <- m + c + a (g(x) - m - c),   c = g(x) - g(x_prev)
    d = min{ s <m, u>/(2 L) min{1, w/q}, 2 times the longest step },   w = min{1, ||m||^2/V}
    x <- x - d u   if the w since the last such step add up to 1

V is the variance of the error of m, S of a measurement around it; L, l, s, q are curvature along steps, its spread, and
what they say of the length, all observed on the way as in `normstorm.algorithms.kalman_storm`. u has length 1: m/||m||,
or in the geometry spectral the orthogonal factors of matrices and vectors of length 1, taken together; L is then the
part of a secant that lies along its own such direction.

longer    The loss of a fresh batch before and after a step says what the step has brought; m knows nothing of that
          batch. As long as it is on average more than half of d <m, u>, as on a quadratic before its minimum along u,
          the factor of lengths grows by 1.1 a step, else it falls by 0.7, and never below 1. A lengthened step after
          which that loss has risen by more than d <m, u> is taken back, and the factor is halved; so is any step
          after the tenth whose loss has risen by more than four times the root mean square of such changes (over the
          last ten or so). If that step was not lengthened, L^2 counts twice from then on.

No curvature. Where the gradient has not changed by more than rounding, nothing says how far it holds: steps double up
to the length of the first weights, 1 if these are 0, and grow no more.

Order. As in NormalizedStorm, weights sit at x_prev between two steps and the move is due: a step takes the gradient
there, moves, and takes it at x on the same samples. `finish` makes the last move. Memory: weights, m, the last secant,
a sum of measurements, two gradients and a direction.

Source: `normstorm.algorithms.filtering`, which is ours.
Departures: k = K; samples of the first estimate come with three steps; the first curvature along u is that of three
gradients of one batch at distances of a thousandth of ||x||, not of derivatives; a step that ends where gradients are
not finite is taken back, and counts as four times the curvature; the geometry spectral, and `longer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normstorm._shared.validate import positive, refuse

from .directions import orthogonal
from .replay import RandomState, frozen_statistics, generators_of

WHO = "KalmanStorm"
GEOMETRIES = ("euclidean", "spectral")
FIRST = 3  # gradients of the first estimate
SEEN = ("V", "S", "bend", "flat", "spread", "along", "square", "reach", "excess", "squares")
NUMBERS = (*SEEN, "longest", "waited", "length", "gains", "far", "swing")
COUNTS = ("seen", "moves", "since", "alarms", "taken_back")
BEGINNING: dict[str, Any] = dict.fromkeys(NUMBERS, 0.0) | dict.fromkeys(COUNTS, 0)
BEGINNING |= {"gain": 1.0, "factor": 1.0, "progress": 0.75}


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(torch.stack([torch.sum(x * y, dtype=torch.float64).cpu() for x, y in zip(a, b, strict=True)]).sum())


def _over(top: float, bottom: float) -> float:
    return top / bottom if bottom > 0 else math.inf


class KalmanStorm(Optimizer):
    """Kalman-STORM, experimental. `step(closure)` only; the closure evaluates one batch, and is called at two points.

    params     as for every torch.optim.Optimizer; one filter follows all of them together
    geometry   euclidean or spectral
    scale      factor of the length that curvature allows
    longer     lengthen steps as long as the loss of fresh batches falls as it should
    module     whose running statistics are frozen at extra points; None: every layer called meanwhile

    `error_bar` is what ||m - grad F(x)|| is thought to be: a root mean square, no bound.

    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = KalmanStorm(model.parameters())
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = model(torch.ones(8, 3)).square().mean()
    ...     loss.backward()
    ...     return loss
    >>> for _ in range(5):
    ...     _ = optimizer.step(closure)
    """

    def __init__(
        self,
        params: Any,
        *,
        geometry: str = "euclidean",
        scale: float = 1.0,
        longer: bool = False,
        module: nn.Module | None = None,
    ) -> None:
        if geometry not in GEOMETRIES:
            refuse(WHO, "geometry", f"one of {', '.join(GEOMETRIES)}", geometry)
        if not isinstance(longer, bool):
            refuse(WHO, "longer", "True or False", longer)
        self.module = module
        super().__init__(params, {"geometry": geometry, "scale": positive(WHO, "scale", scale), "longer": longer})
        self.param_groups[0]["filter"] = dict(BEGINNING)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What a state of an earlier version does not know begins anew."""
        super().__setstate__(state)
        known = self.param_groups[0].get("filter", {})
        self.param_groups[0]["filter"] = BEGINNING | {"square": known.get("bend", 0.0)} | known

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups and "filter" in self.param_groups[0]:
            raise ValueError(f"{WHO}: params must all be given at the beginning; got a group that is added later")
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.is_complex() or not p.is_floating_point():
                raise ValueError(f"{WHO}: params must be real floating-point tensors; got one of {p.dtype}")

    @property
    def _filter(self) -> dict[str, Any]:
        found: dict[str, Any] = self.param_groups[0]["filter"]
        return found

    @property
    def error_bar(self) -> float:
        return math.sqrt(self._filter["V"])

    @property
    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    def _kept(self, name: str) -> list[Tensor]:
        for p in self._params:
            if name not in self.state[p]:
                self.state[p][name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return [self.state[p][name] for p in self._params]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; the loss at the new point."""
        if not callable(closure):
            refuse(WHO, "closure", "a function that evaluates one batch and calls backward", closure)
        f, params = self._filter, self._params
        again = RandomState(params, generators_of(closure, self.module))
        if f["seen"] < FIRST:
            loss, g = self._gradients(closure)
            self._gather(g)
        elif f["length"] > 0:
            loss = self._moved(closure, again)
        else:
            loss, g = self._gradients(closure)
            self._measure(g, [torch.zeros_like(one) for one in g], [], 0.0)
        if f["seen"] >= FIRST and f["reach"] == 0:
            self._probe(closure, again)
        if f["seen"] >= FIRST:
            self._choose()
        return loss

    @torch.no_grad()
    def finish(self) -> None:
        """Make the move that is due."""
        if self._filter["length"] > 0:
            f = self._filter
            torch._foreach_add_(self._params, self._direction(), alpha=-f["length"])
            f |= {"longest": max(f["longest"], f["length"]), "length": 0.0}

    def _gradients(
        self, closure: Callable[[], Any], again: RandomState | None = None, still: bool = False
    ) -> tuple[Any, list[Tensor]]:
        if again is not None:
            again.restore()
        params = self._params
        for p in params:
            p.grad = None
        with torch.enable_grad(), frozen_statistics(self.module) if still else nullcontext():
            loss = closure()
        found = [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in params]
        for p in params:
            p.grad = None
        if again is None and not still and not math.isfinite(_dot(found, found)):
            raise RuntimeError(f"{WHO}: gradients must be finite where no step has led to; got others")
        return loss, found

    def _moved(self, closure: Callable[[], Any], again: RandomState) -> Any:
        """Both passes, and the move between them."""
        f, params, u = self._filter, self._params, self._direction()
        d, slope = f["length"], _dot(self._kept("m"), u)
        before, old = self._gradients(closure, still=True)
        torch._foreach_add_(params, u, alpha=-d)
        loss, g = self._gradients(closure, again)
        change = torch._foreach_sub(g, old)
        finite, rise = math.isfinite(_dot(change, change)), 0.0
        if finite and self.param_groups[0]["longer"]:
            rise = float(loss) - float(before)
        wild = f["moves"] > 10 and f["swing"] > 0 and not rise <= 4 * math.sqrt(f["swing"])
        if not finite or wild or (f["factor"] > 1 and not rise <= d * slope):
            torch._foreach_add_(params, u, alpha=d)
            more = (2 if wild and f["factor"] == 1 else 1) if finite else 16
            least = 0.0 if finite else (2 * slope / d) ** 2  # where nothing was seen to bend
            f |= {"bend": max(f["bend"] * more, least), "factor": max(1.0, f["factor"] / 2)}
            f["taken_back"] += 1
            return before
        if self.param_groups[0]["longer"]:
            fall = -rise / (d * slope)
            f["swing"] += 0.1 * (rise * rise - f["swing"]) if math.isfinite(rise) else 0.0
            f["progress"] += 0.1 * ((fall if fall >= -1 else -1.0) - f["progress"])
            f["factor"] = max(1.0, f["factor"] * (1.1 if f["progress"] > 0.5 else 0.7))
        f["longest"] = max(f["longest"], d)
        self._measure(g, list(change), u, d)
        return loss

    def _gather(self, g: list[Tensor]) -> None:
        """The first estimate, by Welford's recursion."""
        f, m = self._filter, self._kept("m")
        f["seen"] += 1
        apart = torch._foreach_sub(g, m)
        torch._foreach_add_(m, apart, alpha=1 / f["seen"])
        f["squares"] += _dot(apart, torch._foreach_sub(g, m))
        if f["seen"] == FIRST:
            s2 = f["squares"] / (FIRST - 1)
            f |= {"V": s2 / FIRST, "S": s2 + s2 / FIRST}

    def _measure(self, g: list[Tensor], change: list[Tensor], u: list[Tensor], d: float) -> None:
        f, m = self._filter, self._kept("m")
        n, old = f["seen"] + 1, _dot(m, m)
        V = max(f["V"], f["S"] / n)
        a = min(1.0, V / f["S"]) if f["S"] > 0 else 1 / n
        forget = min(0.3, max(min(0.02, 10 / n), 1 / n, f["gain"]))
        torch._foreach_add_(m, change)
        apart = torch._foreach_sub(g, m)
        more = 2 * _dot(apart, change) + f["spread"] * d * d
        S = min(max(f["S"] + more, f["S"] / 2), 2 * f["S"])
        if d > 0:
            self._curve(change, u, d, old)
        f["S"] = S + forget * (_dot(apart, apart) - S)
        f |= {"V": min((1 - a) * V + f["spread"] * d * d, f["S"]), "gain": a, "seen": n}
        torch._foreach_add_(m, apart, alpha=a)
        self._check(list(apart))

    def _curve(self, change: list[Tensor], u: list[Tensor], d: float, old: float) -> None:
        """Curvature along the step, its spread over samples, and its mean."""
        f, last = self._filter, self._kept("secant")
        secant = torch._foreach_mul(change, -1 / d)
        square, bent, moves = _dot(secant, secant), self._dual(secant) ** 2, f["moves"] + 1
        apart = torch._foreach_sub(secant, last)
        twist = min(_dot(apart, apart) / 2, square)
        agree = 1 - (twist / square if square > 0 else 0.0)
        fall = max(0.003, 0.1 * agree**4, 1 - min(_over(f["S"], old), 1))
        share, slow = max(0.1 if bent > f["bend"] else fall, 1 / moves), max(0.005, 1 / moves)
        f["bend"] += share * (bent - f["bend"])
        f["flat"] += share * (square - f["flat"])
        f["spread"] += slow * (twist - f["spread"])
        f["along"] += slow * (_dot(secant, u) - f["along"])
        f["square"] += slow * (bent - f["square"])
        f["moves"] = moves
        torch._foreach_copy_(last, secant)

    def _check(self, apart: list[Tensor]) -> None:
        """Measurements around m are uncorrelated if m errs as V says: then their sum is as long as it should be."""
        f, total, m = self._filter, self._kept("sum"), self._kept("m")
        torch._foreach_add_(total, apart)
        f |= {"gains": f["gains"] + f["gain"], "since": f["since"] + 1}
        if f["gains"] < 1:
            return
        rounding = 64 * torch.finfo(m[0].dtype).eps * math.sqrt(_dot(m, m))
        f["excess"] = _dot(total, total) / (f["since"] * f["S"]) if math.sqrt(f["S"]) > rounding else 1.0
        if f["excess"] > 3:
            f["V"] = min(f["S"], max(f["V"], (f["excess"] - 1) * f["S"] / f["since"]))
            f |= {"spread": min(2 * f["spread"], max(f["spread"], f["flat"])), "alarms": f["alarms"] + 1}
        f |= {"gains": 0.0, "since": 0}
        torch._foreach_zero_(total)

    def _direction(self) -> list[Tensor]:
        """u, the way that is gone."""
        return self._unit(self._kept("m"))

    def _unit(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The direction of the geometry that they have most of, of length 1 over all parameters."""
        u = list(tensors)
        if self.param_groups[0]["geometry"] == "spectral":
            u = [one / one.norm().clamp_min(torch.finfo(one.dtype).tiny) for one in tensors]
            matrices = [i for i, one in enumerate(u) if one.ndim > 1]
            for i, factor in zip(matrices, orthogonal([u[i] for i in matrices], None), strict=True):
                u[i] = factor
        size = math.sqrt(_dot(u, u))
        return list(torch._foreach_mul(u, 1 / size if size > 0 else 0.0))

    def _dual(self, secant: Sequence[Tensor]) -> float:
        """How long a change of the gradient is for the geometry: in the Euclidean one its length."""
        return _dot(secant, self._unit(secant))

    def _probe(self, closure: Callable[[], Any], again: RandomState) -> None:
        """The first curvature along u, and the length over which the gradient or its slope changes by an eighth."""
        f, params, u = self._filter, self._params, self._direction()
        size = math.sqrt(_dot(self._kept("m"), self._kept("m")))
        if size == 0:
            return
        x, far = [p.detach().clone() for p in params], math.sqrt(_dot(params, params))
        far = far if far > 0 else 1.0
        h = 1e-3 * far
        seen = []
        for place in (0.0, h, -h):
            torch._foreach_copy_(params, x)
            torch._foreach_add_(params, u, alpha=place)
            seen.append(self._gradients(closure, again, still=True)[1])
        torch._foreach_copy_(params, x)
        here, ahead, behind = seen
        first = torch._foreach_mul(torch._foreach_sub(ahead, behind), 1 / (2 * h))
        second = torch._foreach_add(torch._foreach_add(ahead, behind), here, alpha=-2)
        second = torch._foreach_mul(second, 1 / h**2)
        lengths = [math.sqrt(_dot(one, one)) for one in (first, second)]
        slope = _over(*lengths) if lengths[0] > 0 else math.sqrt(_over(size, lengths[1]))
        r = min(_over(size, lengths[0]), slope) / 8
        r = r if math.isfinite(r) and r > 0 else h
        secant = torch._foreach_add(first, second, alpha=-r / 2)
        square = _dot(secant, secant)
        torch._foreach_copy_(self._kept("secant"), secant)
        f |= {"flat": square, "spread": square, "along": _dot(secant, u)}
        f |= dict.fromkeys(("bend", "square"), self._dual(secant) ** 2)
        f |= {"moves": f["moves"] + (square > 0), "reach": r, "far": far}

    def _choose(self) -> None:
        """The length of the next step."""
        f, m = self._filter, self._kept("m")
        square, limits, along = _dot(m, m), torch.finfo(m[0].dtype), max(f["along"], 0.0)
        least = max(1.0, f["spread"] / f["flat"]) if f["flat"] > 0 else 1.0  # curvature is no less than its spread
        L, flat = math.sqrt(least * f["bend"]), math.sqrt(least * f["flat"])
        q = min(_over(0.5 * f["spread"], flat * along), 1)
        clear = min(_over(square, f["V"]), 1)
        share = min(max(2 * _over(L * abs(f["along"]), min(f["square"], L * L)), 0.125), 1)
        f |= {"length": 0.0, "waited": f["waited"] + clear}
        if f["waited"] >= 1 and square > limits.tiny / limits.eps:
            slope = _dot(m, self._direction())
            allowed = _over(0.5 * self.param_groups[0]["scale"] * f["factor"] * slope, L) * share
            most = max(2 * f["longest"], f["reach"])
            if f["longest"] > 0 and L * f["longest"] <= 64 * limits.eps * math.sqrt(square + f["S"]):
                most = min(most, max(f["longest"], f["far"]))
            f |= {"length": max(0.0, min(allowed * min(_over(clear, q), 1), most)), "waited": 0.0}
