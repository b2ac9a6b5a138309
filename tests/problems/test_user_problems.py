"""A user's own problem: from a loss and data or a sampler, and from a file."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from normstorm.problems import Problem, base, from_loss, get, load
from normstorm.problems.user import as_problem
from normstorm.theory.constants import Constants

KNOWN = Constants(L0=1.0, L1=0.0, sigma0=1.0, sigma1=0.0, gap=1.0)
RNG = np.random.default_rng(0)
DOCS = Path(__file__).parents[2] / "docs" / "writing-a-problem.md"


def squared(x, row):
    a, b = row
    return (a @ x - b) ** 2 / 2


def normal(key, n):
    return jax.random.normal(key, (n, 3))


def distance(x, s):
    return jnp.sum((x - s) ** 2) / 2


def test_from_loss_equals_the_hand_written_problem() -> None:
    ours = get("least-squares", n=40)
    theirs = from_loss(squared, ours.data, start=ours.start(), name="mine")
    assert isinstance(theirs, Problem) and theirs.is_exact and theirs.name == "mine"
    key, x = jax.random.key(4), ours.start() + 0.7
    batch = theirs.sample(key, 6)
    assert np.array_equal(batch, ours.sample(key, 6))
    ask = jax.jit(lambda p: (p.grad(x, batch), p.value(x), p.full_grad(x)))
    for one, other in zip(ask(theirs), ask(ours), strict=True):
        assert np.allclose(one, other, rtol=1e-12)
    assert np.array_equal(theirs.start(), ours.start())


@pytest.mark.parametrize("rows", [3, 4, 5, 8, 11])
def test_large_data_are_summed_in_chunks(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(rows)
    a, b, x = rng.standard_normal((rows, 2)), rng.standard_normal(rows), jnp.array([0.4, -1.0])
    monkeypatch.setattr(base, "CHUNK", 4)
    problem = from_loss(squared, (a, b), start=x)
    value, gradient = jax.jit(lambda x: (problem.value(x), problem.full_grad(x)))(x)
    assert np.allclose(value, np.mean((a @ x - b) ** 2) / 2)
    assert np.allclose(gradient, a.T @ (a @ x - b) / rows)


def test_any_pytree_and_any_type_of_data() -> None:
    data = {"features": np.arange(12.0).reshape(6, 2), "label": np.array([0, 1, 0, 1, 1, 0])}

    def loss(x, row):
        score = x["w"] @ row["features"] + x["b"]
        return jnp.where(row["label"] == 1, jax.nn.softplus(-score), jax.nn.softplus(score))

    problem = from_loss(loss, data, start={"w": np.zeros(2), "b": np.array(0.1)})
    x = problem.start()
    gradient = jax.jit(lambda p, x, key: p.grad(x, p.sample(key, 4)))(problem, x, jax.random.key(0))
    assert jax.tree.structure(gradient) == jax.tree.structure(x)
    every, full = jax.jit(
        lambda x: (jax.vmap(lambda i: problem.grad(x, i[None]))(jnp.arange(6)), problem.full_grad(x))
    )(x)
    for one, other in zip(jax.tree.leaves(every), jax.tree.leaves(full), strict=True):
        assert np.allclose(one.mean(axis=0), other)


def test_a_sampler_has_no_exact_values_unless_a_formula_is_given() -> None:
    x = jnp.array([1.0, 2.0, -1.0])
    stream = from_loss(distance, normal, start=x)
    batch = stream.sample(jax.random.key(0), 5)
    assert np.allclose(stream.grad(x, batch), x - batch.mean(axis=0))
    assert not stream.is_exact and stream.infimum is None and stream.infimum_kind == "unknown"
    for ask in (stream.value, stream.full_grad):
        with pytest.raises(ValueError, match="my-problem: objective must be given to from_loss beside a sampler"):
            ask(x)
    known = from_loss(distance, normal, start=x, objective=lambda x: jnp.sum(x**2) / 2 + 1.5, infimum=1.5)
    assert known.is_exact and known.infimum_kind == "lower bound"
    assert np.allclose(known.full_grad(x), x) and float(known.value(x)) == 4.5


def test_constants_are_the_users() -> None:
    x = np.array([1.0, 2.0])
    data = (np.eye(2), np.ones(2))
    with pytest.raises(ValueError, match="my-problem: constants must be given to from_loss"):
        from_loss(squared, data, start=x).constants()
    fixed = from_loss(squared, data, start=x, constants=KNOWN)
    assert fixed.constants(x, "mean-square").noise == "mean-square" and fixed.constants().noise == "almost-sure"
    with pytest.raises(ValueError, match="my-problem: constants must be a function of x0 to serve another start"):
        fixed.constants(x + 1)
    flexible = from_loss(squared, data, start=x, constants=lambda x0: KNOWN.scaled(length=1.0, value=float(x0[0])))
    assert flexible.constants(x * 3).gap == 3.0
    weak = Constants(1.0, 0.0, 1.0, 0.0, 1.0, noise="mean-square")
    with pytest.raises(ValueError, match="my-problem: sense must be mean-square"):
        from_loss(squared, data, start=x, constants=weak).constants()
    strong = Constants(1.0, 0.0, 1.0, 0.0, 1.0, noise="almost-sure")
    assert from_loss(squared, data, start=x, constants=strong).constants(x, "mean-square") == strong


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"loss": 3}, "from_loss: loss must be a function of x and one sample; got loss=3"),
        ({"start": np.array([True, False])}, "from_loss: start must be a pytree of floating-point arrays"),
        ({"start": ()}, "from_loss: start must be a pytree of floating-point arrays"),
        ({"data": (np.eye(2), np.ones(3))}, r"from_loss: data must be .*; got lengths \[2, 3\]"),
        ({"data": (np.zeros((0, 2)), np.zeros(0))}, r"from_loss: data must be .*; got lengths \[0\]"),
        ({"constants": 1.0}, "from_loss: constants must be Constants, a function of x0 or None; got 1.0"),
        ({"objective": distance}, "from_loss: objective must be None for arrays of data"),
        ({"data": lambda key, n: jnp.zeros(3)[:2]}, r"data must be a sampler\(key, n\) .*; got shapes \(2,\) for n=3"),
        ({"data": lambda key, n: (jnp.zeros((n, 2)), jnp.ones(()))}, r"got shapes \(\), \(3, 2\) for n=3"),
        ({"data": lambda key, n: ()}, "got shapes of nothing for n=3"),
        ({"data": lambda key, n: RNG.normal(size=(n, 2))}, "depends on nothing but key and n; got two answers"),
    ],
)
def test_from_loss_refuses(options, sentence: str) -> None:
    arguments = {"loss": squared, "data": (np.eye(2), np.ones(2)), "start": np.zeros(2)} | options
    with pytest.raises(ValueError, match=sentence):
        from_loss(**arguments)


TEXT = "id,a,y,name\n1,0.5,2,one\n2,1.5,3,two"


@pytest.mark.parametrize(
    ("data", "got"),
    [
        (
            np.genfromtxt(TEXT.splitlines(), delimiter=",", names=True, usecols=(0, 1, 2)),
            "such as {name: data[name] for name in data.dtype.names} or np.column_stack of the columns; "
            "got a structured array with the fields id, a, y",
        ),
        (
            np.zeros(2, [(f"c{i}", float) for i in range(99)]),
            "such as {name: data[name] for name in data.dtype.names} or np.column_stack of the columns; "
            "got a structured array with the fields c0, c1, c2, c3, c4, c5, c6, c7, ...",
        ),
        (
            (np.eye(2), np.array(["a", "b"])),
            "labels as np.unique(labels, return_inverse=True)[1]; got text in data[1], such as 'a'",
        ),
        (
            (np.eye(2), ["no", "yes"]),
            "labels as np.unique(labels, return_inverse=True)[1]; got text in data[1], such as 'no'",
        ),
        (
            np.array([[1, "a"], [2.0, None]], object),
            "with text and the like left out or encoded; got the type object in data",
        ),
        (
            {"day": np.array(["2024-01-01"], "datetime64[D]")},
            "with text and the like left out or encoded; got the type datetime64[D] in data['day']",
        ),
    ],
)
def test_tables_that_are_no_arrays_of_numbers(data, got: str) -> None:
    with pytest.raises(ValueError) as error:
        from_loss(squared, data, start=np.zeros(2))
    assert str(error.value) == f"from_loss: data must be arrays of numbers, {got}"


def test_the_columns_of_a_structured_array_serve() -> None:
    table = np.genfromtxt(TEXT.splitlines(), delimiter=",", names=True, usecols=(0, 1, 2))
    data = {name: table[name] for name in table.dtype.names}
    problem = from_loss(lambda x, row: (row["a"] * x[0] - row["y"]) ** 2, data, start=[0.0])
    assert problem.start().shape == (1,) and float(problem.value(problem.start())) == 6.5


def with_nan(*place):
    table = np.ones((5, 2))
    for one in place:
        table[one] = np.nan
    return table


MASKED = np.ma.masked_invalid(with_nan((3, 1), (4, 0)))
SHAPES = "loss must run for x and one sample, of the shapes (2,) and "


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"data": (with_nan((3, 1)), np.ones(5))}, "data must be finite numbers; got nan in data[0], row 3, column 1"),
        (
            {"data": {"a": with_nan((1, 0), (4, 1)), "b": np.ones(5)}},
            "got nan in data['a'], row 1, column 0 (in 2 of 5 rows something is not finite)",
        ),
        ({"data": (np.ones((5, 2)), [1, 2, -np.inf, 4, 5])}, "data must be finite numbers; got -inf in data[1], row 2"),
        (
            {"data": (MASKED, np.ones(5))},
            "data must have no masked entries, fill them or leave out their rows; got 2 in data[0], the first in row 3,"
            " column 1",
        ),
        ({"data": (np.ones((5, 0)),)}, "data must have numbers in every row; got the shape [0] (5, 0)"),
        ({"data": ([[1.0, 2.0], [3.0]], [1, 2])}, "data must be arrays of numbers; got lists of different lengths"),
        (
            {"data": lambda key, n: jnp.full((n, 2), jnp.inf)},
            "must be finite numbers; got inf in samples, row 0, c",
        ),
        ({"start": [0.0, np.nan]}, "start must be finite numbers; got nan in start, row 1"),
        (
            {"loss": lambda x, a, b: (a @ x - b) ** 2},
            "loss must be a function of x and one sample, loss(x, row), where row may have parts; got loss(x, a, b)",
        ),
        ({"loss": lambda x: x @ x}, "where row may have parts; got loss(x)"),
        ({"loss": lambda x, row: (x - row[1]) ** 2}, "loss must return one number for one sample; got the shape (2,)"),
        (
            {"loss": lambda x, row: (x[:1] - row[1]) ** 2},
            "must return one number for one sample; got the shape (1,",
        ),
        (
            {"loss": lambda x, row: (x[0], x[1])},
            "one number for one sample; got the shape [0] (), [1] ()",
        ),
        ({"loss": lambda x, row: None}, "loss must return one number for one sample; got the shape nothing"),
        ({"loss": lambda x, row: x[0] > 1}, "loss must return a floating-point number; got the type bool"),
        ({"start": np.zeros(3)}, "loss must run for x and one sample, of the shapes (3,) and [0] (2,), [1] (); got "),
        ({"data": (np.ones((5, 3)), np.ones(5))}, SHAPES + "[0] (3,), [1] (); got TypeError at line "),
        ({"data": np.ones((5, 2)), "loss": lambda x, row: row["a"]}, SHAPES + "(2,); got "),
        ({"data": lambda key, n: jnp.ones((n, 3))}, SHAPES + "(3,); got "),
    ],
)
def test_bad_data_and_losses_are_refused_with_their_place(options, sentence: str) -> None:
    arguments = {"loss": squared, "data": (np.ones((5, 2)), np.ones(5)), "start": np.zeros(2)} | options
    with pytest.raises(ValueError) as error:
        from_loss(**arguments)
    assert str(error.value).startswith("from_loss: ") and sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_lists_of_numbers_and_masks_without_entries_are_data() -> None:
    table = [[1, 2], [3, 4]], np.ma.masked_array(np.ones(2), mask=[False, False])
    problem = from_loss(squared, table, [0.0, 0.5])
    assert [leaf.shape for leaf in jax.tree.leaves(problem.data)] == [(2, 2), (2,)]
    assert float(problem.value(problem.start())) == 0.25


def test_a_loss_and_data_where_a_problem_is_wanted() -> None:
    data, x0 = (np.eye(2), np.ones(2)), np.zeros(2)
    problem, start = as_problem("minimize", squared, data, x0)
    assert start is None and problem.name == "squared" and np.array_equal(problem.start(), x0)
    assert as_problem("minimize", problem) == (problem, None)
    assert as_problem("minimize", problem, x0)[1] is x0 and as_problem("minimize", problem, x0=x0)[1] is x0
    assert as_problem("minimize", lambda x, row: squared(x, row), data, x0)[0].name == "my-problem"
    for arguments, sentence in (
        ((squared,), "a loss must come with data and x0; got no data and no x0"),
        ((squared, data), "a loss must come with data and x0; got no x0"),
        ((problem, data, x0), "data must be left out for a problem, which has its own; got data and x0"),
        ((3,), "problem must be a problem, or a loss before data and x0; got a int"),
        ((Path,), "problem must be a problem, or a loss before data and x0; got the class Path"),
    ):
        with pytest.raises(ValueError) as error:
            as_problem("minimize", *arguments)
        assert str(error.value) == f"minimize: {sentence}"


FILE = """
from __future__ import annotations
from dataclasses import dataclass
import numpy as np
from beside import SCALE
from normstorm.problems import from_loss

@dataclass
class Setting:
    scale: float = SCALE

def loss(x, s):
    return (x @ s) ** 2

problem = from_loss(loss, np.eye(2) * Setting().scale, start=np.ones(2), name="from-a-file")
def make(): return problem
def broken(): raise KeyError("no such\\ncolumn")
def needs(argument): return problem
number = 3
class Whole:
    name = "whole"
    infimum, infimum_kind, is_exact = 0.0, "exact", True
    def sample(self, key, n): ...
    def grad(self, x, batch): ...
    def value(self, x): ...
    def full_grad(self, x): ...
    def start(self): ...
    def constants(self, x0=None, sense="almost-sure"): ...
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("SCALE = 2.0\n")
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "wrong.py").write_text("x = = 1\n")
    (tmp_path / "notes.txt").write_text("problem = 1\n")
    return tmp_path / "mine.py"


@pytest.mark.parametrize("attribute", ["problem", "make"])
def test_load(file: Path, attribute: str) -> None:
    problem = load(f"{file}:{attribute}")
    assert problem.name == "from-a-file" and float(problem.value(jnp.ones(2))) == 4.0


def test_load_calls_a_class(file: Path) -> None:
    problem = load(f"{file}:Whole")
    assert problem.name == "whole" and isinstance(problem, Problem) and not isinstance(problem, type)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("mine.py", "load: problem must be of the form path/to/file.py:name; got '"),
        ("mine.py:a b", "load: problem must be of the form path/to/file.py:name; got '"),
        ("none.py:problem", "load: problem must name an existing Python file; got no file '"),
        ("mine.py:absent", "load: problem must name something that the file defines; got no 'absent' in '"),
        ("mine.py:number", "; got int without name, sample, grad, value, full_grad, start, is_exact"),
        ("mine.py:broken", "broken must run without an error; got KeyError: 'no such"),
        ("mine.py:needs", "needs must run without an error; got TypeError: "),
        ("wrong.py:x", "x must run without an error; got SyntaxError: "),
        ("notes.txt:problem", "problem must run without an error; got ImportError: notes.txt does not end in .py"),
    ],
)
def test_load_refuses_in_one_sentence(file: Path, place: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        load(str(file.parent / place))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_the_example_of_the_guide_runs(tmp_path: Path) -> None:
    """Every block of Python in the guide, in order, and the file that it tells to write."""
    blocks = DOCS.read_text(encoding="utf-8").split("```python\n")[1:]
    code = [block.split("```")[0] for block in blocks]
    assert len(code) >= 3
    (tmp_path / "mine.py").write_text("\n".join(code), encoding="utf-8")
    problem = load(f"{tmp_path / 'mine.py'}:problem")
    ranged = load(f"{tmp_path / 'mine.py'}:ranged")
    found = problem.constants(problem.start())
    assert problem.is_exact and found.sigma1 == 0
    rng = np.random.default_rng(1)
    single = jax.jit(jax.vmap(lambda x, i: problem.grad(x, i[None]), (None, 0)))
    for x, y in jnp.asarray(rng.standard_normal((20, 2, 3))):
        every, moved = single(x, jnp.arange(problem.size)), single(y, jnp.arange(problem.size))
        assert np.linalg.norm(every - every.mean(axis=0), axis=1).max() <= found.sigma0
        assert np.linalg.norm(every - moved, axis=1).max() <= found.L0 * np.linalg.norm(x - y)
        spread, change = ranged.range(x, np.linalg.norm(x - y))
        assert np.linalg.norm(every, axis=1).max() <= spread and np.linalg.norm(every - moved, axis=1).max() <= change
