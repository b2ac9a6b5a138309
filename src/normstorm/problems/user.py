"""A user's own problem: from a loss and data in a few lines, or from a file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.programs import forget_stale
from normstorm._shared.validate import number
from normstorm.theory.constants import Constants

from .base import STATIC, FiniteSum, check_sense, mean_gradient, pytree
from .check import lists_as_arrays, with_floats
from .protocol import Problem
from .tables import check_finite, check_loss, table_rows

Loss = Callable[[Any, Any], jax.Array]
Known = Constants | Callable[[Any], Constants] | None
KnownRange = Callable[[Any, Any], tuple[jax.Array, jax.Array]] | None
NEEDED = ("name", "sample", "grad", "value", "full_grad", "start", "is_exact", "infimum", "infimum_kind")


class _Own:
    """What the two kinds of user problems share: the start, and constants as far as the user knows them."""

    name: str
    x0: Any
    known: Known
    infimum: float | None

    @property
    def infimum_kind(self) -> str:
        return "unknown" if self.infimum is None else "lower bound"

    def start(self) -> Any:
        return jax.tree.map(jnp.asarray, self.x0)

    def constants(self, x0: Any = None, sense: str = "almost-sure") -> Constants:
        """What the user gave; constants that hold almost surely also serve where mean square is asked."""
        check_sense(self.name, sense)
        if self.known is None:
            raise ValueError(
                f"{self.name}: constants must be given to from_loss (Constants, or a function of x0) before they can "
                "be asked for; got constants=None"
            )
        if not isinstance(self.known, Constants):
            constants = self.known(self.x0 if x0 is None else x0)
        elif x0 is None or _same(x0, self.x0):
            constants = self.known
        else:
            raise ValueError(
                f"{self.name}: constants must be a function of x0 to serve another start than the problem's own; "
                "got Constants for one start"
            )
        if sense == "almost-sure" and constants.noise == "mean-square":
            raise ValueError(f"{self.name}: sense must be mean-square, as the given constants; got sense={sense!r}")
        if sense == "mean-square":
            constants = constants.in_mean_square
        return constants if constants.noise else replace(constants, noise=sense)


@pytree
@dataclass(frozen=True, eq=False)
class DataProblem(_Own, FiniteSum):
    """F(x) = mean over the rows of loss(x, row)."""

    data: Any
    x0: Any
    per_row: Loss = field(metadata=STATIC)
    known: Known = field(metadata=STATIC)
    infimum: float | None = field(metadata=STATIC)
    name: str = field(metadata=STATIC)
    range: KnownRange = field(metadata=STATIC)

    def loss(self, x: Any, row: Any) -> jax.Array:
        return self.per_row(x, row)


@pytree
@dataclass(frozen=True, eq=False)
class StreamProblem(_Own):
    """F(x) = E loss(x, s), s from a sampler. F itself is known only if the user has a formula for it."""

    x0: Any
    loss: Loss = field(metadata=STATIC)
    sampler: Callable[[jax.Array, int], Any] = field(metadata=STATIC)
    objective: Callable[[Any], jax.Array] | None = field(metadata=STATIC)
    known: Known = field(metadata=STATIC)
    infimum: float | None = field(metadata=STATIC)
    name: str = field(metadata=STATIC)
    range: KnownRange = field(metadata=STATIC)

    @property
    def is_exact(self) -> bool:
        return self.objective is not None

    def sample(self, key: jax.Array, n: int) -> Any:
        return self.sampler(key, n)

    def grad(self, x: Any, batch: Any) -> Any:
        return mean_gradient(self.loss, x, batch)

    def value(self, x: Any) -> jax.Array:
        return self._formula()(x)

    def full_grad(self, x: Any) -> Any:
        return jax.grad(self._formula())(x)

    def _formula(self) -> Callable[[Any], jax.Array]:
        if self.objective is None:
            raise ValueError(
                f"{self.name}: objective must be given to from_loss beside a sampler for exact values and gradients of "
                "F; got objective=None"
            )
        return self.objective


def from_loss(
    loss: Loss,
    data: Any,
    start: Any,
    *,
    constants: Known = None,
    infimum: float | None = None,
    objective: Callable[[Any], jax.Array] | None = None,
    name: str = "my-problem",
    range: KnownRange = None,
) -> DataProblem | StreamProblem:
    """A problem from loss(x, sample), written in jax.numpy for one sample.

    data       arrays (a pytree of them with one leading axis), of which rows are drawn uniformly with replacement; or a
               function sampler(key, n) that returns n samples along a leading axis and depends on nothing else. Every
               number must be finite
    start      the default x0, any pytree of floating-point arrays; a list of numbers is an array
    constants  Constants for this start, or a function of x0 that returns them; they are the user's claim, not proved.
               None: not known. What needs none works without: gradients, runs, exact certificates of arrays of data
    infimum    a lower bound of F, if known
    objective  F(x) itself, for a sampler whose F has a formula; arrays of data need none
    range      range(x, radius), if known: (spread, change) for almost every sample, the radius of a ball that holds
               grad f(x, s), and a bound of its change within the radius; also a claim, held to a few samples in a run
    """
    return _made("from_loss", "start", loss, data, start, constants, infimum, objective, name, range)


def _made(
    who: str,
    which: str,
    loss: Loss,
    data: Any,
    start: Any,
    constants: Known = None,
    infimum: float | None = None,
    objective: Callable[[Any], jax.Array] | None = None,
    name: str = "my-problem",
    range: KnownRange = None,
) -> DataProblem | StreamProblem:
    """`from_loss`; `who` refuses, and calls the start `which`."""
    if not callable(loss):
        raise ValueError(f"{who}: loss must be a function of x and one sample; got loss={loss!r}")
    if not (constants is None or isinstance(constants, Constants) or callable(constants)):
        raise ValueError(f"{who}: constants must be Constants, a function of x0 or None; got {constants!r}")
    if not (range is None or callable(range)):
        raise ValueError(f"{who}: range must be a function of x and a radius or None; got range={range!r}")
    infimum = None if infimum is None else number(who, "infimum", infimum)
    with jax.enable_x64(True):  # a start that is no array of its own precision is kept with all its digits
        x0 = jax.tree.map(np.asarray, lists_as_arrays(who, which, with_floats(start)))
    if not jax.tree.leaves(x0) or any(not np.issubdtype(leaf.dtype, np.floating) for leaf in jax.tree.leaves(x0)):
        raise ValueError(f"{who}: {which} must be a pytree of floating-point arrays; got {which}={start!r}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(x0):
        check_finite(who, which, f"{which}{jax.tree_util.keystr(path)}", leaf)
    if callable(data):
        check_loss(who, loss, x0, _first(_checked_samples(who, data)))
        return StreamProblem(x0, loss, data, objective, constants, infimum, name, range)
    if objective is not None:
        raise ValueError(f"{who}: objective must be None for arrays of data, which give F exactly; got a function")
    rows = table_rows(who, data)
    check_loss(who, loss, x0, _first(rows))
    return DataProblem(rows, x0, loss, constants, infimum, name, range)


def as_problem(who: str, problem: Any, data: Any = None, x0: Any = None) -> tuple[Problem, Any]:
    """The problem that a function was given and the x0 that was asked for, None if it is the problem's own.

    (problem), (problem, x0) and (loss, data, x0): a loss and data are made a problem without constants by `from_loss`.
    """
    if not isinstance(problem, type) and all(callable(getattr(problem, part, None)) for part in ("sample", "grad")):
        if data is not None and x0 is not None:
            raise ValueError(f"{who}: data must be left out for a problem, which has its own; got data and x0")
        forget_stale(problem)
        return problem, data if x0 is None else x0
    if isinstance(problem, type) or not callable(problem):
        kind = f"the class {problem.__name__}" if isinstance(problem, type) else f"a {type(problem).__name__}"
        raise ValueError(f"{who}: problem must be a problem, or a loss before data and x0; got {kind}")
    if data is None or x0 is None:
        missing = [name for name, value in (("data", data), ("x0", x0)) if value is None]
        raise ValueError(f"{who}: a loss must come with data and x0; got no {' and no '.join(missing)}")
    name = getattr(problem, "__name__", "my-problem")
    made = _made(who, "x0", problem, data, x0, name=name if name.isidentifier() else "my-problem")
    forget_stale(made)
    return made, None


def _first(rows: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf[0]), rows)


def _checked_samples(who: str, sampler: Callable[[jax.Array, int], Any]) -> Any:
    """A few samples. The sampler is traced once: what is not from the key would be the same at every step."""
    n = 3
    first, second = (jax.tree.map(np.asarray, sampler(jax.random.key(0), n)) for _ in range(2))
    shapes = sorted({leaf.shape for leaf in jax.tree.leaves(first)})
    if not shapes or any(shape[:1] != (n,) for shape in shapes):
        raise ValueError(
            f"{who}: data must be a sampler(key, n) that returns n samples along the leading axis of its arrays; "
            f"got shapes {', '.join(map(str, shapes)) or 'of nothing'} for n={n}"
        )
    if not _same(first, second):
        raise ValueError(
            f"{who}: data must be a sampler that depends on nothing but key and n; got two answers for one key"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(first):
        check_finite(who, "data", f"samples{jax.tree_util.keystr(path)}", leaf)
    return first


def load(place: str) -> Problem:
    """The problem at `path/to/file.py:name`: an object with the protocol, or a function without arguments making one.

    The file is imported, that is executed, like any module of the user's.
    """
    path, _, attribute = place.rpartition(":")
    if not path or not attribute.isidentifier():
        raise ValueError(f"load: problem must be of the form path/to/file.py:name; got {place!r}")
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"load: problem must name an existing Python file; got no file {path!r}")
    module = _guarded(place, lambda: _import(file))
    if not hasattr(module, attribute):
        raise ValueError(f"load: problem must name something that the file defines; got no {attribute!r} in {path!r}")
    found = getattr(module, attribute)
    if callable(found) and (isinstance(found, type) or _missing(found)):
        found = _guarded(place, found)
    if missing := _missing(found):
        raise ValueError(
            f"load: problem must be an object with {', '.join(NEEDED)}, or a function without arguments that returns "
            f"one; got {type(found).__name__} without {', '.join(missing)}"
        )
    problem: Problem = found
    return problem


def _import(file: Path) -> ModuleType:
    name = f"normstorm_user_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} does not end in .py")
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    sys.modules[name] = module  # dataclasses look their module up while the file runs
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(folder)
    return module


def _guarded(place: str, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except (Exception, SystemExit) as error:
        if isinstance(error, ValueError) and _ours(error):
            raise
        words = " ".join(str(error).split()) or "no message"
        raise ValueError(f"load: {place} must run without an error; got {type(error).__name__}: {words}") from error


def _ours(error: ValueError) -> bool:
    """Whether it is a refusal of this package, which is a sentence already."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return Path(last).is_relative_to(Path(__file__).parents[1])


def _missing(found: object) -> list[str]:
    return [name for name in NEEDED if not hasattr(found, name)]


def _same(a: Any, b: Any) -> bool:
    shapes: list[Any] = [jax.tree.structure(a), jax.tree.structure(b)]
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=False)
    return shapes[0] == shapes[1] and all(np.array_equal(p, q) for p, q in pairs)
