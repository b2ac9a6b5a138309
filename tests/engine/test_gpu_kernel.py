"""The loop on chip gives what the ordinary loop gives: here by Pallas' interpreter, on a GPU by the GPU."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from normstorm.algorithms import CATALOGUE, momentum_nsgd, normalized_storm
from normstorm.engine import batches, execution, run
from normstorm.engine.execution import prepare
from normstorm.engine.gpu import kernel
from normstorm.problems import registry

FIGURES = Path(__file__).parents[2] / "benchmarks" / "results" / "engine-gpu.json"
STORM = normalized_storm(alpha=0.1, eta=0.01, K=2, k=1)
SYNTHETIC = ("quartic", "cosh-cosine", "exp-quad")
FIELDS = (
    *("mean_grad_norm", "mean_by_cost", "mean_estimate_norm", "min_grad_norm"),
    *("grad_norm", "running_mean", "running_mean_by_cost", "value", "error"),
)
FIELDS += ("last", "estimate")
CASES = {
    "storm": ("quartic", STORM),
    "momentum": ("cosh-cosine", momentum_nsgd(alpha=0.1, eta=0.01)),
    "table": ("separable-logistic", normalized_storm(alpha=0.1, eta=0.01)),
    "averaged": ("exp-quad", CATALOGUE["averaged_sgd"](eta=0.01)),
    "schedule-free": ("quartic", CATALOGUE["schedule_free_sgd"](eta=0.01, beta=0.8)),
}


@pytest.fixture
def on_gpu(monkeypatch):
    """Makes later runs go as on a GPU, in batches of 64 seeds, with a kernel unless said otherwise."""
    prepared = execution.prepare

    def settings(width=64, chip=True):
        def prepare(*args, **options):
            found = prepared(*args, **options)
            assert found.config.on_chip == chip
            return found

        monkeypatch.setattr(batches, "prepare", prepare)
        monkeypatch.setattr(execution, "platform", lambda: "gpu")
        monkeypatch.setattr(execution, "WIDTHS", {"gpu": (1, width)})
        monkeypatch.setattr(kernel, "LEAST_WIDTH", width)

    return settings


def go(name, algorithm, dtype="float64", seeds=5, steps=60, **options):
    problem = registry.get(name, **({"dim": 2} if name in SYNTHETIC else {}))
    start = jax.tree.map(lambda v: jnp.asarray(v, dtype), problem.start())
    return run(problem, algorithm, start, steps, seeds, **{"records": 7, "candidates": 3} | options)


def assert_same(a, b, tolerance):
    for field in FIELDS:
        found, wanted = getattr(a, field), getattr(b, field)
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted), err_msg=field)
        finite = np.isfinite(wanted)
        scale = np.max(np.abs(wanted[finite]), initial=0)
        np.testing.assert_allclose(found[finite], wanted[finite], rtol=0, atol=tolerance * scale, err_msg=field)
    for field in ("cost", "record_cost", "diverged_at"):
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    for pick in ("smallest", "uniform", "candidates"):
        np.testing.assert_array_equal(getattr(a, pick).step, getattr(b, pick).step)
        np.testing.assert_allclose(getattr(a, pick).x, getattr(b, pick).x, rtol=0, atol=10 * tolerance)


def assert_equal(a, b, i, j):
    """Seed i of one run and seed j of another, bit by bit."""
    for field in (*FIELDS, "cost", "diverged_at"):
        np.testing.assert_array_equal(getattr(a, field)[i], getattr(b, field)[j], err_msg=field)
    for pick in ("smallest", "uniform", "candidates"):
        np.testing.assert_array_equal(getattr(a, pick).x[i], getattr(b, pick).x[j], err_msg=pick)


@pytest.mark.parametrize("case", CASES)
def test_interpreted(case, on_gpu):
    name, algorithm = CASES[case]
    plain = go(name, algorithm)
    on_gpu()
    ours = go(name, algorithm)
    assert ours.width == 64
    assert_same(ours, plain, 1e-13)


def test_interpreted_in_single_precision(on_gpu):
    plain = go("quartic", STORM, "float32")
    on_gpu()
    ours = go("quartic", STORM, "float32")
    assert ours.last.dtype == np.float32
    assert_same(ours, plain, 1e-5)


@pytest.mark.parametrize("average", [True, False])
def test_seeds_that_diverge_stay_where_they_did(average, on_gpu):
    """Steps so long that every seed leaves, at another step each; candidates before, at and after it."""
    wild = partial(go, "quartic", CATALOGUE["averaged_sgd"](eta=1.5), seeds=40, candidates=30, average=average)
    plain = wild()
    on_gpu()
    ours = wild()
    assert len(set(plain.diverged_at.tolist())) > 1 and np.all(plain.diverged_at > 0)
    assert np.any(plain.candidates.step == plain.diverged_at[:, None])
    for field in ("diverged_at", "cost", "record_cost", "mean_grad_norm"):
        np.testing.assert_array_equal(getattr(ours, field), getattr(plain, field), err_msg=field)
    for field in ("grad_norm", "running_mean", "value", "error", "last", "min_grad_norm"):
        np.testing.assert_allclose(getattr(ours, field), getattr(plain, field), rtol=1e-9, err_msg=field)
    for pick in ("smallest", "uniform", "candidates"):
        np.testing.assert_allclose(getattr(ours, pick).x, getattr(plain, pick).x, rtol=1e-9, err_msg=pick)


def test_alone_in_a_crowd_and_in_pieces(on_gpu, monkeypatch):
    """70 seeds make two batches; chunks have 64 steps, so the run ends inside one."""
    on_gpu()
    monkeypatch.setattr(kernel, "LONGEST_CHUNK", 64)
    crowd = go("quartic", STORM, seeds=range(70), steps=150)
    assert_equal(crowd, go("quartic", STORM, seeds=[66], steps=150), 66, 0)
    assert_equal(crowd, go("quartic", STORM, seeds=[66], steps=150, progress_steps=64), 66, 0)
    single = go("quartic", STORM, seeds=[66], steps=1)
    assert single.grad_norm[0, 0] == single.mean_grad_norm[0] == crowd.grad_norm[66, 0]


def test_resumed_in_the_middle(on_gpu, tmp_path, monkeypatch):
    on_gpu()
    monkeypatch.setattr(kernel, "LONGEST_CHUNK", 64)
    whole, path = go("quartic", STORM, steps=150), tmp_path / "run"

    def stop(done, _):
        if done == 128:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go("quartic", STORM, steps=150, progress_steps=64, progress=stop, checkpoint=path)
    resumed = go("quartic", STORM, steps=150, checkpoint=path)
    for i in range(5):
        assert_equal(whole, resumed, i, i)


@pytest.mark.parametrize("name", ["dro-chi2", "tanh-network"])
def test_what_does_not_fit_runs_in_the_ordinary_loop(name, on_gpu):
    """There, chunks take all their steps, also those after the end, which change nothing."""
    plain = go(name, STORM, seeds=2, steps=20)
    on_gpu(width=2, chip=False)
    ours = go(name, STORM, seeds=2, steps=20)
    assert_same(ours, plain, 1e-11)


def test_what_the_compiler_refuses_runs_in_the_ordinary_loop(monkeypatch):
    plain = go("quartic", STORM)
    refused = []

    def refuse(*_):
        refused.append(True)
        raise NotImplementedError("an operation that Triton does not know")

    monkeypatch.setattr(execution, "platform", lambda: "gpu")
    monkeypatch.setattr(execution, "WIDTHS", {"gpu": (1, 1024)})
    execution.program.cache_clear()  # or, on a GPU, it may have been compiled before
    monkeypatch.setattr(kernel, "_steps", refuse)
    ours = go("quartic", STORM)
    assert refused
    assert_same(ours, plain, 1e-13 if jax.default_backend() == "cpu" else 1e-11)  # a GPU's plain run is on chip


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
def test_a_class_over_arrays(rows, on_gpu):
    start = {"a": jnp.ones(3), "none": jnp.ones((rows, 2))}
    plain = run(Plain(), STORM, start, 30, 3)
    on_gpu(chip=rows > 0)
    ours = run(Plain(), STORM, start, 30, 3)
    np.testing.assert_allclose(ours.last["a"], plain.last["a"], rtol=1e-12)
    np.testing.assert_allclose(ours.running_mean, plain.running_mean, rtol=1e-12)


@pytest.mark.parametrize("case", ["storm", "table"])
def test_becomes_a_kernel_of_a_gpu(case, monkeypatch):
    """Without a GPU the program can be translated for one, though not run; the kernel is written once."""
    name, algorithm = CASES[case]
    problem = registry.get(name)
    x, kept = jnp.asarray(problem.start()), {"records": 7, "candidates": 3, "average": True, "width": None}
    monkeypatch.setattr(execution, "platform", lambda: "gpu")
    found = prepare(problem, algorithm, x, 60, [1], **kept)
    batch, schedule = found.begin(x)[0], found.padded
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    program = execution.program(found.config, found.fixed, (type(problem),))
    traced = program.trace(problem, algorithm, np.int32(60), schedule, batch)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("xla.gpu.triton") == 1


@pytest.mark.skipif(jax.default_backend() != "gpu", reason=f"needs a GPU; the last figures are in {FIGURES.name}")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-11), ("float32", 1e-4)])
def test_on_a_gpu(case, dtype, tolerance, monkeypatch):
    name, algorithm = CASES[case]
    ours = go(name, algorithm, dtype)
    monkeypatch.setattr(kernel, "fits", lambda *_: False)
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
