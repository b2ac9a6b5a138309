"""A seed's numbers depend on nothing but the seed: not on company, chunks, threads, interruptions or the horizon."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import Metered, Toy

from normstorm.algorithms import CATALOGUE, normalized_storm
from normstorm.engine import run
from normstorm.engine.batches import PATIENCE, SeedBatches
from normstorm.engine.execution import Execution, widths
from normstorm.engine.results import Trace
from normstorm.random import normal

STORM = normalized_storm(alpha=0.05, eta=0.02)
STEPS, CROWD, ONE = 1400, list(range(100, 137)), 123


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """Least squares over rows of data: indices as samples, matrix products, no kernel."""

    A: jax.Array
    b: jax.Array
    name = "rows"

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return jax.random.randint(key, (n,), 0, self.A.shape[0])

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        rows = self.A[batch]
        return rows.T @ (rows @ x - self.b[batch]) / batch.shape[0]

    def full_grad(self, x: jax.Array) -> jax.Array:
        return self.A.T @ (self.A @ x - self.b) / self.b.size

    def value(self, x: jax.Array) -> jax.Array:
        return jnp.mean((self.A @ x - self.b) ** 2) / 2


def rows(dtype: str) -> Rows:
    values = np.random.default_rng(0).normal(size=(50, 6)).astype(dtype)
    return Rows(jnp.asarray(values[:, :5]), jnp.asarray(values[:, 5]))


class Closed:
    """A problem that JAX does not know: its table becomes part of the program."""

    name = "closed"

    def __init__(self) -> None:
        self.table = np.random.default_rng(1).normal(size=(20, 3))

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return jax.random.randint(key, (n,), 0, 20)

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        return jnp.mean(x + jnp.asarray(self.table)[batch], axis=0)

    def full_grad(self, x: jax.Array) -> jax.Array:
        return jnp.mean(x + self.table, axis=0)

    def value(self, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.sum((x + self.table) ** 2, axis=1)) / 2


CASES = {
    "float64": (Toy(10), lambda: jnp.linspace(-1, 2, 10)),
    "float32": (Toy(10, dtype="float32"), lambda: jnp.linspace(-1, 2, 10, dtype=jnp.float32)),
    "large": (Toy(300), lambda: jnp.linspace(-1, 2, 300)),
    "matrix": (rows, lambda: jnp.ones(5)),
    "closed": (Closed(), lambda: jnp.ones(3)),
}


def case(name: str) -> tuple[Any, jax.Array]:
    problem, start = CASES[name]
    return (problem("float64") if problem is rows else problem), start()


def same(one: Trace, i: int, other: Trace, j: int) -> None:
    """Bit for bit, in everything that has a row per seed."""
    skip = {"algorithm", "problem", "seeds", "steps", "width", "record_steps"}
    for name, value in vars(one).items():
        if name not in skip:
            left, right = jax.tree.leaves(vars_of(value)), jax.tree.leaves(vars_of(getattr(other, name)))
            for a, b in zip(left, right, strict=True):
                np.testing.assert_array_equal(a[i], b[j], err_msg=name)


def vars_of(value: Any) -> Any:
    return (value.step, value.x) if hasattr(value, "step") else value


@pytest.mark.parametrize("name", CASES)
def test_alone_in_a_crowd_in_chunks_and_resumed(name: str, tmp_path: Path) -> None:
    problem, x0 = case(name)
    crowd = run(problem, STORM, x0, STEPS, CROWD, threads=1)
    assert crowd.last.dtype == x0.dtype
    assert len(np.unique(crowd.last[:, 0])) == len(CROWD)
    for i in (0, 7, 23, 36):
        same(run(problem, STORM, x0, STEPS, [CROWD[i]], width=crowd.width), 0, crowd, i)
    seen: list[int] = []
    small = run(
        problem, STORM, x0, STEPS, CROWD, progress_steps=1, threads=2, progress=lambda done, _: seen.append(done)
    )
    assert len(seen) > 3
    assert seen[-1] == STEPS
    resumed = interrupted(problem, x0, tmp_path / "run.safetensors")
    for i in range(len(CROWD)):
        same(small, i, crowd, i)
        same(resumed, i, crowd, i)


@pytest.mark.parametrize("name", CASES)
def test_widths_differ_in_last_digits_alone(name: str) -> None:
    """Ten steps, after which rounding has hardly grown: 1e-12 of double precision, 1e-4 of single.

    All widths of one problem, of the others half of those above 1, each of them with two problems.
    """
    problem, x0 = case(name)
    others = widths()[1:] if name == "float64" else widths()[1 + list(CASES).index(name) % 2 :: 2]
    found = [run(problem, STORM, x0, 10, [CROWD[3]], width=width) for width in (widths()[0], *others)]
    assert [trace.width for trace in found] == [widths()[0], *others]
    for trace in found[1:]:
        tolerance = 1e-12 if x0.dtype == np.float64 else 1e-4
        np.testing.assert_allclose(trace.last, found[0].last, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(trace.mean_grad_norm, found[0].mean_grad_norm, rtol=tolerance)


def test_a_checkpoint_keeps_its_width(tmp_path: Path) -> None:
    """Many seeds take another width than one; the one that was begun with goes on."""
    file = tmp_path / "run.safetensors"
    begun = run(Toy(4), STORM, jnp.ones(4), 40, 3, width=1, checkpoint=file)
    assert run(Toy(4), STORM, jnp.ones(4), 40, 3).width != 1
    resumed = run(Toy(4), STORM, jnp.ones(4), 40, 3, checkpoint=file)
    assert resumed.width == 1
    np.testing.assert_array_equal(resumed.last, begun.last)
    with pytest.raises(ValueError, match="its width is 1, this run's is 8"):
        run(Toy(4), STORM, jnp.ones(4), 40, 3, width=8, checkpoint=file)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cubic:
    """Sums of products, which a compiler may round once or twice; x is a single number."""

    name = "cubic"

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return normal(key, (n,), "float64")

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        return x * x * x + jnp.mean(batch)

    def full_grad(self, x: jax.Array) -> jax.Array:
        return x * x * x


METHODS = {
    "normalized_storm": {"alpha": 0.3, "eta": 0.01},
    "generalized_signsgd": {"alpha": 0.2, "eta": 0.03},
    "generalized_signstorm": {"alpha": 0.2, "eta": 0.03},
}


@pytest.mark.parametrize("name", METHODS)
def test_others_do_not_choose_the_instructions(name: str) -> None:
    """The iterates that are kept, at steps of every seed's own, cut the loop of the whole group."""
    algorithm = CATALOGUE[name](K=2, **METHODS[name])
    crowd = run(Cubic(), algorithm, jnp.asarray(1.5), 75, range(200, 225), threads=1)
    for i in (0, 1, 9, 20, 24):
        same(run(Cubic(), algorithm, jnp.asarray(1.5), 75, [200 + i], width=crowd.width), 0, crowd, i)
    same(
        run(Cubic(), algorithm, jnp.asarray(1.5), 75, [207], progress_steps=1, records=3, width=crowd.width),
        0,
        run(Cubic(), algorithm, jnp.asarray(1.5), 75, range(200, 225), records=3),
        7,
    )


def interrupted(problem: Any, x0: jax.Array, file: Path) -> Trace:
    """Stopped by hand twice, each time after a few chunks."""

    def stop(done: int, steps: int, calls: list[int]) -> None:
        calls.append(done)
        if len(calls) == 2 and done < steps:
            raise KeyboardInterrupt

    settings = {"progress_steps": 256, "checkpoint": file, "checkpoint_seconds": 0.0}
    for _ in range(2):
        calls: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            run(problem, STORM, x0, STEPS, CROWD, progress=lambda d, s, c=calls: stop(d, s, c), **settings)
    done: list[int] = []
    result = run(problem, STORM, x0, STEPS, CROWD, progress=lambda d, _: done.append(d), **settings)
    assert done[0] > 2 * 256, "the third run started where the second one stopped"
    return result


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    problem, x0 = case("float64")
    long = run(problem, STORM, x0, STEPS, [ONE], candidates=8)
    for steps in (1, 2, 3, 256, 257, 258, 1000):
        short = run(problem, STORM, x0, steps, [ONE])
        common, i, j = np.intersect1d(short.record_steps, long.record_steps, return_indices=True)
        assert common.size
        np.testing.assert_array_equal(short.grad_norm[0, i], long.grad_norm[0, j])


def test_one_compilation_of_a_width_serves_every_horizon_and_every_number_of_seeds() -> None:
    problem = Metered(Toy(4))
    run(problem, STORM, jnp.ones(4), 3, 1, width=8)
    traced = problem.calls
    assert traced > 0
    for steps, seeds in [(1, 1), (10, 2), (1000, 30), (777, 8)]:
        run(problem, STORM, jnp.ones(4), steps, seeds, width=8)
    run(problem, normalized_storm(alpha=0.5, eta=0.5), jnp.ones(4), 50, 3, width=8)
    assert problem.calls == traced


def test_classes_whose_pytrees_look_the_same_are_kept_apart() -> None:
    @jax.tree_util.register_dataclass
    @dataclass(frozen=True)
    class Twin(Toy):
        def value(self, x: jax.Array) -> jax.Array:
            return -super().value(x)

    x0 = jnp.linspace(-1, 2, 10)
    assert jax.tree.structure(Twin(10)) == jax.tree.structure(Toy(10))
    one, other = (run(problem, STORM, x0, 20, 2) for problem in (Toy(10), Twin(10)))
    np.testing.assert_allclose(one.value, -other.value, rtol=1e-12)


def test_device_of_the_caller_reaches_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, advance = [], Execution.advance

    def note(execution: Execution, *args: Any) -> Any:
        seen.append(jax.config.jax_default_device)
        return advance(execution, *args)

    monkeypatch.setattr(Execution, "advance", note)
    (device, *_) = jax.devices("cpu")
    with jax.default_device(device):
        run(Toy(10), STORM, jnp.linspace(-1, 2, 10), 10, 20, threads=2, width=8)
    assert len(seen) > 1 and set(seen) == {device}


def test_precision_of_the_caller_reaches_the_threads() -> None:
    result = run(Toy(10), STORM, jnp.linspace(-1, 2, 10), 10, 20, threads=2)
    assert result.last.dtype == np.float64
    with jax.enable_x64(False):
        result = run(Toy(10, dtype="float32"), STORM, jnp.linspace(-1, 2, 10), 10, 20, threads=2)
    assert result.last.dtype == np.float32


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 0}, "run: steps must be an integer in [1, 1073741824]; got steps=0"),
        ({"steps": 2.0}, "run: steps must be an integer in [1, 1073741824]; got steps=2.0"),
        ({"seeds": []}, "run: seeds must be different integers, at least one; got 0 of them"),
        ({"seeds": [3, 3]}, "run: seeds must be different integers, at least one; got 2 of them"),
        ({"seeds": [-1]}, "run: seeds must be an integer in [0, 18446744073709551615]; got seeds=-1"),
        ({"seeds": None}, "run: seeds must be an integer in [1, 1073741824]; got seeds=None"),
        ({"seeds": 1.5}, "run: seeds must be an integer in [1, 1073741824]; got seeds=1.5"),
        ({"progress_steps": 0}, "run: progress_steps must be an integer in [1, 1073741824]; got progress_steps=0"),
        ({"width": 7}, "run: width must be one of 1, 8, 32, 128, 512, or None; got width=7"),
        ({"x0": jnp.arange(3)}, "run: x0 must be float32 or float64 in all its leaves; got int32"),
        ({"x0": {}}, "run: x0 must be float32 or float64 in all its leaves; got no leaves"),
        ({"x0": "a"}, "run: x0 must be float32 or float64 in all its leaves; got str"),
        ({"x0": 3}, "run: x0 must be float32 or float64 in all its leaves; got int"),
        ({"average": "no"}, "run: average must be True or False; got average='no'"),
        ({"progress": True}, "run: progress must be a function or None; got progress=True"),
        (
            {"checkpoint_seconds": "a"},
            "run: checkpoint_seconds must be a finite number >= 0; got checkpoint_seconds='a'",
        ),
        ({"fingerprint": b"x"}, "run: fingerprint must be a string; got fingerprint=b'x'"),
        (
            {"algorithm": None},
            "run: algorithm must be a normstorm.algorithms.Algorithm; got an object of type NoneType",
        ),
        (
            {"problem": None},
            "run: problem must be an object with the methods sample, grad; got an object of type NoneType",
        ),
        ({"problem": Toy}, "run: problem must be an object with the methods sample, grad; got the class Toy"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        run(**{"problem": Toy(3), "algorithm": STORM, "x0": jnp.ones(3), "steps": 5, "seeds": 1, **given})
    assert str(error.value) == message


class Started(Closed):
    """A problem that knows the form of its points."""

    def start(self) -> jax.Array:
        return jnp.ones(3)


@pytest.mark.parametrize(
    ("x0", "given"),
    [
        (np.ones(4), "(4,)"),
        (np.ones(1), "(1,)"),
        (np.ones((2, 2)), "(2, 2)"),
        (1.5, "()"),
        ({"a": np.ones(3)}, "['a'] (3,)"),
    ],
)
def test_a_start_of_another_form_is_refused(x0: Any, given: str) -> None:
    with pytest.raises(ValueError) as error:
        run(Started(), STORM, x0, 5, 1)
    assert str(error.value) == f"run: x0 must have the shape (3,) of the problem's start; got {given}"


def test_a_start_of_another_form_is_taken_if_it_serves() -> None:
    class Free(Started):
        def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
            return x * jnp.mean(batch)

        def full_grad(self, x: jax.Array) -> jax.Array:
            return 9.5 * x  # samples are 0..19

        def value(self, x: jax.Array) -> jax.Array:
            return 9.5 * jnp.sum(x**2) / 2

    assert run(Free(), STORM, jnp.ones(5), 5, 1).last.shape == (1, 5)


def test_a_number_of_seeds_may_be_an_array() -> None:
    for number in (np.array(3), jnp.array(3)):
        assert list(run(Toy(3), STORM, jnp.ones(3), 5, number).seeds) == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "must have a name of 1 to 240 bytes, none of them 0; got ''"),
        ("a" * 241, f"must have a name of 1 to 240 bytes, none of them 0; got '{'a' * 241}'"),
        ("\xe9" * 121, "must have a name of 1 to 240 bytes"),
        ("a\0", r"must have a name of 1 to 240 bytes, none of them 0; got 'a\x00'"),
        ("no/run", "must lie in an existing directory; got no/run"),
        (f"{'a' * 300}/run", "must lie in an existing directory"),
        (Path("folder"), "must be a writable file; got folder"),
        (3, "must be a path or None; got checkpoint=3"),
    ],
)
def test_an_unusable_checkpoint_is_refused_before_the_first_step(
    name: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    problem = Metered(Toy(3))
    with pytest.raises(ValueError) as error:
        run(problem, STORM, jnp.ones(3), 5, 1, checkpoint=name)
    assert str(error.value).startswith(f"run: checkpoint {sentence}") and problem.calls == 0
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_longest_name_of_a_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / ("a" * 240)
    run(Toy(3), STORM, jnp.ones(3), 5, 1, checkpoint=file)
    assert [*tmp_path.iterdir()] == [file]


def test_an_interruption_comes_out_even_if_saving_fails(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()

    def stop(done: int, steps: int) -> None:
        folder.rmdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as error:
        run(Toy(3), STORM, jnp.ones(3), 5, 1, checkpoint=folder / "run", progress=stop)
    (note,) = error.value.__notes__
    assert note.startswith(f"run: checkpoint {folder / 'run'} could not be saved; got FileNotFoundError")


def test_double_precision_must_be_on() -> None:
    with jax.enable_x64(False), pytest.raises(ValueError) as error:
        run(Toy(3), STORM, np.ones(3), 5, 1)
    assert str(error.value) == "run: x0 must be float32 (float64 needs jax_enable_x64); got float64"


def test_a_problem_that_changes_is_run_as_it_is() -> None:
    problem, changed = Closed(), Closed()
    before = run(problem, STORM, jnp.ones(3), 20, 2)
    problem.table[0] = changed.table[0] = 9.0
    after, fresh = (run(p, STORM, jnp.ones(3), 20, 2) for p in (problem, changed))
    assert (before.last != after.last).any()
    np.testing.assert_array_equal(after.last, fresh.last)


def test_a_chunk_is_as_long_as_somebody_waits_for_it_and_else_a_call_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which every step of a call takes a tenth of a millisecond."""
    a_step, calls, stops, advance = 1e-4, 4, [0], Execution.advance

    def noted(execution: Execution, stop: int, batch: Any) -> Any:
        stops.append(stop)
        return advance(execution, stop, batch)

    def chunks(**options: Any) -> list[int]:
        """Lengths of all chunks."""
        stops[1:] = []
        run(Toy(4), STORM, jnp.ones(4), 15_000, 32 * calls, threads=1, width=32, **options)
        return np.diff(sorted(set(stops))).tolist()

    monkeypatch.setattr(Execution, "advance", noted)
    clock = SimpleNamespace(monotonic=lambda: a_step * max(stops) * calls)
    monkeypatch.setitem(SeedBatches.rounds.__globals__, "time", clock)
    watched, alone = max(chunks(progress=lambda done, steps: None)), max(chunks())
    assert PATIENCE / 2 < a_step * watched * calls <= PATIENCE
    assert PATIENCE / 2 < a_step * alone <= PATIENCE
