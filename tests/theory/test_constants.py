"""Constants: what is refused, what is derived, and the change of units."""

import json
import math
from dataclasses import FrozenInstanceError, asdict, fields, replace

import numpy as np
import pytest

from normstorm.theory import Constants, MeanSquare, gradient_bound

NUMBERS = ("L0", "L1", "sigma0", "sigma1", "gap", "grad_norm")
GOOD = {"L0": 1.0, "L1": 0.5, "sigma0": 2.0, "sigma1": 0.25, "gap": 3.0, "grad_norm": 1.5}
QUIET = MeanSquare(0.5, 0.5, 1.0, 0.0)
BAD = [math.nan, math.inf, -math.inf, -1e-300, "1", "", b"1", True, False, [1.0], 1j, object(), 10**400]
BAD += [np.True_, np.array([1.0, 2.0])]


@pytest.mark.parametrize("value", BAD, ids=lambda value: type(value).__name__ + str(value)[:5])
@pytest.mark.parametrize("name", NUMBERS)
def test_refuses_what_is_not_a_finite_number_from_zero_on(name, value):
    with pytest.raises(ValueError) as refusal:
        Constants(**(GOOD | {name: value}))
    assert str(refusal.value) == f"Constants: {name} must be a finite number >= 0; got {name}={value!r}"


@pytest.mark.parametrize("name", [n for n in NUMBERS if n != "grad_norm"])
def test_only_the_first_gradient_may_be_unknown(name):
    with pytest.raises(ValueError, match=f"Constants: {name} must be a finite number >= 0; got {name}=None"):
        Constants(**(GOOD | {name: None}))
    assert Constants(**(GOOD | {"grad_norm": None})).grad_norm is None


@pytest.mark.parametrize("name", NUMBERS)
def test_accepts_zero_and_other_kinds_of_numbers(name):
    for value in (0, 0.0, 7, np.float32(0.5), np.int64(3), np.float64(1e-300), 1e300):
        kept = getattr(Constants(**(GOOD | {name: value})), name)
        assert type(kept) is float and kept == float(value)


def test_refuses_an_affine_function():
    with pytest.raises(ValueError) as refusal:
        Constants(**(GOOD | {"L0": 0, "L1": 0.0}))
    message = str(refusal.value)
    assert message.startswith("Constants: L0 and L1 must not both be 0") and message.endswith("got L0=0, L1=0")


@pytest.mark.parametrize("noise", [None, "almost-sure", "mean-square"])
def test_knows_three_senses_of_the_noise(noise):
    assert Constants(**GOOD, noise=noise).noise == noise


@pytest.mark.parametrize("noise", ["", "4A", "almost sure", "Mean-Square", 0, True])
def test_refuses_other_senses(noise):
    with pytest.raises(ValueError) as refusal:
        Constants(**GOOD, noise=noise)
    assert str(refusal.value) == (
        f"Constants: noise must be None or one of almost-sure, mean-square; got noise={noise!r}"
    )


def test_is_immutable_and_comparable():
    c = Constants(**GOOD)
    for field in fields(c):
        with pytest.raises(FrozenInstanceError):
            setattr(c, field.name, 1.0)
    assert c == Constants(**GOOD) and hash(c) == hash(Constants(**GOOD))
    assert c != Constants(**(GOOD | {"gap": 3.5}))


def test_gradient_bound_is_the_larger_root():
    """g^2 = 2 (L0 + L1 g) D at the bound, and the two special cases in closed form."""
    for L0, L1, gap in [(2.0, 3.0, 0.7), (1e-3, 5.0, 10.0), (40.0, 1e-4, 1e-3)]:
        g = gradient_bound(L0, L1, gap)
        assert g > 0 and math.isclose(g * g, 2 * (L0 + L1 * g) * gap, rel_tol=1e-13)
    assert math.isclose(gradient_bound(2.0, 0.0, 9.0), 6.0, rel_tol=1e-15)
    assert math.isclose(gradient_bound(0.0, 3.0, 5.0), 30.0, rel_tol=1e-15)
    assert gradient_bound(1.0, 1.0, 0.0) == 0.0
    assert math.isclose(gradient_bound(1e-300, 0.0, 1e-300), math.sqrt(2) * 1e-300, rel_tol=1e-14)


def test_first_gradient_is_the_smaller_of_known_and_proven():
    proven = gradient_bound(GOOD["L0"], GOOD["L1"], GOOD["gap"])
    assert math.isclose(proven, 1.5 + math.sqrt(2.25 + 6), rel_tol=1e-15)
    for known, expected in [(None, proven), (0.0, 0.0), (0.9 * proven, 0.9 * proven), (1.1 * proven, proven)]:
        assert Constants(**(GOOD | {"grad_norm": known})).first_gradient == expected


def test_kinds_of_problems():
    assert not Constants(**GOOD).is_deterministic and not Constants(**GOOD).is_plain
    assert Constants(1, 1, 0, 0, 1).is_deterministic and not Constants(1, 1, 0, 0, 1).is_plain
    assert not Constants(1, 1, 0, 0.1, 1).is_deterministic and not Constants(1, 1, 0.1, 0, 1).is_deterministic
    assert Constants(1, 0, 1, 0, 1).is_plain
    assert not Constants(1, 0, 1, 0.1, 1).is_plain and not Constants(1, 0.1, 1, 0, 1).is_plain


def test_to_dict_rebuilds_the_constants():
    c = Constants(**GOOD, noise="almost-sure")
    assert c.to_dict() == GOOD | {"noise": "almost-sure", "mean_square": None} and Constants(**c.to_dict()) == c
    both = replace(c, mean_square=QUIET)
    assert both.to_dict()["mean_square"] == asdict(QUIET)
    assert Constants(**json.loads(json.dumps(both.to_dict()))) == both != c


def test_both_senses_know_what_holds_in_mean_square():
    both = Constants(**GOOD, noise="almost-sure", mean_square=QUIET)
    quiet = both.in_mean_square
    assert quiet == Constants(**(GOOD | asdict(QUIET)), noise="mean-square") and quiet.in_mean_square is quiet
    assert Constants(**GOOD).in_mean_square == Constants(**GOOD)
    unknown = replace(both, grad_norm=None)
    assert unknown.first_gradient == gradient_bound(QUIET.L0, QUIET.L1, GOOD["gap"])
    assert both.scaled(length=4.0, value=8.0).in_mean_square == quiet.scaled(length=4.0, value=8.0)


@pytest.mark.parametrize(
    ("given", "also", "message"),
    [
        (1.0, {}, "mean_square must be None or a MeanSquare of L0, L1, sigma0, sigma1; got mean_square=1.0"),
        ({"L0": 1}, {}, "mean_square must be None or a MeanSquare of L0, L1, sigma0, sigma1; got"),
        ((1, 2, 3), {}, "mean_square must be None or a MeanSquare of L0, L1, sigma0, sigma1; got"),
        ((0.5, 0.5, 1, 0.3), {}, "mean_square must have no number above the almost-sure one; got sigma1=0.3"),
        (QUIET, {"noise": "mean-square"}, "mean_square must be None for noise='mean-square'"),
        (asdict(QUIET) | {"L0": 0, "L1": 0}, {}, "L0 and L1 of mean_square must not both be 0"),
    ],
)  # fmt: skip
def test_mean_square_constants_that_do_not_fit_are_refused(given, also, message):
    with pytest.raises(ValueError) as refusal:
        Constants(**GOOD, **also, mean_square=given)
    assert str(refusal.value).startswith(f"Constants: {message}")


def test_numbers_in_mean_square_are_checked_as_all_others():
    with pytest.raises(ValueError, match="MeanSquare: L1 must be a finite number >= 0; got L1=-1"):
        MeanSquare(1, -1, 0, 0)


@pytest.mark.parametrize("grad_norm", [None, 0.0, 1.5, 1e9])
@pytest.mark.parametrize("length, value", [(1.0, 1.0), (4.0, 1.0), (1.0, 8.0), (0.3, 17.0)])
def test_other_units_describe_the_same_problem(length, value, grad_norm):
    """The constants of value F(x/length), from the definitions; gradients are measured in value/length."""
    c = Constants(**(GOOD | {"grad_norm": grad_norm}), noise="mean-square")
    s = c.scaled(length=length, value=value)
    slope = value / length
    assert math.isclose(s.L0, c.L0 * value / length**2, rel_tol=1e-14)
    assert math.isclose(s.L1, c.L1 / length, rel_tol=1e-14)
    assert math.isclose(s.sigma0, c.sigma0 * slope, rel_tol=1e-14)
    assert s.sigma1 == c.sigma1 and s.noise == c.noise
    assert math.isclose(s.gap, c.gap * value, rel_tol=1e-14)
    assert (s.grad_norm is None) == (grad_norm is None)
    assert math.isclose(s.first_gradient, c.first_gradient * slope, rel_tol=1e-14)
    back = s.scaled(length=1 / length, value=1 / value)
    for name in NUMBERS[:5]:
        assert math.isclose(getattr(back, name), getattr(c, name), rel_tol=1e-14)
