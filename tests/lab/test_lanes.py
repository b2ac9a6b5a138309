"""Settings side by side against each setting's own run."""

from threading import Event
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from normstorm.engine import run
from normstorm.engine.results import Trace
from normstorm.lab.compare import bench as bench_module
from normstorm.lab.compare import lanes
from normstorm.lab.compare.bench import Bench
from normstorm.lab.compare.board import AVERAGE, LAST
from normstorm.lab.compare.lanes import LANES, room, run_lanes
from normstorm.lab.compare.methods import METHODS, build, scales
from normstorm.lab.compare.paths import paths
from normstorm.lab.compare.request import CompareRequest
from normstorm.lab.compare.search import Grid
from normstorm.problems import registry

# An average point, coins that decide what a step costs, restarts, and states of a method's own.
CASES = [
    ("exp-quad", "schedule_free_sgd"),
    ("exp-quad", "page"),
    ("noisy-valley", "meta_storm"),
    ("dro-chi2", "storm"),
    ("phase-retrieval", "sarah"),
]
KEPT = {"records": 16, "candidates": 1, "width": 8, "progress": lambda done, steps: None}


def settings_of(name: str, problem: object, budget: int, count: int) -> list[dict]:
    """Small steps, so that rounding is not what decides."""
    known = scales(problem, budget)
    return [METHODS[name].at(known, (-i, METHODS[name].rung)) for i in range(count)]


@pytest.mark.parametrize("spec, name", CASES)
def test_lanes_are_the_settings_own_runs(spec: str, name: str) -> None:
    """A full group of lanes and one with a single setting; two batches of seeds, one not full."""
    problem = registry.get(spec)
    bench = Bench(CompareRequest((spec,), (name,), budget=1500, seeds=40, tune=True), spec, problem, 1, None)
    settings = settings_of(name, problem, 1500, LANES + 1)
    side_by_side = bench.measure("search", {name: settings}, bench.seeds)[name]
    with jax.enable_x64(True):
        for found, one in zip(side_by_side, settings, strict=True):
            alone = bench._one(name, one, bench.seeds, Event())
            assert (found.settings, found.steps, found.cost) == (one, alone.steps, alone.cost)
            assert np.array_equal(found.paths.cost, alone.paths.cost)
            assert found.paths.mean == pytest.approx(alone.paths.mean, rel=1e-11)
            assert found.distance == pytest.approx(alone.distance, rel=1e-11)
            for mine, other in ((found.last, alone.last), (found.best, alone.best)):
                assert mine.grad_norm == pytest.approx(other.grad_norm, rel=1e-9)
                assert mine.value == pytest.approx(other.value, rel=1e-11)


def test_algorithms_of_the_same_words_have_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is traced once, though two threads ask for it at the same time."""
    problem = registry.get("dro-chi2")
    bench = Bench(CompareRequest(("dro-chi2",), budget=20_000, seeds=8, tune=True), "dro-chi2", problem, 2, None)
    known = scales(problem, 20_000)
    settings = {name: [METHODS[name].default(known)] for name in ("spider_2", "l0l1_spider", "spider_1")}
    traced, advance = [], lanes.advance
    monkeypatch.setattr(lanes, "advance", lambda *given: traced.append(given) or advance(*given))
    lanes._program.cache_clear()
    found = bench.measure("search", settings, bench.seeds)
    assert len(traced) == 2, "spider_1 has other words"
    for name, (own,) in settings.items():
        with jax.enable_x64(True):
            alone = bench._one(name, own, bench.seeds, Event())
        assert found[name][0].paths.mean == pytest.approx(alone.paths.mean, rel=1e-11)


def test_a_lane_does_not_depend_on_its_company() -> None:
    """Not on its place, not on padding, and not on a lane that diverges."""
    problem = registry.get("exp-quad")
    good, other, wild = (build("sgd", {"eta": eta}) for eta in (0.01, 0.02, 1e200))
    with jax.enable_x64(True):
        x = problem.start()
        alone, crowd = (
            run_lanes(problem, own, x, 300, range(8), average=True, lanes=4, **KEPT)
            for own in ([good], [wild, other, good, other])
        )
    assert np.array_equal(alone[0].grad_norm, crowd[2].grad_norm)
    assert np.array_equal(alone[0].last, crowd[2].last) and np.array_equal(alone[0].smallest.x, crowd[2].smallest.x)
    assert np.all(crowd[0].diverged_at > 0) and not crowd[2].diverged_at.any()
    assert not np.array_equal(crowd[1].grad_norm, crowd[2].grad_norm)


def test_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of 200 gradients for every seed leaves the nearer memory: such runs are made one by one."""
    problem = registry.get("dro-chi2")
    with jax.enable_x64(True):
        x = problem.start()

        def made(name: str) -> int:
            algorithm = build(name, METHODS[name].default(scales(problem, 1000)))
            return room(problem, algorithm, x, records=16, candidates=1, average=False, width=32)

        assert made("sgd") == LANES and made("saga") == 1
        monkeypatch.setattr(lanes, "NEAR", 2 * 32 * 8 * 200)
        assert made("sgd") == 2
        monkeypatch.setattr(lanes, "platform", lambda: "gpu")
        assert made("sgd") == 1


@pytest.mark.parametrize("room, groups", [(1, [1] * 5), (2, [2, 2, 1]), (3, [3, 2]), (4, [3, 2])])
def test_no_more_settings_go_together_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch, room: int, groups: list[int]
) -> None:
    problem = registry.get("dro-chi2")
    bench = Bench(CompareRequest(("dro-chi2",), budget=2000, seeds=4, tune=True), "dro-chi2", problem, 1, None)
    monkeypatch.setattr(bench_module, "room", lambda *args, **kept: room)
    settings = [{"eta": 0.1 * (i + 1)} for i in range(5)]
    assert list(map(len, bench._groups("saga", settings))) == groups


def test_an_average_does_not_depend_on_where_others_end() -> None:
    """Of a finite sum it is taken over recorded iterates; those of another lane's end are not among them."""
    problem = registry.get("least-squares")
    algorithms = [build("kalman_storm", {"scale": scale}) for scale in (1.0, 0.3)]
    found = []
    with jax.enable_x64(True):
        for other in (240, 417):
            ends = iter([301, other])
            kept = KEPT | {"end": lambda trace, ends=ends: next(ends), "records": 64}
            found.append(run_lanes(problem, algorithms, problem.start(), 200, range(8), average=False, lanes=2, **kept))
    one, again = (each[0] for each in found)
    assert np.array_equal(one.record_steps, again.record_steps) and one.record_steps[-1] == 301
    assert np.array_equal(one.grad_norm, again.grad_norm) and np.array_equal(one.record_cost, again.record_cost)
    assert found[0][1].record_steps[-1] == 240 and np.array_equal(paths(one).mean, paths(again).mean)


def test_lanes_that_end_at_steps_of_their_own() -> None:
    """Each is its setting's run to that step: statistics, the last point, and the record there."""
    problem = registry.get("quadratic")
    algorithms = [build("kalman_storm", {"scale": scale}) for scale in (1.0, 0.1, 0.3)]
    ends, seeds = iter([301, 240, 200]), range(8)

    def end(trace: Trace) -> int:
        assert trace.steps == 200
        return next(ends)

    with jax.enable_x64(True):
        x = problem.start()
        found = run_lanes(problem, algorithms, x, 200, seeds, average=True, lanes=3, end=end, **KEPT)
        assert [trace.steps for trace in found] == [301, 240, 200]
        for trace, algorithm in zip(found, algorithms, strict=True):
            alone = run(problem, algorithm, x, trace.steps, seeds, records=16, candidates=1, width=8)
            assert np.array_equal(trace.cost, alone.cost) and trace.record_steps[-1] == trace.steps
            assert len(trace.record_steps) <= 16 and np.array_equal(trace.record_cost[:, -1], alone.cost)
            for name in ("mean_by_cost", "mean_grad_norm", "mean_estimate_norm", "min_grad_norm", "last", "estimate"):
                assert getattr(trace, name) == pytest.approx(getattr(alone, name), rel=1e-9), name
            assert trace.smallest.x == pytest.approx(alone.smallest.x, rel=1e-9)
            assert trace.running_mean_by_cost[:, -1] == pytest.approx(alone.mean_by_cost, rel=1e-12)


def test_the_search_goes_on_around_the_best_place_where_a_theorem_is_the_best() -> None:
    problem = registry.get("exp-quad")
    bench = Bench(CompareRequest(("exp-quad",), budget=2000, seeds=4, tune=True), "exp-quad", problem, 1, None)
    grid = Grid(METHODS["sgd"], scales(problem, 2000), lambda settings: True)
    grid.begin([{"eta": 0.123}])
    table = np.abs(np.arange(len(grid.places)) - 3.0)[:, None] + np.ones(4)
    table[-1] = 0.5
    for i, row in enumerate(table):
        for goal in (AVERAGE, LAST):
            grid.scored[i, goal] = row
    grid.runs = [SimpleNamespace(last=SimpleNamespace(value=np.full(4, -1e9)))] * len(grid.places)
    assert int(bench.scores(grid, LAST).best(bench.start_value)) == len(grid.places) - 1, "that of the theorem"
    theorem = len(grid.places) - 1
    assert bench._centres(grid, [AVERAGE, LAST]) == [theorem, 3, theorem, 3] and len(grid.extend([3])) == 2


def test_groups_differ_in_numbers_alone() -> None:
    problem = registry.get("exp-quad")
    request = CompareRequest(("exp-quad",), budget=2000, seeds=4, tune=True)
    bench = Bench(request, "exp-quad", problem, 1, None)
    settings = [{"eta": 0.1 * (i + 1), "K": 1 + 3 * (i % 2)} for i in range(11)]
    assert bench._groups("normalized_sgd", settings) == [[0, 2, 4], [6, 8, 10], [1, 3, 5], [7, 9]]
    assert bench._groups("normalized_sgd", [*settings, *settings]) == [
        *([0, 2, 4], [6, 8, 10], [11, 13, 15], [17, 19, 21]),
        *([1, 3, 5], [7, 9, 12], [14, 16, 18], [20]),
    ], "the program of the first ones serves the others"
    alone = Bench(request, "exp-quad", problem, 1, None)
    assert alone._groups("normalized_sgd", settings[:1] * 3) == [[0, 1, 2]] and alone._groups("sgd", []) == []
    plain = Bench(CompareRequest(("exp-quad",), budget=2000, seeds=4), "exp-quad", problem, 1, None)
    assert plain._groups("normalized_sgd", settings[:3]) == [[0], [1], [2]], "one program for a default alone"


def test_lanes_that_would_be_empty_are_filled_with_neighbours() -> None:
    """Of the same kind, farther and farther from what is tried; and only where settings go side by side."""
    problem = registry.get("exp-quad")
    bench = Bench(CompareRequest(("exp-quad",), budget=2000, seeds=4, tune=True), "exp-quad", problem, 1, None)
    known = scales(problem, 2000)
    grid = Grid(METHODS["sgd"], known, lambda settings: True)
    bench._groups("sgd", grid.begin([]))
    last = grid.places[-1][0]
    filled = bench._filled("sgd", grid, grid.extend([len(grid.places) - 1]))
    assert filled == grid.settings[-LANES:]
    assert grid.places[-LANES:] == [(last - 1, 0), (last + 1, 0), (last + 2, 0), (last + 3, 0)]
    assert bench._filled("sgd", grid, filled) == filled, "there is no empty lane left"
    bench._lanes.update(dict.fromkeys(bench._lanes, 0))
    assert bench._filled("sgd", grid, filled[:1]) == filled[:1], "one by one, each of them costs"

    grid = Grid(METHODS["normalized_sgd"], known, lambda settings: True)
    bench._groups("normalized_sgd", grid.begin([]))
    power, rung = grid.places[0]
    added = grid.extend([0])
    assert [(p - power, r - rung) for p, r in grid.places[-len(added) :]] == [(-1, 0), (1, 0), (0, 1)]
    filled = bench._filled("normalized_sgd", grid, added)
    assert filled[:3] == added and [s["K"] for s in filled] == [1, 1, 4, 1], (
        "nobody has run K = 4 yet: no lanes to fill"
    )
