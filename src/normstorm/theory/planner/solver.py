"""The smallest bound over a pool of certificates, for many (T, K, k) at once and from warm starts.

Works in units in which the gap is 1 and sqrt(L0) + L1 = 1, so that plans for the same problem in other units agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..certificates import CATALOGUE, EXPECTATION, HIGH_PROBABILITY, Certificate
from ..certificates.case import Array, Bound, Case
from ..constants import Constants
from ..plan import sample_gradients
from .search import Search, best_of

# `paper` is never below `union`, `ville` never below `ville2`, `adaptive_tangent` never below `adaptive_convex`
# (docs/theory/index.md): they cannot win.
HIGH_PROBABILITY_POOL = ("union", "ville2", "lyapunov", "adaptive", "adaptive_convex", "sure")
EXPECTATION_POOL = ("expectation", "expectation_adaptive")
# These are smallest for a run that stands still: they may lower the bound of a plan, and never choose one.
TRIVIAL = {HIGH_PROBABILITY: "start", EXPECTATION: "start_expectation"}


@dataclass(frozen=True)
class Triple:
    """A horizon and batches."""

    T: int
    K: int
    k: int

    @property
    def cost(self) -> int:
        return sample_gradients(self.T, self.K, self.k)


@dataclass(frozen=True)
class Answer:
    """The best certificate for a triple, and where in its search space."""

    triple: Triple
    certificate: str
    point: Array
    value: float


class Solver:
    """Minimises certificates for one problem in normalised units."""

    def __init__(self, constants: Constants, delta: float | None, certificate: str | None = None) -> None:
        length, value = natural_units(constants)
        self.constants = constants.scaled(length=length, value=value)
        self.length = length
        self.slope = length / value
        self.delta = delta
        if certificate is not None:
            self.pool: tuple[str, ...] = (certificate,)
        else:
            self.pool = HIGH_PROBABILITY_POOL if delta is not None else EXPECTATION_POOL

    def solve(self, triples: Sequence[Triple]) -> list[Answer]:
        """The best answer for each triple, from scratch."""
        return self._pick(triples, self._from_scratch(triples))

    def each(self, triples: Sequence[Triple], tolerance: float = 1e-5) -> list[list[Answer]]:
        """For every certificate with a chance its answers to these triples."""
        found = [
            [Answer(t, name, p, float(v)) for t, p, v in zip(triples, points, values, strict=True)]
            for name, (points, values) in self._from_scratch(triples, tolerance).items()
        ]
        return found or [self._pick(triples, {})]

    def contenders(self, triple: Triple) -> list[Answer]:
        """For one triple the best answer of every certificate that is close to the best, best first."""
        return close((answers[0] for answers in self.each([triple])), 1.02)

    def grids(self, triples: Sequence[Triple]) -> list[Array]:
        """For each certificate the best grid value of each triple: cheap, for choosing among many."""
        return [self._search(name, triples).from_grid(thin=2)[1].min(axis=1) for name in self.pool]

    def resolve(self, triples: Sequence[Triple], near: Sequence[Answer], tolerance: float = 1e-4) -> list[Answer]:
        """From the answers of nearby triples, with the certificates that they used."""
        found = {}
        for name in {answer.certificate for answer in near}:
            points = np.array([answer.point for answer in near if answer.certificate == name])
            search = self._search(name, triples)
            start = search.spread(np.broadcast_to(points, (len(triples), *points.shape)))
            found[name] = best_of(*search.descend(start, search.values(start), 0.2, tolerance))
        return self._pick(triples, found)

    def _from_scratch(self, triples: Sequence[Triple], tolerance: float = 1e-5) -> dict[str, tuple[Array, Array]]:
        """Grid, rough descent from several starts, fine descent around the best; hopeless certificates drop out."""
        searches = {name: self._search(name, triples) for name in self.pool}
        grids = {name: search.from_grid() for name, search in searches.items()}
        rough = {
            name: best_of(*searches[name].descend(points, values, 0.6, 0.03))
            for name, (points, values) in _hopeful(grids, 1.6).items()
        }
        fine = {}
        for name, (points, _) in _hopeful(rough, 1.1).items():
            start = searches[name].spread(points[:, None])
            fine[name] = best_of(*searches[name].descend(start, searches[name].values(start), 0.2, tolerance))
        return fine

    def bound(self, answer: Answer) -> tuple[Bound, float, float, float | None]:
        """The bound at an answer, in normalised units, with (alpha, eta, free parameter)."""
        search = self._search(answer.certificate, [answer.triple])
        with np.errstate(all="ignore"):
            case, free = search.case(answer.point[None, None, :])
            proven = search.certificate(case, free)
        kept = None if search.certificate.free is None else float(np.broadcast_to(free, (1, 1))[0, 0])
        return _flat(proven), float(case.alpha[0, 0]), float(case.eta[0, 0]), kept

    def trivial(self, triple: Triple, alpha: float, eta: float) -> tuple[str, Bound]:
        """The certificate that only knows the first gradient and the length of the path, for a plan found otherwise."""
        name = TRIVIAL[EXPECTATION if self.delta is None else HIGH_PROBABILITY]
        T, K, k, alpha_, eta_ = (np.full((1, 1), float(n)) for n in (triple.T, triple.K, triple.k, alpha, eta))
        return name, _flat(CATALOGUE[name](Case(self.constants, T, alpha_, eta_, K, k, self.delta)))

    def _search(self, name: str, triples: Sequence[Triple]) -> Search:
        certificate: Certificate = CATALOGUE[name]
        T, K, k = (np.array([float(getattr(t, a)) for t in triples]) for a in ("T", "K", "k"))
        delta = None if certificate.kind == EXPECTATION else self.delta
        return Search(certificate, self.constants, delta, T, K, k)

    def _pick(self, triples: Sequence[Triple], found: dict[str, tuple[Array, Array]]) -> list[Answer]:
        names = sorted(found)
        if not names:
            return [Answer(t, self.pool[0], np.zeros(3), math.inf) for t in triples]
        values = np.array([found[name][1] for name in names])
        at = values.argmin(axis=0)
        return [
            Answer(t, names[a], found[names[a]][0][i], float(values[a, i]))
            for i, (t, a) in enumerate(zip(triples, at, strict=True))
        ]


def close(answers: Iterable[Answer], within: float) -> list[Answer]:
    """Those within a factor of the best, best first."""
    ordered = sorted(answers, key=lambda a: a.value)
    return [a for a in ordered if a.value <= within * ordered[0].value]


def _hopeful(found: dict[str, tuple[Array, Array]], factor: float) -> dict[str, tuple[Array, Array]]:
    """The certificates that come within a factor of the best one for some triple, and are finite there."""
    lowest = {name: values.reshape(len(values), -1).min(axis=1) for name, (_, values) in found.items()}
    floor = np.min(list(lowest.values()), axis=0) if lowest else np.zeros(0)
    return {name: found[name] for name, low in lowest.items() if np.any(np.isfinite(low) & (low <= factor * floor))}


def _flat(bound: Bound) -> Bound:
    """Of arrays (1, 1) their number."""

    def number(array: Array) -> Array:
        return np.broadcast_to(array, (1, 1)).reshape(())

    return Bound(
        number(bound.value),
        {name: number(part) for name, part in bound.parts.items()},
        number(bound.scale),
        number(bound.descent),
        None if bound.error is None else number(bound.error),
        None if bound.slope is None else number(bound.slope),
    )


def natural_units(constants: Constants) -> tuple[float, float]:
    """(length, value) such that constants.scaled(...) has gap 1 and sqrt(L0) + L1 = 1."""
    c = constants
    length = math.sqrt(c.L0) / math.sqrt(c.gap) + c.L1
    return length, 1 / c.gap
