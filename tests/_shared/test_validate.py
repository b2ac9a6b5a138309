"""What counts as a number is the same in every room, and what does not is refused in the same sentence."""

import inspect
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import own
import pytest

from normstorm._shared import validate
from normstorm.algorithms import introspection
from normstorm.algorithms.catalogue import CATALOGUE, normalized_storm
from normstorm.algorithms.sgd import sgd
from normstorm.lab.compare.request import CompareRequest
from normstorm.problems import linear, noise, registry, synthetic
from normstorm.problems.user import from_loss
from normstorm.solve import certify
from normstorm.theory import Constants, bound, paper_expectation, plan

FORMS: dict[str, tuple[Callable[[float], Any], Callable[[int], Any]]] = {
    "NumPy scalar": (np.float32, np.int64),
    "NumPy array": (lambda v: np.array(v, np.float32), np.array),
    "JAX array": (jnp.float32, jnp.asarray),
}
NO_NUMBERS = {
    "True": True,
    "NumPy's True": np.True_,
    "True in an array": np.array(True),
    "JAX's True": jnp.array(True),
    "text": "1",
    "NumPy's text": np.str_("1"),
    "bytes": b"1",
    "None": None,
    "a list": [1],
    "one number with an axis": np.ones(1),
    "JAX's with an axis": jnp.ones(1),
    "complex": 1j,
    "NumPy's complex": np.complex64(1),
    "a length of time": np.timedelta64(1),
    "an object in an array": np.array(None),
    "a class": np.float64,
}
CHECKS: dict[str, tuple[Callable[[Any], Any], str, float, tuple[float, ...]]] = {
    "positive": (lambda v: validate.positive("f", "a", v), "a finite number > 0", 0.5, (0, -1, math.inf)),
    "nonnegative": (lambda v: validate.nonnegative("f", "a", v), "a finite number >= 0", 0.5, (-1, math.inf)),
    "fraction": (lambda v: validate.fraction("f", "a", v), "a number in [0, 1]", 0.5, (-0.1, 1.1)),
    "below one": (lambda v: validate.fraction("f", "a", v, below_one=True), "a number in [0, 1)", 0.5, (-0.1, 1)),
    "weight": (lambda v: validate.weight("f", v, "a"), "a number in (0, 1]", 0.5, (0, 1.1)),
    "number": (lambda v: validate.number("f", "a", v), "a finite number", -0.5, (math.inf, -math.inf)),
    "whole": (lambda v: validate.whole("f", "a", v), "an integer >= 1", 3, (0, -1, 1.0, 1.5)),
    "in a range": (lambda v: validate.whole("f", "a", v, 2, 7), "an integer in [2, 7]", 3, (1, 8)),
    "of a power of ten": (lambda v: validate.whole("f", "a", v, 1, 10**18), "an integer in [1, 1e+18]", 3, (10**19,)),
}


@pytest.mark.parametrize("check", CHECKS)
def test_numbers_of_every_library_are_python_s(check: str) -> None:
    checked, _, good, _ = CHECKS[check]
    for form in FORMS.values():
        found = checked(form[isinstance(good, int)](good))
        assert type(found) is type(good) and found == good
    assert checked(good) == good


@pytest.mark.parametrize("check", CHECKS)
def test_the_sentence(check: str) -> None:
    checked, allowed, _, bad = CHECKS[check]
    for value in (*NO_NUMBERS.values(), *bad, math.nan):
        with pytest.raises(ValueError) as error:
            checked(value)
        assert str(error.value) == f"f: a must be {allowed}; got a={value!r}"


def test_other_sentences() -> None:
    with pytest.raises(ValueError, match=r"^f: k must be an integer in \[1, K\]; got k=9, K=8$"):
        validate.batch("f", "k", 9, at_most=8)
    with pytest.raises(ValueError, match=r"^f: a must be True or False; got a=1$"):
        validate.flag("f", "a", 1)
    with pytest.raises(ValueError, match=r"^f: a must be one of u, v; got a=array\(\['u', 'v'\]"):
        validate.one_of("f", "a", np.array(["u", "v"]), ("u", "v"))
    with pytest.raises(ValueError, match=r"^f: confidence must be a number in \(0, 1\), or None; got confidence=True$"):
        validate.confidence("f", True, ", or None")
    with pytest.raises(ValueError, match=r"^f: confidence must be at least 1e-16; got confidence=1e-17$"):
        validate.confidence("f", 1e-17)


def test_booleans_and_words() -> None:
    for true in (True, np.True_, np.array(True), jnp.array(True)):
        assert validate.flag("f", "a", true) is True
    for other in (1, 1.0, "yes", None, np.array([True]), np.array(1)):
        assert validate.truth(other) is None
    assert type(validate.one_of("f", "a", np.str_("u"), ("u", "v"))) is str


def test_numbers_that_no_array_library_made() -> None:
    assert validate.real(Decimal("0.5")) == 0.5 and validate.integer(10**30) == 10**30
    assert math.isnan(validate.real(10**400)) and validate.integer(Decimal(3)) is None
    assert validate.real(jnp.bfloat16(0.5)) == 0.5 and validate.real(np.longdouble(0.5)) == 0.5


def test_tracers_have_no_value_that_could_be_wrong() -> None:
    seen = []

    def look(a: Any, n: Any, row: Any, yes: Any) -> Any:
        seen.append([validate.traced(v) for v in (a, n, row, yes)])
        assert validate.positive("f", "a", a) is a and validate.weight("f", a) is a
        assert math.isnan(validate.real(a)) and validate.integer(n) is None and validate.truth(yes) is None
        for refused in (row, yes):
            with pytest.raises(ValueError, match=r"^f: a must be a finite number > 0; got a="):
                validate.positive("f", "a", refused)
        with pytest.raises(ValueError, match=r"^f: K must be an integer >= 1; got K="):
            validate.batch("f", "K", n)
        with pytest.raises(ValueError, match=r"^f: a must be a finite number; got a="):
            validate.number("f", "a", a)
        return a

    jax.eval_shape(look, 1.0, 1, jnp.ones(2), True)
    jax.eval_shape(jax.vmap(look), jnp.ones(3), jnp.ones(3, int), jnp.ones((3, 2)), jnp.ones(3, bool))
    assert seen == [[True, True, False, False]] * 2
    assert not any(map(validate.traced, (1.0, np.ones(()), jnp.ones(()), jax.ShapeDtypeStruct((), float), None)))


class Plain:
    """F = ||x||^2/2 plus (s, x) with a sample s that is the key's number."""

    def sample(self, key: Any, n: int) -> Any:
        return jax.random.key_data(key)[-1:].astype(float) + jnp.arange(n)

    def grad(self, x: Any, batch: Any) -> Any:
        return x + jnp.mean(batch)


def choices(make: Callable[..., Any]) -> list[dict[str, Any]]:
    """The defaults, and every word and flag once."""
    parameters = inspect.signature(make).parameters.values()
    return [{}, *({p.name: option} for p in parameters for option in introspection._options(make, p))]


def floats(make: Callable[..., Any]) -> list[str]:
    return [p.name for p in inspect.signature(make).parameters.values() if p.annotation == "float"]


def integers(make: Callable[..., Any]) -> list[str]:
    return [p.name for p in inspect.signature(make).parameters.values() if p.annotation.startswith("int")]


def same(one: Any, other: Any) -> bool:
    """The same structure with the same leaves, of the same types."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    alike = all(type(a) is type(b) and np.array_equal(a, b) for a, b in pairs)
    # As text, in which np.int64(3) is not 3.
    return alike and str(jax.tree.structure(one)) == str(jax.tree.structure(other))


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_algorithm_does_not_depend_on_how_its_numbers_are_given(name: str) -> None:
    make = CATALOGUE[name]
    for as_float, as_int in FORMS.values():
        whole = {n: as_int(3) for n in integers(make)}
        given = make(**{n: as_float(0.5) for n in floats(make)}, **whole)
        assert same(given, make(**dict.fromkeys(floats(make), 0.5), **dict.fromkeys(whole, 3)))


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_algorithm_refuses_what_is_no_number(name: str) -> None:
    make = CATALOGUE[name]
    for parameter in (*floats(make), *integers(make)):
        for value in (True, np.array(True), "1", np.ones(1), math.nan):
            with pytest.raises(ValueError, match=f"^{name}: {parameter} must be .*; got {parameter}=") as error:
                introspection.example(make, **{parameter: value})
            assert repr(value) in str(error.value)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_sweep_over_floats_is_a_vmap(name: str) -> None:
    """Traced through two steps, with every word and flag; all floats at once."""
    make, problem = CATALOGUE[name], registry.get("matrix-regression")
    for chosen in choices(make):

        def steps(given: dict[str, Any], chosen: dict[str, Any] = chosen) -> Any:
            algorithm = introspection.example(make, **given, **chosen)
            samples = algorithm.draw(problem, jax.random.key(0))
            state, _ = algorithm.first(problem, problem.start(), samples)
            return algorithm.step(problem, state, samples, 2)[0].x

        swept = {n: jax.ShapeDtypeStruct((5,), jnp.float32) for n in floats(make)}
        assert jax.eval_shape(jax.vmap(steps), swept).shape == (5, *problem.start().shape)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_swept_algorithm_has_the_numbers_of_each(name: str) -> None:
    make, values = CATALOGUE[name], np.array([0.25, 0.5])  # both are exact, and so is what is made of them

    def leaves(value: Any) -> list[Any]:
        return jax.tree.leaves(make(**dict.fromkeys(floats(make), value), **dict.fromkeys(integers(make), 3)))

    swept = jax.vmap(leaves)(values)
    for i, value in enumerate(values):
        np.testing.assert_allclose([leaf[i] for leaf in swept], leaves(float(value)), rtol=1e-6)


def test_a_sweep_runs_each_of_its_algorithms() -> None:
    problem, x = Plain(), jnp.array([1.0, -2.0])

    def last(alpha: Any, eta: Any) -> Any:
        algorithm = normalized_storm(alpha=alpha, eta=eta, K=2)
        samples = [algorithm.draw(problem, jax.random.key(t)) for t in range(2)]
        state, _ = algorithm.first(problem, x, samples[0])
        return algorithm.step(problem, state, samples[1], 2)[0].x

    alphas, etas = np.array([0.1, 0.9]), np.array([0.3, 0.01])
    swept = jax.vmap(last)(alphas, etas)
    for i in range(2):
        np.testing.assert_allclose(swept[i], last(alphas[i], etas[i]), rtol=1e-5)
    assert not np.allclose(swept[0], swept[1])


def test_a_derivative_by_a_parameter_is_not_lost() -> None:
    """A number under differentiation may have a value, and must not be replaced by it."""
    problem, x = Plain(), jnp.array([1.0, -2.0])

    def moved(eta: Any) -> Any:
        algorithm = sgd(eta=eta)
        return algorithm.first(problem, x, algorithm.draw(problem, jax.random.key(0)))[0].x[0]

    step = x[0] - moved(0.5)
    assert float(jax.grad(moved)(0.5)) == pytest.approx(-2 * float(step), rel=1e-5) and float(step) != 0


def options(make: Callable[..., Any], as_float: Callable[[float], Any], as_int: Callable[[int], Any]) -> dict[str, Any]:
    """The default numbers of a factory, given otherwise."""
    default = {p.name: p.default for p in inspect.signature(make).parameters.values()}
    kinds = {n: as_float if isinstance(v, float) else as_int for n, v in default.items() if v is not None}
    return {name: kind(default[name]) for name, kind in kinds.items()}


@pytest.mark.parametrize("name", registry.PROBLEMS)
def test_a_problem_does_not_depend_on_how_its_numbers_are_given(name: str) -> None:
    make = registry.PROBLEMS[name].make
    plain = registry.get(name, **options(make, lambda v: float(np.float32(v)), int))
    for form in FORMS.values():
        assert same(registry.get(name, **options(make, *form)), plain)


@pytest.mark.parametrize("name", registry.PROBLEMS)
def test_a_problem_refuses_what_is_no_number(name: str) -> None:
    for parameter in options(registry.PROBLEMS[name].make, float, int):
        for value in (True, np.array(True), "1"):
            with pytest.raises(ValueError, match=rf"^[\w-]+: {parameter} must be .*; got {parameter}="):
                registry.get(name, **{parameter: value})


def test_the_numbers_that_were_refused() -> None:
    assert registry.get("quadratic", dim=np.int64(3)).start().shape == (3,)
    found, plain = synthetic.exp_quad(l0=np.float32(0.5)), synthetic.exp_quad(l0=0.5)
    assert same(found, plain) and found.constants() == plain.constants()
    assert same(noise.sphere(np.float32(0.5), jnp.float32(0.25)), noise.sphere(0.5, 0.25))
    assert linear.least_squares(dim=np.array(2)).constants() == linear.least_squares(dim=2).constants()
    mine = from_loss(own.squares, own.ROWS, start=own.START, infimum=np.array(0.0))
    assert type(mine.infimum) is float


def test_theory_takes_the_same_numbers() -> None:
    given = {"L0": 1.0, "L1": 0.5, "sigma0": 1.0, "sigma1": 0.0, "gap": 2.0}
    known = Constants(**given)
    for as_float, as_int in FORMS.values():
        assert Constants(**{n: as_float(v) for n, v in given.items()}) == known
        assert plan(known, horizon=as_int(100), confidence=as_float(0.5)) == plan(known, horizon=100, confidence=0.5)
        sizes = {"horizon": as_int(100), "batch": as_int(4), "sub_batch": as_int(2)}
        assert plan(known, **sizes) == plan(known, horizon=100, batch=4, sub_batch=2)
        assert paper_expectation(known, as_int(9), as_int(4), as_int(2)) == paper_expectation(known, 9, 4, 2)
        asked = {"T": as_int(9), "alpha": as_float(0.5), "eta": as_float(0.25), "delta": as_float(0.5)}
        expected = bound("union", known, T=9, alpha=0.5, eta=0.25, delta=0.5)
        assert bound("union", known, **asked).value == expected.value
    for wrong in (True, np.array(True), np.ones(1)):
        with pytest.raises(ValueError, match=r"^Constants: L0 must be a finite number >= 0; got L0="):
            Constants(**given | {"L0": wrong})
        with pytest.raises(
            ValueError, match=re.escape(f"plan: horizon must be an integer in [1, 1e+18]; got horizon={wrong!r}")
        ):
            plan(known, horizon=wrong)


def test_theory_wants_numbers_that_are_known() -> None:
    def constants(L0: Any) -> Any:
        with pytest.raises(ValueError, match=r"^Constants: L0 must be a finite number >= 0; got L0="):
            Constants(L0=L0, L1=0, sigma0=1, sigma1=0, gap=1)
        return L0

    jax.eval_shape(constants, 1.0)


def test_solver_and_lab_take_the_same_numbers() -> None:
    x = np.ones(3)
    plain = certify(own.problem, x, 0.5, 8, seed=1)
    for as_float, as_int in FORMS.values():
        assert certify(own.problem, x, as_float(0.5), as_int(8), seed=as_int(1)) == plain
        given = {"budget": as_int(9), "seeds": as_int(3), "targets": [as_float(0.5)], "tune": np.True_}
        found = CompareRequest.from_dict(given)
        assert found == CompareRequest.from_dict({"budget": 9, "seeds": 3, "targets": [0.5], "tune": True})
        assert type(found.budget) is int and type(found.targets[0]) is float and found.tune is True
