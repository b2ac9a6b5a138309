"""The trajectory certificate: its lemmas, its formulas against a slow second one, and laws. Runs: tests/algorithms."""

from __future__ import annotations

import math

import followed
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normstorm.theory import trajectory as ours
from normstorm.theory.trajectory import Closure, Layout, Observed, Ranges, blocks
from normstorm.theory.trajectory.bound import last_error

CUT = Layout(K=5, k=3, heads=1, head=3, tails=1, tail=2, firsts=4, first=2, pairs=3, fresh=3)
unit, positive = st.floats(0, 1), st.floats(-3, 3).map(lambda e: 10.0**e)


@given(unit, positive, positive)
def test_contraction(share, u, p):
    left = math.hypot((1 - share) * u, p)
    assert left <= (math.hypot(u, p) - share * u + float(blocks.contraction(np, share)) * p) * (1 + 1e-12) + 1e-13 * u


def test_contraction_is_sharp():
    share, p, t = 1e-4, 1.0, math.sqrt((math.sqrt(5) - 1) / 2)
    lost = math.hypot((1 - share) * t, p) - math.hypot(t, p) + share * t
    assert lost < blocks.CONTRACTION * share * (1 + share) and blocks.CONTRACTION == followed.SIGMA
    assert lost == pytest.approx(float(blocks.contraction(np, share)), rel=1e-3)


@given(st.floats(0.001, blocks.SURELY), st.floats(-1, 1e3))
def test_observed_squares(x, z):
    """exp(x z - psi z^2) <= 1 + x z, with what the formulas have for psi(x)."""
    psi = x * x * float(blocks.per_square(np, 1.0, x))
    assert psi >= -math.log1p(-x) - x
    assert math.exp(max(x * z - psi * z * z, -700)) <= (1 + x * z) * (1 + 1e-12) + 1e-300


@given(st.integers(0, 2**32 - 1), unit, positive)
def test_squares_cancel(seed, h, scale):
    """E exp(h (|d|^2 - |d + b|^2)) <= 1 if d has mean 0 and lies in a ball of radius R, anywhere, and 2 h R^2 <= 1."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(3, 2))
    points /= np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1)  # a ball of radius 1
    chance = rng.dirichlet([0.3] * 3)
    d, b = points - chance @ points, scale * rng.normal(size=2)
    gain = h / 2 * (np.sum(d**2, 1) - np.sum((d + b) ** 2, 1))
    assert chance @ np.exp(gain) <= 1 + 1e-12


@given(st.integers(0, 2**32 - 1), unit, positive)
def test_squares_of_a_batch_cancel(seed, h, scale):
    """Of a sum of independent samples the squared radii add up: three of them, every outcome."""
    rng = np.random.default_rng(seed)
    radii, outcomes = 10 ** rng.uniform(-1, 1, 3), [(1.0, np.zeros(2))]
    for radius in radii:
        points = rng.normal(size=(3, 2))
        points *= radius / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1)
        chance = rng.dirichlet([0.3] * 3)
        d = points - chance @ points
        outcomes = [(p * q, total + one) for p, total in outcomes for q, one in zip(chance, d, strict=True)]
    h, b = h / (2 * np.sum(radii**2)), scale * rng.normal(size=2)
    mean = sum(p * np.exp(h * (total @ total - (total + b) @ (total + b))) for p, total in outcomes)
    assert mean <= 1 + 1e-12


@given(st.integers(1, 40), st.integers(1, 40), unit, positive, positive)
def test_the_radius_of_a_whole_step(one, other, a, change, spread):
    """Not below the root of the squared radii of its samples: k that are asked twice, and K - k others."""
    k, K = sorted((one, other))
    cut = ours.layout(K, k, K, 10**6, 1)
    assert (cut.pairs, cut.fresh) == (k, K)
    parts = k * ((1 - a) / k * change + a / K * spread) ** 2 + (K - k) * (a / K * spread) ** 2
    assert (1 - a) * change / math.sqrt(cut.pairs) + a * spread / math.sqrt(cut.fresh) >= math.sqrt(parts) * (1 - 1e-12)


def walked(seed, scale=1.0, last=1.0, rest=0.0, range_at=None, closure=None, alone=False, w1=5.0, grows=1.0, least=1):
    """A random history through the formulas, and through the slow ones piece by piece; the bounds at the end.

    If ranges grow, blocks may end early, after `least` steps: the slow ones are told where.
    """
    rng = np.random.default_rng(seed)
    fixed = ours.instances(scale, scale, 0.2, 12, 0.1, CUT)
    more = {"settled": 5.0, "length": 1 if alone else 5} if closure else {}  # all steps have the weight 1/5
    slow = followed.of_fixed(
        fixed,
        w1=w1,
        batches=(5, 3),
        samples=(3, 2),
        independent=(3, 3),
        first_samples=2,
        constants=closure,
        alone=alone,
        **more,
    )
    known = None if closure is None else Closure(*closure)

    def vector():
        return scale * rng.uniform(-0.3, 0.3, 2)

    pieces, m = [vector() for _ in range(4)], scale * rng.uniform(-1, 1, 2)
    squares = sum(np.sum((p - np.mean(pieces[:j], 0)) ** 2) for j, p in enumerate(pieces) if j) / 16
    step, noise = followed.Step(m.tolist(), scale), math.inf
    if closure:
        noise = closure[2] + closure[3] * closure[5]
    slow.first(step, [p.tolist() for p in pieces])
    size = np.float64(math.hypot(*m))
    start = Ranges(min(scale, noise), min(2 * scale, noise), 0.0)
    state = ours.follow_first_step(np, fixed, CUT, w1, start, size, squares)
    rows, steps, ends = [], [], []
    for s in range(2, 13):
        a, moved = 0.2 if closure else float(rng.uniform(0.05, 1)), float(rng.uniform(0, 0.05))
        spread, change = scale * grows**s * rng.uniform(0.9, 1), 2 * scale * moved
        if s == range_at:
            spread = change = math.inf
        here, there, others = vector() + m, vector() + m, vector() + m
        if s == 12:
            here = here + (last - 1) * scale
        y = 3 * ((1 - a) / 3 * (here - there) + a / 5 * here)
        z = 2 * a / 5 * others
        lost = rest * vector()
        head, tail = (np.sum((v - b * a / 5 * m) ** 2) for v, b in ((y, 3), (z, 2)))
        m = (1 - a) * m + y + z + lost
        rows.append((a, moved, math.hypot(*m), head, tail, math.hypot(*lost), spread, change))
        steps.append(followed.Step(m.tolist(), spread, change, moved, a, lost.tolist()))
        steps[-1].here, steps[-1].there, steps[-1].others = [here.tolist()], [there.tolist()], [others.tolist()]
        while rows and (alone or s % 4 == 0):  # blocks of one step, or of 3, 4 and 4, in arrays of 5
            *parts, spread, change = np.concatenate([rows, np.full(((0 if alone else 5 - len(rows)), 8), 0.5)]).T
            parts = [np.float64(0.2), *parts[1:]] if closure else parts
            given = known, ours.from_problem(spread, change), state, Observed(*parts), len(rows), more.get("settled")
            with np.errstate(invalid="ignore"):
                state = ours.follow_block(np, fixed, CUT, *given, least=least if grows > 1 else None)
            taken = int(state.t - given[2].t)
            if range_at is None:
                slow.add(steps[:taken], taken < len(rows) if grows > 1 else None)
            rows, steps = rows[taken:], steps[taken:]
            ends.append(s - len(rows))
    assert (ends[:3] == [4, 8, 12]) == (grows == 1) or alone
    if range_at is None:
        assert state.astray == pytest.approx(math.fsum(slow.astray), rel=1e-9)
        path = [s.moved for s in slow.steps[1:]]
        assert state.rate == pytest.approx(
            max((moved / slow.theta(s) for s, moved in enumerate(path) if slow.counts(s)), default=0.0), rel=1e-9
        )
    return float(ours.average_bound(np, fixed, state)), slow.bound() if range_at is None else math.inf


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.2]), st.booleans(), st.booleans(), st.floats(0.5, 5))
def test_agrees_with_the_slow_one(seed, rest, closes, alone, w1):
    closure = (2.0, 0.5, 0.4, 0.3, 0.7, 0.6) if closes else None
    quick, slow = walked(seed, rest=rest, closure=closure, alone=alone, w1=w1)
    # Rounded up; where w grows, it grows a little less, and theirs is the bound for other weights.
    assert 1 - 1e-10 < quick / slow < 1 + 1e-9


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([1.2, 2.0]), st.sampled_from([1, 3]))
def test_blocks_that_end_where_ranges_grow(seed, closes, grows, least):
    closure = (2.0, 0.5, 40.0, 0.3, 0.7, 0.6) if closes else None
    quick, slow = walked(seed, rest=0.2, closure=closure, grows=grows, least=least)
    assert 1 - 1e-10 < quick / slow < 1 + 1e-9


def test_weights_that_stay_are_rounded_up_alone():
    quick, slow = walked(1, closure=(2.0, 0.5, 0.4, 0.3, 0.7, 0.6))
    assert 1 < quick / slow < 1 + 1e-9


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), positive)
def test_other_units(seed, scale):
    assert walked(seed, scale)[0] == pytest.approx(scale * walked(seed)[0], rel=1e-9)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.floats(5, 30))
def test_more_noise_costs(seed, more):
    assert walked(seed, last=more)[0] > walked(seed)[0]


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12))
def test_a_range_without_end_ends_it(seed, when):
    assert walked(seed, range_at=when)[0] == math.inf


def one_step(moved, size=1.0, head=0.01, a=0.2):
    """A block of one step, and another whose numbers are not to matter."""
    return Observed(np.array([a, 0.9]), np.array([moved, 5.0]), np.array([size, 7.0]), np.array([head, 9.0]), 0.0, None)


def test_a_large_step_ends_descent():
    fixed = ours.instances(1.0, 1.0, 0.2, 10, 0.1, ours.WHOLE)
    closure = Closure(1.0, 2.0, 0.5, 0.1, 1.0, 1.0)
    start = ours.follow_first_step(np, fixed, ours.WHOLE, 5.0, Ranges(0.6, 0.6, 0.0), np.float64(1), 0.0)

    def ranges(c, state, *moved):
        with np.errstate(invalid="ignore"):
            return ours.from_constants(np, c, fixed, state, np.array(moved), len(moved))

    near, far = ranges(closure, start, 0.5, 0.5), ranges(closure, start, 0.1, 0.51, 0.1)
    assert near.change[1] > near.change[0] and near.change[1] < math.inf
    assert far.spread[0] < math.inf and set(far.spread[1:]) == set(far.change[1:]) == {math.inf}
    stated = ours.from_problem(np.ones(2), np.ones(2))
    later = ours.follow_block(np, fixed, ours.WHOLE, closure, stated, start, one_step(0.51), 1)
    near = 1 + float(last_error(np, fixed, later))
    g = near + 0.1 * (1.0 + 2.0 * near)  # the other bound is left, which knows m_t alone
    assert ranges(closure, later, 0.1).spread == pytest.approx(0.5 + 0.1 * g)
    plain = Closure(1.0, 0.0, 0.5, 0.0, 1.0, 1.0)  # needs no gradient, hence no descent
    assert ranges(plain, later, 0.1).spread == pytest.approx(0.5)


def test_without_noise_it_is_a_number():
    fixed = ours.instances(0.0, 0.0, 0.2, 10, 0.1, ours.WHOLE)
    state = ours.follow_first_step(np, fixed, ours.WHOLE, 5.0, Ranges(0.0, 0.0, 0.0), np.float64(1), 0.0)
    stated = ours.from_problem(np.zeros(2), np.full(2, 0.1))
    state = ours.follow_block(np, fixed, ours.WHOLE, None, stated, state, one_step(0.1), 1)
    assert 1 < ours.average_bound(np, fixed, state) < math.inf


@settings(max_examples=60)
@given(
    st.lists(st.floats(1e-6, 1), min_size=1, max_size=32),
    st.floats(1e-3, 1e6),
    st.sampled_from(["f4", "f8"]),
    st.booleans(),
)
def test_weights_are_those_of_the_recursion(alphas, w, kind, equal):
    """And what is left of w_{s-1} after step s is not negative, rounding included."""
    a = np.array(alphas if not equal else [alphas[0]] * len(alphas), kind)
    settled = 1 / a[0] if equal else None
    w = min(w, float(settled)) if equal else w
    state = ours.Followed(*(None,) * 14)._replace(w=a.dtype.type(w))
    found = blocks.weights_of_errors(np, state, a[0] if equal else a, settled, a)
    for x, now in zip(a.tolist(), found.tolist(), strict=True):
        expected = min(1 / x, w / max(1 - x, 0.5))
        assert now == pytest.approx(expected, rel=1e-9 if kind == "f8" else 8e-3)
        assert w - (1 - x) * now >= 0
        w = now


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 10**6), st.integers(1, 10**5))
def test_pieces_make_up_the_batches(one, other, steps, pieces):
    k, K = sorted((one, other))
    cut = ours.layout(K, k, K, steps, pieces)
    batches = (1, 0) if cut.is_whole else (k, K - k)
    assert (cut.heads * cut.head, cut.tails * cut.tail, cut.firsts * cut.first) == (*batches, K)
    assert cut.is_whole == (steps >= pieces or K == 1)
