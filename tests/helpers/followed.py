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


def above_log(b: float) -> float:
    """ell(b) of the contraction lemma."""
    v = (1 - b) / (1 + b)
    return 2 * v + 2 * v**3 / (3 * (1 - v**2))


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
    off: float | None = None  # the largest distance from grad F(x_s), if it is not twice the spread


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
    independent: tuple[int, int] = (
        1,
        1,
    )  # samples in the difference, and in the fresh gradient, of a piece of the head
    first_samples: int = 1  # of a piece of the first batch
    constants: Vector | None = None
    settled: float | None = None  # the w that is kept, if it is known before the run
    length: int = 1  # of a block that is not cut short
    alone: bool = False  # every step is a block
    slack: float = 1.15
    steps: list[Step] = field(default_factory=list)
    w: list[float] = field(default_factory=list)
    sure: float = 0.0
    astray: list[float] = field(default_factory=list)  # of every step of little weight, length times error
    costs: list[list[float]] = field(default_factory=list)
    p: list[float] = field(default_factory=list)
    squares: float = 0.0

    def first(self, step: Step, pieces: Sequence[Vector]) -> None:
        spread, off = step.spread, 2 * step.spread if step.off is None else step.off
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
                A = (
                    off / n
                    + (1 / (2 * q) + linear(lam, 1, 2 * R)) * total
                    + (1 / lam + R * R / self.first_samples / q) * self.log_first
                )
                error = min(error, math.sqrt((A + q) ** 2 - q * q))
        self.steps, self.w, self.sure, self.p = [step], [self.w1], off, list(self.p1)
        self.costs = [[math.hypot(self.w1 * error, p)] for p in self.p1]

    def theta(self, s: int) -> float:
        """Of step s = 0, 1, .. of those that were followed."""
        if s == len(self.w) - 1:
            return min(self.w[s], 1.0)
        return self.w[s] - (1 - self.steps[s + 1].a) * self.w[s + 1]

    def counts(self, s: int) -> bool:
        """Whether a step that others followed has at least half of its due weight."""
        return self.theta(s) >= self.steps[s + 1].a * self.w[s + 1] / 2

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

    def gradient(self, moved: float) -> float:
        """A bound of ||grad F|| after the next step, of this length."""
        L0, L1, _, _, gap, _ = self.constants
        every = zip(self.costs, self.lam, self.B, strict=True)
        most = min(math.fsum(costs) + (1 / lam + B) * self.log_run for costs, lam, B in every)
        near = math.hypot(*self.steps[-1].m) + min(most / self.w[-1], self.sure)
        g = near + moved * (L0 + L1 * near)
        path = [*(s.moved for s in self.steps[1:]), moved]
        if all(length * L1 <= 1 for length in path):
            last = len(path) - 1
            rate = max(length / self.theta(s) for s, length in enumerate(path) if s == last or self.counts(s))
            far = math.fsum(self.astray) + rate * self.errors()
            D = gap + L0 / 2 * math.fsum(length**2 for length in path) + 2 * far
            g = min(g, L1 * D + math.sqrt((L1 * D) ** 2 + 2 * L0 * D))
        return g

    def ranges(self, block: Sequence[Step]) -> list[tuple[float, float, float]]:
        known = [(s.spread, 2 * s.spread if s.off is None else s.off, s.change) for s in block]
        if self.constants:
            L0, L1, s0, s1, *_ = self.constants
            first = self.gradient(block[0].moved)
            for i, step in enumerate(block):
                if any(s.moved * L1 > 1 for s in block[: i + 1]):
                    break
                way = math.fsum(s.moved for s in block[1 : i + 1])
                g = first + way * math.exp(L1 * way) * (L0 + L1 * first)
                own = s0 + s1 * g, s0 + s1 * g, step.moved * (L0 + L1 * g)
                known[i] = tuple(map(min, known[i], own))
        return known

    def add(self, block: Sequence[Step], ended: bool | None = None) -> None:
        """Steps that are followed together. Whatever charges one of them is made of the past of its samples.

        `ended` says whether the block ends where ranges grow, if blocks may.
        """
        (K, k), (head, tail) = self.batches, self.samples
        ranges, sure, w_old, first = self.ranges(block), self.sure, self.w[-1], None
        seen, prices = [], []  # of every step: w, squares, what it pays for not being seen, whether it is as the first
        before, lost = self.steps[-1].m, 0.0
        added, kept, level, begun = 0.0, 1.0, 0.0, len(self.steps)
        room = 1.0 if self.alone else self.slack
        for step, (spread, off, change) in zip(block, ranges, strict=True):
            a = step.a
            w = min(1 / a if self.settled is None else self.settled, w_old / max(1 - a, 0.5))
            share = 1 - (1 - a) * w / w_old
            prices.append(min(SIGMA * above_log(1 - share), share) if share < 1 else 1.0)
            turn, own = (1 - a) / k, a / K
            heads = head * (2 * turn * change + own * off)
            tails = tail * own * off
            most = len(step.here) * heads + len(step.others) * tails
            if first is None and self.settled is not None:
                room *= min(self.settled / w, max(1 - a, 0.5) ** (1 - self.length))
            if first is None:
                highest = sure if self.alone else max(self.slack * most / a, sure)
            bar = highest + lost
            pairs, fresh = map(math.sqrt, self.independent)
            R = w * max(head * (turn * change / pairs + own * spread / fresh), math.sqrt(tail) * own * spread)
            r = heads + head * ((turn + own) * change + own * bar)
            r = w * max(r, tails + tail * own * (change + bar))
            first = first or (room * R, room * r)
            far = []
            for b, pairs in (
                (head, zip(step.here, step.there, strict=True)),
                (tail, ((g, g) for g in step.others)),
            ):
                t = turn if b == head else 0.0
                for g, old in pairs:
                    y = [b * (t * (u - v) + own * u) for u, v in zip(g, old, strict=True)]
                    far.append(distance(y, [b * own * m for m in before]) ** 2)
            fine = first[0] >= R and first[1] >= r and (self.alone or highest >= most / a) and all(s[3] for s in seen)
            seen.append((w, w * w * math.fsum(far), w * most, fine, most / a))
            rest = 0.0 if step.lost is None else math.hypot(*step.lost)
            for costs in self.costs:
                costs.append(w * rest)
            lost, before, w_old = lost + rest, step.m, w
            added, kept, level = added + most + rest, kept * (1 - min(a, 0.999)), max(level, (most + rest) / a)
            self.steps.append(step)
            self.w.append(w)
        farthest = max(sure, max(own for *_, own in seen)) + lost
        self.astray += [s.moved * farthest for i, s in enumerate(block) if not self.counts(begun - 1 + i)]
        self.sure = min(level + kept * max(sure - level, 0.0), sure + added)
        self.charge(block[0].a, prices, first, seen)
        if ended is not None:
            most, outgrown = max(self.lam) * first[1], ended or not all(fine for *_, fine, _ in seen)
            if outgrown and 1.5 * most < 0.9:
                self.slack = min(1.5 * self.slack, 2.0)
            else:
                self.slack = max(0.99 * self.slack, 1.15) if most < 0.9 else 1.15

    def charge(self, a: float, prices: list[float], first: tuple[float, float], seen: list[Any]) -> None:
        n, t = len(seen), len(self.steps) - 1
        for j, (lam, B, p_old, costs) in enumerate(zip(self.lam, self.B, self.p, self.costs, strict=True)):
            p = p_old
            if self.squares > 0:
                wanted = math.sqrt(self.squares / (2 * max(prices[0], SIGMA * a)))
                p = p_old if p_old / 1.3 <= wanted <= p_old * 1.3 else wanted
            observed = lam * first[1] < 0.9
            p = max(p, first[0] ** 2 / B) if observed else p
            each = 1 / (2 * p) + linear(lam, 1, first[1])
            costs += [price * p for price in prices]
            costs += [max(p - p_old, 0.0)]
            costs += [each * squares if observed and fine else surely for _, squares, surely, fine, _ in seen]
            self.p[j] = p
        new = min(1.0, max(n / t, 0.01 * n))
        self.squares = (1 - new) * self.squares + new * math.fsum(squares for _, squares, *_ in seen) / n


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
