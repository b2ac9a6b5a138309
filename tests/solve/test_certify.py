"""Bounds from fresh samples: they cover, they are as sharp as asked for, and they need what they say."""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import jax
import numpy as np
import own
import pytest

from normstorm import Constants
from normstorm.solve.certify import certify
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
    ],
)
def test_refusals(words: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        certify(own.problem, **{"x": X} | words)


def test_numbers_of_numpy_are_numbers() -> None:
    found = certify(own.problem, X, np.float32(0.9), np.int64(9), seed=np.int32(0))
    assert found == certify(own.problem, X, float(np.float32(0.9)), 9)
    assert certify(own.problem, X, precision=Decimal("0.5")) == certify(own.problem, X, precision=0.5)
