"""The skeletons in docs/developer are complete: each is used as its users would use a copy of it."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer
from toy import Toy

from normstorm import Constants, minimize
from normstorm.algorithms import Algorithm
from normstorm.algorithms.estimators import Momentum
from normstorm.algorithms.schedules import Constant
from normstorm.cli.options import given, parsed
from normstorm.engine import Trace, run
from normstorm.problems.check import check_problem
from normstorm.random import seed_words, step_key
from normstorm.report.requests import command
from normstorm.theory import Certificate, bound
from normstorm.theory.certificates import make_case

SKELETONS = Path(__file__).parents[1] / "docs" / "developer" / "skeletons"
ALPHA, ETA, K, STEPS, SEEDS = 0.3, 0.1, 2, 40, (3, 8)
TOY, START = Toy(3), np.array([1.0, -2.0, 0.5])


def skeleton(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"skeleton_{name}", SKELETONS / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def test_every_skeleton_is_tried_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    for file in SKELETONS.glob("*.py"):
        assert f'skeleton("{file.stem}")' in text


@cache
def drawn() -> dict[int, np.ndarray]:
    """The samples of all steps, by seed."""
    words, steps = jnp.asarray(seed_words(SEEDS)), jnp.arange(1, STEPS + 1)
    draw = jax.vmap(jax.vmap(lambda word, t: TOY.sample(step_key(word, t), K), (None, 0)), (0, None))
    return dict(zip(SEEDS, np.asarray(jax.jit(draw)(words, steps)), strict=True))


def momentum(seed: int) -> Iterator[tuple[np.ndarray, Any]]:
    """x_t and m_t of SGD with momentum on the toy problem; the caller sends x_{t+1}."""
    x, m = START, None
    for samples in drawn()[seed]:
        g = np.mean((1 + TOY.s1 * samples[:, :1]) * (x + TOY.q * x**3) + TOY.s0 * samples[:, 1:], axis=0)
        m = g if m is None else (1 - ALPHA) * m + ALPHA * g
        x = yield x, m


def in_numpy(seed: int, direction: Any) -> np.ndarray:
    walk = momentum(seed)
    x, m = next(walk)
    for _ in range(STEPS - 1):
        x, m = walk.send(x - ETA * direction(m))
    return x - ETA * direction(m)


def ran(algorithm: Algorithm) -> Trace:
    found = run(TOY, algorithm, START, STEPS, SEEDS)
    assert found.status.tolist() == ["ok", "ok"] and set(found.cost) == {algorithm.cost(STEPS)} == {K * STEPS}
    return found


def test_the_algorithm_is_its_recursion() -> None:
    made = skeleton("algorithm").my_algorithm(alpha=ALPHA, eta=ETA, c=0.5, K=K)
    found = ran(made)
    for x, seed in zip(found.last, SEEDS, strict=True):
        expected = in_numpy(seed, lambda m: m / (1 + np.linalg.norm(m) / 0.5))
        np.testing.assert_allclose(x, expected, rtol=1e-11)
    with pytest.raises(ValueError, match=r"^my_algorithm: c must be a finite number > 0; got c=0$"):
        skeleton("algorithm").my_algorithm(alpha=ALPHA, eta=ETA, c=0)


def test_the_geometry_is_a_word_of_an_algorithm() -> None:
    made = skeleton("geometry")
    found = ran(Algorithm(Momentum(K), made.LargestNorm(0.1), Constant(ALPHA, ETA), "largest"))
    for x, seed in zip(found.last, SEEDS, strict=True):
        largest = [0.1]

        def direction(m: np.ndarray, largest: list[float] = largest) -> np.ndarray:
            largest[0] = max(largest[0], float(np.linalg.norm(m)))
            return m / largest[0]

        np.testing.assert_allclose(x, in_numpy(seed, direction), rtol=1e-11)


def test_the_problem_keeps_its_promises() -> None:
    problem = skeleton("problem").my_problem(dim=3, r=0.5)
    check_problem("run", problem, problem.start())
    samples = problem.sample(jax.random.key(0), 20)
    for x, y in np.random.default_rng(0).normal(0, 2, (20, 2, 3)):
        change, off = problem.grad(x, samples) - problem.grad(y, samples), problem.grad(x, samples[:1])
        assert np.linalg.norm(change) <= problem.smoothness("almost-sure")[0] * np.linalg.norm(x - y)
        assert np.linalg.norm(off - problem.full_grad(x)) <= problem.deviation("almost-sure")[0] * (1 + 1e-12)
        np.testing.assert_allclose(jax.grad(problem.value)(jnp.asarray(x)), problem.full_grad(x), rtol=1e-12)
        spread, near = problem.range(x, np.linalg.norm(x - y))
        assert np.linalg.norm(off - problem.full_grad(x)) <= spread and np.linalg.norm(change) <= near
    found = minimize(problem, budget=3000, confidence=0.9, method="plan", progress=False)
    assert found.violations == 0 and found.certificate.upper_bound < problem.constants().first_gradient


def test_the_certificate_is_a_bound_for_every_case() -> None:
    known = Constants(L0=1, L1=0.5, sigma0=1, sigma1=0.1, gap=1, grad_norm=1)
    certificate = Certificate("my_certificate", "high probability", skeleton("certificate").my_certificate)
    case = make_case(known, T=[100, 10_000], alpha=0.5, eta=[[1e-3], [3.0]], delta=0.01)
    found = certificate(case).value
    assert found.shape == (2, 2) and np.isfinite(found[0]).all() and np.isinf(found[1]).all(), "3.0 > 1 / L1"
    sharper = bound("sure", known, T=[100, 10_000], alpha=0.5, eta=1e-3, delta=0.01).value
    assert (found[0] >= sharper).all() and (found[0] < 100 * sharper).all()


def test_the_command_reads_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    made = skeleton("command")
    app = typer.Typer()
    app.command("my-command")(made.my_command)
    parser = typer.main.get_command(app)
    asked = made.MyRequest("cosh", "mean-square", 2.0)
    words = command("my-command", asked).split()[2:]
    params = parser.make_context("my-command", [*words, "--json"]).params
    assert parsed(made.MyRequest, params) == asked and given(made.MyInvocation, params) == {"json": True}
    shown = []
    for scale in ("1", "2"):
        parser.main(["cosh", "--scale", scale, "--json"], standalone_mode=False)
        shown.append(json.loads(capsys.readouterr().out)["gap"])
    assert shown[1] == 2 * shown[0]
