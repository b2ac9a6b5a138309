"""Comparisons: equal budgets, seeds apart, verdicts, tables, the page and the terminal."""

import io
import json
from dataclasses import replace
from functools import partial
from html import unescape
from threading import Event
from types import SimpleNamespace

import boards
import jax
import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from normstorm.algorithms.catalogue import CATALOGUE, LISTENING
from normstorm.lab.compare import bench as compare
from normstorm.lab.compare import board as verdicts
from normstorm.lab.compare.bench import Bench, board
from normstorm.lab.compare.board import AVERAGE, DEFAULT, ENDS, LAST, THEOREM, TUNED, Verdict
from normstorm.lab.compare.ends import Ends, distances, ends, measuring
from normstorm.lab.compare.methods import METHODS, build, scales
from normstorm.lab.compare.paths import Paths
from normstorm.lab.compare.quantiles import Estimate
from normstorm.lab.compare.request import CompareRequest
from normstorm.lab.compare.tables import TABLES, parquet
from normstorm.problems import registry
from normstorm.report import compare_charts
from normstorm.report.compare_page import page
from normstorm.report.compare_terminal import compare_parts
from normstorm.report.compare_words import (
    interval_text,
    listed,
    mean_ranks,
    rising,
    short_number,
    value_text,
    verdict_text,
)

BUDGET, SEEDS = 2000, 8
SPEEDS = {"sgd": 0.01, "storm": 0.02, "momentum_sgd": 0.0101, "nigt": 0.0001, "muon": None}


def small(**changes: object) -> CompareRequest:
    given = {"problems": ["exp-quad"], "algorithms": ["sgd", "momentum_sgd", "page", "muon"]}
    return CompareRequest.from_dict(given | {"budget": BUDGET, "seeds": SEEDS, "tune-seeds": 4} | changes)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(small(), "exp-quad", registry.get("exp-quad"), 1, None)


@pytest.fixture(scope="module")
def real():
    """Three programs are compiled for it."""
    with jax.enable_x64(True):
        found = compare.board(small(), "exp-quad", registry.get("exp-quad"))
    return found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """No run is made; what would be run is written down, and larger steps do better."""
    found = []

    def run(problem, algorithm, x, steps, seeds, *, records, candidates, average, width, threads, progress):
        size = getattr(problem, "size", None)
        asked = int(algorithm.cost(steps, size))
        found.append(SimpleNamespace(algorithm=algorithm, steps=steps, seeds=list(seeds), cost=asked, average=average))
        n, mean = len(seeds), np.array([0.1, 0.01 + 0.001 * (len(found) % 7)])
        return SimpleNamespace(
            steps=steps,
            diverged_at=np.zeros(n),
            cost=np.full(n, asked),
            record_steps=np.array([1, steps]),
            record_cost=np.tile([algorithm.cost(1, size), asked], (n, 1)),
            running_mean_by_cost=np.tile(mean, (n, 1)),
            grad_norm=np.tile(mean, (n, 1)),
        )

    def ends(measure, trace):
        return (Ends(trace.grad_norm[:, -1], trace.grad_norm[:, -1] - 100),) * 2

    def run_lanes(problem, algorithms, *args, lanes, end, **kept):
        assert len(algorithms) <= lanes
        return [run(problem, algorithm, *args, threads=1, **kept) for algorithm in algorithms]

    monkeypatch.setattr(compare, "run", run)
    monkeypatch.setattr(compare, "run_lanes", run_lanes)
    monkeypatch.setattr(compare, "room", lambda *args, **kept: 3)
    monkeypatch.setattr(compare, "ends", ends)
    monkeypatch.setattr(compare, "chosen_again", partial(compare.chosen_again, resamples=3))
    monkeypatch.setattr(compare, "distances", lambda x, trace: np.zeros(len(trace.cost)))
    return found


@pytest.mark.parametrize("problem_spec", ["noisy-valley", "least-squares"])
def test_budgets_are_equal_and_seeds_apart(calls: list[SimpleNamespace], problem_spec: str) -> None:
    problem = registry.get(problem_spec)
    size = getattr(problem, "size", None)
    request = CompareRequest((problem_spec,), budget=BUDGET, seeds=6, tune=True, tune_seeds=3, first_seed=10)
    found = board(request, problem_spec, problem, threads=1)
    for call in calls:
        assert call.cost <= BUDGET < call.algorithm.cost(call.steps + 1, size), (
            "for PAGE, whose coins decide: on average"
        )
        assert call.average == (size is None) == found.exact
    assert {tuple(call.seeds) for call in calls} == {tuple(range(10, 16)), tuple(range(16, 19))}
    searched = [call for call in calls if call.seeds[0] == 16]
    assert found.asked == sum(call.cost * len(call.seeds) for call in calls)
    assert sum(found.searches.values()) == sum(call.cost * 3 for call in searched)
    ran = {row.algorithm for row in found.rows if row.kind == TUNED}
    refused = {row.algorithm: row.reason for row in found.rows if row.reason is not None}
    assert ran | refused.keys() == CATALOGUE.keys() - LISTENING and not ran & refused.keys()
    assert ("svrg" in refused) == (size is None) and "matrix" in refused["muon"]
    for name in ran:
        goals = [goal for row in found.rows if row.algorithm == name for goal in row.goals]
        assert sorted(goals, key=str) == sorted(found.goals, key=str), "one setting for every goal"
    with_restarts = [c.algorithm.estimator.S1 for c in searched if c.algorithm.name == "spider_2"]
    assert {64, 400} <= set(with_restarts) and max(with_restarts) <= 400, "2500 samples are more than the budget"


def test_what_the_budget_does_not_pay_has_a_reason(calls: list[SimpleNamespace]) -> None:
    request = CompareRequest(("noisy-valley",), ("sgd", "spider_2"), budget=100, seeds=2, tune=True)
    found = board(request, "noisy-valley", registry.get("noisy-valley"), threads=1)
    assert [row.reason for row in found.rows if row.algorithm == "spider_2"] == [
        "spider_2: budget must be at least the cost 400 of the first step; got budget=100"
    ]


def _flat(level: float) -> Paths:
    return Paths(np.tile([level, 10.0], (5, 1)), np.full((5, 2), level))


def test_targets_lie_below_the_start() -> None:
    known = scales(registry.get("exp-quad"), 10)  # ||grad F(x_1)|| = 3.69
    made = [replace(boards.measured(1.0), paths=_flat(level)) for level in (0.5, 2.0)]
    assert compare._targets([made], known, 1) == compare._targets([made[::-1]], known, 1) == (1.0, 0.63)
    assert compare._targets([made[1:]], known, 1) == (2.5,), "the start meets 4"
    assert compare._targets([[replace(made[0], paths=_flat(np.inf))]], known, 1) == compare._targets([], known, 1) == ()
    astray = replace(boards.measured(1.0, value=2.0), paths=_flat(0.01))
    assert compare._targets([[*made, astray]], known, 1) == (1.0, 0.63), "one that ends above F(x_1) does not count"


def test_about_half_of_the_algorithms_reach_one_of_the_targets() -> None:
    known = scales(registry.get("exp-quad"), 10)
    made = [[replace(boards.measured(1.0), paths=_flat(level))] for level in (0.1, 0.5, 0.81, 2.0, np.inf, np.inf)]
    assert compare._targets(made, known, 1) == (0.85, 0.2, 0.13)
    assert compare._targets(made[:-1], known, 1) == (0.85, 0.2, 0.13)
    assert compare._targets([*made, made[-1]], known, 1) == (2.1, 0.2, 0.13)


def test_real_rows(real) -> None:
    rows = {(row.algorithm, row.kind): row for row in real.rows}
    assert rows["muon", DEFAULT].measured is None and rows["muon", DEFAULT].reason is not None
    for name in ("sgd", "momentum_sgd", "page"):
        measured = rows[name, DEFAULT].measured
        algorithm = build(name, measured.settings)
        assert measured.settings == METHODS[name].default(scales(registry.get("exp-quad"), BUDGET))
        assert measured.paths.cost.shape[0] == SEEDS and measured.diverged == 0
        if name == "page":
            assert np.any(np.ptp(measured.paths.cost, axis=0) > 0)
        else:
            assert np.all(measured.paths.cost[:, -1] == BUDGET) and measured.cost == SEEDS * BUDGET
            assert algorithm.cost(measured.steps) == BUDGET
    assert real.targets and all(target < 3.7 for target in real.targets)
    assert real.verdict(real.hardest).winner is not None or len(real.verdict(real.hardest).tied) > 1


def test_samples_are_the_same_for_equal_batches(bench: Bench, real) -> None:
    """With all weight on the fresh gradient momentum is SGD, if both see the same samples."""
    with jax.enable_x64(True):
        plain = next(row.measured for row in real.rows if row.algorithm == "sgd")
        other = bench._one("momentum_sgd", plain.settings | {"alpha": 1.0}, bench.seeds, Event())
        later = bench._one("momentum_sgd", plain.settings | {"alpha": 1.0}, bench.tuning_seeds, Event())
    assert other.paths.mean == pytest.approx(plain.paths.mean, rel=1e-12)
    assert np.all(later.paths.mean[:4, 3:] != plain.paths.mean[:4, 3:]), "other seeds, other samples"


def test_divergence_is_infinite_and_told(bench: Bench, real) -> None:
    with jax.enable_x64(True):
        lost = bench._one("sgd", {"eta": 1e6}, bench.seeds, Event())
    assert lost.diverged == SEEDS and np.all(np.isinf(lost.paths.final(BUDGET)))
    rows = tuple(replace(row, measured=lost) if row.algorithm == "sgd" else row for row in real.rows)
    broken = replace(real, rows=rows)
    row = next(row for row in rows if row.algorithm == "sgd")
    assert all(broken.seen(row, goal).value == np.inf for goal in real.goals) and np.all(np.isinf(lost.distance))
    found = boards.comparison([broken], tune=False)
    told = next(r for r in found.rows if r["algorithm"] == "sgd")
    assert told["diverged"] == SEEDS and told["final_median"] == np.inf
    assert "8 diverged seeds count as infinite, in settings of sgd." in page(found)
    assert "sgd" not in {verdict_text(broken, goal)[0] for goal in real.goals}


def test_ends_by_hand() -> None:
    problem = registry.get("quadratic")
    with jax.enable_x64(True):
        x = np.asarray(problem.start())
        last, smallest = np.stack([x, 2 * x, x + 1]), np.stack([0 * x, x, x])
        trace = SimpleNamespace(last=last, smallest=SimpleNamespace(x=smallest), diverged_at=np.array([0, 0, 7]))
        found = ends(measuring(problem), trace)
        for one, points in zip(found, (last, smallest), strict=True):
            sizes = [np.linalg.norm(problem.full_grad(p)) for p in points[:2]]
            assert one.grad_norm == pytest.approx([*sizes, np.inf])
            assert one.value == pytest.approx([*(float(problem.value(p)) for p in points[:2]), np.inf])
    assert distances(x, trace) == pytest.approx([0, np.linalg.norm(x), np.inf])


def test_a_single_divergence_is_in_the_quantiles() -> None:
    made = boards.board("x", {"sgd": 1.0}, lost={"sgd": 1}, tune=False)
    found = boards.comparison([made])
    last = [b for b in found.bands if b["kind"] == DEFAULT][-1]
    assert last["cost"] == boards.BUDGET, "the others go on"
    assert last["median"] < np.inf and [s["final"] for s in found.seeds if s["kind"] == DEFAULT].count(np.inf) == 1
    many = boards.comparison([boards.board("x", {"sgd": 1.0}, lost={"sgd": 2}, tune=False)])
    assert [b for b in many.bands if b["kind"] == DEFAULT][-1]["q95"] == np.inf


def test_verdicts() -> None:
    apart = boards.board("x", {"sgd": 0.01, "storm": 0.02, "muon": None})
    assert apart.verdict(0.2).winner.algorithm == "storm" and apart.verdict(0.2).winner.kind == TUNED
    for goal in ENDS:
        assert apart.verdict(goal).winner.algorithm == "storm" and apart.verdict(goal).tied == ()
    close = boards.board("x", {"sgd": 0.01, "storm": 0.0101, "nigt": 0.0001})
    found = close.verdict(0.2)
    assert found.winner is None and [row.algorithm for row in found.tied] == ["storm", "sgd"]
    nobody = boards.board("x", {"sgd": 0.0001, "storm": 0.0002})
    assert nobody.verdict(0.2) == Verdict(None, ()) and nobody.hardest is None
    assert nobody.verdict(AVERAGE).winner.algorithm == "storm"
    untuned = boards.board("x", {"sgd": 0.01, "storm": 0.02}, tune=False)
    assert untuned.verdict(0.4).winner.kind == DEFAULT and untuned.hardest == 0.2
    assert boards.board("x", {"sgd": 0.001}).hardest == 0.4, "tuned, it has 0.33 at the budget"


def test_nobody_wins_by_an_interval_without_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = boards.board("x", {"sgd": 0.01})
    assert alone.verdict(AVERAGE).winner.algorithm == "sgd"
    monkeypatch.setattr(verdicts, "estimate", lambda values, probability: Estimate(1.0, 0.0, np.inf))
    found = alone.verdict(AVERAGE)
    assert found.winner is None and [row.algorithm for row in found.tied] == ["sgd"]


def test_a_setting_of_a_theorem_competes() -> None:
    made = boards.board("x", {"sgd": 0.01, "storm": 0.02}, tune=False)
    best = replace(made.rows[1], measured=boards.measured(0.1))
    assert (best.algorithm, best.kind) == ("sgd", THEOREM)
    found = replace(made, rows=(made.rows[0], best, *made.rows[2:]))
    assert found.verdict(AVERAGE).winner is best
    assert verdict_text(found, AVERAGE)[0] == "sgd (constants known, expectation)"
    assert found.verdict(0.2).winner is best and len(found.contest(0.2)) == 2, "one row an algorithm"


def test_who_ends_above_the_start_does_not_win() -> None:
    for tune in (True, False):
        made = boards.board("x", {"sgd": 0.01, "storm": 0.02}, tune=tune, astray=("storm",))
        assert all(made.verdict(goal).winner.algorithm == "sgd" for goal in made.goals)
        told = boards.comparison([made], tune=tune)
        marks = {row["algorithm"]: row["runaway"] for row in told.rows}
        assert marks == {"sgd": False, "storm": True}
        assert {row["last_value_median"] for row in told.rows if row["runaway"]} == {1.5}
        shown = page(told)
        assert "↗ marks rows that end above F(x1) and do not compete: storm (default)" in shown
        assert "↗ theorem: constants known" in shown and "ends above the start" in shown
    both = boards.board("x", {"sgd": 0.01}, astray=("sgd",))
    assert both.verdict(AVERAGE) == Verdict(None, ()) and both.hardest is None
    assert verdict_text(both, LAST)[0] == "nobody: all diverged or ended above the start"


def test_the_choice_is_in_the_interval() -> None:
    made = boards.board("x", {"sgd": 0.01})
    row = made.rows[2]
    plain = made.seen(replace(row, choices={}), AVERAGE)
    unsure = replace(row.choices[AVERAGE], low=plain.low / 2, high=3 * plain.high)
    wide = made.seen(replace(row, choices={AVERAGE: unsure}), AVERAGE)
    assert wide == Estimate(plain.value, plain.low / 2, 3 * plain.high)
    assert made.seen(row, AVERAGE) == plain, "an interval never becomes shorter"


def test_a_problem_without_a_target_has_no_column() -> None:
    nobody, somebody = boards.board("x", {"sgd": 0.0001}), boards.board("y", {"sgd": 0.01})
    drawn = json.dumps(compare_charts.heat_map(boards.comparison([nobody, somebody])))
    assert '"problem": "y"' in drawn and '"problem": "x"' not in drawn
    shown = page(boards.comparison([nobody]))
    assert 'vegaEmbed("#heat"' not in shown and "on x: no column" in shown


def test_curves_that_rise_are_explained() -> None:
    made = boards.board("x", {"sgd": 0.01}, tune=False)
    assert rising(made, boards.comparison([made]).bands) == ""
    first = made.rows[0].measured
    up = replace(first, paths=replace(first.paths, mean=1 / first.paths.mean))
    risen = replace(made, rows=(replace(made.rows[0], measured=up),))
    assert rising(risen, boards.comparison([risen]).bands).startswith("1 of 1 curves rise above their first value")


def test_words() -> None:
    assert [short_number(v) for v in (12345, 0.012345, 99.96, 1, 0, 123456789, 2e13)] == [
        *("12,300", "0.0123", "100", "1", "0", "123,000,000", "2e+13"),
    ]
    inf = np.inf
    assert interval_text(Estimate(5000, 4000, inf), 0.1) == "5,000 [4,000, > budget]"
    assert interval_text(Estimate(inf, 4000, inf), 0.1) == "> budget [4,000, > budget]"
    assert interval_text(Estimate(inf, inf, inf), 0.1) == "> budget"
    assert interval_text(Estimate(inf, inf, inf), AVERAGE) == "diverged"
    assert interval_text(Estimate(0.5, 0.4, inf), AVERAGE) == "0.5 [0.4, ∞]", "few seeds are no divergence"
    assert (
        value_text(Estimate(-0.50004, -inf, inf)) == "-0.5 [-∞, ∞]" and value_text(Estimate(inf, 1, inf)) == "diverged"
    )
    assert listed(list("abcd")) == "a, b, c, d" and listed(list("abcdef")) == "a, b, c, d and 2 more"
    many = boards.board("x", {name: 0.01 for name in [*CATALOGUE][:6]})
    assert verdict_text(many, 0.2)[0].endswith(" and 2 more") and verdict_text(many, 0.2)[0].startswith("undecided: ")
    nobody = boards.board("x", {"sgd": 0.0001})
    assert verdict_text(nobody, 0.2) == ("nobody within the budget", "")
    assert mean_ranks(made()) == {"sgd": 3.5, "momentum_sgd": 2, "nigt": 3.5, "storm": 1, "muon": 5}


def made(**changes: object):
    second = {"sgd": 0.02, "storm": 0.019, "momentum_sgd": 0.018, "nigt": 0.0001, "muon": None}
    first = boards.board("noisy-valley", SPEEDS)
    return boards.comparison([first, boards.board("<b>own</b> & 'mine'.py:x", second, lost={"sgd": 20})])


def test_tables_read_back() -> None:
    found = made()
    for name in TABLES:
        back = pq.read_table(io.BytesIO(parquet(found, name))).to_pylist()
        assert back == getattr(found, name) and back, name
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["sample_gradients"] == found.asked == 2 * 4 * (3 * 20_000 + 54_000)
    nothing = boards.comparison([boards.board("x", {"muon": None})])
    types = [pq.read_schema(io.BytesIO(parquet(c, "targets"))) for c in (found, nothing)]
    assert types[0].equals(types[1]), "columns and types do not depend on what came out"


def test_page() -> None:
    found = made()
    text = page(found)
    assert all(text.count(f"<td>{name}</td>") >= 8 for name in SPEEDS if name != "muon")
    assert f"Cannot run: muon ({boards.REASON.partition(': ')[2]})" in unescape(text)
    assert "<b>own" not in text and "&lt;b&gt;own&lt;/b&gt; &amp; &#39;mine&#39;.py:x" in text
    assert "seeds = 20\ntargets = [0.4, 0.2]\ntune = true" in text
    assert found.command in text and f"{found.asked:,} sample gradients" in text
    assert [name for name in ("heat", "curves-0", "curves-1") if f'vegaEmbed("#{name}"' not in text] == []
    assert "diverged" in text and "54,000" in text and "theorem: constants known, expectation" in text
    assert 'class="theorem"' in text and 'class="tuned"' in text and 'class="default"' in text
    nothing = page(boards.comparison([boards.board("x", {"muon": None})]))
    assert "nobody within the budget" in nothing and "nan" not in nothing.partition("<script>")[0]


def test_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, highlight=False)
    for part in compare_parts(made()):
        console.print(part, soft_wrap=isinstance(part, str), markup=False)
    text = out.getvalue()
    lines = text.splitlines()
    assert lines[-1] == "page: there/compare.html"
    assert all(len(line) <= 80 for line in lines if not line.startswith("tables: "))
    words = " ".join(text.split())
    assert "undecided: storm" in words and "Cannot run: muon (x must be a matrix" in words
    row = next(line for line in lines if line.startswith("nigt"))
    assert row.split() == ["nigt", "0.833", "0.416", "0.5", *2 * [">", "budget"]]


def test_a_method_that_asks_less_than_its_formula_spends_the_budget() -> None:
    """Steps that stay ask K alone. A run is as long as spends the budget in the median; averages are cut there."""
    one = Bench(CompareRequest(budget=600, seeds=8), "quadratic", registry.get("quadratic"), 1, None)
    (found,) = one._some("kalman_storm", [{}], one.seeds, Event())
    assert found.steps > CATALOGUE["kalman_storm"]().steps(600)
    assert 570 < np.median(found.paths.cost[:, -1]) < 630, "and 5 % is how well the rest of a run can be foreseen"


def test_steps_that_spend_the_budget_by_hand() -> None:
    """100 steps cost 50 in the first half and 25 in the second: the 40 that are left pay 80 more."""
    costs = np.array([[1, 50, 75], [1, 50, 75], [1, 50, 75], [9, 9, 9], [1, 99, 99]])
    trace = SimpleNamespace(
        steps=100, record_steps=np.array([1, 50, 100]), record_cost=costs, diverged_at=np.array([0, 0, 0, 7, 0])
    )
    spending = partial(compare._spending, trace, seeds=4)  # the fifth is not asked
    assert spending(budget=115) == 180 and spending(budget=75) == spending(budget=70) == 100
    trace.diverged_at[:] = 7
    assert spending(budget=115) == 100
    one = SimpleNamespace(steps=1, record_steps=np.array([1]), record_cost=costs[:, :1], diverged_at=np.zeros(5))
    assert compare._spending(one, budget=115, seeds=4) == 1, "the first step says nothing of the next"


def test_a_tuned_setting_that_was_run_is_not_run_again(calls: list[SimpleNamespace]) -> None:
    """The search finds the default the best one, as no other setting descends."""
    one = Bench(small(tune=True), "exp-quad", registry.get("exp-quad"), 1, None)
    known = scales(one.problem, BUDGET)
    default = METHODS["sgd"].default(known)
    measured = one.measure("runs", {"sgd": [default]}, one.seeds)
    grids, _ = one.search(known, {"sgd": []})
    grid = grids["sgd"]
    for i, ran in enumerate(grid.runs):
        high = 1e6 * (grid.settings[i] != default)
        grid.runs[i] = replace(ran, last=replace(ran.last, value=ran.last.value + high))
    grid.scored.clear()
    (row,) = one.tuned(grids, one.picks(grids, ()), measured)
    assert row.measured is measured["sgd"][0] and row.kind == TUNED and row.goals == ENDS
