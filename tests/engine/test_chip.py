"""The loop on chip gives what the ordinary loop gives: here by Pallas' interpreter, on a GPU by the GPU."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from normstorm.algorithms import momentum_nsgd, normalized_storm
from normstorm.engine import job, layout, run
from normstorm.engine.gpu import kernel as chip
from normstorm.problems import registry

FIGURES = Path(__file__).parents[2] / "benchmarks" / "results" / "engine-gpu.json"
STORM = normalized_storm(alpha=0.1, eta=0.01, K=3, k=2)
SYNTHETIC = ("quartic", "cosh-cosine", "exp-quad")
FIELDS = ("mean_grad_norm", "min_grad_norm", "grad_norm", "running_mean", "value", "error", "last", "estimate")
CASES = [
    ("quartic", STORM),
    ("cosh-cosine", momentum_nsgd(alpha=0.1, eta=0.01, K=2)),
    ("exp-quad", normalized_storm(alpha=0.1, eta=0.01)),
    ("separable-logistic", STORM),
]


@pytest.fixture(autouse=True)
def nothing_found():
    """Every test finds out anew how a program runs, and leaves nothing behind."""
    job._FOUND.clear()
    yield
    job._FOUND.clear()


@pytest.fixture
def on_chip(monkeypatch):
    """What makes later runs go as on an accelerator, with few lanes."""

    def settings() -> None:
        job._FOUND.clear()
        monkeypatch.setattr(layout, "accelerated", lambda: True)
        monkeypatch.setattr(layout, "MANY", 64)

    return settings


def go(name, algorithm, dtype, seeds=5, steps=60, **options):
    problem = registry.get(name, **({"dim": 3} if name in SYNTHETIC else {}))
    start = jax.tree.map(lambda v: jnp.asarray(v, dtype), problem.start())
    return run(problem, algorithm, start, steps, seeds, records=7, candidates=3, **options)


def was_on_chip():
    return [shape.chip for shape, _ in job._FOUND.values()] == [True]


def assert_same(a, b, tolerance):
    for field in FIELDS:
        scale = np.nanmax(np.abs(getattr(b, field)))
        np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=0, atol=tolerance * scale, err_msg=field)
    for field in ("cost", "record_cost", "diverged_at"):
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    for pick in ("smallest", "uniform", "candidates"):
        np.testing.assert_array_equal(getattr(a, pick).step, getattr(b, pick).step)
        np.testing.assert_allclose(getattr(a, pick).x, getattr(b, pick).x, rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize(("name", "algorithm"), CASES)
def test_interpreted(name, algorithm, on_chip):
    plain = go(name, algorithm, "float64")
    on_chip()
    ours = go(name, algorithm, "float64")
    assert was_on_chip()
    assert_same(ours, plain, 1e-13)


def test_interpreted_in_single_precision(on_chip):
    plain = go("quartic", STORM, "float32")
    on_chip()
    ours = go("quartic", STORM, "float32")
    assert was_on_chip()
    assert ours.last.dtype == np.float32
    assert_same(ours, plain, 1e-5)


def test_alone_in_a_crowd_and_in_pieces(on_chip):
    """70 seeds make two groups; blocks have 512 steps, so the pieces end inside them and at their ends."""
    on_chip()
    crowd = go("quartic", STORM, "float64", seeds=range(70), steps=530)
    alone = go("quartic", STORM, "float64", seeds=[66], steps=530)
    pieces = go("quartic", STORM, "float64", seeds=[66], steps=530, progress_steps=100)
    assert was_on_chip()
    for other, i in ((alone, 0), (pieces, 0)):
        for field in FIELDS:
            np.testing.assert_array_equal(getattr(crowd, field)[66], getattr(other, field)[i], err_msg=field)
        np.testing.assert_array_equal(crowd.candidates.x[66], other.candidates.x[i])
    single = go("quartic", STORM, "float64", seeds=[66], steps=1)
    assert single.grad_norm[0, 0] == single.mean_grad_norm[0] == crowd.grad_norm[66, 0]


@pytest.mark.parametrize("name", ["dro-chi2", "tanh-network"])
def test_what_does_not_fit_runs_in_the_ordinary_loop(name, on_chip):
    plain = go(name, STORM, "float64", seeds=2, steps=20)
    on_chip()
    ours = go(name, STORM, "float64", seeds=2, steps=20)
    assert not was_on_chip()
    assert_same(ours, plain, 1e-11)


def test_what_the_compiler_refuses_runs_in_the_ordinary_loop(on_chip, monkeypatch):
    plain = go("quartic", STORM, "float64")
    on_chip()

    def refuse(*_):
        raise NotImplementedError("an operation that Triton does not know")

    monkeypatch.setattr(layout, "MANY", 32)  # a program that was not compiled before
    monkeypatch.setattr(chip, "steps", refuse)
    ours = go("quartic", STORM, "float64")
    assert not was_on_chip()
    assert_same(ours, plain, 1e-13)


class Plain:
    """A class that JAX does not know, over an array of a module and with an empty leaf."""

    name = "plain"
    is_exact = True
    shift = jnp.asarray([1.0, 2.0, 3.0])

    def sample(self, key, n):
        return jax.random.normal(key, (n, 3))

    def grad(self, x, batch):
        return {"a": jnp.mean(batch, 0) + x["a"] * self.shift, "none": x["none"]}

    def full_grad(self, x):
        return {"a": x["a"] * self.shift, "none": x["none"]}


@pytest.mark.parametrize("rows", [0, 1])
def test_a_class_over_arrays(rows, on_chip):
    start = {"a": jnp.ones(3), "none": jnp.ones((rows, 2))}
    plain = run(Plain(), STORM, start, 30, 3)
    on_chip()
    ours = run(Plain(), STORM, start, 30, 3)
    assert was_on_chip() == (rows > 0)
    np.testing.assert_allclose(ours.last["a"], plain.last["a"], rtol=1e-12)
    np.testing.assert_allclose(ours.running_mean, plain.running_mean, rtol=1e-12)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason=f"needs a GPU; the last figures are in {FIGURES.name}")
@pytest.mark.parametrize(("name", "algorithm"), CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-11), ("float32", 1e-4)])
def test_on_a_gpu(name, algorithm, dtype, tolerance, monkeypatch):
    ours = go(name, algorithm, dtype)
    assert was_on_chip()
    job._FOUND.clear()
    monkeypatch.setattr(chip, "fits", lambda *_: False)
    assert_same(ours, go(name, algorithm, dtype), tolerance)


def test_committed_figures():
    """The last measurement on a GPU: fast enough, equal to the ordinary loop, bit-identical in any company."""
    report = json.loads(FIGURES.read_text(encoding="utf-8"))
    for row in report["speed"]:
        assert row["target"] is None or row["seed_steps_per_second"]["chip"] >= row["target"]
    assert all(report["identity"].values())
    limits = {"float64": 1e-11, "float32": 3e-5}
    for row in report["equality"]:
        assert max(row["running_mean"], row["value"]) <= limits[row["dtype"]]
        assert row["last"] <= 100 * limits[row["dtype"]]  # rounding grows along an unstable path
    assert sum(row["chip"] for row in report["equality"]) >= 10
