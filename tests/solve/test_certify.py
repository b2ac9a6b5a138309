"""Bounds from fresh samples: they cover, they are as sharp as asked for, and they need what they say."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import own
import pytest

from normstorm import Constants
from normstorm.problems import from_loss
from normstorm.solve import PointCertificate, certify, certify_first
from normstorm.solve.fresh import CHUNK, Gradients, summarise
from normstorm.theory.fresh_samples import groups_for, samples_for

CENTRE = own.ROWS.mean(axis=0)
SPREAD = float(((own.ROWS - CENTRE) ** 2).sum(axis=1).mean())
X = CENTRE + np.array([0.3, 0.0, 0.0])  # grad F(X) = X - CENTRE
NORM = 0.3


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("sense", ["almost-sure", "mean-square"])
def test_coverage(sense: str) -> None:
    """150 certificates at confidence 0.8, of which at most 30 + 5 sqrt(150 x 0.16) = 54 may fail.

    False alarms: below 1e-5. The norm of the mean alone would fail more often than that.
    """
    found = [certify(own.problem, X, 0.8, 64, sense=sense, seed=seed, exact=False) for seed in range(150)]
    assert sum(c.upper_bound < NORM for c in found) <= 54
    assert len({c.mean_norm for c in found}) == 150, "every seed draws its own samples"
    assert all(c.upper_bound > c.mean_norm and c.samples <= 64 and c.sense == sense for c in found)


def test_the_check_of_coverage_has_teeth() -> None:
    """At a point with a longer gradient the mean's own norm falls short about every second time."""
    far = CENTRE + np.array([3.0, 0.0, 0.0])
    short = [certify(own.problem, far, 0.8, 64, seed=seed, exact=False).mean_norm < 3.0 for seed in range(150)]
    assert sum(short) > 54


@pytest.mark.parametrize("sense", ["almost-sure", "mean-square"])
def test_precision_is_reached(sense: str) -> None:
    found = certify(own.problem, X, 0.9, precision=0.2, sense=sense, exact=False)
    known = own.KNOWN
    wanted = samples_for(0.2, known.grad_norm, known.sigma0, known.sigma1, 1 - 0.9, sense)
    assert found.samples == wanted
    assert NORM <= found.upper_bound <= found.mean_norm + 0.2 + 1e-8


def test_more_samples_bound_more_sharply() -> None:
    bounds = [certify(own.problem, X, 0.99, n, exact=False).upper_bound for n in (50, 500, 5000)]
    assert bounds[0] > bounds[1] > bounds[2] > NORM


def test_summaries_are_those_of_the_data() -> None:
    """Mean and spread over several chunks; 8 standard errors of margin."""
    n = 3 * CHUNK + 17
    found = summarise(Gradients(own.problem, X, 0), n)
    assert found.samples == n and found.group_norms == ()
    assert found.mean_norm == pytest.approx(NORM, abs=8 * np.sqrt(SPREAD / n))
    squares = ((own.ROWS - CENTRE) ** 2).sum(axis=1)
    assert found.trace == pytest.approx(SPREAD, abs=8 * squares.std() / np.sqrt(n))


def test_groups_are_equal_and_a_remainder_is_not_drawn() -> None:
    groups = groups_for(1 - 0.99)
    found = summarise(Gradients(own.problem, X, 0), 10 * groups + 1, groups)
    assert groups > 1 and found.samples == 10 * groups and len(found.group_norms) == groups


def test_without_noise_the_bound_is_the_norm() -> None:
    quiet = replace(own.problem, data=own.ROWS[:1], known=replace(own.KNOWN, sigma0=0.0))
    found = certify(quiet, own.ROWS[0] + np.array([0.0, 0.7, 0.0]), 0.99, 10, exact=False)
    assert 0.7 < found.upper_bound == pytest.approx(0.7, rel=1e-8)


def test_too_few_samples_certify_nothing() -> None:
    loud = Constants(**own.KNOWN.to_dict() | {"sigma1": 5.0})
    assert certify(replace(own.problem, known=loud), X, 0.99, 10).upper_bound == np.inf


def test_single_precision_points_are_certified_in_double() -> None:
    with jax.enable_x64(False):
        found = certify(own.problem, X.astype(np.float32), 0.99, 100, exact=False)
    same = certify(own.problem, X.astype(np.float32).astype(np.float64), 0.99, 100, exact=False)
    assert found == same


def test_the_sentence_names_the_assumption() -> None:
    for sense, assumption in (("almost-sure", "4A"), ("mean-square", "4B")):
        found = certify(own.problem, X, 0.9, 50, sense=sense, exact=False)
        assert f"assumptions 2 and {assumption} hold" in found.guarantee
        assert found.to_dict()["guarantee"] == found.guarantee


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"confidence": 1.0, "samples": 9}, r"confidence must be a number in \(0, 1\); got confidence=1.0"),
        ({"confidence": True, "samples": 9}, "confidence must be a number"),
        ({}, "exactly one of samples, precision, target must be given"),
        ({"samples": 9, "precision": 0.1}, "exactly one of samples, precision, target must be given"),
        ({"samples": 1}, "samples must be an integer in"),
        ({"samples": 2.5}, "samples must be an integer in"),
        ({"samples": 10**9}, "samples must be an integer in"),
        ({"precision": 0}, "precision must be a finite number > 0"),
        ({"precision": float("nan")}, "precision must be a finite number > 0"),
        ({"precision": "a"}, "precision must be a finite number > 0; got precision='a'"),
        ({"precision": True}, "precision must be a finite number > 0; got precision=True"),
        ({"confidence": 1e-300, "samples": 9}, "^certify: confidence must be at least 1e-16"),
        (
            {"samples": 9, "seed": "a"},
            r"^certify: seed must be an integer in \[-9223372036854775808, 92.*; got seed='a'",
        ),
        ({"samples": 9, "seed": 1.5}, "seed must be an integer in .*; got seed=1.5"),
        ({"samples": 9, "seed": None}, "seed must be an integer in .*; got seed=None"),
        ({"samples": 9, "seed": 2**70}, "seed must be an integer in"),
        ({"samples": 9, "x": None}, r"^certify: x must have the shape \(3,\) of the problem's start; got nothing"),
        ({"samples": 9, "x": "a"}, r"x must have the shape \(3,\) of the problem's start; got \(\)"),
        ({"samples": 9, "x": np.ones(4)}, r"x must have the shape \(3,\) of the problem's start; got \(4,\)"),
        ({"precision": 1e-9, "exact": False}, "samples must be an integer in"),
        ({"samples": 9, "sense": "loud"}, "sense must be one of almost-sure, mean-square"),
        ({"target": 0}, "^certify: target must be a finite number > 0; got target=0"),
        ({"target": "a"}, "target must be a finite number > 0; got target='a'"),
        ({"target": 0.1, "precision": 0.1}, "exactly one of samples, precision, target must be given"),
        ({"target": 0.1, "samples": 1}, "samples must be an integer in"),
        ({"samples": 9, "exact": "yes"}, "^certify: exact must be True, False or None; got exact='yes'"),
        ({"samples": 9, "exact": 1}, "exact must be True, False or None; got exact=1"),
    ],
)
def test_refusals(words: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        certify(own.problem, **{"x": X} | words)


def test_numbers_of_numpy_are_numbers() -> None:
    found = certify(own.problem, X, np.float32(0.9), np.int64(9), seed=np.int32(0))
    assert found == certify(own.problem, X, float(np.float32(0.9)), 9)
    assert certify(own.problem, X, precision=Decimal("0.5")) == certify(own.problem, X, precision=0.5)


def box(key: jax.Array, n: int) -> jax.Array:
    return jax.random.uniform(key, (n, 3), minval=-0.5, maxval=0.5)


STREAM = from_loss(own.squares, box, start=own.START, constants=own.KNOWN)  # grad F(x) = x, and only samples


def test_a_target_is_reached_and_no_more_is_drawn() -> None:
    """The bound is that of a block that went on until the target; the next smaller target takes more samples."""
    x = np.array([0.05, 0.0, 0.0])
    found = [certify(STREAM, x, 0.99, target=target) for target in (0.4, 0.2, 0.09)]
    assert all(0.05 <= c.upper_bound <= c.target and c.certified and c.method == "top" for c in found)
    assert found[0].samples <= found[1].samples < found[2].samples < 6000
    fixed = certify(STREAM, x, 0.99, found[2].samples)
    assert found[2].upper_bound < fixed.upper_bound, "the watched bound is the sharper one"
    assert "is at most 0.0" in found[2].guarantee and found[2].to_dict()["certified"]


def test_a_target_out_of_reach_ends_early_or_at_the_budget() -> None:
    far = certify(STREAM, own.START, 0.99, target=0.1)
    assert not far.certified and far.samples < 2000 and math.sqrt(3) <= far.upper_bound < 2.2
    near = certify(STREAM, np.array([0.11, 0.0, 0.0]), 0.99, 3000, target=0.1)
    assert not near.certified and near.samples == 3000 and 0.11 <= near.upper_bound < 0.3
    short = certify(STREAM, np.array([0.05, 0.0, 0.0]), 0.99, 100, target=0.01)
    assert not short.certified and short.samples == 100 and short.method == "fixed"


def test_under_finite_variance_a_target_takes_looks() -> None:
    found = certify(STREAM, np.array([0.05, 0.0, 0.0]), 0.9, target=0.5, sense="mean-square")
    assert found.certified and found.sense == "mean-square" and found.method == "groups"
    assert not certify(STREAM, own.START, 0.9, 500, target=0.5, sense="mean-square").certified


def test_all_rows_where_they_are_cheaper() -> None:
    """40 rows: less than 64 samples and than any pilot; without constants, and only if it is allowed."""
    found = certify(own.problem, X, 0.9, 64)
    assert (found.sense, found.confidence, found.samples) == ("exact", 1.0, 40)
    assert NORM <= found.upper_bound < NORM * (1 + 2e-9) + 1e-10
    assert "exact, from a pass over all rows" in found.guarantee
    assert certify(own.problem, X, target=0.2) == replace(found, target=0.2)
    assert certify(own.problem, X, precision=0.1) == certify(own.without_constants, X, exact=True) == found
    assert certify(own.problem, X, 0.9, 39).sense == "almost-sure"
    assert certify(own.problem, X, 0.9, 64, exact=False).samples == 64
    with pytest.raises(ValueError, match=r"^certify: exact must be False or None for a problem that is no finite sum"):
        certify(STREAM, X, exact=True)


def test_more_rows_are_passed_over_once_samples_are_expected_to_be_more() -> None:
    rows = np.random.default_rng(1).uniform(-0.5, 0.5, (2000, 3))
    problem = from_loss(own.squares, rows, start=own.START, constants=own.KNOWN)
    x = rows.mean(axis=0) + np.array([0.01, 0, 0])
    found = [certify(problem, x, target=target) for target in (0.5, 0.02)]
    assert [c.sense for c in found] == ["almost-sure", "exact"] and found[1].samples == 256 + 2000
    assert found[1].upper_bound == pytest.approx(0.01, rel=1e-6)
    assert certify(problem, x, 0.99, 2100, target=0.02).sense == "almost-sure", "rows beside a pilot exceed the budget"
    few = replace(problem, data=rows[:300])
    assert certify(few, x, 0.99, 310, target=1e-3).samples == 300, "so few samples are one block"


@dataclass
class Ranged:
    """Samples of a box, constants that are far too large, and a range that is not."""

    radius: float | None = None
    name, is_exact, infimum = "ranged", False, None

    def __post_init__(self) -> None:
        if self.radius is not None:
            self.range = lambda x, radius: (self.radius + radius, 1.0)

    def start(self) -> jax.Array:
        return jnp.zeros(3)

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return box(key, n)

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        return x - jnp.mean(batch, axis=0)

    def constants(self, x0: object = None, sense: str = "almost-sure") -> Constants:
        return Constants(L0=1, L1=0, sigma0=20, sigma1=3, gap=1, noise=sense)


def test_a_local_range_takes_the_place_of_constants() -> None:
    wide, local = (certify(Ranged(radius), np.zeros(3), 0.99, target=0.3) for radius in (None, 0.87))
    assert wide.certified and local.certified and local.samples < wide.samples / 2
    fixed = [certify(Ranged(radius), np.zeros(3), 0.99, 1000).upper_bound for radius in (None, 0.87)]
    assert fixed[1] < fixed[0] / 2


@dataclass
class Waves(Ranged):
    """The gradient is a wave: far from 0 neighbouring numbers are many of them apart."""

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        return jnp.sin(3 * x) - jnp.mean(batch, axis=0)


def test_where_digits_are_lost_nothing_is_certified() -> None:
    here = np.array([0.0, 0.1, 0.2])
    assert certify(Waves(0.87), here, 0.99, 1000).rounding < 1e-15
    for words in ({"samples": 1000}, {"target": 0.5}, {"target": 0.5, "sense": "mean-square"}):
        found = certify(Waves(0.87), here + 1e17, 0.99, **words)
        assert found.lost_digits and found.upper_bound == math.inf and not found.certified and found.rounding > 0.1
        assert "arithmetic has lost its digits there" in found.guarantee
    assert not certify(Waves(0.87), here + 1e3, 0.99, 1000).lost_digits


def test_points_are_tested_in_order() -> None:
    points = [own.START, np.array([0.3, 0.0, 0.0]), np.array([0.02, 0.0, 0.0]), np.zeros(3)]
    place, found = certify_first(STREAM, points, 0.15, 0.95)
    assert place == 2 and [c.certified for c in found] == [False, False, True]
    assert all(c.confidence == 0.95 and c.target == 0.15 for c in found)
    alone = certify(STREAM, points[2], 0.95, target=0.15)
    stricter = certify(STREAM, points[2], 1 - 0.05 / 12, target=0.15)
    assert found[2].mean_norm not in (alone.mean_norm, stricter.mean_norm), "its samples are its own"
    nowhere, all_of_them = certify_first(STREAM, points[:2], 0.15, samples=1000)
    assert nowhere is None and len(all_of_them) == 2 and all(isinstance(c, PointCertificate) for c in all_of_them)
    rows = certify_first(own.problem, [own.START, CENTRE], 0.1)
    assert rows[0] == 1 and rows[1][1].sense == "exact"


def test_each_point_has_its_part_of_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    module = sys.modules["normstorm.solve.certify"]
    monkeypatch.setattr(module, "_until", lambda source, target, budget, delta, *_: seen.append(delta) or NOTHING)
    certify_first(STREAM, [own.START] * 5, 0.1, 0.9)
    assert seen == pytest.approx([0.1 / 2, 0.1 / 6, 0.1 / 12, 0.1 / 20, 0.1 / 30])


NOTHING = PointCertificate(math.inf, 0.9, 2, 1.0, "almost-sure")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"points": []}, "^certify_first: points must be a sequence of at least one point; got none"),
        ({"points": [own.START, np.ones(4)]}, r"^certify_first: points\[1\] must have the shape \(3,\)"),
        ({"target": -1}, "^certify_first: target must be a finite number > 0"),
        ({"confidence": 1}, r"^certify_first: confidence must be a number in \(0, 1\)"),
        ({"samples": 0}, "^certify_first: samples must be an integer in"),
    ],
)
def test_refusals_of_many_points(words: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        certify_first(STREAM, **{"points": [own.START], "target": 0.001, "samples": 2} | words)
