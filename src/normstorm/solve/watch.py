"""Whether samples contradict the constants that a problem states; what rests on contradicted ones is void.

At points of a run fresh samples are held to 4A and 3A, with G = ||grad F(x)|| and rho = sigma0 + sigma1 G:

    noise        ||grad f(x, s) - grad F(x)|| <= rho
    smoothness   ||grad f(x, s) - grad f(y, s)|| <= (L0 + L1 G) ||x - y||, for y with ||x - y|| <= 1/L1

**Where grad F is known**, from all rows or a formula, this is certain: a contradiction is a counterexample.

**Where F is only sampled**, let g be the mean of n samples. If 4A holds, Pinelis' inequality for sums of bounded
vectors ("Optimum bounds for the distributions of martingales in Banach spaces", 1994) gives P(||g - grad F|| > rho r)
<= ALARM with r = sqrt(2 ln(2/ALARM)/n). Then G <= ||g|| + rho r, so that rho <= (sigma0 + sigma1 ||g||)/(1 - sigma1 r)
where sigma1 r < 1, and every sample is within rho (1 + r) of g. A contradiction to that is one to 4A, up to the
probability ALARM at each point; where sigma1 r >= 1 nothing follows and nothing is said.

Constants in mean square alone are about means: they are held to the mean over all rows where that is known, else not.

The samples are fresh ones, not those of the steps: a step asks its samples at two points and forgets them, and to
compare them there would cost more than the 5 % that a look at some points does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

from normstorm._shared.jsonable import jsonable
from normstorm.engine.results import Trace
from normstorm.problems.protocol import Problem
from normstorm.theory.constants import Constants

from .fresh import whole_size
from .looks import MOST_ROWS, Look, looks

Tree = Any
ALARM = 1e-9
ROUNDING = 1e-6  # of a gradient's length: what rounding of gradients and secants may have changed
SHARE = 0.02  # of the cost of a run, for its check
LEAST, USUAL, MOST = 16, 256, 1024  # samples at a point


@dataclass(frozen=True)
class Contradictions:
    """What was compared with the constants, and what exceeds them.

    checked    comparisons;   noise, smoothness  of which so many contradict 4A (4B) and 3A (3B)
    first      the first of them in words;   sample_gradients  what the check asked
    """

    checked: int
    noise: int
    smoothness: int
    first: str
    sample_gradients: int

    @property
    def found(self) -> int:
        return self.noise + self.smoothness

    @property
    def statement(self) -> str:
        """What follows, in a sentence."""
        if not self.checked:
            return "The stated constants could not be compared with samples."
        if not self.found:
            return f"The stated constants agree with {self.checked:,} comparisons with samples, which is no proof."
        return (
            f"Nothing that rests on the stated constants is guaranteed: {self.found:,} of {self.checked:,} comparisons "
            f"with samples contradict them, the first one {self.first}."
        )

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = jsonable(asdict(self) | {"found": self.found, "statement": self.statement})
        return found


def check_constants(
    problem: Problem, points: Sequence[Tree], constants: Constants, samples: int = USUAL, *, seed: int = 0
) -> Contradictions:
    """Fresh samples at each of the points against the constants; a finite sum that is not large is looked at whole."""
    return compared(list(looks(problem, points, samples, seed)), constants)


def check_run(problem: Problem, trace: Trace, constants: Constants, *, seed: int = 0) -> Contradictions:
    """The same at points that a run of its first seed has kept, the last one first, for at most 2 % of its cost.

    One point is looked at in any case.
    """
    kept = trace.candidates.x
    count = jax.tree.leaves(kept)[0].shape[1]
    points = [jax.tree.map(lambda leaf, j=j: np.asarray(leaf)[0, j], kept) for j in range(count)]
    points += [jax.tree.map(lambda leaf: np.asarray(leaf)[0], tree) for tree in (trace.smallest.x, trace.last)]
    finite = [p for p in points if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(p))]
    size, share = whole_size(problem) or 0, SHARE * float(trace.cost[0])
    each = 4 * size if 0 < size <= MOST_ROWS else size + 4 * USUAL
    several = int(np.clip(share // each, 1, max(len(finite), 1)))
    samples = int(np.clip((share / several - size) / 4, LEAST, MOST))
    return check_constants(problem, finite[-several:], constants, samples, seed=seed)


def compared(seen: Sequence[Look], constants: Constants) -> Contradictions:
    """Looks against constants."""
    found = [(kind, ratio, words) for j, look in enumerate(seen) for kind, ratio, words in _against(look, constants, j)]
    wrong = [(kind, words) for kind, ratio, words in found if ratio > 1]
    asked = sum(look.deviations.size * (1 + look.secants.shape[0]) for look in seen)
    kinds = [kind for kind, _ in wrong]
    first = wrong[0][1] if wrong else ""
    return Contradictions(len(found), kinds.count("noise"), kinds.count("smoothness"), first, asked)


def _against(look: Look, c: Constants, place: int) -> Iterator[tuple[str, float, str]]:
    """(kind, left side/right side, words) of every comparison that can be made at a point."""
    if c.noise == "mean-square":
        yield from _in_mean_square(look, c, place)
        return
    n, known = look.deviations.size, look.how != "samples"
    r = 0.0 if known else math.sqrt(2 * math.log(2 / ALARM) / n)
    if c.sigma1 * r >= 1:
        return
    rho = (c.sigma0 + c.sigma1 * look.norm) / (1 - c.sigma1 * r)
    G = look.norm + rho * r
    lost = ROUNDING * look.size
    for i, apart in enumerate(look.deviations):
        bound = rho * (1 + r) + lost
        yield "noise", _ratio(apart, bound), _noise_words(apart, bound, place, i, known)
    limit = c.L0 + c.L1 * G
    for length, row in zip(look.lengths, look.secants, strict=True):
        if length * c.L1 > 1:
            continue
        bound = limit * (1 + ROUNDING) + lost * 1e-6 / length
        for i, secant in enumerate(row):
            words = (
                f"at point {place + 1}, where the gradient of sample {i + 1} changes by {secant:.4g} times the way and "
                f"L0 + L1 ||grad F|| allows {limit:.4g}"
            )
            yield "smoothness", _ratio(secant, bound), words


def _in_mean_square(look: Look, c: Constants, place: int) -> Iterator[tuple[str, float, str]]:
    """3B and 4B where the mean over all rows is known."""
    if look.how != "rows":
        return
    root, bound = float(np.mean(look.deviations**2) ** 0.5), math.hypot(c.sigma0, c.sigma1 * look.norm)
    where = f"at point {place + 1}, where the root mean square of"
    words = f"{where} the noise is {root:.4g} and sigma0, sigma1 allow {bound:.4g}"
    yield "noise", _ratio(root, bound + ROUNDING * look.size), words
    limit = c.L0 + c.L1 * look.norm
    for length, row in zip(look.lengths, look.secants, strict=True):
        if length * c.L1 <= 1:
            root = float(np.mean(row**2) ** 0.5)
            words = f"{where} the secants is {root:.4g} and L0 + L1 ||grad F|| allows {limit:.4g}"
            yield "smoothness", _ratio(root, limit * (1 + ROUNDING) + ROUNDING**2 * look.size / length), words


def _noise_words(apart: float, bound: float, place: int, sample: int, known: bool) -> str:
    centre = "grad F" if known else "the mean of the samples"
    return (
        f"at point {place + 1}, where the gradient of sample {sample + 1} is {apart:.4g} away from {centre} and "
        f"sigma0, sigma1 allow {bound:.4g}"
    )


def _ratio(left: float, right: float) -> float:
    return left / right if right > 0 else (math.inf if left > 0 else 0.0)
