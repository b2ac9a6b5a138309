"""What is asked of a hand-written problem before a run: wrong ones are refused in a sentence, odd ones are taken."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import problem as rows
from toy import Toy

from normstorm import random
from normstorm.problems import check, from_loss, get
from normstorm.problems.base import FiniteSum
from normstorm.problems.check import as_point, check_problem

X = np.linspace(-1, 2, 3)
FIXED = np.random.default_rng(0).standard_normal((2000, 3))


class Own:
    """F(x) = |x|^2/2 + sum x^4/4 with normal noise; every part can be replaced."""

    name = "own"

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)

    def sample(self, key: jax.Array, n: int) -> Any:
        return jax.random.normal(key, (n, 3))

    def grad(self, x: Any, batch: Any) -> Any:
        return x + x**3 + jnp.mean(batch, axis=0)

    def full_grad(self, x: Any) -> Any:
        return x + x**3

    def value(self, x: Any) -> Any:
        return jnp.sum(x**2 / 2 + x**4 / 4)


def refused(problem: Any, x: Any = X) -> str:
    with pytest.raises(ValueError) as error:
        check_problem("run", problem, x)
    assert "\n" not in str(error.value)
    return str(error.value)


KEY = (
    "run: problem.sample must use its key, unless the problem has the attribute deterministic = True; "
    "got the same samples for all keys"
)


@pytest.mark.parametrize(
    "sample",
    [
        lambda key, n: jax.random.normal(jax.random.key(0), (n, 3)),
        lambda key, n: np.random.default_rng().standard_normal((n, 3)),
        lambda key, n: jnp.asarray(FIXED[:n]),
        lambda key, n: (jax.random.split(key)[0], jnp.asarray(FIXED[:n]))[1],
        jax.jit(lambda key, n: jnp.asarray(FIXED[:n]), static_argnums=1),
    ],
)
def test_a_forgotten_key(sample: Any) -> None:
    assert refused(Own(sample=sample, full_grad=None)) == KEY
    check_problem("run", Own(sample=sample, full_grad=None, deterministic=True), X)


def test_a_forgotten_key_of_noise_that_is_nothing_at_the_start() -> None:
    shapes = {"sample": lambda key, n: jnp.asarray(FIXED[:n]), "grad": lambda x, b: x * (1 + jnp.mean(b, axis=0))}
    assert refused(Own(**shapes, full_grad=lambda x: x), jnp.zeros(3)) == KEY


@pytest.mark.parametrize(
    "sample",
    [
        lambda key, n: jnp.zeros((n, 3)),
        lambda key, n: jnp.zeros((n, 3), jnp.int32),
        lambda key, n: jnp.zeros((n, 0)),
        lambda key, n: jnp.zeros(0),
        lambda key, n: (),
        lambda key, n: jnp.arange(n),
        lambda key, n: {"row": jnp.zeros(n, bool), "none": None},
        lambda key, n: random.numbers(key, 3 * n, 0)[0].reshape(n, 3) * 0,
        lambda key, n: random.index(key, (n,), 1),
    ],
)
def test_a_problem_without_noise_needs_no_key(sample: Any) -> None:
    """Samples that are all alike, that hold no numbers, or that the gradient does not look at."""
    check_problem("run", Own(sample=sample, grad=lambda x, batch: x + x**3), X)


@pytest.mark.parametrize(
    ("sample", "got"),
    [
        (lambda key, n: jax.random.normal(key, (n + 1, 3)), "(2, 3) for n=1"),
        (lambda key, n: jax.random.normal(key, (1, 3)), "(1, 3) for n=2"),
        (lambda key, n: jax.random.normal(key, (2 * ((n + 1) // 2), 3)), "(2, 3) for n=1"),
        (lambda key, n: jax.random.normal(key, (3, n)), "(3, 1) for n=1"),
        (lambda key, n: jax.random.normal(key), "() for n=1"),
        (lambda key, n: (jax.random.normal(key, (n, 3)), 1.0), "() for n=1"),
    ],
)
def test_another_number_of_samples(sample: Any, got: str) -> None:
    words = "run: problem.sample must return n samples along the first axis of its arrays; got the shape "
    assert refused(Own(sample=sample)) == words + got


def test_keys_as_samples() -> None:
    words = "run: problem.sample must return arrays of numbers; got random keys, which only sample may use"
    assert refused(Own(sample=jax.random.split)) == words


@pytest.mark.parametrize(
    ("parts", "got"),
    [
        ({"grad": lambda x, b: x[:2]}, "grad must return the form of x, float64[3]; got float64[2]"),
        ({"grad": lambda x, b: x.astype("float32")}, "grad must return the form of x, float64[3]; got float32[3]"),
        (
            {"grad": lambda x, b: (x, x)},
            "grad must return the form of x, float64[3]; got ('float64[3]', 'float64[3]')",
        ),
        ({"grad": lambda x, b: jnp.sum(b, axis=1)}, "grad must return the form of x, float64[3]; got float64[1]"),
        ({"full_grad": lambda x: jnp.sum(x)}, "full_grad must return the form of x, float64[3]; got float64[]"),
        ({"value": lambda x: x**2}, "value must return one floating-point number; got float64[3]"),
        ({"value": lambda x: 1}, "value must return one floating-point number; got int64[]"),
        (
            {"value": lambda x: (1.0, 2.0)},
            "value must return one floating-point number; got ('float64[]', 'float64[]')",
        ),
    ],
)
def test_results_of_another_form(parts: dict[str, Any], got: str) -> None:
    assert refused(Own(**parts)) == f"run: problem.{got}"


def test_losses_in_place_of_a_gradient_where_x_is_one_number() -> None:
    problem = Own(grad=lambda x, batch: jnp.sum(batch, axis=1), full_grad=None)
    words = "run: problem.grad must return the form of x, float64[1]; got float64[2] for 2 samples"
    assert refused(problem, jnp.ones(1)) == words


MEAN = "run: problem.full_grad must return the mean of problem.grad; got "


@pytest.mark.parametrize(
    ("parts", "got"),
    [
        ({"full_grad": lambda x: 2 * (x + x**3)}, "2 times that, near x0"),
        ({"full_grad": lambda x: (x + x**3) / 3}, "0.33 times that, near x0"),
        ({"full_grad": lambda x: -(x + x**3)}, "-1 times that, near x0"),
        ({"full_grad": lambda x: x + 3 * x**2}, "one that is "),
        ({"full_grad": lambda x: 0 * x}, "one that is "),
        ({"grad": lambda x, b: jnp.sum(x + x**3 + b, axis=0)}, "0.00098 times that, near x0"),
    ],
)
def test_a_full_gradient_that_is_not_the_mean(parts: dict[str, Any], got: str) -> None:
    """Also at a start where both are nothing."""
    assert refused(Own(**parts), np.zeros(3)).startswith(MEAN + got)


def test_a_formula_of_the_user_that_is_not_the_mean() -> None:
    def stream(objective: Any) -> Any:
        loss, sampler = lambda x, s: jnp.sum((x - s) ** 2) / 2, lambda key, n: jax.random.normal(key, (n, 3))
        return from_loss(loss, sampler, start=np.zeros(3), objective=objective)

    check_problem("run", stream(lambda x: jnp.sum(x**2) / 2 + 1.5), X)
    check_problem("run", stream(None), X)
    assert refused(stream(lambda x: jnp.sum(x**2))) == MEAN + "2 times that, near x0"


def test_a_finite_sum_of_ones_own() -> None:
    class Mine(FiniteSum):
        data = FIXED[:50]

        def loss(self, x: Any, row: Any) -> jax.Array:
            return jnp.sum((x - row) ** 2)

    class Wrong(Mine):
        def full_grad(self, x: Any) -> Any:
            return x - jnp.mean(jnp.asarray(self.data), axis=0)

    check_problem("run", Mine(), X)
    assert refused(Wrong()) == MEAN + "0.5 times that, near x0"


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("signed", [False, True])
def test_heavy_tails_raise_no_alarm(power: float, signed: bool) -> None:
    """exp(power z), z normal: with power 3 one sample in 15 is above the mean, and the variance hardly seen."""

    def sample(key: jax.Array, n: int) -> jax.Array:
        heavy = jnp.exp(power * jax.random.normal(key, (n, 3)))
        return heavy * jnp.array([1, -1, 1]) if signed else heavy

    mean = np.exp(power**2 / 2) * (np.array([1, -1, 1]) if signed else np.ones(3))
    check_problem("run", Own(sample=sample, full_grad=lambda x: x + x**3 + mean), X)


def test_rare_events_raise_no_alarm() -> None:
    """One sample in a thousand carries the mean."""
    rare = Own(
        sample=lambda key, n: jax.random.bernoulli(key, 1e-3, (n,)), grad=lambda x, b: 1e3 * jnp.mean(b) * (x + x**3)
    )
    check_problem("run", rare, X)


def test_a_cauchy_tail_raises_no_alarm() -> None:
    check_problem("run", Own(sample=lambda key, n: jax.random.cauchy(key, (n, 3))), X)


@pytest.mark.parametrize(
    "parts",
    [
        {"grad": lambda x, b: jnp.log(0.1 + x) + 0 * b[0], "full_grad": lambda x: jnp.log(0.1 + x)},  # not near x0
        {"grad": lambda x, b: jnp.sign(x) + b[0], "full_grad": lambda x: jnp.where(x >= 0, 1.0, -1.0)},  # a kink at 0
        {"sample": lambda key, n: jax.random.choice(key, 5, (n,), replace=False), "size": 5, "grad": lambda x, b: x}
        | {"full_grad": lambda x: x},
        {"is_exact": False, "full_grad": lambda x: 1 / 0, "value": lambda x: 1 / 0},
        {"full_grad": None, "value": None},
        {"grad": lambda x, b: 1e-9 * x + 0 * b[0], "full_grad": lambda x: 0 * x},  # rounding of a constant
    ],
)
def test_odd_problems_are_taken(parts: dict[str, Any]) -> None:
    check_problem("run", Own(**parts), jnp.zeros(3))


def test_numbers_that_are_not_finite_at_the_start() -> None:
    problem = Own(grad=lambda x, b: jnp.log(x) + 0 * b[0], full_grad=None)
    words = "run: problem must have finite gradients at x0; got one that is not finite, of the first 8 samples"
    assert refused(problem, jnp.zeros(3)) == words

    class Mine(FiniteSum):
        def __init__(self, rows: Any) -> None:
            self.data = rows

        def loss(self, x: Any, row: Any) -> jax.Array:
            return jnp.log(row + 1) @ x

    words = "run: problem must have finite losses and gradients at x0; got a loss that is not finite, of row 4"
    assert refused(Mine(np.where(np.arange(9)[:, None] == 4, -1.0, FIXED[:9] ** 2))) == words
    assert refused(Mine(np.where(np.arange(9)[:, None] >= 4, -1.0, FIXED[:9] ** 2))) == words + " (and of 4 more rows)"
    check_problem("run", Mine(FIXED[:9] ** 2), X)


def test_finite_numbers_are_looked_for_in_every_object_of_a_class() -> None:
    """One that passed says nothing of the numbers of the next."""

    def loss(x: Any, row: Any) -> jax.Array:
        return jnp.sqrt(row @ x)

    rows = np.ones((6, 3))
    check_problem("run", from_loss(loss, rows, np.ones(3)), np.ones(3))
    words = "run: problem must have finite losses and gradients at x0; got a gradient that is not finite, of row 2"
    assert refused(from_loss(loss, rows * (np.arange(6) != 2)[:, None], np.ones(3)), np.ones(3)) == words


@pytest.mark.parametrize("problem", [Toy(3), Toy(3, s0=30.0), Toy(3, s0=0.0, s1=5.0), rows()])
def test_right_problems_are_taken(problem: Any) -> None:
    check_problem("run", problem, X if isinstance(problem, Toy) else jnp.zeros(problem.slopes.shape[1]))


@pytest.mark.parametrize("name", ["least-squares", "chain"])
def test_the_mean_of_a_catalogued_problem(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not asked in a run; if they are, they pass."""
    monkeypatch.setattr(check, "_proven", lambda problem: False)
    check_problem("run", get(name), get(name).start())


def test_a_problem_of_the_catalogue_is_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_mean", lambda *args: 1 / 0)
    for problem in (get("quadratic"), from_loss(lambda x, row: x @ row, np.eye(3), start=np.ones(3))):
        check_problem("run", problem, problem.start())
    with pytest.raises(ZeroDivisionError):
        check_problem("run", Own(), X)


def test_a_problem_is_asked_once() -> None:
    asked = []
    problem = Own(value=lambda x: jnp.sum(asked.append(x) or x))
    check_problem("run", problem, X)
    check_problem("run", problem, X + 1)
    assert len(asked) == 1
    check_problem("run", problem, jnp.ones((2, 3)))
    assert len(asked) == 2


def test_another_object_that_differs_in_numbers_alone_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """But its numbers are looked at."""
    traced, grad = [], Toy.grad
    monkeypatch.setattr(Toy, "grad", lambda self, x, batch: traced.append(x) or grad(self, x, batch))
    check_problem("run", Toy(3, s0=1.0), X)
    traced.clear()
    check_problem("run", Toy(3, s0=2.0), X)
    assert not traced
    with pytest.raises(ValueError, match="finite gradients at x0"):
        check_problem("run", Toy(3, s0=np.inf), X)


def test_errors_of_the_problem_pass_as_they_are() -> None:
    def wrong(*args: Any) -> Any:
        raise KeyError("mine")

    for part in ("sample", "grad", "full_grad", "value"):
        with pytest.raises(KeyError, match="mine"):
            check_problem("run", Own(**{part: wrong}), X)


def test_a_point_of_another_form_than_the_start() -> None:
    problem = get("least-squares")
    words = "check: x0 must have the shape (5,) of the problem's start; got (4,)"
    with pytest.raises(ValueError) as error:
        check_problem("check", problem, jnp.ones(4))
    assert str(error.value) == words


@pytest.mark.parametrize(
    ("x0", "expected"),
    [
        ([0.0, 1.0], np.array([0.0, 1.0])),
        ([0.0], np.array([0.0])),
        ((0, 0.5), np.array([0.0, 0.5])),
        ([[0.0, 1.0], (2, 3)], np.array([[0.0, 1.0], [2.0, 3.0]])),
        (list(np.ones(2, np.float32)), np.ones(2, np.float32)),
        (1.5, np.array(1.5)),
    ],
)
def test_points(x0: Any, expected: np.ndarray) -> None:
    found = as_point("run", x0)
    assert isinstance(found, jax.Array) and found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_points_in_parts() -> None:
    assert [leaf.shape for leaf in as_point("run", [np.zeros(2), np.ones(3)])] == [(2,), (3,)]
    assert as_point("run", {"w": [1.0, 2.0], "b": np.zeros(())})["w"].shape == (2,)


def test_numbers_in_lists_stay_if_the_problem_takes_them() -> None:
    def sample(key: jax.Array, n: int) -> jax.Array:
        return jax.random.normal(key, (n,))

    parts = Own(sample=sample, grad=lambda x, b: [x[0] + jnp.mean(b), x[1]], full_grad=lambda x: [*x], value=None)
    kept = as_point("run", [1.0, 2.0], parts)
    assert isinstance(kept, list)
    check_problem("run", parts, kept)
    assert as_point("run", [1.0, 2.0, 3.0], Own()).shape == (3,)
    assert as_point("run", (1.0, 2.0, 3.0), Own()).shape == (3,)


@pytest.mark.parametrize(
    ("x0", "sentence"),
    [
        ([0, 0], "run: x0 must be float32 or float64 in all its leaves; got int"),
        (np.arange(3), "run: x0 must be float32 or float64 in all its leaves; got int64"),
        ([True, 0.5], "run: x0 must be float32 or float64 in all its leaves; got bool, float"),
        ([0.5, "a"], "run: x0 must be float32 or float64 in all its leaves; got float, str"),
        ([], "run: x0 must be float32 or float64 in all its leaves; got no leaves"),
        (None, "run: x0 must be float32 or float64 in all its leaves; got no leaves"),
        ([[0.0, 1.0], [2.0]], "run: x0 must be an array; got lists of different lengths"),
        ([0.0, [1.0]], "run: x0 must be an array; got lists of different lengths"),
        (np.ones(0), "run: x0 must hold at least one number; got none"),
        ([0.0, np.nan], "run: x0 must be finite numbers; got nan in x0, row 1"),
        ({"w": np.array([[0, np.inf]])}, "run: x0 must be finite numbers; got inf in x0['w'], row 0, column 1"),
    ],
)
def test_points_that_are_refused(x0: Any, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        as_point("run", x0)
    assert str(error.value) == sentence


def test_a_list_in_single_precision() -> None:
    with jax.enable_x64(False):
        assert as_point("run", [0.1, 0.2]).dtype == np.float32
        with pytest.raises(
            ValueError, match=r"^run: x0 must be float32 \(float64 needs jax_enable_x64\); got float64$"
        ):
            as_point("run", list(np.ones(3)))
