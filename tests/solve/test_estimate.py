"""Constants from what a run sees, and stated ones held to what samples do."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import own
import pytest

from normstorm import Constants
from normstorm.problems import from_loss, get
from normstorm.solve import estimate, value
from normstorm.solve.estimate import SENSES, WORDS, estimate_constants
from normstorm.solve.held import Held
from normstorm.solve.looks import Look
from normstorm.solve.value import Value, is_above
from normstorm.solve.watch import ALARM, check_constants, check_run, compared
from normstorm.theory.sequential_test import SampleRange


@pytest.fixture(autouse=True, scope="module")
def precision():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def without_run(monkeypatch: pytest.MonkeyPatch, points) -> None:
    """A run takes seconds to compile; where it does not matter, it has been at these points."""
    monkeypatch.setattr(estimate, "_visited", lambda problem, x, budget, seed: ([np.asarray(x), *points], budget))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch):
    without_run(monkeypatch, [0.5 * own.START, own.ROWS.mean(axis=0) + 1e-3])
    return estimate_constants(own.without_constants, budget=2000)


def test_a_problem_whose_constants_are_known_exactly(found) -> None:
    """F is a mean of ||x - row||^2/2: L0 = 1, L1 = 0, and the noise is ||row - mean||, everywhere."""
    off = np.linalg.norm(own.ROWS - own.ROWS.mean(axis=0), axis=1)
    expected = {"almost-sure": off.max(), "mean-square": np.mean(off**2) ** 0.5}
    for sense in SENSES:
        assert found.number("L0", sense).value == pytest.approx(1, rel=1e-6)
        assert found.number("sigma0", sense).value == pytest.approx(expected[sense], rel=1e-6)
        for name in ("L1", "sigma1"):
            assert found.number(name, sense).value < 1e-6
    first = np.linalg.norm(own.START - own.ROWS.mean(axis=0))
    assert found.number("grad_norm").value == pytest.approx(first) and found.number("grad_norm").word == "proof"
    assert found.number("gap").word == "guess" and found.number("gap").high is None
    assert found.number("gap").value == pytest.approx(first**2 / 2, rel=1e-3)


def test_intervals_hold_the_value_and_words_are_three(found) -> None:
    for one in found.numbers:
        assert one.low <= one.value and (one.high is None or one.value <= one.high)
        assert one.word in WORDS and one.method
    low, high = found.number("sigma0", "mean-square").low, found.number("sigma0", "mean-square").high
    assert low < found.number("sigma0", "mean-square").value < high
    assert found.stated is None and found.contradictions is None and "no proof" in found.guarantee


def test_they_are_constants_to_plan_with(found) -> None:
    known = found.constants()
    assert isinstance(known, Constants) and known.noise == "almost-sure" and known.mean_square is not None
    json.dumps(found.to_dict(), allow_nan=False)


def test_proven_constants_are_a_proof_and_lie_above_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    without_run(monkeypatch, [np.ones(3), np.array([0.1, -0.2, 0.3])])
    found = estimate_constants(get("quadratic", dim=3), budget=1000)
    known = get("quadratic", dim=3).constants()
    assert found.proven and {one.word for one in found.numbers} == {"proof"}
    assert found.number("sigma0").value == known.sigma0
    assert found.contradictions.found == 0 and found.contradictions.checked == found.points * 256 * 4
    norms, largest, roots = found.deviations.T
    assert np.all(largest <= known.sigma0 + known.sigma1 * norms) and np.all(roots <= largest)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"budget": 5}, "budget must be an integer in [100, 1000000000]"), ({"seed": -1}, "seed must be an integer >= 0")],
)
def test_refusals(options, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        estimate_constants(own.problem, **options)
    assert str(error.value).startswith("estimate_constants: ") and sentence in str(error.value)


TRUE = own.KNOWN
POINTS = [own.START, np.array([0.3, -0.2, 0.1]), np.zeros(3)]


def claim(**other) -> Constants:
    return Constants(**{"L0": 1, "L1": 0, "sigma0": 3**0.5, "sigma1": 0, "gap": 4, "noise": "almost-sure"} | other)


def test_true_constants_are_not_contradicted() -> None:
    found = check_constants(own.problem, POINTS, TRUE)
    assert (found.checked, found.noise, found.smoothness) == (3 * 40 * 4, 0, 0)
    assert found.statement == "The stated constants agree with 480 comparisons with samples, which is no proof."
    assert found.sample_gradients == 480


def test_a_false_noise_bound_is_found_with_its_first_example() -> None:
    found = check_constants(own.problem, POINTS, claim(sigma0=0.1))
    off = np.linalg.norm(own.ROWS - own.ROWS.mean(axis=0), axis=1)
    assert found.noise == 3 * np.sum(off > 0.1) and found.smoothness == 0
    place = int(np.argmax(off > 0.1))
    assert found.first == (
        f"at point 1, where the gradient of sample {place + 1} is {off[place]:.4g} away from grad F and sigma0, sigma1 "
        "allow 0.1"
    )
    assert found.statement.startswith("Nothing that rests on the stated constants is guaranteed: ")


def test_a_false_smoothness_is_found() -> None:
    found = check_constants(own.problem, POINTS, claim(L0=0.9))
    assert (found.noise, found.smoothness) == (0, 3 * 40 * 3) and "changes by 1 times the way" in found.first
    assert check_constants(own.problem, POINTS, claim(L0=0.9, L1=0.2)).smoothness > 0, "near the minimum"
    assert check_constants(own.problem, POINTS, claim(L0=0.9, L1=1e9)).checked == 3 * 40, "no way is that short"


def test_constants_in_mean_square() -> None:
    root = float(np.mean(np.linalg.norm(own.ROWS - own.ROWS.mean(axis=0), axis=1) ** 2) ** 0.5)
    fine = claim(sigma0=root * (1 + 1e-9), noise="mean-square")
    assert check_constants(own.problem, POINTS, fine).found == 0
    found = check_constants(own.problem, POINTS, claim(sigma0=root * 0.99, noise="mean-square"))
    assert (found.checked, found.noise) == (3 * 4, 3) and "root mean square of the noise" in found.first


def test_a_stream_is_compared_by_its_mean_with_a_margin() -> None:
    """Pinelis' margin for n samples, written a second time; a claim that is off by less is not contradicted."""
    n = 400
    r = math.sqrt(2 * math.log(2 / ALARM) / n)
    rng = np.random.default_rng(0)
    apart = rng.uniform(0, 1, n)
    apart[7] = 1.0
    look = Look(0.5, apart, np.ones((3, n)), np.full(3, 1e-3), 1.5, "samples")
    limit = 1 / (1 + r)  # sigma1 = 0: rho = sigma0
    assert compared([look], claim(sigma0=limit * (1 + 1e-5))).found == 0
    found = compared([look], claim(sigma0=limit * (1 - 1e-5)))
    assert found.noise == 1 and "sample 8 is 1 away from the mean of the samples" in found.first
    # G <= ||g|| + rho r with rho = sigma0 = 2.
    assert compared([look], claim(L0=0.1, L1=0.9 / (0.5 + 2 * r) * (1 + 1e-4), sigma0=2)).found == 0
    assert compared([look], claim(L0=0.1, L1=0.9 / (0.5 + 2 * r) * (1 - 1e-4), sigma0=2)).smoothness == 3 * n
    nothing = compared([look], claim(sigma0=0.01, sigma1=1.01 / r))
    assert (nothing.checked, nothing.statement) == (0, "The stated constants could not be compared with samples.")


def box(key, n):
    return jax.random.uniform(key, (n, 3), minval=-0.5, maxval=0.5)


def test_a_run_of_a_stream_is_watched() -> None:
    """||row|| <= sqrt(3)/2 is true, .3 is not; 2 % of the cost of the run are asked, at two points at least."""
    stream = from_loss(own.squares, box, own.START)
    kept = SimpleNamespace(x=np.stack(POINTS)[None])
    last = np.full((1, 3), 0.01)
    trace = SimpleNamespace(candidates=kept, smallest=SimpleNamespace(x=last), last=last, cost=np.array([60_000]))
    ends = own.START, last[0]
    fine = check_run(stream, trace, claim(sigma0=3**0.5 / 2), *ends)
    assert fine.found == 0 and fine.checked > 100 and fine.sample_gradients <= 0.02 * trace.cost[0]
    assert check_run(stream, trace, claim(sigma0=0.3), *ends).noise > 0
    trace.cost = np.array([600])  # of a race
    assert check_run(stream, trace, claim(sigma0=0.3), *ends).noise > 0
    # grad F(x) = x: ||grad F(x_1)|| = 1.73 and F(x_1) - F* = 1.5; samples see less of it, but not much less.
    for other, wrong in (
        ({"grad_norm": 1.8, "gap": 1.6}, 0),
        ({"grad_norm": 0.7}, 1),
        ({"gap": 0.2}, 2),
        ({"gap": 1.0}, 1),
    ):
        assert check_run(stream, trace, claim(sigma0=3**0.5 / 2, **other), *ends).start == wrong, other


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"grad_norm": 1.01, "gap": 1.0}, ""),
        ({"grad_norm": 0.99}, "||grad F(x_1)|| is at least 1 and grad_norm allows 0.99"),
        ({"gap": 0.49}, "F(x_1) - F* is at least 0.5, 0 of it seen"),
        ({"gap": 0.51, "L0": 10.0}, ""),
        ({"gap": 0.4, "L0": 10.0}, "F(x_1) - F* is at least 0.482, 0.48 of it seen"),
    ],
)
def test_gap_and_first_gradient_of_a_finite_sum(other: dict[str, float], words: str) -> None:
    """F(x) = ||x||^2/2 from x_1 of length 1 to x of length .2: h(g) = g^2/(2 L0), and .48 of the gap are seen."""
    quiet = from_loss(lambda x, row: 0.5 * jnp.sum(x**2) + 0 * row, np.zeros(4), np.array([1.0, 0.0]))
    point = SimpleNamespace(x=np.array([[0.5, 0.0]]))
    trace = SimpleNamespace(candidates=SimpleNamespace(x=np.zeros((1, 1, 2))), smallest=point, cost=np.array([10]))
    found = check_run(quiet, trace, claim(**other), np.array([1.0, 0.0]), np.array([0.2, 0.0]))
    assert bool(found.start) == bool(words) and words in found.first


@pytest.mark.study
def test_points_of_a_run() -> None:
    """The start, points of the run in order, and its last; what it asked is at most the budget."""
    points, spent = estimate._visited(own.problem, own.problem.start(), 2000, 0)
    lengths = [float(np.linalg.norm(own.problem.full_grad(p))) for p in points]
    assert len(points) == 18 and np.array_equal(points[0], own.START) and 500 < spent <= 2000 * (1 + 1 / 8 + 1 / 64)
    assert lengths[-1] < lengths[0] / 10


def test_the_command(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_run(monkeypatch, POINTS)
    # The library takes seconds to make, and is tested elsewhere.
    monkeypatch.setattr("normstorm.report.html._library", lambda: "")
    code, out, err = run("estimate", f"{own.__file__}:without_constants", "--budget", 2000, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "") and found["problem"] == "my-problem"
    assert {one["name"] for one in found["numbers"]} == {"L0", "L1", "sigma0", "sigma1", "gap", "grad_norm"}
    page = (tmp_path / "build" / "estimate.html").read_text(encoding="utf-8")
    assert 'id="secants"' in page and 'id="deviations"' in page and "--budget 2000" in page
    monkeypatch.setattr("normstorm.report.estimate_page.save", lambda *given: None)
    code, out, err = run("estimate", f"{own.__file__}:problem", "--budget", 2000, "--report", "other.html")
    assert (code, err) == (0, "") and "report: other.html" in out and "estimate" in out and "agree with" in out
    code, out, err = run("estimate", "nothing")
    assert (code, out) == (2, "") and err.startswith("normstorm estimate: problem must be path/to/file.py:name or one")
    code, out, err = run("estimate", "quadratic", "--budget", 3)
    assert (code, out) == (2, "") and err.startswith("normstorm estimate: budget must be an integer in [100, ")


def test_two_samples_may_not_be_farther_apart_than_the_noise_allows() -> None:
    rows = np.array([[1.0], [-1.0]] * 64)  # within the margin of their mean for sigma0 = .8; but 2 > 2 * .8
    for noise, beyond in (
        (SampleRange(0.8, 0.0), 64),
        (SampleRange(math.inf, 0.0, 0.99), 64),
        (SampleRange(1.0, 0.0), 0),
    ):
        held = Held(noise)
        for block in (rows[:32], rows[32:]):
            held(block)
        assert held.beyond == beyond


@pytest.mark.parametrize(
    ("here", "there", "above"),
    [(2.0, 1.0, True), (1.0, 2.0, False), (math.inf, 1e45, True), (math.nan, 1.0, True), (1.0, math.inf, False)],
)
def test_a_point_where_f_is_not_finite_is_above_the_start(
    monkeypatch: pytest.MonkeyPatch, here: float, there: float, above: bool
) -> None:
    monkeypatch.setattr(value, "value_at", lambda problem, x: Value(x, 0.0, "formula"))
    assert is_above(None, here, there) is above
    assert not is_above(None, math.nan, math.nan)
