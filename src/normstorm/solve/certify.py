"""An upper bound of ||grad F(x)|| at a given point, from fresh samples alone, or exact from all rows of a finite sum.

With a target, samples are drawn in blocks until it is certified; without one, as many as are asked for. The samples
are drawn with keys that neither a run nor the choice of a point uses, and evaluated in double precision. Statements
and proofs: docs/theory/fresh-samples.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from normstorm._shared import validate
from normstorm._shared.jsonable import jsonable
from normstorm._shared.programs import forget_stale
from normstorm._shared.pytrees import misfit
from normstorm.problems.protocol import Problem
from normstorm.theory.fresh_samples import Sense, expected_samples, groups_for, samples_for, upper_bound
from normstorm.theory.plan import DEFAULT_CONFIDENCE, round_up
from normstorm.theory.sequential_test import LOST, MARGIN, PILOT, PointTest, SampleRange, pilot_size

from .fresh import CHOOSING, LOOKED, RACING, Array, Gradients, summarise, whole_size
from .held import NO_CLAIM, Held

Tree = Any
MOST_SAMPLES = 10**8
BUDGET = 10**6  # for a target, where none is given
SEEDS = -(2**63), 2**63 - 1
BLOCKS = ((65_536, 4096), (16_384, 1024), (0, 256))  # from so many samples on, so many in a block
ASSUMPTIONS = {"almost-sure": "4A", "mean-square": "4B"}
TRUSTED = 0.01  # of the bound: what other roundings of x may change
HELD = 2**25  # numbers of a pilot, at most
FEW, SMALL = 512, 32  # samples of a test whose number is fixed, at most, and of its blocks
DRIFT, MOST_DRIFT = 0.35, 0.7  # where the point of a test is expected, of the target, if nothing is known, and at most
PATIENT = 8  # times as many samples as a gradient of zero takes: then a race goes on with its run
HOPELESS = 6  # root mean squares of the noise of the mean, by which it is above the target


@dataclass(frozen=True)
class PointCertificate:
    """||grad F(x)|| <= upper_bound, with probability at least `confidence` over the fresh samples.

    samples    fresh samples, and the rows of a full pass;   mean_norm  the norm of their mean gradient
    sense      almost-sure (4A), mean-square (4B), or exact: a full pass, which assumes nothing and has confidence 1; or
               estimated: no bound of the noise was known, and the largest that was seen, doubled, stands for one
    method     how: fixed, top, pairs, groups or exact (docs/theory/fresh-samples.md)
    target     what was asked for, if anything was
    rounding   what another rounding of x changes in a sample gradient; the bound counts it
    lost_digits   it is more than a hundredth of the bound, and nothing is certified
    contradicted  samples that contradict the stated constants or range: then nothing is certified, unless by a full
                  pass, which rests on nothing. They are its own or others of the same run
    held          fresh samples of its own that were compared with them
    """

    upper_bound: float
    confidence: float
    samples: int
    mean_norm: float
    sense: str
    method: str = "fixed"
    target: float | None = None
    rounding: float = 0.0
    lost_digits: bool = False
    contradicted: int = 0
    held: int = 0

    @property
    def certified(self) -> bool:
        """The bound is finite, at most the target if there is one, and no sample contradicts what it rests on."""
        return self.passed and not (self.contradicted and self.sense != "exact")

    @property
    def passed(self) -> bool:
        """The bound is finite, and at most the target if there is one, whatever it rests on."""
        return self.upper_bound < math.inf and (self.target is None or self.upper_bound <= self.target)

    def beside(self, contradicted: int) -> PointCertificate:
        """The same in a run with so many contradictions to the constants, if it rests on them."""
        rests = self.sense in ASSUMPTIONS
        return replace(self, contradicted=max(self.contradicted, contradicted)) if rests else self

    @property
    def guarantee(self) -> str:
        if math.isinf(self.upper_bound):
            return self._nothing()
        bound = round_up(self.upper_bound)
        if self.sense == "exact":
            return f"||grad F(x)|| is at most {bound} at the returned point: exact, from a pass over all rows."
        if self.sense == "estimated":
            return (
                f"An estimate and no proof: ||grad F(x)|| is at most {bound} at the returned point with probability at "
                f"least {self.confidence:.12g} over {self.samples} fresh samples, if no sample gradient there is "
                "farther from the mean than twice the farthest of those that were seen."
            )
        return (
            f"With probability at least {self.confidence:.12g} over {self.samples} fresh samples, ||grad F(x)|| is at "
            f"most {bound} at the returned point, if assumptions 2 and {ASSUMPTIONS[self.sense]} hold"
            + (
                f"; but {self.contradicted:,} samples contradict them: nothing is certified."
                if self.contradicted
                else "."
            )
        )

    def __str__(self) -> str:
        return self.guarantee

    def _nothing(self) -> str:
        if self.lost_digits and math.isinf(self.rounding):
            return "Nothing is known of ||grad F(x)|| at this point: x, or a gradient next to it, is not finite."
        if self.lost_digits:
            return (
                "No bound of ||grad F(x)|| at the returned point can be trusted: another rounding of x changes a "
                f"gradient by {self.rounding:.2g}, so the problem's own arithmetic has lost its digits there."
            )
        return (
            f"No bound of ||grad F(x)|| at the returned point follows from {self.samples} fresh samples: they are "
            "too few, or a gradient is not finite."
        )

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = jsonable(asdict(self) | {"certified": self.certified, "guarantee": self.guarantee})
        return found


def certify(
    problem: Problem,
    x: Tree,
    confidence: float = DEFAULT_CONFIDENCE,
    samples: int | None = None,
    *,
    precision: float | None = None,
    target: float | None = None,
    sense: Sense = "almost-sure",
    seed: int = 0,
    exact: bool | None = None,
) -> PointCertificate:
    """Bound ||grad F(x)|| from fresh samples; x must not depend on them (another `seed` draws others).

    Give `target`: samples are drawn in blocks until the bound is at most that, or until `samples` of them (a million
    if not given). Or `samples`, their number; or `precision`: as many samples as bring the bound within `precision` of
    the norm of their mean, in the worst case that the noise constants allow at ||grad F(x1)||.

    sense   "almost-sure" uses assumption 4A, "mean-square" only 4B
    exact   a pass over all rows of a finite sum: whenever it takes fewer gradients (None), always or never
    """
    forget_stale(problem)
    confidence = validate.confidence("certify", confidence)
    seed = validate.whole("certify", "seed", seed, *SEEDS)
    sense = validate.one_of("certify", "sense", sense, ("almost-sure", "mean-square"))  # type: ignore[assignment]
    if words := misfit(problem, x):
        raise ValueError(f"certify: x must {words}")
    whole = _whole(problem, exact)
    given = [samples if target is None else None, precision, target].count(None)
    if given != 2 and not (exact and given == 3):
        raise ValueError(
            "certify: exactly one of samples, precision, target must be given (or samples beside target, as a budget); "
            f"got samples={samples!r}, precision={precision!r}, target={target!r}"
        )
    budget = None if samples is None else sample_count(samples)
    if target is not None:
        target = validate.number("certify", "target", target, validate.POSITIVE)
    if precision is not None:
        precision = validate.number("certify", "precision", precision, validate.POSITIVE)
    source, delta = Gradients(problem, x, seed), 1 - confidence
    if exact:
        found = _exact(source)
    elif target is not None:
        found = _until(source, target, budget or BUDGET, delta, sense, whole)
    else:
        found = _fixed(source, budget or _count_for(problem, precision, delta, sense, whole), delta, sense, whole)
    return _labelled(found, confidence, target)


def certify_first(
    problem: Problem,
    points: Sequence[Tree],
    target: float,
    confidence: float = DEFAULT_CONFIDENCE,
    samples: int | None = None,
    *,
    seed: int = 0,
    exact: bool | None = None,
) -> tuple[int | None, tuple[PointCertificate, ...]]:
    """Test points in order until one is certified: its place, or None, and the certificates of all that were tested.

    Point i gets fresh samples of its own, at most `samples`, and delta/(i (i + 1)) of the failure probability delta =
    1 - confidence: with probability at least `confidence` all certificates hold, also if a point was chosen by what
    was said of those before it. Put the most promising point first.
    """
    forget_stale(problem)
    confidence = validate.confidence("certify_first", confidence)
    seed = validate.whole("certify_first", "seed", seed, *SEEDS)
    target = validate.number("certify_first", "target", target, validate.POSITIVE)
    budget = BUDGET if samples is None else sample_count(samples, "certify_first")
    if len(points) == 0:
        raise ValueError("certify_first: points must be a sequence of at least one point; got none")
    whole, found = _whole(problem, exact, "certify_first"), []
    for i, x in enumerate(points, start=1):
        if words := misfit(problem, x):
            raise ValueError(f"certify_first: points[{i - 1}] must {words}")
        source = Gradients(problem, x, seed, part=i)
        share = (1 - confidence) / (i * (i + 1))
        one = _exact(source) if exact else _until(source, target, budget, share, "almost-sure", whole)
        found.append(_labelled(one, confidence, target))
        if found[-1].certified:
            return i - 1, tuple(found)
    return None, tuple(found)


def chosen_certificate(
    problem: Problem, x: Tree, confidence: float, samples: int, sense: Sense, part: int = 0
) -> PointCertificate:
    """What `minimize` asks: a fixed number of samples that `certify` never draws."""
    source = Gradients(problem, x, part, CHOOSING)
    return _labelled(_fixed(source, samples, 1 - confidence, sense, whole_size(problem)), confidence)


def race_test(
    problem: Problem,
    x: Tree,
    target: float,
    delta: float,
    budget: int,
    seen: tuple[float, float] | None,
    seed: int,
    part: int,
) -> PointCertificate:
    """What a race asks: whether its point number `part` can be certified at the target, within the budget.

    `seen` is what the run says of the gradient there, its norm and the variance of a sample, if it does. All rows are
    passed over where that is expected to be shorter, or where no bound of the noise is known, so that samples would
    prove nothing; else a fixed number of samples is drawn where few will do, and blocks of them where not, until it
    passes or it cannot.
    """
    source, whole = Gradients(problem, x, seed, RACING, part), whole_size(problem)
    whole = whole if whole is not None and whole <= budget else None
    known, looked = noise_of(source), 0
    if whole is not None and (seen is None or known is None):
        return _labelled(_exact(source), 1.0, target)
    if known is None or seen is None:
        if budget < 2 * PILOT:
            return _labelled(PointCertificate(math.inf, 1.0, 0, math.nan, "almost-sure", "none"), 1 - delta, target)
        rows = np.concatenate(list(source.draw(PILOT, LOOKED)))
        budget, looked = budget - PILOT, PILOT
        seen = seen or (DRIFT * target, float(np.sum(np.var(rows, axis=0))))
    noise, sense = known or (observed_range(rows), "almost-sure")
    expected = expected_samples(seen[1], noise.radius(target), target, min(seen[0], MOST_DRIFT * target), delta)
    if whole is not None and whole <= expected:
        found = _exact(source)
    elif budget < min(expected, PILOT):
        found = PointCertificate(math.inf, 1.0, 0, math.nan, sense, "none")
    elif expected <= FEW and sense == "almost-sure":
        source.chunk, blocks = SMALL, -(-(expected + expected // 8) // SMALL)  # one compiled size for all of them
        found = _fixed(source, min(SMALL * blocks, budget), delta, sense, whole, noise)
    else:
        found = _until(source, target, budget, delta, sense, whole, noise, PATIENT)
    void = known is not None and found.contradicted > 0 and found.sense != "exact"
    if void and whole is not None and found.samples + whole <= budget:
        told: dict[str, Any] = {"contradicted": found.contradicted, "held": found.held}
        found = replace(_exact(source), samples=found.samples + whole, **told)  # which rests on nothing
    return _of_race(found, known is None, looked, 1 - delta, target)


def best_bound(problem: Problem, x: Tree, delta: float, samples: int, seed: int) -> PointCertificate:
    """What a race with a budget asks of its one point: a bound from so many samples, or from all rows."""
    source, whole = Gradients(problem, x, seed, RACING, 1), whole_size(problem)
    if whole is not None and whole <= samples:
        return _labelled(_exact(source), 1.0)
    known, looked = noise_of(source), 0
    if known is None:
        looked = min(PILOT, samples // 2)
        rows = np.concatenate(list(source.draw(looked, LOOKED)))
    noise, sense = known or (observed_range(rows), "almost-sure")
    found = _fixed(source, samples - looked, delta, sense, None, noise)
    return _of_race(found, known is None, looked, 1 - delta, None)


def promised_test(
    problem: Problem, x: Tree, target: float, delta: float, samples: int, seed: int, part: int
) -> PointCertificate:
    """What a plan asks of its candidate: a fixed number of samples, enough by theory, or all rows if they are fewer."""
    source = Gradients(problem, x, seed, RACING, part)
    return _labelled(_fixed(source, samples, delta, "almost-sure", whole_size(problem)), 1 - delta, target)


def _of_race(
    found: PointCertificate, estimated: bool, looked: int, confidence: float, target: float | None
) -> PointCertificate:
    sense = "estimated" if estimated and found.sense != "exact" else found.sense
    if sense == "estimated" and found.contradicted:  # the noise is larger than what stands for it
        found = replace(found, upper_bound=math.inf)
    told = (0, 0) if estimated else (found.contradicted, found.held)  # of an estimate it is no claim
    found = replace(found, sense=sense, samples=found.samples + looked, contradicted=told[0], held=told[1])
    return _labelled(found, confidence, target)


def _fixed(
    source: Gradients, samples: int, delta: float, sense: Sense, whole: int | None, noise: SampleRange | None = None
) -> PointCertificate:
    if whole is not None and whole <= samples:
        return _exact(source)
    noise = noise or _noise(source, sense)
    held = source.held = Held(noise if sense == "almost-sure" else NO_CLAIM)
    groups = groups_for(delta) if sense == "mean-square" and samples >= groups_for(delta) else 1
    summary = summarise(source, samples, groups)
    bound = upper_bound(summary, noise.sigma0, noise.sigma1, delta, sense, noise.spread)
    # What the sums can have lost; the mean length of a gradient is at most this bracket.
    bound = bound * (1 + MARGIN) + LOST * (summary.mean_norm + math.sqrt(summary.trace))
    method = "fixed" if sense == "almost-sure" else "groups"
    found = _rounded(bound, source.change(), summary.samples, summary.mean_norm, sense, method)
    return replace(found, contradicted=held.beyond, held=held.compared)


def _until(
    source: Gradients,
    target: float,
    budget: int,
    delta: float,
    sense: Sense,
    whole: int | None,
    noise: SampleRange | None = None,
    patience: float = math.inf,
) -> PointCertificate:
    """Blocks of fresh samples, or all rows as soon as that is expected to be the shorter way."""
    change = source.change()
    if change > TRUSTED * target:
        return PointCertificate(math.inf, 1.0, 0, math.nan, sense, "none", rounding=change, lost_digits=True)
    if sense == "mean-square":
        return _doubled(source, target - change, budget, delta, whole, change)
    if whole is not None and whole <= min(PILOT, budget):
        return _exact(source)
    noise = noise or _noise(source, sense)
    size = min(pilot_size(noise, delta), max(HELD // source.dimension, PILOT))
    if budget < 2 * size:
        return _fixed(source, budget, delta, sense, whole, noise)
    test, held = PointTest(source.dimension, max(target - change, target / 2), delta, noise), Held(noise)
    source.held = held
    rows = np.concatenate(list(source.draw(size)))
    finite = bool(np.isfinite(rows).all())
    if finite:
        test.pilot(rows)
    while finite and target < test.bound + change and test.samples < budget and not test.hopeless(HOPELESS):
        n = test.samples
        if test.idle(patience):
            break
        # Never many more samples than rows: a pass when one is expected to be shorter, or when both ways are even.
        if whole is not None and n + whole <= budget and whole <= max(n, test.forecast() - n):
            told: dict[str, Any] = {"contradicted": held.beyond, "held": held.compared}
            return replace(_exact(source), samples=n + whole, **told)
        size = min(next(block for least, block in BLOCKS if n >= least), source.chunk, budget - n)
        rows = np.concatenate(list(source.draw(size, start=n)))
        finite = bool(np.isfinite(rows).all())
        if finite:
            test.add(rows)
    samples = test.samples if finite else test.samples + size
    bound = test.bound if finite else math.inf
    tested = _rounded(bound, change, samples, test.mean_norm, sense, test.method or "top")
    return replace(tested, contradicted=held.beyond, held=held.compared)


def _doubled(
    source: Gradients, target: float, budget: int, delta: float, whole: int | None, change: float
) -> PointCertificate:
    """Under 4B alone: twice as many samples at each look, all of them fresh, look i with delta/(i (i + 1))."""
    noise, used, bound, mean_norm = _noise(source, "mean-square"), 0, math.inf, math.nan
    groups = groups_for(delta / 2)
    for look in range(1, 64):
        share, n = delta / (look * (look + 1)), groups * 2**look
        if whole is not None and whole <= n:
            return replace(_exact(source), samples=used + whole)
        if used + n > budget:
            break
        summary = summarise(source, n, groups, first=2**16 * look)
        used, mean_norm = used + n, summary.mean_norm
        found = upper_bound(summary, noise.sigma0, noise.sigma1, share, "mean-square") * (1 + MARGIN)
        bound = min(bound, found + LOST * (mean_norm + math.sqrt(summary.trace)))
        if bound <= target or not math.isfinite(mean_norm):
            break
    return _rounded(bound, change, used, mean_norm, "mean-square", "groups")


def _exact(source: Gradients) -> PointCertificate:
    """The norm of the mean over all rows, raised by more than rounding in the sums can have lost."""
    total, lengths, size = np.zeros(source.dimension), 0.0, 0
    for rows in source.rows():
        total, size = total + rows.sum(axis=0), size + len(rows)
        lengths += float(np.sum(np.linalg.norm(rows, axis=1)))
    norm = float(np.linalg.norm(total)) / size
    return _rounded(norm * (1 + MARGIN) + LOST * lengths / size, source.change(), size, norm, "exact", "exact")


def _rounded(bound: float, change: float, samples: int, mean_norm: float, sense: str, method: str) -> PointCertificate:
    """The bound with what other roundings of x change; none where they show that nothing is known of the gradient."""
    known = math.isfinite(bound)
    lost = math.isinf(change) or (known and change > TRUSTED * bound)
    trusted = bound + change if known and not lost else math.inf
    return PointCertificate(trusted, 1.0, samples, mean_norm, sense, method, rounding=change, lost_digits=lost)


def _labelled(found: PointCertificate, confidence: float, target: float | None = None) -> PointCertificate:
    return replace(found, confidence=1.0 if found.sense == "exact" else confidence, target=target)


def _count_for(problem: Problem, precision: float | None, delta: float, sense: Sense, whole: int | None) -> int:
    """Samples for a precision; those of a full pass if they are fewer."""
    assert precision is not None
    noise = problem.constants(None, sense)
    count = samples_for(precision, noise.first_gradient, noise.sigma0, noise.sigma1, delta, sense)
    return sample_count(count if whole is None else min(count, whole))


def noise_of(source: Gradients) -> tuple[SampleRange, Sense] | None:
    """How far samples at x can be from the gradient, and in which sense, if the problem says so."""
    senses: tuple[Sense, ...] = ("almost-sure", "mean-square")
    for sense in senses:
        try:
            return _noise(source, sense), sense
        except (AttributeError, ValueError):
            continue  # it has no such constants
    return None


def observed_spread(problem: Problem, x: Tree) -> tuple[float, int]:
    """The largest distance of a few sample gradients at x from their mean, and how many they are."""
    rows = np.concatenate(list(Gradients(problem, x, 0, RACING).draw(PILOT, LOOKED)))
    return observed_range(rows).sigma0 / 2, PILOT


def observed_range(rows: Array) -> SampleRange:
    """Twice the largest distance of these samples from their mean: an estimate, and no proof."""
    return SampleRange(2 * float(np.max(np.linalg.norm(rows - rows.mean(axis=0), axis=1))), 0.0)


def _noise(source: Gradients, sense: Sense) -> SampleRange:
    local = getattr(source.problem, "range", None)
    if sense == "mean-square" or not callable(local):
        known = source.problem.constants(None, sense)
        return SampleRange(known.sigma0, known.sigma1)
    spread = validate.real(source.spread())
    spread = spread * (1 + MARGIN) if spread >= 0 else math.inf
    try:
        known = source.problem.constants(None, sense)
    except (AttributeError, ValueError):
        if not spread < math.inf:
            raise
        return SampleRange(math.inf, 0.0, spread)
    return SampleRange(known.sigma0, known.sigma1, spread)


def _whole(problem: Problem, exact: object, who: str = "certify") -> int | None:
    """Rows of a full pass where one is allowed."""
    asked = None if exact is None else validate.truth(exact)
    if exact is not None and asked is None:
        validate.refuse(who, "exact", "True, False or None", exact)
    size = whole_size(problem)
    if asked and size is None:
        raise ValueError(f"{who}: exact must be False or None for a problem that is no finite sum; got exact=True")
    return None if asked is False else size


def sample_count(samples: Any, who: str = "certify") -> int:
    """A number of fresh samples that can be drawn."""
    return validate.whole(who, "samples", samples, 2, MOST_SAMPLES)
