"""How each algorithm is set up on a problem that it has not seen: a default, and a small search around it.

**Scales.** Parameters have dimensions, so defaults are multiples of what is known of the problem at its start:
the length gap/||grad F(x_1)||, the curvature L = L0 + L1 ||grad F(x_1)||, the size G = ||grad F(x_1)|| + sigma of a
sample gradient (constants in mean square where they are proven, else almost surely), and the number of steps T.
A step that is a length begins at length T^(-2/3), one that multiplies a gradient at 1/(10 L).

**Search.** One rule for everybody: TRIED settings to begin with, wide and coarse. The step goes in factors of 10 around
its default and one other parameter has two or three values of its ladder; a method that has no other parameter goes in
factors of 10^(1/2). A best setting whose neighbours were not tried has them tried next (`search`): half a factor beside
it, and one rung. Equal settings are run once: a method without parameters has one. What the values are is in the table
below.

Settings that follow from a theorem are in `theorems`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from normstorm.algorithms.catalogue import CATALOGUE
from normstorm.algorithms.core import Algorithm
from normstorm.algorithms.geometries import norm
from normstorm.problems.protocol import Problem
from normstorm.theory.constants import Constants

TRIED = 12  # settings that everybody begins with
WEIGHTS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4, 3e-5, 1e-5)
DECADES = (1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5)
BATCHES, RESTARTS = (1, 4, 16, 64, 256, 1024), (16, 64, 400, 2500, 10_000)
FIRST_BATCH = 64
SHIFT = 100.0
SENSES = ("mean-square", "almost-sure")


@dataclass(frozen=True)
class Scales:
    """Sizes of a problem at its start, and the sample gradients to spend.

    size is the number of components of a finite sum
    """

    L0: float
    L1: float
    grad_norm: float
    sigma: float
    gap: float
    budget: int
    size: int | None

    @property
    def length(self) -> float:
        """How far a path must go: the gap at the slope of the start."""
        return self.gap / self.grad_norm

    @property
    def curvature(self) -> float:
        return self.L0 + self.L1 * self.grad_norm

    @property
    def gradient(self) -> float:
        """Of a sample, at the start."""
        return self.grad_norm + self.sigma

    def stride(self, cost: float = 1.0) -> float:
        """A length for each of budget / cost steps."""
        return self.length * math.pow(max(1.0, self.budget / cost), -2 / 3)


def scales(problem: Problem, budget: int) -> Scales:
    """Refused if the problem has no proven constants."""
    known = constants(problem)
    first = _slope(problem) if known.grad_norm is None else known.grad_norm
    if not (first > 0 and known.gap > 0 and known.L0 + known.L1 * first > 0):
        raise ValueError(
            f"compare: problem must start at a point with a gradient and a gap > 0; got {problem.name!r} with "
            f"grad_norm={first}, gap={known.gap}"
        )
    sigma = math.hypot(known.sigma0, known.sigma1 * first)
    return Scales(known.L0, known.L1, first, sigma, known.gap, budget, getattr(problem, "size", None))


def _slope(problem: Problem) -> float:
    """||grad F(x_1)||, for a problem whose constants do not say."""
    return float(norm(problem.full_grad(problem.start())))


def constants(problem: Problem) -> Constants:
    """In mean square, else almost surely."""
    reasons = []
    for sense in SENSES:
        try:
            found: Constants = problem.constants(None, sense)
            return found
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError(f"compare: problem must have proven constants; got {problem.name!r}: {reasons[-1]}")


Settings = Callable[[Scales, float, Any], dict[str, Any]]
Place = tuple[int, int]  # of a setting: the step's power of its factor, and the rung of the ladder


class Method(NamedTuple):
    """`settings(scales, factor, value)`: the step is `factor` times its default, the second parameter is `value`.

    second    its name, or None;   ladder    all its values, in order
    rung      that of the default;   first   those that the search begins with
    natural   whether there is nothing below the first value, and nothing above the last: alpha <= 1, K >= 1
    """

    settings: Settings
    second: str | None = None
    ladder: tuple[Any, ...] = (None,)
    rung: int = 0
    first: tuple[int, ...] = (0,)
    natural: tuple[bool, bool] = (True, True)

    @property
    def places(self) -> list[Place]:
        """Where the search begins: TRIED settings, the default among them."""
        steps = TRIED // len(self.first)
        return [(2 * (i - steps // 2), j) for j in self.first for i in range(steps)]

    def default(self, s: Scales) -> dict[str, Any]:
        return self.settings(s, 1.0, self.ladder[self.rung])

    def at(self, s: Scales, place: Place) -> dict[str, Any] | None:
        """The setting of a place; None beyond the ladder."""
        power, rung = place
        if not 0 <= rung < len(self.ladder):
            return None
        return self.settings(s, 10 ** (power / (4 if self.second is None else 2)), self.ladder[rung])


NATURAL = {"alpha": (True, False), "K": (True, False), "beta": (True, True), "power": (True, True)}


def _laddered(settings: Settings, second: str, ladder: tuple[Any, ...], default: Any, *others: Any) -> Method:
    """The search begins with the default and others; with a tenth and ten times the default if none are named."""
    rung = ladder.index(default)
    first = tuple(map(ladder.index, (default, *others))) if others else (rung - 1, rung, rung + 1)
    return Method(settings, second, ladder, rung, first, NATURAL.get(second, (False, False)))


def _weighted(step: Callable[[Scales], float], default: float = 0.1, **rest: Any) -> Method:
    """The weight alpha of the fresh gradient is the second parameter: begun with 1, the default and a tenth of it."""
    small = WEIGHTS[WEIGHTS.index(default) + 2]
    return _laddered(lambda s, f, a: {"eta": f * step(s), "alpha": a, **rest}, "alpha", WEIGHTS, default, 1.0, small)


def _plain(step: Callable[[Scales], float], **rest: Any) -> Method:
    return Method(lambda s, f, _: {"eta": f * step(s), **rest})


def _one(s: Scales) -> float:
    return s.stride(1)


def _two(s: Scales) -> float:
    return s.stride(2)


def _steep(s: Scales) -> float:
    return 0.1 / s.curvature


def _restarts(S1: int) -> dict[str, int]:
    """Small batch and period sqrt(S1), in the proportion of SPIDER's theorems."""
    root = round(math.sqrt(S1))
    return {"S1": S1, "S2": root, "q": root}


def _spider(settings: Settings) -> Method:
    return _laddered(settings, "S1", RESTARTS, 400, 64)


def _walk(s: Scales, S1: int) -> float:
    """SPIDER asks about 3 sqrt(S1) a step."""
    return s.stride(3 * math.sqrt(S1))


def _components(s: Scales) -> int:
    return 1 if s.size is None else s.size


METHODS: dict[str, Method] = {
    "normalized_storm": _weighted(_two),
    "normalized_storm_anytime": _weighted(lambda s: s.length * (1 + SHIFT) ** (-2 / 3), shift=SHIFT),
    "agnostic_storm": _plain(lambda s: s.length),
    "momentum_nsgd": _weighted(_one),
    "sgd": _plain(_steep),
    "averaged_sgd": _plain(_steep),
    "schedule_free_sgd": _laddered(
        lambda s, f, b: {"eta": f * _steep(s), "beta": b}, "beta", (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 1.0), 0.9, 0.5, 0.98
    ),
    "momentum_sgd": _weighted(_steep),
    "normalized_sgd": _laddered(lambda s, f, K: {"eta": f * s.stride(K), "K": K}, "K", BATCHES, 1, 16),
    "nigt": _weighted(_one),
    "agnostic_nsgd": _plain(lambda s: s.length * s.budget ** (3 / 4 - 2 / 3)),
    "clipped_sgd": _laddered(
        lambda s, f, c: {"eta": f * _steep(s), "threshold": c * s.gradient}, "threshold", DECADES, 1.0
    ),
    "soft_clipped_sgd": _laddered(
        lambda s, f, c: {"eta": f * _steep(s), "gamma": f * _steep(s) * c * s.gradient}, "gamma", DECADES, 1.0
    ),
    "mixed_clipping": _laddered(
        lambda s, f, a: {"eta": f * _steep(s), "gamma": f * _steep(s) * s.gradient, "alpha": a},
        "alpha",
        WEIGHTS,
        0.1,
        1.0,
        0.01,
    ),
    "clipped_storm": _laddered(
        lambda s, f, c: {"eta": f * _two(s), "alpha": 0.1, "threshold": c * s.gradient}, "threshold", DECADES, 0.1
    ),
    "generalized_signsgd": _weighted(_one),
    "sign_storm": _weighted(_two),
    "generalized_signstorm": _weighted(_two),
    "adagrad_norm": _laddered(lambda s, f, b: {"eta": f * s.length, "b0": b * s.gradient}, "b0", DECADES, 1.0),
    "super_adam": _laddered(
        lambda s, f, c: {"gamma": f * s.length * (s.budget / 2) ** (-1 / 3), "k": 1.0, "m": 100.0, "c": c},
        "c",
        DECADES,
        10.0,
    ),
    "storm": _laddered(
        lambda s, f, c: {
            "k": f * 0.1 * s.gradient ** (2 / 3) / s.curvature,
            "w": s.gradient**2,
            "c": c * s.curvature**2,
        },
        "c",
        DECADES,
        10.0,
    ),
    "storm_plus": Method(lambda s, f, _: {"scale": f}),
    **{
        name: _laddered(
            lambda s, f, a: {"eta": f * s.length, "a0": a * s.gradient, "b0": s.gradient}, "a0", DECADES, 1.0
        )
        for name in ("meta_storm", "meta_storm_sg", "meta_storm_na")
    },
    "measured_storm": _laddered(
        lambda s, f, offset: {"L0": s.curvature, "longest": f * s.length, "offset": offset}, "offset", DECADES, 10.0
    ),
    "kalman_storm": Method(lambda s, f, _: {"scale": f}),
    "hybrid_sarah_sgd": _weighted(_steep, first_batch=FIRST_BATCH),
    "spider_1": _spider(lambda s, f, S1: {"eps": f * _walk(s, S1) * s.curvature, "L": s.curvature, **_restarts(S1)}),
    "spider_2": _spider(lambda s, f, S1: {"eps": f * _walk(s, S1) * s.curvature, "L": s.curvature, **_restarts(S1)}),
    "l0l1_spider": _spider(
        lambda s, f, S1: {
            "eps": f * _walk(s, S1) * s.curvature,
            "L0": s.L0 or s.curvature,
            "L1": s.L1,
            **_restarts(S1),
        }
    ),
    "symmetric_spider": _spider(lambda s, f, S1: {"eta": f * _walk(s, S1), **_restarts(S1)}),
    "beta_gd": _laddered(
        lambda s, f, p: {"eta": f * s.stride(_components(s)) * s.grad_norm ** (p - 1), "power": p},
        "power",
        (1.0, 2 / 3, 1 / 3, 0.0),
        *(1.0, 2 / 3, 1 / 3),
    ),
    "page": _spider(
        lambda s, f, S1: {
            "eta": f * _steep(s),
            "S1": S1,
            "S2": _restarts(S1)["S2"],
            "chance": 1 / (1 + math.sqrt(S1)),
        }
    ),
    "svrg": Method(lambda s, f, _: {"eta": f * _steep(s), "period": _components(s)}),
    "saga": _plain(_steep),
    "sarah": Method(lambda s, f, _: {"eta": f * _steep(s), "period": _components(s)}),
    "mars": _weighted(_two, 0.03),
    "muon": _weighted(_one, 0.03),
    "muon_mvr": _weighted(_two),
    "limuon": _weighted(_two),
    "scion": _weighted(_one),
}


def build(name: str, settings: dict[str, Any]) -> Algorithm:
    """The algorithm of the catalogue."""
    made: Algorithm = CATALOGUE[name](**settings)
    return made
