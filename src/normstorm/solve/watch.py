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

**gap and grad_norm** are about the start. Let g be a lower bound of ||grad F(x)||: its length, or ||g|| - rho r for the
mean g of samples. A step of exact descent lowers F by at least h(g) = g^2/(2 (L0 + L1 g)) (docs/theory/race.md), so

    grad_norm >= g at x_1,   gap >= h(g) at x_1,   gap >= F(x_1) - F(x) + h(g) at the returned x

Where F is sampled, F(x_1) - F(x) is a mean of losses less STANDARD_ERRORS standard errors: beyond doubt, but no proof.

**Every step of a run**, a race's search, a plan's or a promise's, is held to what can be said of it without grad F, by
the gradients of its own samples, one by one (witness.py). If none is a counterexample, the samples that came closest
are drawn again and held to the lines above. A certificate holds its own samples, all of them, to the noise that it
assumes (held.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from normstorm._shared.jsonable import jsonable
from normstorm._shared.programs import forget_stale
from normstorm.engine.results import Trace
from normstorm.problems.protocol import Problem
from normstorm.theory.constants import Constants

from .fresh import is_finite, whole_size
from .held import ALARM, ROUNDING
from .looks import MOST_ROWS, Array, Look, flat, look_again, looks, shifted
from .value import value_at
from .witness import Testimony, drawn_samples

Tree = Any
SHARE, POINTS = 0.02, 8  # of the cost of a run, for its check; and where, at most
STANDARD_ERRORS = 8
WORDS = {
    "noise": "the gradients of two samples or batches at a point are {:.4g} apart and sigma0, sigma1 allow {:.4g}",
    "smooth": "the gradient of a sample changes by {:.4g} and L0 + L1 ||grad F|| allows {:.4g} for this way",
    "batch": "a sample of its batch is at least {:.4g} from grad F, wherever that is, and sigma0, sigma1 allow {:.4g}",
}
LEAST, USUAL, MOST = 128, 256, 1024  # samples at a point; of 16, noise three times as large as stated is not seen


@dataclass(frozen=True)
class Contradictions:
    """What was compared with the constants, and what exceeds them.

    checked    comparisons;   noise, smoothness  of which so many contradict 4A (4B) and 3A (3B)
    first      the first of them in words;   sample_gradients  what the check asked
    start      of which so many contradict gap and grad_norm
    """

    checked: int
    noise: int
    smoothness: int
    first: str
    sample_gradients: int
    start: int = 0

    @property
    def found(self) -> int:
        return self.noise + self.smoothness + self.start

    def joined(self, other: Contradictions) -> Contradictions:
        """Both together; the first example is this one's, if it has one."""
        names = "checked", "noise", "smoothness", "sample_gradients", "start"
        numbers: dict[str, int] = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Contradictions(first=self.first or other.first, **numbers)

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
    forget_stale(problem)
    return compared(list(looks(problem, points, samples, seed)), constants)


def stated(problem: Problem, constants: Constants | None) -> Constants | None:
    """Constants that somebody has stated: those of this package's own problems are proven."""
    room, _, file = type(problem).__module__.rpartition(".")
    return None if room == "normstorm.problems" and file != "user" else constants


def of_tests(held: int, beyond: int, place: str) -> Contradictions:
    """What fresh samples of tests say, of which so many were held to the stated noise (held.py)."""
    words = f"{place}, where a fresh sample is farther from the others than sigma0, sigma1 or the stated range allow"
    return Contradictions(held, beyond, 0, words if beyond else "", 0)


def run_check(
    problem: Problem, trace: Trace, constants: Constants | None, x1: Tree, x: Tree, algorithm: Any, seen: Any
) -> Contradictions | None:
    """What every step says of constants that somebody has stated, and `check_run`; `seen` is the observer's."""
    known = stated(problem, constants)
    if known is None:
        return None
    testimony = getattr(seen, "testimony", seen)  # if the witness is not alone
    every = steps_check(problem, algorithm, [int(seed) for seed in trace.seeds], testimony, known)
    return every.joined(check_run(problem, trace, known, x1, x))


def steps_check(problem: Problem, algorithm: Any, seeds: Sequence[int], seen: Any, c: Constants) -> Contradictions:
    """What every step of the runs of all seeds says of the constants; `seen` has a row for every seed."""
    if not isinstance(seen, Testimony):  # the algorithm is not one that is watched
        return Contradictions(0, 0, 0, "", 0)
    rows = [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], seen) for i in range(len(seeds))]
    noise, smoothness = (sum(int(row.wrong[kind]) for row in rows) for kind in (0, 1))
    checked, first = sum(int(row.checked) for row in rows), ""
    for seed, row in zip(seeds, rows, strict=True):
        broken = [kind for kind in WORDS if getattr(row, kind).ratio > 1]
        if broken and not first:
            kind = min(broken, key=lambda kind: int(getattr(row, kind).step))
            one = getattr(row, kind)
            first = f"in step {int(one.step)} of seed {seed}, where {WORDS[kind].format(one.seen, one.allowed)}"
    found = Contradictions(checked, noise, smoothness, first, 0)
    if found.found:
        return found
    looked = []
    for kind in WORDS:
        best = int(np.argmax([float(getattr(row, kind).ratio) for row in rows]))
        one = getattr(rows[best], kind)
        if one.ratio > 0 and is_finite((one.x_prev, one.x)):
            samples = drawn_samples(problem, algorithm, seeds[best], int(one.step))
            looked.append(
                (
                    look_again(problem, one.x_prev, one.x, samples, MOST),
                    f"in step {int(one.step)} of seed {seeds[best]}",
                )
            )
    again = compared([look for look, _ in looked], c, places=[place for _, place in looked])
    return again.joined(found)


def check_run(
    problem: Problem, trace: Trace, constants: Constants, x1: Tree, x: Tree, *, seed: int = 0
) -> Contradictions:
    """The same at x_1, at the returned x and at points between, at most 8 of them, for 2 % of the cost of the run.

    Between are those that the run of the first seed has kept, and points of the way from x_1 to x, each half as far as
    the one before. x_1 and x are looked at in any case, with 128 samples or all rows of a finite sum that is not large,
    and held to gap and grad_norm too.
    """
    x1, x = (jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), point) for point in (x1, x))
    between = [*_kept(trace), *(shifted(x1, (flat(x) - flat(x1)) / 2**k) for k in range(1, POINTS))]
    size, share = whole_size(problem) or 0, SHARE * float(trace.cost[0])
    each = 4 * size if 0 < size <= MOST_ROWS else size + 4 * USUAL
    several = int(np.clip(share // each, 2, POINTS))
    samples = int(np.clip((share / several - size) / 4, LEAST, MOST))
    points = [point for point in (x1, *between[: several - 2], x) if is_finite(point)]
    seen = list(looks(problem, points, samples, seed))
    return compared(seen, constants, lambda: _decrease(problem, x1, x))


def _kept(trace: Trace) -> list[Tree]:
    """Points of the first seed, the latest first."""
    kept = trace.candidates.x
    count = jax.tree.leaves(kept)[0].shape[1]
    points = [jax.tree.map(lambda leaf: np.asarray(leaf)[0], trace.smallest.x)]
    return points + [jax.tree.map(lambda leaf, j=j: np.asarray(leaf)[0, j], kept) for j in reversed(range(count))]


def _decrease(problem: Problem, x1: Tree, x: Tree) -> float:
    """What F(x_1) - F(x) is at least; 0 if nothing is known."""
    before, after = value_at(problem, x1), value_at(problem, x)
    if before is None or after is None:
        return 0.0
    # The same samples at both points: the error of the difference is at most the sum of both.
    doubt = STANDARD_ERRORS * (before.error + after.error) + ROUNDING**2 * (abs(before.value) + abs(after.value))
    found = before.value - after.value - doubt
    return found if 0 < found < math.inf else 0.0


def compared(
    seen: Sequence[Look],
    constants: Constants,
    decrease: Callable[[], float] | None = None,
    places: Sequence[str] | None = None,
) -> Contradictions:
    """Looks against constants; with what F(x_1) - F(x) is at least, the first look is at x_1 and the last one at x."""
    checked, counts, first = 0, {"noise": 0, "smoothness": 0, "start": 0}, ""
    for j, look in enumerate(seen):
        ends = j in (0, len(seen) - 1) and decrease is not None
        of_start = _of_start(look, constants, j == 0, decrease) if ends else ()
        for one in (*_against(look, constants), *of_start):
            wrong = np.flatnonzero(one.left > one.right)
            checked, counts[one.kind] = checked + one.left.size, counts[one.kind] + wrong.size
            if wrong.size and not first:
                place = f"at point {j + 1}" if places is None else places[j]
                first = f"{place}, where {one.words(int(wrong[0]))}"
    asked = sum(look.deviations.size + look.secants.size for look in seen)
    return Contradictions(checked, first=first, sample_gradients=asked, **counts)


class _Comparison(NamedTuple):
    """left <= right for every entry; `subject` says what an entry is, `allowed` what the constants say."""

    kind: str
    left: Array
    right: float
    subject: str
    allowed: str

    def words(self, i: int) -> str:
        return f"{self.subject.format(sample=i + 1, value=self.left[i])} and {self.allowed}"


def _against(look: Look, c: Constants) -> Iterator[_Comparison]:
    """All comparisons that can be made at a point."""
    if c.noise == "mean-square":
        yield from _in_mean_square(look, c)
        return
    known = look.how != "samples"
    r = 0.0 if known else math.sqrt(2 * math.log(2 / ALARM) / look.deviations.size)
    if c.sigma1 * r >= 1:
        return
    rho = (c.sigma0 + c.sigma1 * look.norm) / (1 - c.sigma1 * r)
    centre, bound = "grad F" if known else "the mean of the samples", rho * (1 + r) + ROUNDING * look.size
    subject = f"the gradient of sample {{sample}} is {{value:.4g}} away from {centre}"
    yield _Comparison("noise", look.deviations, bound, subject, f"sigma0, sigma1 allow {bound:.4g}")
    limit = c.L0 + c.L1 * (look.norm + rho * r)
    for length, secants in zip(look.lengths, look.secants, strict=True):
        if length * c.L1 <= 1:
            subject = "the gradient of sample {sample} changes by {value:.4g} times the way"
            yield _Comparison("smoothness", secants, _rounded(look, limit, length), subject, _smooth(limit))


def _of_start(look: Look, c: Constants, at_start: bool, decrease: Callable[[], float] | None) -> Iterator[_Comparison]:
    """gap and grad_norm, at x_1 or at the returned point."""
    g = least_norm(look, c)
    if at_start and c.grad_norm is not None:
        allowed = f"grad_norm allows {c.grad_norm:.4g}"
        yield _Comparison("start", np.array([g]), c.grad_norm, "||grad F(x_1)|| is at least {value:.4g}", allowed)
    smooth, fallen = c.in_mean_square, 0.0 if at_start or decrease is None else decrease()
    bend = smooth.L0 + smooth.L1 * g
    below = g**2 / (2 * bend) if bend > 0 else 0.0
    subject = f"F(x_1) - F* is at least {{value:.4g}}, {fallen:.4g} of it seen and the rest by L0, L1 and ||grad F||,"
    allowed = f"gap allows {c.gap:.4g}"
    yield _Comparison("start", np.array([fallen + below]), c.gap * (1 + ROUNDING), subject, allowed)


def least_norm(look: Look, c: Constants) -> float:
    """What ||grad F|| is at least; 0 if samples say nothing of it."""
    if look.how != "samples":
        return (1 - ROUNDING) * look.norm
    r = math.sqrt(2 * math.log(2 / ALARM) / look.deviations.size)
    if c.noise == "mean-square" or c.sigma1 * r >= 1:
        return 0.0
    return max(0.0, (1 - ROUNDING) * look.norm - r * (c.sigma0 + c.sigma1 * look.norm) / (1 - c.sigma1 * r))


def _in_mean_square(look: Look, c: Constants) -> Iterator[_Comparison]:
    """3B and 4B where the mean over all rows is known."""
    if look.how != "rows":
        return
    bound = math.hypot(c.sigma0, c.sigma1 * look.norm) + ROUNDING * look.size
    root = np.mean(look.deviations**2, keepdims=True) ** 0.5
    subject = "the root mean square of the noise is {value:.4g}"
    yield _Comparison("noise", root, bound, subject, f"sigma0, sigma1 allow {bound:.4g}")
    limit = c.L0 + c.L1 * look.norm
    for length, secants in zip(look.lengths, look.secants, strict=True):
        if length * c.L1 <= 1:
            root = np.mean(secants**2, keepdims=True) ** 0.5
            subject = "the root mean square of the secants is {value:.4g}"
            yield _Comparison("smoothness", root, _rounded(look, limit, length), subject, _smooth(limit))


def _rounded(look: Look, limit: float, length: float) -> float:
    """What a secant may be, with what rounding of two gradients can have added to it."""
    return limit * (1 + ROUNDING) + ROUNDING**2 * look.size / length


def _smooth(limit: float) -> str:
    return f"L0 + L1 ||grad F|| allows {limit:.4g}"
