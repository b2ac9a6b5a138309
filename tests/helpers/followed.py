"""The trajectory certificate a second time: from docs/theory/trajectory.md, in plain floats, piece by piece, from the
whole history at every step. Nothing of the package is used but the numbers that are fixed before the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Vector = Sequence[float]
T0 = math.sqrt((math.sqrt(5) - 1) / 2)
SIGMA = math.ceil(1e7 * T0 * (1 - T0 / math.sqrt(1 + T0 * T0))) / 1e7  # rounded up


@dataclass
class Step:
    """What is known after one step: mean gradients of the pieces of the head at x_s and x_{s-1}, of the tail at x_s."""

    m: Vector
    spread: float = math.inf  # stated at x_s
    change: float = math.inf
    moved: float = 0.0
    a: float = 1.0
    lost: Vector | None = None  # m_s - m~_s
    here: Sequence[Vector] = ()
    there: Sequence[Vector] = ()
    others: Sequence[Vector] = ()


@dataclass
class Oracle:
    """One run. `constants`: (L0, L1, sigma0, sigma1, gap, g1) or None; batches (K, k) and samples of a piece."""

    lam: Vector
    B: Vector
    p1: Vector
    first_lam: Vector
    first_p: Vector
    log_run: float
    log_first: float
    w1: float
    batches: tuple[int, int] = (1, 1)
    samples: tuple[int, int] = (1, 1)
    constants: Vector | None = None
    steps: list[Step] = field(default_factory=list)
    w: list[float] = field(default_factory=list)
    sure: list[float] = field(default_factory=list)
    costs: list[list[float]] = field(default_factory=list)
    p: list[float] = field(default_factory=list)
    squares: float = 0.0

    def first(self, step: Step, pieces: Sequence[Vector]) -> None:
        spread, off = step.spread, 2 * step.spread
        if self.constants:
            _, _, s0, s1, _, g1 = self.constants
            spread, off = min(spread, s0 + s1 * g1), min(off, s0 + s1 * g1)
        error, n = off, len(pieces)
        if n > 1:
            total = math.fsum(distance(piece, mean(pieces[:j])) ** 2 / n**2 for j, piece in enumerate(pieces) if j > 0)
            for lam, q in zip(self.first_lam, self.first_p, strict=True):
                R = spread / n
                if 2 * lam * R >= 0.9:
                    continue
                A = off / n + (1 / (2 * q) + linear(lam, 1, 2 * R)) * total + (1 / lam + R * R / q) * self.log_first
                error = min(error, math.sqrt((A + q) ** 2 - q * q))
        self.steps, self.w, self.sure, self.p = [step], [self.w1], [off], list(self.p1)
        self.costs = [[math.hypot(self.w1 * error, p)] for p in self.p1]

    def theta(self, s: int) -> float:
        """Of step s = 0, 1, .. of those that were followed."""
        if s == len(self.w) - 1:
            return min(self.w[s], 1.0)
        return self.w[s] - (1 - self.steps[s + 1].a) * self.w[s + 1]

    def errors(self) -> float:
        share = self.theta(len(self.w) - 1) / self.w[-1]
        return min(
            math.fsum(costs) - p * math.sqrt(1 - share**2) + (1 / lam + B) * self.log_run
            for costs, p, lam, B in zip(self.costs, self.p, self.lam, self.B, strict=True)
        )

    def bound(self) -> float:
        thetas = [self.theta(s) for s in range(len(self.steps))]
        norms = math.fsum(t * math.hypot(*s.m) for t, s in zip(thetas, self.steps, strict=True))
        return (norms + self.errors()) / math.fsum(thetas)

    def ranges(self, step: Step) -> tuple[float, float, float]:
        spread, off, change = step.spread, 2 * step.spread, step.change
        if self.constants:
            L0, L1, s0, s1, gap, _ = self.constants
            path = [*(s.moved for s in self.steps[1:]), step.moved]
            if step.moved * L1 <= 1:
                every = zip(self.costs, self.lam, self.B, strict=True)
                most = min(math.fsum(costs) + (1 / lam + B) * self.log_run for costs, lam, B in every)
                near = math.hypot(*self.steps[-1].m) + min(most / self.w[-1], self.sure[-1])
                g = near + step.moved * (L0 + L1 * near)
                if all(length * L1 <= 1 for length in path):
                    rate = max(length / self.theta(s) for s, length in enumerate(path))
                    D = gap + L0 / 2 * math.fsum(length**2 for length in path) + 2 * rate * self.errors()
                    g = min(g, L1 * D + math.sqrt((L1 * D) ** 2 + 2 * L0 * D))
                noise = s0 + s1 * g
                spread, off, change = min(spread, noise), min(off, noise), min(change, step.moved * (L0 + L1 * g))
        return spread, off, change

    def add(self, step: Step) -> None:
        spread, off, change = self.ranges(step)
        a, (K, k), w_old = step.a, self.batches, self.w[-1]
        w = min(1 / a, w_old / (1 - a) if a < 1 else math.inf)
        share = 1 - (1 - a) * w / w_old
        price = min(-SIGMA * math.log(1 - share), share) if share < 1 else 1.0
        before = self.steps[-1].m
        seen = []  # (distance from the centre, from the mean, radius, from the centre at most) of every piece
        for b, pairs in (
            (self.samples[0], zip(step.here, step.there, strict=True)),
            (self.samples[1], ((g, None) for g in step.others)),
        ):
            for g, old in pairs:
                turn = (1 - a) / k if old is not None else 0.0
                y = [b * (turn * (u - v) + a / K * u) for u, v in zip(g, old if old is not None else g, strict=True)]
                far = distance(y, [b * a / K * m for m in before])
                mean_off, R = b * (2 * turn * change + a / K * off), b * (turn * change + a / K * spread)
                seen.append((far, mean_off, R, mean_off + b * ((turn + a / K) * change + a / K * self.sure[-1])))
        rest = 0.0 if step.lost is None else math.hypot(*step.lost)
        for j, (lam, B, p_old, costs) in enumerate(zip(self.lam, self.B, self.p, self.costs, strict=True)):
            p = p_old
            if self.squares > 0:
                wanted = math.sqrt(self.squares / (2 * max(price, SIGMA * a)))
                p = p_old if p_old / 1.3 <= wanted <= p_old * 1.3 else wanted
            observed = all(lam * w * r < 0.9 for *_, r in seen)
            if observed:
                p = max(p, *(w * w * R * R / B for _, _, R, _ in seen))
                noise = math.fsum((w * w / (2 * p) + linear(lam, w, r)) * far**2 for far, _, _, r in seen)
            else:
                noise = w * math.fsum(most for _, most, _, _ in seen)
            costs += [price * p, max(p - p_old, 0.0), w * rest, noise]
            self.p[j] = p
        new = max(1 / len(self.steps), 0.01)
        self.squares = (1 - new) * self.squares + new * w * w * math.fsum(far**2 for far, *_ in seen)
        self.sure.append((1 - a) * self.sure[-1] + math.fsum(most for _, most, _, _ in seen) + rest)
        self.steps.append(step)
        self.w.append(w)


def linear(lam: float, w: float, r: float) -> float:
    """psi(x)/(lam r^2) with x^2/2 + x^3/(3 (1 - x)) for psi(x), x = lam w r; its limit at r = 0."""
    x = lam * w * r
    return (x * x / 2 + x**3 / (3 * (1 - x))) / (lam * r * r) if r > 0 else lam * w * w / 2


def distance(u: Vector, v: Vector) -> float:
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(u, v, strict=True)))


def mean(vectors: Sequence[Vector]) -> list[float]:
    return [math.fsum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def of_fixed(fixed: Any, **more: Any) -> Oracle:
    """With the numbers of theory.trajectory.Instances."""
    lists = {new: [float(v) for v in getattr(fixed, old)] for new, old in NAMES.items()}
    return Oracle(**lists, log_run=float(fixed.log_run), log_first=float(fixed.log_first), **more)


NAMES = {"lam": "lam", "B": "B", "p1": "p", "first_lam": "first_lam", "first_p": "first_p"}
