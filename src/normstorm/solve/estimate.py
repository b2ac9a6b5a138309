"""L0, L1, sigma0 and sigma1 as a short run sees them, each with an interval and a word for what it is worth.

A run of `kalman_storm` from x0 leaves some points. At each of them, with s a sample and G = ||grad F(x)||:

    secants      ||grad f(x, s) - grad f(y, s)||/||x - y|| to three points y close by (down the gradient, along the
                 run, in a random direction), which 3A and 3B bound by L0 + L1 G
    deviations   ||grad f(x, s) - grad F(x)||, which 4A and 4B bound by sigma0 + sigma1 G

Over the samples the largest is taken (almost surely) or the root mean square. (L0, L1) is the lowest line above the
secants against G, (sigma0, sigma1) above the deviations (in mean square above their squares). What was seen is a lower
bound of what is true, so no such number is a proof:

    proof      stated and proven by the problem, or computed from all rows
    estimate   a mean square of what was seen, or a largest of all rows; the interval is of a bootstrap over samples
    guess      the largest of some samples, others may be larger: the interval ends at the largest and 19 times its
               distance from the second, the limit of an end point by Robson and Whitlock (95 %, for a blunt end)

None says anything of points that the run did not visit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from normstorm._shared import validate
from normstorm._shared.jsonable import jsonable
from normstorm._shared.programs import forget_stale
from normstorm.algorithms.kalman import kalman_storm
from normstorm.engine.run import run
from normstorm.problems.base import Certified
from normstorm.problems.check import as_point
from normstorm.problems.protocol import Problem
from normstorm.theory.constants import Constants, MeanSquare
from normstorm.theory.envelopes import line_above

from .looks import exact, looks
from .watch import Contradictions, compared

Tree = Any
Array = NDArray[np.float64]
WHO = "estimate_constants"
BUDGET = 20_000
POINTS = (4, 4, 6)  # of two beginnings of the run and of the whole, beside their ends and the start
SAMPLES = 256  # at each of them, of what is not looked at whole
RESAMPLED = 200
BLUNT = 19.0
WORDS = ("proof", "estimate", "guess")
SENSES = ("almost-sure", "mean-square")


@dataclass(frozen=True)
class Estimated:
    """A number, its interval (None: open), one of the words proof, estimate and guess, and where it comes from."""

    name: str
    sense: str
    value: float
    low: float
    high: float | None
    word: str
    method: str


@dataclass(frozen=True)
class EstimatedConstants:
    """What `estimate_constants` found.

    numbers            L0, L1, sigma0, sigma1 in both senses, grad_norm and, if anything is known of it, gap
    secants            points (G, largest, root mean square) of the first plot;   deviations  those of the second
    stated             the problem's own constants, if it has any;   proven  whether they are proven
    contradictions     what the samples say against them
    sample_gradients   what was asked, by the run and at its points
    """

    problem: str
    numbers: tuple[Estimated, ...]
    secants: Array
    deviations: Array
    stated: Constants | None
    proven: bool
    contradictions: Contradictions | None
    points: int
    samples: int
    sample_gradients: int

    def number(self, name: str, sense: str = "almost-sure") -> Estimated | None:
        """The one of this name, in this sense if there are two; None if there is none."""
        found = {one.sense: one for one in self.numbers if one.name == name}
        return found.get(sense, found.get("start"))

    def constants(self) -> Constants:
        """The numbers as `Constants`, to plan with: what is then promised holds if they do."""
        values = {sense: [self._value(name, sense) for name in ("L0", "L1", "sigma0", "sigma1")] for sense in SENSES}
        gap = self.number("gap")
        if gap is None:
            raise ValueError(f"{WHO}: F must have values for a gap; {self.problem} can only be sampled")
        grown = [max(pair) for pair in zip(values["almost-sure"], values["mean-square"], strict=True)]
        L0, L1, sigma0, sigma1 = grown
        beside = MeanSquare(*values["mean-square"])
        return Constants(L0, L1, sigma0, sigma1, gap.value, self._value("grad_norm", "start"), "almost-sure", beside)

    def _value(self, name: str, sense: str) -> float:
        found = self.number(name, sense)
        assert found is not None
        return found.value

    @property
    def guarantee(self) -> str:
        """What these numbers are worth, in a sentence."""
        if self.proven:
            return "The constants of this problem are proven."
        words = (
            f"From {self.points} points of a short run, {self.samples} samples at each: what was seen, no proof, and "
            "nothing of points that were not visited."
        )
        return words if self.contradictions is None else f"{words} {self.contradictions.statement}"

    def to_dict(self) -> dict[str, Any]:
        own: dict[str, Any] = {"guarantee": self.guarantee}
        if self.contradictions is not None:
            own["contradictions"] = self.contradictions.to_dict()
        found: dict[str, Any] = jsonable(asdict(self) | own)
        return found


def estimate_constants(
    problem: Problem, x0: Tree | None = None, *, budget: int = BUDGET, seed: int = 0
) -> EstimatedConstants:
    """L0, L1, sigma0 and sigma1 of a problem from what a short run sees; this module's text says how.

    x0       the starting point; the problem's own if not given
    budget   sample gradients of the run; its beginnings and what is asked at its points come on top
    """
    forget_stale(problem)
    validate.has_methods(WHO, "problem", problem, ("sample", "grad", "start"))
    budget, seed = validate.whole(WHO, "budget", budget, 100, 10**9), validate.whole(WHO, "seed", seed, 0)
    x = as_point(WHO, problem.start() if x0 is None else x0, problem)
    points, spent = _visited(problem, x, budget, seed)
    seen = list(looks(problem, points, SAMPLES, seed))
    G, D, S = (np.array([getattr(look, name) for look in seen]) for name in ("norm", "deviations", "secants"))
    known, proven, how = _stated(problem, x0), isinstance(problem, Certified), seen[0].how
    word = "estimate" if how == "rows" else "guess"
    numbers = [*_numbers("L", G, S, word, seed), *_numbers("sigma", G, D[:, None], word, seed)]
    if proven and known is not None:
        numbers = [_proved(one, known) for one in numbers]
    numbers += _of_start(problem, points, float(G[0]), float(np.mean(D[0] ** 2) / D.shape[1]) ** 0.5, how)
    cost = spent + D.size + S.size
    return EstimatedConstants(
        str(getattr(problem, "name", type(problem).__name__)),
        tuple(numbers),
        _scatter(np.repeat(G, S.shape[1]), S.reshape(-1, S.shape[2])),
        _scatter(G, D),
        known,
        proven,
        None if known is None else compared(seen, known),
        len(points),
        D.shape[1],
        cost,
    )


def _visited(problem: Problem, x: Tree, budget: int, seed: int) -> tuple[list[Tree], int]:
    """The start and points of a run, one after the other, and what was asked.

    Uniform points of one run would nearly all be where it ends: two that are 8 and 64 times as short, on the same path,
    leave some on the way.
    """
    algorithm = kalman_storm()
    steps, found, spent = algorithm.steps(budget), [], 0
    for part, count in zip((64, 8, 1), POINTS, strict=True):
        kept: dict[str, Any] = {"records": 1, "candidates": max(POINTS), "average": False, "threads": 1}
        trace = run(problem, algorithm, x, max(steps // part, max(POINTS)), [seed], **kept)
        spent += int(trace.cost[0])
        chosen = np.linspace(0, max(POINTS) - 1, count).astype(int)
        found += [jax.tree.map(lambda leaf, j=j: leaf[0, j], trace.candidates.x) for j in chosen]
        found.append(jax.tree.map(lambda leaf: leaf[0], trace.last))
    points = [x, *found]
    return [p for p in points if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(p))], spent


def _numbers(family: str, G: Array, seen: Array, word: str, seed: int) -> Iterator[Estimated]:
    """Both numbers of a family in both senses; `seen` is (points, ways, samples)."""
    _, ways, samples = seen.shape
    repeated = np.repeat(G, ways)
    rng = np.random.default_rng(seed)
    drawn = [seen[:, :, rng.integers(samples, size=samples)] for _ in range(RESAMPLED)]
    for sense in SENSES:
        fit = partial(_fitted, repeated, sense=sense, squares=family == "sigma")
        found, resampled = fit(seen), np.array([fit(one) for one in drawn])
        largest = sense == "almost-sure"
        lines = {"L": "secants", "sigma": "deviations"}[family]
        method = f"the lowest line above the {'largest' if largest else 'root mean square'} {lines} against ||grad F||"
        factor = 1 + BLUNT * _last_gap(seen) if largest and word == "guess" else 1.0
        for place in (0, 1):
            low, high = np.quantile(resampled[:, place], [0.025, 0.975])
            ends = float(min(low, found[place])), float(max(high, found[place])) * factor
            yield Estimated(f"{family}{place}", sense, found[place], *ends, word if largest else "estimate", method)


def _fitted(G: Array, seen: Array, sense: str, squares: bool) -> tuple[float, float]:
    flat = seen.reshape(len(G), -1)
    if sense == "almost-sure":
        return line_above(G, flat.max(axis=1))
    means = np.mean(flat**2, axis=1)
    if not squares:  # 3B: the root mean square is at most L0 + L1 G
        return line_above(G, np.sqrt(means))
    a, b = line_above(G**2, means)
    return a**0.5, b**0.5


def _last_gap(seen: Array) -> float:
    """How far the second largest sample is below the largest, as a part of it: the largest such part of all points."""
    flat = np.sort(seen.reshape(-1, seen.shape[-1]), axis=1)
    top = flat[:, -1]
    return float(np.max(np.where(top > 0, (top - flat[:, -2]) / np.where(top > 0, top, 1), 0)))


def _proved(one: Estimated, known: Constants) -> Estimated:
    source = known if one.sense == "almost-sure" else known.in_mean_square
    value = float(getattr(source, one.name))
    return Estimated(one.name, one.sense, value, value, value, "proof", "stated by the problem, with its proof")


def _of_start(problem: Problem, points: list[Tree], first: float, error: float, how: str) -> Iterator[Estimated]:
    """||grad F(x1)|| and the gap; `error` is the root mean square of that of a mean of samples."""
    words = {"rows": "a pass over all rows", "formula": "the problem's full gradient"}
    if how in words:
        yield Estimated("grad_norm", "start", first, first, first, "proof", words[how])
    else:
        ends = max(first - 2 * error, 0.0), first + 2 * error
        yield Estimated("grad_norm", "start", first, *ends, "estimate", "a mean of samples, and two standard errors")
    if not getattr(problem, "is_exact", False):
        return
    values = [float(exact(problem, "value", point)) for point in points]
    infimum = getattr(problem, "infimum", None)
    if infimum is not None:
        gap = max(values[0] - float(infimum), 0.0)
        yield Estimated("gap", "start", gap, gap, gap, "proof", f"F(x1) less the infimum ({problem.infimum_kind})")
        return
    gap = values[0] - min(values)
    yield Estimated("gap", "start", gap, gap, None, "guess", "F(x1) less the smallest F that was seen")


def _stated(problem: Problem, x0: Tree | None) -> Constants | None:
    try:
        return problem.constants(x0)
    except (AttributeError, ValueError):  # none, or none in this sense
        return None


def _scatter(G: Array, seen: Array) -> Array:
    return np.column_stack([G, seen.max(axis=1), np.mean(seen**2, axis=1) ** 0.5])
