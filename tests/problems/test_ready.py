"""The usual models from arrays: no pair of points breaks their constants, by gradients that are written a second time.

The search is in NumPy: pairs at random, then hill climbing on the worst. The study does the same by `climb.py`.
"""

import jax
import numpy as np
import pytest
from climb import Flat, worst_ratios

from normstorm.problems import ready
from normstorm.problems.check import check_problem

RNG = np.random.default_rng(0)
A = RNG.standard_normal((30, 3))
LABELS = (A @ [1, -1, 0.5] + RNG.standard_normal(30) > 0).astype(int)
TARGETS = A @ [1, 2, -1] + RNG.standard_t(2, 30)
CLASSES = np.argmax(A @ RNG.standard_normal((3, 3)) + RNG.gumbel(size=(30, 3)), axis=1)
UNIT = ready.unit_rows(A)
SIGNED = A * (2 * LABELS - 1)[:, None]


def regular(x, l2, bounded):
    return l2 * x + bounded * 2 * x / (1 + x**2) ** 2


def logistic(x):
    return -SIGNED / (1 + np.exp(np.clip(SIGNED @ x, -700, 700)))[:, None]


def log_cosh(x):
    return np.tanh(A @ x - TARGETS)[:, None] * A


def huber(x):
    return np.clip(A @ x - TARGETS, -0.7, 0.7)[:, None] * A


def squares(x):
    return (A @ x - TARGETS)[:, None] * A


def softmax(x):
    scores = A @ x.reshape(3, 3).T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    p = weights / weights.sum(axis=1, keepdims=True)
    return ((p - np.eye(3)[CLASSES])[:, :, None] * A[:, None, :]).reshape(30, -1)


def robust(z):
    """lam = .5: psi*' = max(t/2 + 1, 0) with t = 2 (l - G eta)."""
    G = 9 / (8 * 3**0.5)
    r = UNIT @ z[:-1] - TARGETS
    w = np.maximum(r**2 / (1 + r**2) - G * z[-1] + 1, 0)
    return np.column_stack([(w * 2 * r / (1 + r**2) ** 2)[:, None] * UNIT, G * (1 - w)])


def with_part(gradients, l2, bounded):
    """The rows' gradients with the regulariser's, which leaves the multiplier alone."""

    def of(x):
        part = regular(x, l2, bounded)
        return gradients(x) + (np.append(part[:-1], 0) if gradients is robust else part)

    return of


CASES = {
    "logistic": (lambda **o: ready.logistic_regression(A, LABELS, **o), logistic, {}),
    "logistic, both": (lambda **o: ready.logistic_regression(A, LABELS, **o), logistic, {"l2": 0.1, "bounded": 0.05}),
    "logistic, bounded": (lambda **o: ready.logistic_regression(A, LABELS, **o), logistic, {"bounded": 0.1}),
    "log-cosh": (lambda **o: ready.log_cosh_regression(A, TARGETS, **o), log_cosh, {"bounded": 0.2}),
    "huber": (lambda **o: ready.huber_regression(A, TARGETS, k=0.7, **o), huber, {"l2": 0.1}),
    "huber, plain": (lambda **o: ready.huber_regression(A, TARGETS, k=0.7, **o), huber, {}),
    "least squares": (lambda **o: ready.ridge_regression(A, TARGETS, **o), squares, {}),
    "ridge": (lambda **o: ready.ridge_regression(A, TARGETS, **o), squares, {"l2": 0.3}),
    "ridge, both": (lambda **o: ready.ridge_regression(A, TARGETS, **o), squares, {"l2": 0.3, "bounded": 0.3}),
    "softmax": (lambda **o: ready.softmax_regression(A, CLASSES, **o), softmax, {"l2": 0.1}),
    "softmax, bounded": (lambda **o: ready.softmax_regression(A, CLASSES, **o), softmax, {"bounded": 0.1}),
    "robust": (lambda **o: ready.robust_regression(UNIT, TARGETS, **o), robust, {}),
    "robust, both": (lambda **o: ready.robust_regression(UNIT, TARGETS, **o), robust, {"l2": 0.2, "bounded": 0.1}),
}
TIGHT = {  # 3A, 3B, 4A, 4B: what the search must reach at least
    "logistic": (0.85, 0.8, 0.75, 0.75),
    "logistic, both": (0.9, 0.8, 0.75, 0.75),
    "logistic, bounded": (0.9, 0.8, 0.75, 0.75),
    "log-cosh": (0.8, 0.5, 0.7, 0.85),
    "huber": (0.9, 0.6, 0.7, 0.85),
    "huber, plain": (0.9, 0.6, 0.7, 0.85),
    "least squares": (0.95, 0.95, 0.85, 0.9),
    "ridge": (0.95, 0.9, 0.85, 0.9),
    "ridge, both": (0.9, 0.8, 0.8, 0.85),
    "softmax": (0.6, 0.5, 0.65, 0.8),
    "softmax, bounded": (0.6, 0.5, 0.65, 0.8),
    "robust": (0.4, 0.1, 0.5, 0.45),
    "robust, both": (0.4, 0.1, 0.4, 0.45),
}


def searched(problem, gradients, dim: int, steps: int = 320) -> tuple[float, ...]:
    """The largest ratios of 3A, 3B, 4A and 4B to what is stated; each has a climber of its own."""
    smooth = [problem.smoothness(sense) for sense in ("almost-sure", "mean-square")]
    noise = [problem.deviation(sense) for sense in ("almost-sure", "mean-square")]
    rng = np.random.default_rng(1)

    def ratios(x, way):
        here, found = gradients(x), []
        g = np.linalg.norm(here.mean(axis=0))
        for (L0, L1), most in zip(smooth, (np.max, lambda s: np.mean(s**2) ** 0.5), strict=True):
            y = x + way * min(1.0, 1 / (L1 * np.linalg.norm(way)) if L1 else 1.0)
            moved = most(np.linalg.norm(gradients(y) - here, axis=1))
            found.append(moved / ((L0 + L1 * g) * np.linalg.norm(y - x)))
        off = np.linalg.norm(here - here.mean(axis=0), axis=1)
        (s0, s1), (m0, m1) = noise
        return np.array([*found, np.max(off) / (s0 + s1 * g), np.mean(off**2) ** 0.5 / np.hypot(m0, m1 * g)])

    largest = np.zeros(4)
    for which in range(4):
        best = -1.0
        for begin in range(4):
            x, way = 4.0 ** (begin - 1) * rng.standard_normal(dim), rng.standard_normal(dim)
            best = ratios(x, way)[which]
            for _ in range(steps // 4):
                scale = 10 ** rng.uniform(-2, 0.3)
                there = x + scale * (1 + np.linalg.norm(x)) * rng.standard_normal(dim)
                turned = 10 ** rng.uniform(-2, 0) * (way / np.linalg.norm(way) + scale * rng.standard_normal(dim))
                found = ratios(there, turned)
                largest = np.maximum(largest, found)
                if found[which] > best:
                    x, way, best = there, turned, found[which]
    return tuple(largest)


@pytest.mark.parametrize("label", CASES)
def test_no_pair_breaks_the_constants(label: str) -> None:
    make, gradients, parts = CASES[label]
    problem, rows = make(**parts), with_part(gradients, parts.get("l2", 0), parts.get("bounded", 0))
    dim = problem.start().size
    found = searched(problem, rows, dim)
    assert max(found) <= 1 + 1e-9, found
    assert all(ratio >= least for ratio, least in zip(found, TIGHT[label], strict=True)), found


@pytest.mark.parametrize("label", ["logistic", "log-cosh", "huber, plain", "ridge, both", "softmax", "robust, both"])
def test_gradients_ranges_and_infima(label: str) -> None:
    """Gradients are those of the transcription; no row leaves the range; no point of a descent is below the infimum."""
    make, gradients, parts = CASES[label]
    problem, rows = make(**parts), with_part(gradients, parts.get("l2", 0), parts.get("bounded", 0))
    shape, rng = problem.start().shape, np.random.default_rng(2)
    ones = (40, *(1 for _ in shape))
    x = rng.standard_normal((40, *shape)) * 10 ** rng.uniform(-1, 1, ones)
    way = rng.standard_normal(x.shape) * 10 ** rng.uniform(-2, 1, ones)
    low = np.zeros(x[0].size) if label != "robust, both" else np.array(problem.start())
    for _ in range(600):
        low = low - rows(low).mean(axis=0) / problem.objective_smoothness()[0]

    @jax.jit
    def asked(x, radius, low):
        return *jax.vmap(problem.range)(x, radius), problem.full_grad(x[0]), problem.value(low)

    radius = np.sqrt(np.sum(way**2, axis=tuple(range(1, way.ndim))))
    spread, change, full, value = jax.device_get(asked(x, radius, low.reshape(shape)))
    np.testing.assert_allclose(np.ravel(full), rows(x[0].ravel()).mean(axis=0), rtol=1e-9, atol=1e-12)
    pairs = [(rows(point.ravel()), rows(there.ravel())) for point, there in zip(x, x + way, strict=True)]
    # The smallest ball that holds all of them has at least half their largest distance as its radius.
    apart = np.array([np.max(np.linalg.norm(here[:, None] - here, axis=2)) / 2 for here, _ in pairs])
    moved = np.array([np.max(np.linalg.norm(here - after, axis=1)) for here, after in pairs])
    assert np.all(apart <= spread) and np.any(apart > 0.3 * spread)
    assert np.all(moved <= change) and np.any(moved > 0.3 * change)
    assert 0 < problem.infimum <= value + 1e-12
    if "bounded" not in parts:
        assert problem.infimum >= 0.95 * value


def test_constants_come_in_both_senses_and_serve_a_plan() -> None:
    problem = ready.logistic_regression(UNIT, LABELS, l2=0.01)
    known = problem.constants()
    assert known.noise == "almost-sure" and known.mean_square is not None and known.L1 == known.sigma1 == 0
    assert pytest.approx(0.26) == known.L0 and known.sigma0 <= 2 and known.gap < np.log(2)
    check_problem("run", problem, problem.start())


def test_advice_on_the_scale_of_the_rows() -> None:
    assert ready.logistic_regression(UNIT, LABELS).advice == ""
    long = ready.logistic_regression(100 * A, LABELS).advice
    assert long.startswith(f"The longest row has length {100 * np.max(np.linalg.norm(A, axis=1)):.3g}, ")
    assert "unit_rows" in long and "\n" not in long
    assert np.allclose(np.linalg.norm(UNIT, axis=1), 1) and not np.any(ready.unit_rows(np.zeros((2, 3))))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: ready.logistic_regression(A, CLASSES),
            "labels must have two values, more are for ",
        ),
        (
            lambda: ready.logistic_regression(A, np.where(LABELS, "yes", "no")),
            "logistic_regression: data must be arrays of numbers, labels as np.unique(labels, return_inverse=True)[1]; "
            "got text in data['labels'], such as '",
        ),
        (
            lambda: ready.huber_regression(np.where(A > 2, np.nan, A), TARGETS),
            "huber_regression: data must be finite numbers; got nan in data['features'], row ",
        ),
        (lambda: ready.log_cosh_regression(A, TARGETS[:5]), "; got lengths [5, 30]"),
        (
            lambda: ready.ridge_regression(A[0], A[1]),
            "must be a table and a column of real numbers; got ",
        ),
        (
            lambda: ready.ridge_regression(np.column_stack([A, A[:, 0]]), TARGETS),
            "must be larger where columns depend",
        ),
        (
            lambda: ready.ridge_regression(A, TARGETS, l2=-1),
            "l2 must be a finite number >= 0; got l2=-1",
        ),
        (
            lambda: ready.softmax_regression(A, CLASSES + 1),
            "C - 1, every one of them; got 1, 2, 3",
        ),
        (
            lambda: ready.robust_regression(A, TARGETS),
            "must have rows of length at most 1, such as unit_rows(",
        ),
        (lambda: ready.huber_regression(A * 0, TARGETS), "huber_regression: features must not all be 0; got zeros"),
    ],
)
def test_refusals(make, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.study
@pytest.mark.parametrize("label", CASES)
def test_no_violation_by_climbing(label: str) -> None:
    make, _, parts = CASES[label]
    problem = make(**parts)
    found = worst_ratios(Flat(problem) if problem.start().ndim > 1 else problem)
    assert max(found.values()) <= 1 + 1e-6, found
