"""Defaults and searches: everybody has them, and everything in them can be built."""

import math
from dataclasses import replace

import jax
import numpy as np
import own
import pytest

from normstorm import Constants
from normstorm.algorithms.catalogue import CATALOGUE, LISTENING
from normstorm.lab.compare.methods import METHODS, TRIED, Scales, build, constants, scales
from normstorm.problems import from_loss, registry

PLACES = ("noisy-valley", "dro-chi2", "separable-logistic")  # a stream, a finite sum, L0 = sigma0 = 0


def test_everybody_has_an_entry() -> None:
    assert METHODS.keys() == CATALOGUE.keys() - LISTENING


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_builds(name: str) -> None:
    method = METHODS[name]
    for place in PLACES:
        known = scales(registry.get(place), 20_000)
        grid = [method.at(known, place) for place in method.places]
        assert len(grid) == TRIED and method.default(known) in grid, "the default is among what is tried"
        assert len({str(settings) for settings in grid}) in (1, TRIED), "nothing is tried twice"
        ladder = [method.at(known, (0, rung)) for rung in range(len(method.ladder))]
        assert method.at(known, (0, -1)) is method.at(known, (0, len(ladder))) is None
        for settings in (*grid, *ladder):
            numbers = [v for v in settings.values() if isinstance(v, float)]
            assert all(0 <= v < math.inf for v in numbers) and build(name, settings).cost(1, 200) >= 1


def test_steps_and_weights_that_the_search_begins_with() -> None:
    known = scales(registry.get("noisy-valley"), 1000)
    etas = [METHODS["sgd"].at(known, place)["eta"] for place in METHODS["sgd"].places]
    assert etas == pytest.approx([10 ** (j / 2) * METHODS["sgd"].default(known)["eta"] for j in range(-6, 6)])
    storm = METHODS["normalized_storm"]
    tried = [storm.at(known, place) for place in storm.places]
    assert {s["alpha"] for s in tried} == {1.0, 0.1, 0.01}
    assert {s["alpha"] for s in (METHODS["mars"].at(known, p) for p in METHODS["mars"].places)} == {1.0, 0.03, 0.003}
    step = storm.default(known)["eta"]
    assert {round(s["eta"] / step, 6) for s in tried} == {0.01, 0.1, 1.0, 10.0}


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
