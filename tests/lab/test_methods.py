"""Defaults and searches: everybody has them, and everything in them can be built."""

import math
from dataclasses import replace

import jax
import numpy as np
import own
import pytest

from normstorm import Constants
from normstorm.algorithms.catalogue import CATALOGUE
from normstorm.lab.compare.methods import FACTORS, METHODS, Scales, build, constants, scales
from normstorm.problems import from_loss, registry

PLACES = ("noisy-valley", "dro-chi2", "separable-logistic")  # a stream, a finite sum, L0 = sigma0 = 0


def test_everybody_has_an_entry() -> None:
    assert METHODS.keys() == CATALOGUE.keys()


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_setting_builds(name: str) -> None:
    method = METHODS[name]
    for place in PLACES:
        known = scales(registry.get(place), 20_000)
        grid = [*method.grid(known)]
        assert len(grid) == len(FACTORS) * len(method.values) <= 9 * 7
        assert grid[FACTORS.index(1.0)] == method.default(known), "the default is among what is tried"
        assert len({str(settings) for settings in grid}) == len(grid), "nothing is tried twice"
        for settings in grid:
            numbers = [v for v in settings.values() if isinstance(v, float)]
            assert all(0 <= v < math.inf for v in numbers) and build(name, settings).cost(1, 200) >= 1


def test_the_step_is_searched_over_four_decades() -> None:
    assert FACTORS[-1] / FACTORS[0] == pytest.approx(1e4) and 1.0 in FACTORS
    known = scales(registry.get("noisy-valley"), 1000)
    etas = [settings["eta"] for settings in METHODS["sgd"].grid(known)]
    assert etas == pytest.approx([factor * METHODS["sgd"].default(known)["eta"] for factor in FACTORS])


def test_scales_by_hand() -> None:
    known = registry.get("exp-quad").constants(None, "mean-square")
    found = scales(registry.get("exp-quad"), 1000)
    sigma = np.sqrt(known.sigma0**2 + (known.sigma1 * known.grad_norm) ** 2)
    assert found == Scales(known.L0, known.L1, known.grad_norm, pytest.approx(sigma), known.gap, 1000, None)
    assert found.length == known.gap / known.grad_norm and found.gradient == pytest.approx(known.grad_norm + sigma)
    assert found.curvature == known.L0 + known.L1 * known.grad_norm
    assert found.stride(8) == pytest.approx(found.length / 125 ** (2 / 3)) and found.stride(5000) == found.length
    assert scales(registry.get("dro-chi2"), 1000).size == 200
    assert METHODS["sgd"].default(found) == {"eta": pytest.approx(0.1 / found.curvature)}


def test_constants_that_do_not_say_how_steep_the_start_is() -> None:
    mine = replace(own.KNOWN, grad_norm=None)
    problem = from_loss(own.squares, own.ROWS, start=own.START, constants=mine)
    with jax.enable_x64(True):
        assert scales(problem, 100).grad_norm == pytest.approx(np.linalg.norm(own.START - own.ROWS.mean(axis=0)))


def test_mean_square_first() -> None:
    assert constants(registry.get("exp-quad")).noise == "mean-square"


def test_no_constants_and_no_way_to_go() -> None:
    with pytest.raises(ValueError, match=r"^compare: problem must have proven constants; got 'my-problem'"):
        scales(own.without_constants, 100)
    flat = Constants(L0=1, L1=0, sigma0=1, sigma1=0, gap=0, grad_norm=0, noise="almost-sure")
    still = from_loss(own.squares, own.ROWS, start=own.START, constants=flat, name="still")
    with pytest.raises(ValueError, match="must start at a point with a gradient and a gap > 0; got 'still'"):
        scales(still, 100)
