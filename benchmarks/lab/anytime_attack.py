"""Attempts to violate the certificate for any schedule (docs/theory/any-schedule.md), many runs at once in NumPy.

    setting(seed)        a random problem, noise, batch and rule of steps
    attack(setting, n)   n runs of it, checked at every t: violations, and how often the event of the proof fails

The problems attain their constants nearly. F is a quadratic or a radial cosh; the noise has the size sigma0 + sigma1 g
at every point, is a sign, skewed, or a rare jump, and turns with x. Rules see everything up to the estimate m_t: they
clip, follow its norms, take long steps when it grew or points uphill, or let w wander at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from normstorm.theory import Constants, ScheduleCertificate

RULES = ("constant", "shrinking", "clipped", "erratic", "uphill", "adagrad", "wandering")
DIM = 3


@dataclass(frozen=True)
class Setting:
    """A problem with proven constants, a rule and the instances of the certificate."""

    curvature: float  # l0 and l1 of F: ||H|| <= l0 + l1 ||grad F||
    growth: float
    sigma0: float
    sigma1: float
    turn: float  # how fast the noise turns with x
    chance: float  # of the noise's negative value; 1/2 is a sign
    radius: float  # ||x_1||
    K: int
    k: int
    rule: str
    alpha: float
    w: float
    steps: int
    lam: tuple[float, ...]
    delta: float
    seed: int

    @property
    def smooth(self) -> tuple[float, float]:
        """(L0, L1) of F: at distances d <= 1/(2 l1) a gradient changes by (l0 + l1 g) d (e^(1/2) - 1)/(1/2) at most."""
        factor = 1.0 if self.growth == 0 else 2 * math.expm1(0.5)
        return factor * self.curvature, 2 * self.growth

    @property
    def constants(self) -> Constants:
        """The noise adds its turning and the change of its size to the smoothness of F."""
        L0, L1 = self.smooth
        start = np.zeros((1, DIM))
        start[0, 0] = self.radius
        return Constants(
            L0 * (1 + self.sigma1) + self.turn * self.sigma0,
            L1 * (1 + self.sigma1) + self.turn * self.sigma1,
            self.sigma0,
            self.sigma1,
            float(self.value(start)[0]) * (1 + 1e-9),
            float(np.linalg.norm(self.grad(start))) * (1 + 1e-9),
        )

    def value(self, x: np.ndarray) -> np.ndarray:
        """F - F*."""
        r = np.linalg.norm(x, axis=-1)
        if self.growth == 0:
            return np.asarray(self.curvature / 2 * r * r)
        return np.asarray(self.curvature / self.growth**2 * 2 * np.sinh(self.growth * r / 2) ** 2)

    def grad(self, x: np.ndarray) -> np.ndarray:
        if self.growth == 0:
            return self.curvature * x
        r = np.linalg.norm(x, axis=-1, keepdims=True)
        slope = np.sinh(self.growth * r) / np.where(r > 0, self.growth * r, 1)
        return np.asarray(self.curvature * slope * x)

    def unit_noise(self, x: np.ndarray) -> np.ndarray:
        """(sigma0 + sigma1 g) times a unit vector that turns with x; a sample multiplies it by a number in [-1, 1]."""
        angle = self.turn * x[..., 0]
        direction = np.stack([np.cos(angle), np.sin(angle), np.zeros_like(angle)], axis=-1)
        return np.asarray((self.sigma0 + self.sigma1 * np.linalg.norm(self.grad(x), axis=-1))[..., None] * direction)

    @property
    def values(self) -> tuple[float, float]:
        """The two values of a sample, of mean zero: the first with probability `chance`."""
        return -1.0, self.chance / (1 - self.chance)


def setting(seed: int, delta: float = 0.1) -> Setting:
    """A random setting; the seed is all of it."""
    rng = np.random.default_rng(seed)
    growth = float(rng.choice([0.0, 0.3, 1.0]))
    K = int(rng.choice([1, 1, 4]))
    alpha = float(np.exp(rng.uniform(np.log(0.02), np.log(0.9))))
    made = Setting(
        curvature=float(rng.choice([0.3, 1.0, 3.0])),
        growth=growth,
        sigma0=float(rng.choice([0.1, 1.0, 3.0])),
        sigma1=float(rng.choice([0.0, 0.3, 1.0])),
        turn=float(rng.choice([0.0, 0.5, 2.0])),
        chance=float(rng.choice([0.5, 0.2, 0.03])),
        radius=float(rng.uniform(0.1, 2.0)),
        K=K,
        k=int(rng.choice([1, K])),
        rule=RULES[seed % len(RULES)],
        alpha=alpha,
        w=1.0,
        steps=int(rng.choice([30, 80, 150])),
        lam=(1.0,),
        delta=delta,
        seed=seed,
    )
    c = made.constants
    w = float(np.exp(rng.uniform(np.log(0.03), np.log(1.0)))) / max(c.L1, 0.3) / alpha ** float(rng.uniform(0, 1))
    if c.L1 > 0:
        w = min(w, 1 / (c.L1 * alpha))
    level = alpha * (c.sigma0 + c.sigma1 * c.first_gradient + 2 * w * c.L0) * w
    natural = math.sqrt(2 * math.log(1 / delta) / made.steps) / level
    return Setting(**{**vars(made), "w": w, "lam": (natural, 4 * natural)})


@dataclass
class Outcome:
    """Runs in which the theorem, or the event of its proof, failed at some t; the least total/left side."""

    runs: int
    violations: int
    events: tuple[int, ...] | None
    least: float


def attack(s: Setting, runs: int) -> Outcome:
    """All runs of a setting, each checked after every step, so that any stopping rule is covered."""
    rng = np.random.default_rng([s.seed, 1])
    c = s.constants
    x = np.zeros((runs, DIM))
    x[:, 0] = s.radius
    follower = ScheduleCertificate(c, delta=s.delta, lam=s.lam, w=np.full(runs, s.w), K=s.K)
    state: dict[str, Any] = {"seen": np.zeros(runs), "last": np.full(runs, np.inf)}
    signs = draw(rng, s, runs)
    m = s.grad(x) + signs.mean(axis=1)[:, None] * s.unit_noise(x)
    lam = np.array(s.lam)
    paid, before = np.zeros((runs, len(lam))), np.zeros((runs, len(lam)))
    drift = np.zeros((runs, len(lam)))  # N_t - lam/2 sum of proxies
    worst, failed = np.full(runs, -np.inf), np.zeros((runs, len(lam)), dtype=bool)
    least = math.inf
    for t in range(1, s.steps + 1):
        g = np.linalg.norm(s.grad(x), axis=-1)
        eta, alpha, w = _rule(s, t, m, s.grad(x), follower.w, state, rng)
        follower.move(eta)
        size = np.linalg.norm(m, axis=-1, keepdims=True)
        moved = x - eta[:, None] * np.where(size > 0, m / np.where(size > 0, size, 1), 0)
        left = s.value(moved)[:, None] + paid + (follower.weights - before) * g[:, None]
        worst = np.maximum(worst, np.max(left - follower.total, axis=-1))
        least = min(least, float(np.min(follower.total / np.maximum(left, 1e-300))))
        follower.choose(alpha, s.K, s.k, w)
        paid, before = paid + (follower.before - before) * g[:, None], follower.before
        old, error = x, m - s.grad(x)
        x = moved
        signs = draw(rng, s, runs)
        m = estimate(s, m, x, old, signs, alpha)
        if s.K == 1:
            drift += _event(s, follower, error, m - s.grad(x), x, old, alpha, eta)
            failed |= drift > follower.log_term / lam
    events = tuple(int(n) for n in failed.sum(axis=0)) if s.K == 1 else None
    return Outcome(runs, int(np.sum(worst > 0)), events, least)


def draw(rng: np.random.Generator, s: Setting, runs: int) -> np.ndarray:
    low, high = s.values
    return np.where(rng.uniform(size=(runs, s.K)) < s.chance, low, high)


def estimate(s: Setting, m: np.ndarray, x: np.ndarray, old: np.ndarray, signs: np.ndarray, alpha: np.ndarray) -> Any:
    fresh = s.grad(x) + signs.mean(axis=1)[:, None] * s.unit_noise(x)
    part = signs[:, : s.k].mean(axis=1)[:, None]
    change = s.grad(x) - s.grad(old) + part * (s.unit_noise(x) - s.unit_noise(old))
    return alpha[:, None] * fresh + (1 - alpha[:, None]) * (m + change)


def _event(
    s: Setting,
    follower: ScheduleCertificate,
    error: np.ndarray,
    new: np.ndarray,
    x: np.ndarray,
    old: np.ndarray,
    alpha: np.ndarray,
    eta: np.ndarray,
) -> np.ndarray:
    """Phi_s minus its conditional mean, which two outcomes give exactly, minus lam/2 times its proxy at the true g."""
    c = s.constants
    g = np.linalg.norm(s.grad(x), axis=-1)
    p = follower.P0 + follower.P1 * g

    def phi(e: np.ndarray) -> np.ndarray:
        return np.asarray(np.sqrt(follower.w**2 * np.sum(e * e, axis=-1) + p * p))

    per_sign = alpha[:, None] * s.unit_noise(x) + (1 - alpha[:, None]) * (s.unit_noise(x) - s.unit_noise(old))
    low, high = s.values
    kept = (1 - alpha[:, None]) * error
    mean = s.chance * phi(kept + low * per_sign) + (1 - s.chance) * phi(kept + high * per_sign)
    root = sum((1 - alpha) * 2 * eta * L + alpha * sigma for L, sigma in ((c.L0, c.sigma0), (c.L1 * g, c.sigma1 * g)))
    proxy = (follower.w * root) ** 2
    return np.asarray((phi(new) - mean)[:, None] - np.array(s.lam) / 2 * proxy[:, None])


def _rule(
    s: Setting, t: int, m: np.ndarray, grad: np.ndarray, w: np.ndarray, state: dict[str, Any], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(eta_t, alpha_{t+1}, w_{t+1}); the longest step is alpha w."""
    size = np.linalg.norm(m, axis=-1)
    full = np.full(len(w), s.alpha)
    if s.rule == "shrinking":
        full = s.alpha * (11 / (t + 10)) ** (2 / 3) * np.ones(len(w))
    longest = full * w
    state["seen"] = state["seen"] + size**2
    share = {
        "constant": np.ones(len(w)),
        "shrinking": np.ones(len(w)),
        "clipped": np.minimum(1, size / (s.sigma0 + 0.3)),
        "erratic": np.where(size > state["last"], 1.0, 0.1),
        "uphill": np.where(np.sum(m * grad, axis=-1) < 0, 1.0, 0.2),
        "adagrad": size / np.sqrt(state["seen"] + 1e-12),
        "wandering": rng.uniform(0.2, 1.0, len(w)),
    }[s.rule]
    state["last"] = size
    eta = share * longest
    if s.rule == "wandering":
        most = (w - eta) / np.maximum(1 - full, 1e-9)
        new = np.minimum(w * rng.uniform(0.9, 1.1, len(w)), np.where(full < 1, most, 1.1 * w))
        if s.constants.L1 > 0:
            new = np.minimum(new, 1 / (s.constants.L1 * s.alpha))
        return eta, full, new * (1 - 1e-13)
    if s.rule in ("erratic", "adagrad"):
        return eta, np.maximum(eta / w, 0.01 * s.alpha), w
    return eta, full, w
