"""The main job: which point is returned, what is said of it, and what is refused."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import own
import pytest

from normstorm import Constants, certify, minimize, plan
from normstorm.problems import from_loss, load
from normstorm.solve import CHOICES, Result, fingerprint
from normstorm.solve.minimize import _promise
from normstorm.theory.plan import round_up
from normstorm.theory.two_phase import CANDIDATES

PLAN = plan(own.KNOWN, horizon=400, batch=2, sub_batch=1, confidence=0.9)
CENTRE = own.ROWS.mean(axis=0)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def solve(**options: object) -> Result:
    return minimize(own.problem, **({"plan": PLAN, "method": "plan", "samples": 39, "progress": False} | options))


def true_norm(x: np.ndarray) -> float:
    """||grad F|| without JAX: F is half the mean squared distance from the rows."""
    return float(np.linalg.norm(np.asarray(x) - CENTRE))


@pytest.mark.parametrize("choose", CHOICES)
def test_each_rule_returns_its_point(choose: str) -> None:
    found = solve(choose=choose, seeds=[3, 4])
    trace = found.trace
    candidates, steps = trace.candidates.x[0], trace.candidates.step[0]
    expected = {"last": trace.last[0], "random": trace.uniform.x[0], "smallest": trace.smallest.x[0]}
    if choose == "two-phase":
        at = int(re.search(r"t = (\d+)", found.reason)[1])
        assert np.array_equal(found.x, candidates[list(steps).index(at)])
        assert found.sample_gradients == PLAN.sample_gradients + 39 * CANDIDATES
    else:
        assert np.array_equal(found.x, expected[choose])
        assert found.sample_gradients == PLAN.sample_gradients + 39
    if choose in ("random", "smallest"):
        pick = trace.uniform if choose == "random" else trace.smallest
        assert f"t = {pick.step[0]}" in found.reason
    # One comparison at confidence 0.9 for each rule; the seeds are fixed.
    assert true_norm(found.x) <= found.certificate.upper_bound
    assert found.certificate.confidence == 0.9 and found.certificate.samples == 39


def test_two_phase_takes_the_candidate_with_the_smallest_bound() -> None:
    stream = from_loss(own.squares, box, start=own.START, constants=own.KNOWN)  # grad F(x) = x
    found = minimize(stream, plan=PLAN, samples=20_000, progress=False)
    norms = [float(np.linalg.norm(x)) for x in found.trace.candidates.x[0]]
    # The standard error of a mean of 20,000 samples, whose spread is 0.5, is below 0.004.
    assert np.linalg.norm(found.x) <= min(norms) + 0.03 < max(norms)
    assert found.certificate.mean_norm == pytest.approx(np.linalg.norm(found.x), abs=0.03)


def test_few_rows_are_certified_exactly() -> None:
    """40 rows cost less than 60 samples: no constants, no confidence, and the best candidate is the best."""
    found = solve(samples=60)
    norms = [true_norm(x) for x in found.trace.candidates.x[0]]
    assert true_norm(found.x) == min(norms) <= found.certificate.upper_bound < min(norms) * (1 + 1e-8)
    assert found.certificate.sense == "exact" and found.certificate.confidence == 1.0
    assert found.sample_gradients == PLAN.sample_gradients + 40 * CANDIDATES
    assert "by a pass over all 40 rows at each" in found.reason


def test_a_second_opinion_is_not_the_first_one() -> None:
    """`certify` with any of the first seeds draws other samples than those by which `minimize` chose the point."""
    found = solve(choose="last").certificate
    again = [certify(own.problem, solve(choose="last").x, 0.9, 39, seed=seed) for seed in range(CANDIDATES)]
    assert found.mean_norm not in [c.mean_norm for c in again]


class Domain:
    """A gradient that exists for x_1 > 0.5 alone, and a run that leaves this."""

    name, is_exact, infimum = "domain", False, None

    def start(self) -> jax.Array:
        return jnp.array([3.0, 3.0])

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return jax.random.uniform(key, (n, 2), minval=-0.1, maxval=0.1)

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        return x + jnp.mean(batch, axis=0) + 0 * jnp.sqrt(x[0] - 0.5)

    def constants(self, x0: object = None, sense: str = "almost-sure") -> Constants:
        return Constants(L0=1, L1=0, sigma0=0.2, sigma1=0, gap=9.5, noise=sense)


@pytest.mark.filterwarnings("ignore:The guarantee is not kept")
def test_a_candidate_whose_gradient_is_not_finite_is_never_the_best() -> None:
    found = minimize(Domain(), target=1.5, method="plan", progress=False)
    firsts = found.trace.candidates.x[0][:, 0]
    assert (firsts < 0.5).any() and (firsts > 0.5).any()
    assert found.x[0] > 0.5 and np.isfinite(found.certificate.upper_bound)
    last = minimize(Domain(), target=1.5, method="plan", progress=False, choose="last").certificate
    assert last.upper_bound == np.inf and last.guarantee.startswith("No bound of ||grad F(x)||")


class Centred(Domain):
    """A NumPy array in an object that JAX does not know."""

    def __init__(self) -> None:
        self.centre = np.array([0.1, 0.7])

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        return x - self.centre + jnp.mean(batch, axis=0)


def centred() -> object:
    """One in a function."""
    centre = np.array([0.1, 0.7])
    rows = np.random.default_rng(0).uniform(-0.1, 0.1, size=(50, 2))
    known = Domain().constants()
    return from_loss(lambda x, row: ((x - centre - row) ** 2).sum() / 2, rows, start=np.full(2, 3.0), constants=known)


@pytest.mark.parametrize(("double", "make"), [(False, centred), (True, centred), (True, Centred)])
def test_arrays_of_numpy_are_asked_in_both_precisions(double: bool, make: Callable[[], object]) -> None:
    """Single or double in the run, double in the certificate, single where rounding is measured; and again."""
    problem = make()
    with jax.enable_x64(double):
        found = [minimize(problem, target=0.5, method="plan", progress=False) for _ in range(2)]
    for one in found:
        assert one.x.dtype == (np.float64 if double else np.float32)
        assert np.linalg.norm(one.x - [0.1, 0.7]) < one.certificate.upper_bound + 0.02 < 0.5
        assert 1e-8 < one.precision.gradient_error * 2**-24 / one.precision.unit_roundoff < 1e-6


def test_a_seed_alone_or_first_of_many_gives_the_same_point() -> None:
    crowd = solve(seeds=[7, 8, 9])
    alone = solve(seeds=[7], width=crowd.trace.width)
    assert np.array_equal(alone.x, crowd.x) and alone.certificate == crowd.certificate
    assert alone.trace.mean_grad_norm[0] == crowd.trace.mean_grad_norm[0]


def test_promises() -> None:
    bound = f"{PLAN.bound:.3g}"
    promises = {choose: solve(choose=choose).promise for choose in CHOICES}
    assert "over the choice of t" in promises["random"] and bound[:3] in promises["random"]
    assert promises["last"] == promises["smallest"] and "promises nothing" in promises["last"]
    assert promises["two-phase"].startswith("With probability at least 0.8, one of the 8 candidates")


@pytest.mark.parametrize("T", [400, 403, 15, 8, 5, 1])
def test_the_factor_of_the_candidates_is_proven_for_every_sequence(T: int) -> None:
    """P(all candidates exceed c B) = product over slices of the shares that do, at most delta for every sequence."""
    delta = 1 - PLAN.confidence
    words = _promise(replace(PLAN, horizon=T, bound=1.0), "two-phase", T)
    factor = float(re.search(r"at most ([\d.]+)\.$", words)[1])
    R = min(CANDIDATES, T)
    ends = np.arange(R + 1) * T // R
    rng = np.random.default_rng(T)
    worst = 0.0
    for _ in range(300):
        share = rng.uniform(0, 2 / factor)
        sizes = [round(share * n) for n in np.diff(ends)]  # so many large values in each slice, the worst shape
        g = np.zeros(T)
        for end, size in zip(ends[1:], sizes, strict=True):
            g[end - size : end] = 1
        if not g.any():
            continue
        g *= T / g.sum()  # average 1
        shares = [np.mean(g[a:b] > factor) for a, b in pairwise(ends)]
        worst = max(worst, float(np.prod(shares)))
    assert worst <= delta
    assert T < 400 or worst > delta / 4, "a smaller factor would fail: the check has teeth"


def test_observed_counts_diverged_seeds_as_violations() -> None:
    found = solve(seeds=3)
    means = np.array([PLAN.bound / 2, np.inf, PLAN.bound])
    trace = replace(found.trace, mean_grad_norm=means, diverged_at=np.array([0, 5, 0]))
    seen = replace(found, trace=trace).observed()
    assert (seen["seeds"], seen["diverged"], seen["violations"]) == (3, 1, 1)
    assert seen["mean_grad_norm"] == {"median": PLAN.bound, "q95": np.inf, "q99": np.inf, "max": np.inf}


def test_the_bound_from_the_estimates_of_each_seed() -> None:
    """Above the observed average in every seed; a seed that diverged has none, nor has a plan in expectation."""
    found = solve(seeds=3)
    bounds = found.observed_bounds
    exact = [PLAN.observed_bound(mean) for mean in found.trace.mean_estimate_norm]
    np.testing.assert_allclose(bounds, exact, rtol=1e-12)
    assert np.all(bounds >= exact) and np.all(found.trace.mean_grad_norm <= bounds)
    said = found.observed_bound()
    assert (said["bound"], said["max"]) == (bounds[0], bounds.max())
    assert f"is at most {round_up(bounds[0])}" in said["statement"] and "at least 0.9," in said["statement"]
    broken = replace(found.trace, mean_estimate_norm=np.array([0.1, np.inf, 0.2]))
    assert np.isinf(replace(found, trace=broken).observed_bounds).tolist() == [False, True, False]
    in_mean = replace(found, plan=plan(own.KNOWN, horizon=400, confidence=None))
    assert in_mean.observed_bounds is None and in_mean.observed_bound() is None


def test_target_and_budget_make_the_plan() -> None:
    budget = PLAN.sample_gradients
    found = solve(plan=None, budget=budget, confidence=0.9)
    assert found.plan == plan(own.KNOWN, budget=budget - 8 * 39, confidence=0.9)
    assert found.sample_gradients <= budget
    assert found.trace.steps == found.plan.horizon
    assert found.violations == 0, "true with probability 0.9 at least, and this seed is fixed"


def test_a_plan_in_expectation_uses_the_mean_square_alone() -> None:
    in_mean = plan(own.KNOWN, horizon=400, batch=2, sub_batch=1, confidence=None)
    found = solve(plan=in_mean, choose="last")
    assert found.certificate.sense == "mean-square" and found.certificate.confidence == 0.99
    assert true_norm(found.x) <= found.certificate.upper_bound


def box(key: jax.Array, n: int) -> jax.Array:
    return jax.random.uniform(key, (n, 3), minval=-0.5, maxval=0.5)


@pytest.mark.parametrize("choose", CHOICES)
def test_a_problem_that_can_only_be_sampled(choose: str) -> None:
    """F is half the mean squared distance from a cube around 0, so grad F(x) = x; nothing of that is told."""
    stream = from_loss(own.squares, box, start=own.START, constants=own.KNOWN)
    found = minimize(stream, plan=PLAN, seeds=[3, 4], samples=400, choose=choose, progress=False)
    trace = found.trace
    assert not stream.is_exact and np.isnan(trace.mean_grad_norm).all() and np.isnan(trace.grad_norm).all()
    assert list(trace.cost) == [PLAN.sample_gradients] * 2 and list(trace.status) == ["ok", "ok"]
    # One comparison at confidence 0.9 for each rule; the seeds are fixed.
    assert 0 < np.linalg.norm(found.x) <= found.certificate.upper_bound < np.linalg.norm(own.START)
    assert found.precision.adequate and found.violations == 0
    known = from_loss(own.squares, box, start=own.START, constants=own.KNOWN, objective=lambda x: x @ x / 2 + 1 / 8)
    told = minimize(known, plan=PLAN, seeds=[3, 4], samples=400, choose=choose, progress=False)
    assert np.array_equal(told.x, found.x), "what is observed does not change what is done"
    assert np.isfinite(told.trace.mean_grad_norm).all() and told.certificate == found.certificate


FILE = """
import functools
import numpy as np
from jax import numpy as jnp
from jax.numpy import tanh as bend
from normstorm.problems.user import from_loss

SCALE = 2.0
KINDS = {"a", "b", "c", "d", "e", "f", "g"}
TABLE = {"one": np.array([1.0]), "two": [2.0, {3.0}]}

def helper(x, power=2):
    return helper(x, 0) if power < 0 else x**power

class Setting:
    size = 3
    corners = {"low": [np.array([1.0, 5.0])]}
    twice = functools.partialmethod(lambda self, by, x: by * x, 2.0)
    @functools.cached_property
    def half(self): return 0.5
    def __init__(self): self.shift = np.zeros(3)
    def apply(self, x): return x + self.shift
setting = Setting()

def outer(width):
    offset = np.array([1.0, 2.0, 3.0])
    @functools.cache
    def inner(x): return x - offset * width
    return inner
inner = outer(0.5)

def loss(x, row):
    assert "a" in {"a", "b", "c", "d"} and TABLE and KINDS
    moved = setting.apply(inner.__wrapped__(x)) - row
    return jnp.sum(helper(bend(moved) * SCALE)) + sum((lambda v: v * 0.25)(v) for v in moved)

problem = from_loss(functools.partial(loss), np.eye(3), start=np.zeros(3))
"""
CHANGES = [
    ("else x**power", "else x**power + 0"),
    ("power=2", "power=3"),
    ("SCALE = 2.0", "SCALE = 2.5"),
    ("0.25", "0.125"),
    ("outer(0.5)", "outer(0.75)"),
    ("[1.0, 2.0, 3.0]", "[1.0, 2.0, 4.0]"),
    ("x + self.shift", "x - self.shift"),
    ("np.zeros(3)\n    def", "np.ones(3)\n    def"),
    ("{3.0}", "{4.0}"),
    ('"g"}', '"h"}'),
    ("import tanh", "import sinh"),
    ("def helper(x,", "def helper(y, x=1.0,"),
    ("[1.0, 5.0]", "[1.0, 6.0]"),
    ("by * x, 2.0", "by * x, 3.0"),
    ("by * x", "by - x"),
    ("return 0.5", "return 0.75"),
]


def loaded(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text)
    return fingerprint(load(f"{folder / 'mine.py'}:problem"))


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_fingerprints_follow_the_code(tmp_path: Path, old: str, new: str) -> None:
    assert FILE.count(old) == 1
    assert loaded(tmp_path, FILE) != loaded(tmp_path, FILE.replace(old, new))


@pytest.mark.parametrize(("old", "new"), [("TABLE = [1.0]", "TABLE = [2.0]"), ("x - ", "x + "), ("1e-3", "1e-2")])
def test_fingerprints_follow_the_modules_that_the_code_mentions(
    tmp_path: Path, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members of a module, and of one that it mentions, which mentions the first; not those that nobody mentions."""
    files = {
        "first": "import second\nUNUSED = 1\nTABLE = [1.0]\ndef shifted(x): return x - second.small() * TABLE[0]\n",
        "second": "import first\nUNUSED = 1\ndef small(): return 1e-3 * len(first.TABLE)\n",
    }
    text = "import numpy as np\nimport first\nfrom normstorm.problems import from_loss\n"
    text += "def loss(x, row): return ((first.shifted(x) - row) ** 2).sum()\n"
    text += "problem = from_loss(loss, np.eye(3), start=np.zeros(3))\n"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def seen(*change: str) -> str:
        for name, code in files.items():
            (tmp_path / f"{name}.py").write_text(code.replace(*change) if change else code)
            sys.modules.pop(name, None)
        return loaded(tmp_path, text)

    try:
        assert seen() == seen() == seen("UNUSED = 1", "UNUSED = 2") != seen(old, new)
    finally:
        for name in files:
            sys.modules.pop(name, None)


def test_fingerprints_do_not_follow_comments_places_and_processes(tmp_path: Path) -> None:
    """Other addresses, another order of sets, another folder and shifted lines: the same problem."""
    (tmp_path / "elsewhere").mkdir()
    here = loaded(tmp_path, FILE)
    assert here == loaded(tmp_path, FILE) == loaded(tmp_path / "elsewhere", "# a comment\n\n" + FILE)
    code = "import sys; from normstorm.problems import load; from normstorm.solve import fingerprint\n"
    code += "print(fingerprint(load(sys.argv[1])))"
    for number in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": number}
        words = [sys.executable, "-c", code, f"{tmp_path / 'mine.py'}:problem"]
        found = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        assert found.stdout.strip() == here


def test_fingerprints_follow_the_data() -> None:
    problem = own.problem
    others = [
        replace(problem, data=own.ROWS + 1e-12),
        replace(problem, data=own.ROWS.astype(np.float32)),
        replace(problem, data=own.ROWS[:, :, None]),
        replace(problem, x0=own.START * 2),
        replace(problem, infimum=None),
        replace(problem, known=replace(own.KNOWN, L0=2.0)),
        replace(problem, per_row=own.misshapen),
        replace(problem, name="other"),
    ]
    prints = {fingerprint(p) for p in (problem, replace(problem), *others)}
    assert len(prints) == 1 + len(others)
    assert fingerprint(problem) == fingerprint(replace(problem, data=own.ROWS.copy()))


def test_fingerprints_of_objects_with_their_own_methods() -> None:
    """No dataclass, no pytree, cycles, keys, and methods that differ."""

    def make(factor: float, seed: int) -> object:
        class Mine:
            name = "mine"

            def __init__(self) -> None:
                self.me = [self, {"me": self, 2: {self}}, self.grad]
                self.key = jax.random.key(seed)

            def grad(self, x: float) -> float:
                return factor * x

        return Mine()

    assert fingerprint(make(1.0, 0)) == fingerprint(make(1.0, 0))
    assert len({fingerprint(make(factor, seed)) for factor in (1.0, 2.0) for seed in (0, 1)}) == 4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"choose": "best"}, "choose must be one of two-phase, random, smallest, last; got choose='best'"),
        ({"plan": None}, "exactly one of target, budget, plan must be given; got target=None, budget=None"),
        ({"plan": None, "target": 1, "budget": 9}, "exactly one of target, budget, plan must be given"),
        ({"target": 1.0}, "exactly one of target, budget, plan must be given; got target=1.0"),
        ({"confidence": 0.95}, "confidence must be left out or the plan's, 0.9; got confidence=0.95"),
        ({"plan": replace(PLAN, horizon=2**31)}, "must lead to at most 1073741824 steps"),
        ({"plan": None, "target": -1.0}, "target must be a finite number > 0"),
        ({"plan": None, "target": 1.0, "confidence": 2}, r"confidence must be a number in \(0, 1\)"),
        ({"plan": None, "target": 1.0, "confidence": 1 - 2**-53}, "confidence must be at most 0.9999999999999991; got"),
        ({"plan": replace(PLAN, confidence=1 - 2**-53)}, "confidence must be at most 0.9999999999999991; got"),
        (
            {"plan": None, "target": 1.0, "confidence": 1e-300},
            "confidence must be at least 1e-16; got confidence=1e-300",
        ),
        ({"confidence": np.array([0.9, 0.9])}, "confidence must be a number in"),
        ({"seeds": 0}, "seeds must be an integer in"),
        ({"seeds": [1, 1]}, "seeds must be different integers"),
        ({"samples": 1}, "samples must be an integer in"),
        ({"rho": 2.0}, "^minimize: rho must be left out unless method is 'race'; got rho=2.0"),
        ({"seeds": None}, "seeds must be an integer in"),
        ({"seeds": 1.5}, "seeds must be an integer in"),
        ({"plan": 3}, "^minimize: plan must be a Plan, as normstorm.plan returns it, or None; got plan=3"),
        ({"x0": "a"}, "^minimize: x0 must be float32 or float64 in all its leaves; got str"),
        ({"checkpoint": ""}, "^minimize: checkpoint must have a name of 1 to 240 bytes"),
        ({"checkpoint": "no/run"}, "^minimize: checkpoint must lie in an existing directory; got no/run"),
    ],
)
def test_refusals(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        solve(**options)


def test_the_name_of_a_problem_is_none() -> None:
    with pytest.raises(
        ValueError, match=r"^minimize: problem must be a problem, or a loss before data and x0; got a str$"
    ):
        minimize("dro-regression", target=1.0)


def test_constants_must_serve_the_guarantee() -> None:
    weak = Constants(**own.KNOWN.to_dict() | {"noise": "mean-square"})
    with pytest.raises(ValueError, match="sense must be mean-square"):
        minimize(replace(own.problem, known=weak), target=1.0, method="plan", progress=False)
