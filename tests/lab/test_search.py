"""The search: who is refused, how a grid grows, and a second, slow way to choose again."""

import numpy as np
import pytest

from normstorm.lab.compare.methods import METHODS, TRIED, Method, Scales
from normstorm.lab.compare.search import ROUNDS, STEP, Grid, Scores, chosen_again, diagonals, neighbours

KNOWN = Scales(L0=1.0, L1=0.0, grad_norm=1.0, sigma=1.0, gap=1.0, budget=1000, size=None)
START = 1.0


def scores(goal: list[list[float]], value: list[list[float]] | None = None) -> Scores:
    table = np.array(goal)
    return Scores(table, table + 1, np.zeros_like(table) if value is None else np.array(value))


def test_the_best_is_the_smallest_median_of_those_that_do_not_end_above_the_start() -> None:
    flat = [[3.0] * 3, [1.0] * 3, [2.0] * 3]
    assert scores(flat).best(START) == 1
    assert scores(flat, [[0.0] * 3, [2.0] * 3, [0.0] * 3]).best(START) == 2, "the best is refused"
    assert scores(flat, [[0.0] * 3, [2.0, 1.0, 1.0], [0.0] * 3]).best(START) == 1, "its median is at the start"
    assert scores(flat, [[3.0] * 3, [9.0] * 3, [2.0] * 3]).best(START) == 2, "all are refused: the lowest end"
    lost = scores([[np.inf] * 3, [np.inf] * 3])
    unreached = Scores(lost.goal, np.array([[2.0] * 3, [1.0] * 3]), np.zeros((2, 3)))
    assert unreached.best(START) == 1, "nobody arrives: the smaller average"
    assert scores(flat, [[0.0] * 3, [2.0] * 3, [0.0] * 3]).refused(START).tolist() == [False, True, False]


def grown(method: Method, score, most: int = ROUNDS, affords=lambda settings: True) -> tuple[Grid, int]:
    """The search of one method for one goal, where a setting's number is `score` of its place."""
    grid = Grid(method, KNOWN, affords)
    todo = grid.begin([])
    assert len(todo) == len(grid.places)
    for _ in range(1 + most):
        grid.runs += todo
        best = int(np.argmin([score(place) for place in grid.places]))
        todo = grid.extend([best])
        if not todo:
            break
    grid.forget(len(todo))
    return grid, int(np.argmin([score(place) for place in grid.places]))


def test_a_grid_grows_until_the_best_lies_inside() -> None:
    storm = METHODS["normalized_storm"]
    goal = (-7, 7)  # outside of the grid in both directions
    grid, best = grown(storm, lambda place: (place[0] - goal[0]) ** 2 + (place[1] - goal[1]) ** 2)
    assert grid.places[best] == goal and grid.edges(best) == set()
    assert all(place in grid.places for place in neighbours(goal))
    assert len(grid.settings) == len(grid.runs) == len({str(s) for s in grid.settings}) < 3 * TRIED


def test_a_valley_across_the_grid_is_followed() -> None:
    """Along either parameter alone every step of it goes up."""
    storm = METHODS["normalized_storm"]
    rung = storm.rung
    grid, best = grown(storm, lambda place: 10 * abs(place[0] - place[1] + rung) + abs(place[0] - 3), most=20)
    assert grid.places[best] == (3, rung + 3)
    assert all(place in grid.places for place in (*neighbours((3, rung + 3)), *diagonals((3, rung + 3))))


def test_what_is_still_on_the_edge_is_marked() -> None:
    storm, sgd = METHODS["normalized_storm"], METHODS["sgd"]
    grid, best = grown(storm, lambda place: place[0], most=3)
    assert STEP in grid.edges(best) and grid.places[best][0] == storm.places[0][0] - 3
    grid, best = grown(storm, lambda place: abs(place[0]) + place[1])
    assert storm.ladder[grid.places[best][1]] == 1.0 and grid.edges(best) == set(), "alpha = 1 is no edge"
    grid, best = grown(storm, lambda place: abs(place[0]) - place[1])
    assert storm.ladder[grid.places[best][1]] == 1e-5 and grid.edges(best) == {"alpha"}
    grid, best = grown(sgd, lambda place: abs(place[0]))
    assert grid.edges(best) == set() and len(grid.settings) == TRIED + 2, "half a factor on both sides"


def test_what_the_budget_does_not_pay_is_no_edge_and_equal_settings_run_once() -> None:
    grid, best = grown(METHODS["spider_2"], lambda place: abs(place[0]) - place[1], affords=lambda s: s["S1"] < 1000)
    assert grid.settings[best]["S1"] == 400 and grid.edges(best) == set()
    grid, best = grown(Method(lambda s, f, value: {}), lambda place: 0)
    assert grid.settings == [{}] and grid.edges(best) == set()


def test_around_the_setting_of_a_theorem() -> None:
    """It has no place; the one near it and its neighbours are tried."""
    grid = Grid(METHODS["sgd"], KNOWN, lambda settings: True)
    assert len(grid.begin([{"eta": 0.123}])) == TRIED + 1
    etas = [settings["eta"] for settings in grid.extend([TRIED])]
    assert etas == [pytest.approx(0.1 * 10 ** (power / 4)) for power in (-1, 1)], "0.1 is the default"
    assert grid.edges(TRIED) == set()
    grid = Grid(METHODS["normalized_storm"], KNOWN, lambda settings: True)
    default = METHODS["normalized_storm"].default(KNOWN)["eta"]
    grid.begin([{"eta": 2e-4 * default, "alpha": 2.6e-4, "K": 1, "k": 1}])
    added = grid.extend([TRIED])
    assert [s["alpha"] for s in added] == [3e-4] * 3 + [1e-3, 1e-4]
    assert added[0]["eta"] == pytest.approx(default * 10**-3.5), "the nearest one is tried itself"


def test_choosing_again_by_a_slow_loop() -> None:
    """The same draws from the same generator, one resample at a time, with medians by hand."""
    rng = np.random.default_rng(5)
    goal = rng.lognormal(size=(4, 9)) * np.array([[1.0], [1.1], [1.2], [9.0]])
    value = rng.normal(0.9, 0.3, size=(4, 9))
    table = Scores(goal, goal + 1, value)
    pools = [goal[0], goal[1], rng.lognormal(size=31), goal[3]]
    settings = [{"eta": 0.1 * i, "alpha": 0.3} for i in range(1, 5)]
    found = chosen_again(table, pools, settings, START, {STEP})
    draws = np.random.default_rng(0)
    picks, medians = [], []
    for seeds in draws.integers(0, 9, (200, 9)):
        ends = [sorted(value[i, seeds])[4] for i in range(4)]
        able = [i for i in range(4) if ends[i] <= START]
        pick = min(able, key=lambda i: sorted(goal[i, seeds])[4]) if able else min(range(4), key=lambda i: ends[i])
        picks.append(pick)
    for pick in picks:
        own = pools[pick]
        drawn = sorted(own[draws.integers(0, own.size, own.size)])
        medians.append(drawn[(own.size + 1) // 2 - 1])
    medians.sort()
    assert (found.low, found.high) == (medians[4], medians[194]), "ranks 5 and 195 of 200"
    assert found.settings == len(set(picks)) > 1
    assert found.share == pytest.approx(np.mean(np.array(picks) == table.best(START)))
    different = sorted(set(picks))
    assert found.spread == f"eta {0.1 * (different[0] + 1):.3g} to {0.1 * (different[-1] + 1):.3g}"
    assert found.edge == (STEP,)
