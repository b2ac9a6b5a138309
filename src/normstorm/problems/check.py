"""Before a run: whether a hand-written problem keeps its promises, and x0 as arrays. Each refusal is one sentence.

Most checks look at shapes and cost a few traces. Those of the mean and of finite numbers compile a small function; all
that go beyond shapes are left out for problems of this package, whose tests prove more.

**The key.** A `sample` that ignores its key gives every seed the same path. It is refused if the traced function does
not use the key *and* gradients at single rows of one batch differ. Samples that are all alike, that hold no numbers,
or that the gradient does not look at leave nothing to choose: such problems are deterministic and are taken. So is
any problem with `deterministic = True`, for those who want the same rows at every step.

**The mean.** Let h be the mean of `grad` over a group of samples. If full_grad(x) is its expectation, h lies on
either side of it, in every direction. A first look at 32 groups finds a direction; `full_grad` is refused if all of
128 fresh groups, each four times as large, lie on one side of it in that direction, and if it is off by 5 %. Where
such a group has a chance of at least 15 % for either side, a false alarm has one of .85^128 < 1e-9; nothing else is
asked of the noise, no moment and no symmetry. Both looks are at a point near x0 and not at x0, where gradients may
vanish or kinks lie. Smaller errors, and those that noise hides, pass.

**Finite numbers.** Losses and gradients at x0 must be finite: of a finite sum those of every row, of anything else the
mean gradient of a few samples. Every object is asked once.

**The range**, of a problem that has one and is not of this package. Gradients of a few samples at x0 and at the point
near it, and at points at a short and a long distance from them, must not contradict it.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.jax_internals import unused
from normstorm._shared.programs import enter_mode, forget_stale
from normstorm._shared.pytrees import dimension, misfit
from normstorm.random import THREEFRY

from .base import Certified, FiniteSum
from .protocol import Ranged
from .ranges import contradiction
from .tables import check_finite

Tree = Any
ROWS = 8  # compared
SAMPLES = 32  # that a range is held to
GROUPS, ROUNDS, JOINED = 32, 16, 4  # groups of a look, looks after a first suspicion, and how many make a group there
MOST = 1024  # samples of a group
NUMBERS, LONGEST = 2**22, 2**19  # that a look computes, about, and that one sample gradient may take to be looked at
OFF = 0.05
WORDS = np.array([1, 2], np.uint32)  # of a key

_fine: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()  # by identity and form of x
_fine_forms: set[tuple[Any, ...]] = set()  # of problems that JAX knows: class, structure, forms of numbers, form of x


def check_problem(who: str, problem: Any, x: Tree) -> None:
    """Raise a ValueError of one sentence if samples, gradients or values are not what a run needs.

    Errors inside the problem's own functions pass as they are, unless x is of another form than the problem's start.
    An object that has passed is not looked at again; of another one of its class that differs in numbers alone only
    the numbers are.
    """
    forget_stale(problem)
    enter_mode(problem)
    known, alike = (id(problem), _form(x)), _alike(problem, x)
    if _fine.get(known) is problem:
        return
    if alike not in _fine_forms:
        _check_forms(who, problem, x)
    if not _ours(problem):
        _finite(who, problem, x)
    if alike is not None:
        _fine_forms.add(alike)
    if hasattr(problem, "__weakref__"):
        _fine[known] = problem


def _check_forms(who: str, problem: Any, x: Tree) -> None:
    try:
        first = _asked_once(problem, x, 1)
        _forms(who, problem, x, first)
        if not _proven(problem):
            _more_forms(who, problem, x)
            _key(who, problem, x, first)
        if isinstance(problem, Ranged) and not _ours(problem):
            _range(who, problem, x, _numbers(first.jaxpr))
    except (TypeError, ValueError) as error:
        if (words := misfit(problem, x)) is None:
            raise
        raise ValueError(f"{who}: x0 must {words}") from error
    if knows(problem, "full_grad") and not _proven(problem):
        _mean(who, problem, x, _numbers(first.jaxpr))


def _alike(problem: Any, x: Tree) -> tuple[Any, ...] | None:
    """What problems have in common that are one program; None if JAX does not know the class, or it cannot be kept."""
    if jax.tree_util.all_leaves([problem]):
        return None
    leaves, structure = jax.tree.flatten(problem)
    found = type(problem), structure, tuple((jnp.shape(a), str(jnp.result_type(a))) for a in leaves), _form(x)
    try:
        hash(found)
    except TypeError:
        return None
    return found


def as_point(who: str, x0: Tree, problem: Any = None) -> Tree:
    """x0 as arrays of one precision.

    Numbers in lists or tuples are the array that NumPy makes of them, unless the problem takes them as they are.
    """
    x0 = lists_as_arrays(who, "x0", x0, problem)
    leaves, structure = jax.tree.flatten(x0)
    types = {str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in leaves}
    wide = "float64" in types and jnp.zeros(()).dtype != np.float64
    if not leaves or len(types) > 1 or not types <= {"float", "float32", "float64"} or wide:
        only = "float32 (float64 needs jax_enable_x64)" if wide else "float32 or float64 in all its leaves"
        raise ValueError(f"{who}: x0 must be {only}; got {', '.join(sorted(types)) or 'no leaves'}")
    if not sum(np.size(leaf) for leaf in leaves):
        raise ValueError(f"{who}: x0 must hold at least one number; got none")
    for path, leaf in jax.tree_util.tree_leaves_with_path(x0):
        check_finite(who, "x0", f"x0{jax.tree_util.keystr(path)}", np.asarray(leaf))
    # With its type spelt out: a weakly typed start would make the second chunk another program than the first.
    return jax.tree.unflatten(structure, [jnp.asarray(leaf, jnp.asarray(leaf).dtype) for leaf in leaves])


def with_floats(tree: Tree) -> Tree:
    """Integers of a start as floating-point numbers, whoever holds them; anything else as it is."""

    def one(leaf: Any) -> Any:
        if type(leaf) is int:
            return float(leaf)
        if not np.issubdtype(getattr(leaf, "dtype", bool), np.integer):
            return leaf
        return np.asarray(leaf, jnp.zeros(()).dtype)

    return jax.tree.map(one, tree)


def lists_as_arrays(who: str, name: str, tree: Tree, problem: Any = None) -> Tree:
    """Lists and tuples of numbers, nested or not and not all of them integers, as arrays."""
    if not any(map(_listed, jax.tree.leaves(tree, is_leaf=_listed))) or _takes(problem, tree):
        return tree

    def array(part: Any) -> Any:
        if not _listed(part):
            return part
        given = {leaf.dtype for leaf in jax.tree.leaves(part) if isinstance(leaf, np.floating)}
        try:
            return np.array(part, np.result_type(*given) if given else jnp.zeros(()).dtype)
        except ValueError as error:
            raise ValueError(f"{who}: {name} must be an array; got lists of different lengths") from error

    return jax.tree.map(array, tree, is_leaf=_listed)


def _listed(part: Any) -> bool:
    leaves = jax.tree.leaves(part) if _only_numbers(part) else []
    return any(isinstance(leaf, (float, np.floating)) for leaf in leaves)


def _only_numbers(part: Any) -> bool:
    number = (int, float, np.integer, np.floating)
    return type(part) in (list, tuple) and all(
        _only_numbers(item) or (isinstance(item, number) and not isinstance(item, bool)) for item in part
    )


def _takes(problem: Any, x: Tree) -> bool:
    """Whether gradients at x are of the form of x."""
    try:
        gradient = jax.eval_shape(lambda x: problem.grad(x, _drawn(problem, WORDS, 1)), x)
    except Exception:  # whatever the problem says of a point that is not its own
        return False
    return bool(_form(gradient) == _form(jax.eval_shape(lambda x: x, x)))


class _Traced(NamedTuple):
    """Samples and their gradient, looked at without being computed; `samples` are the first results of `jaxpr`."""

    jaxpr: Any
    samples: Tree
    gradient: Tree


def _asked_once(problem: Any, x: Tree, n: int) -> _Traced:
    def ask(words: Any, x: Tree) -> tuple[Tree, Tree]:
        samples = _drawn(problem, words, n)
        return samples, () if _unfit(samples, n) else problem.grad(x, samples)

    closed, forms = jax.make_jaxpr(ask, return_shape=True)(WORDS, x)
    return _Traced(closed.jaxpr, *forms)


def _forms(who: str, problem: Any, x: Tree, found: _Traced, n: int = 1) -> None:
    """Samples must be numbers, n of them, and gradients must look like x."""
    if words := _unfit(found.samples, n):
        raise ValueError(f"{who}: problem.sample must return {words}")
    wanted, got = _form(x), {"grad": found.gradient}
    if n == 1 and knows(problem, "full_grad"):
        got["full_grad"] = jax.eval_shape(problem.full_grad, x)
    for name, gradient in got.items():
        if _form(gradient) != wanted:
            size = "" if n == 1 else f" for {n} samples"
            raise ValueError(f"{who}: problem.{name} must return the form of x, {wanted}; got {_form(gradient)}{size}")


def _more_forms(who: str, problem: Any, x: Tree) -> None:
    """A gradient that is one number for each sample looks like x for one size of a batch, not for two."""
    try:
        found = _asked_once(problem, x, 2)
    except Exception:  # a problem may have no second sample; if a run asks for one, the problem will say so again
        found = None
    if found is not None:
        _forms(who, problem, x, found, 2)
    if knows(problem, "value") and (got := _form(jax.eval_shape(problem.value, x))) not in ("float32[]", "float64[]"):
        raise ValueError(f"{who}: problem.value must return one floating-point number; got {got}")


def _unfit(samples: Tree, n: int) -> str | None:
    """What samples must be, if they are not."""
    leaves = jax.tree.leaves(samples)
    if any(jnp.issubdtype(getattr(leaf, "dtype", float), jax.dtypes.extended) for leaf in leaves):
        return "arrays of numbers; got random keys, which only sample may use"
    for shape in map(np.shape, leaves):
        if 0 not in shape and shape[:1] != (n,):
            return f"n samples along the first axis of its arrays; got the shape {shape} for n={n}"
    return None


def _form(tree: Tree) -> str:
    leaves, structure = jax.tree.flatten(tree)
    alone: Any = jax.tree.structure(0)
    names = [f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in leaves]
    return names[0] if structure == alone else str(jax.tree.unflatten(structure, names))


def knows(problem: Any, name: str) -> bool:
    """Whether a run asks the problem for this exact number."""
    return getattr(problem, "is_exact", True) and getattr(problem, name, None) is not None


def _proven(problem: Any) -> bool:
    """Problems of the catalogue, and finite sums that leave their gradients to `FiniteSum`."""
    kind = type(problem)
    if _ours(problem):
        return True
    own = ("sample", "grad", "full_grad", "_mean", "_rows")
    return isinstance(problem, FiniteSum) and all(getattr(kind, name) is getattr(FiniteSum, name) for name in own)


def _ours(problem: Any) -> bool:
    return isinstance(problem, Certified) and type(problem).__module__.startswith("normstorm.problems.")


def _range(who: str, problem: Any, x: Tree, work: int) -> None:
    numbers = jax.eval_shape(lambda x: problem.range(x, 1.0), x)
    if not isinstance(numbers, tuple) or [_form(n) in ("float32[]", "float64[]") for n in numbers] != [True, True]:
        raise ValueError(
            f"{who}: problem.range must return a tuple of two floating-point numbers; got {_form(numbers)}"
        )

    if work > LONGEST:
        return

    @jax.jit
    def ask(x: Tree, y: Tree, radius: Any) -> tuple[Tree, Tree, Any]:
        samples = _drawn(problem, WORDS, SAMPLES)

        def one(sample: Tree) -> tuple[Tree, Tree]:
            alone = jax.tree.map(lambda leaf: leaf[None], sample)
            return problem.grad(x, alone), problem.grad(y, alone)

        here, there = jax.vmap(one)(samples)
        return here, there, problem.range(x, radius)

    for name, point in (("x0", x), ("a point near x0", _near(x))):
        way = jax.tree.map(jnp.subtract, _near(point), point)
        length = float(np.linalg.norm(_flat(way)))
        for share in (1e-2, 1.0):
            y = jax.tree.map(lambda a, b, share=share: a + share * b, point, way)
            try:
                here, there, found = ask(point, y, share * length)
            except Exception:  # as for the mean: samples that are hollow, or too few of them
                return
            rows = _flat(here, SAMPLES), _flat(there, SAMPLES)
            if np.isfinite(sum(map(np.sum, rows))) and (words := contradiction(*rows, *map(float, found))):
                raise ValueError(f"{who}: problem.range must return {words}, at {name}")


def _key(who: str, problem: Any, x: Tree, found: _Traced) -> None:
    leaves = jax.tree.leaves(found.samples)
    hollow = not sum(leaf.size for leaf in leaves)
    if getattr(problem, "deterministic", False) or hollow or not unused(found.jaxpr, 0, len(leaves)):
        return
    batch = jax.device_get(jax.jit(partial(_drawn, problem, n=ROWS))(WORDS))
    rows = [jax.tree.map(lambda leaf, i=i: leaf[i : i + 1] if leaf.size else leaf, batch) for i in range(ROWS)]
    if all(np.array_equal(_flat(row), _flat(rows[0]), equal_nan=True) for row in rows):
        return
    gradient = jax.jit(problem.grad)
    for point in (x, _near(x)):
        first, *others = (_flat(gradient(point, row)) for row in rows)
        if not all(np.array_equal(first, other, equal_nan=True) for other in others):
            raise ValueError(
                f"{who}: problem.sample must use its key, unless the problem has the attribute deterministic = True; "
                "got the same samples for all keys"
            )


def _mean(who: str, problem: Any, x: Tree, work: int) -> None:
    """`work` is about how many numbers one sample gradient takes."""
    if work > LONGEST:
        return
    size = getattr(problem, "size", MOST)  # of a finite sum, which may draw without replacement
    each = max(1, min(MOST, NUMBERS // (GROUPS * max(1, work)), size if isinstance(size, int) else MOST))
    rng = np.random.default_rng(0)

    @jax.jit
    def groups(x: Tree, words: jax.Array) -> tuple[Tree, Tree]:
        return jax.vmap(lambda word: problem.grad(x, _drawn(problem, word, each)))(words), problem.full_grad(x)

    def look(x: Tree) -> tuple[np.ndarray, np.ndarray]:
        means, full = groups(x, rng.integers(2**32, size=(GROUPS, 2), dtype=np.uint32))
        return _flat(means, GROUPS), _flat(full)

    point = _near(x)
    try:
        means, full = look(point)
        if not np.isfinite(means.sum() + full.sum()):
            point = x
            means, full = look(point)
    except Exception:  # what cannot be asked in this way may be asked well in a run, and else fails there
        return
    if not np.isfinite(means.sum() + full.sum()):
        return
    direction = means.mean(axis=0) - full
    if not _off(means, full) or np.any((means - full) @ direction <= 0):
        return
    fresh = np.concatenate([look(point)[0] for _ in range(ROUNDS)])
    joined = fresh.reshape(-1, JOINED, full.size).mean(axis=1)
    if _off(joined, full) and np.all((joined - full) @ direction > 0):
        raise ValueError(f"{who}: problem.full_grad must return the mean of problem.grad; got {_what(joined, full)}")


def _finite(who: str, problem: Any, x: Tree) -> None:
    """Losses and gradients at x: of all rows of a finite sum, else of a few samples."""
    if isinstance(problem, FiniteSum):
        # Rows one by one only if something is wrong: their gradients may be many numbers.
        if not np.all(_asked(_whole_good, _compiled_whole_good, problem, x)):
            _name_row(who, np.asarray(_asked(_each_good, _compiled_each_good, problem, x)))
        return
    try:
        gradients = _asked(_few_gradients, _compiled_few_gradients, problem, x)
    except Exception:  # there may be fewer samples than that
        return
    if not np.isfinite(_flat(gradients)).all():
        raise ValueError(
            f"{who}: problem must have finite gradients at x0; got one that is not finite, of the first {ROWS} samples"
        )


def _name_row(who: str, good: np.ndarray) -> None:
    """Refuse the first row whose loss or gradient is not finite."""
    for what, column in zip(("loss", "gradient"), good.T, strict=True):
        if not column.all():
            count = f" (and of {int(np.sum(~column)) - 1} more rows)" if np.sum(~column) > 1 else ""
            raise ValueError(
                f"{who}: problem must have finite losses and gradients at x0; got a {what} that is not finite, of row "
                f"{int(np.argmin(column))}{count}"
            )


def _asked(plain: Any, compiled: Any, problem: Any, x: Tree) -> Any:
    # A problem that JAX does not know cannot be an argument of a compiled function.
    known = not jax.tree_util.all_leaves([problem])
    return compiled(problem, x) if known else jax.jit(partial(plain, problem))(x)


def _few_gradients(problem: Any, x: Tree) -> Tree:
    return problem.grad(x, _drawn(problem, WORDS, ROWS))


def _whole_good(problem: Any, x: Tree) -> jax.Array:
    """Whether the mean loss and its gradient are finite: what is not finite in one row is not in a sum."""
    parts = [problem.value(x), *jax.tree.leaves(problem.full_grad(x))]
    return jnp.stack([jnp.all(jnp.isfinite(part)) for part in parts])


def _each_good(problem: Any, x: Tree) -> jax.Array:
    """For every row whether its loss and its gradient are finite, (rows, 2)."""
    rows = problem._rows(x)

    def row(i: jax.Array) -> jax.Array:
        loss, gradient = jax.value_and_grad(problem.loss)(x, jax.tree.map(lambda a: a[i], rows))
        sound = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradient)]
        return jnp.stack([jnp.isfinite(loss), jnp.all(jnp.stack(sound))])

    several = max(1, min(problem.size, MOST, NUMBERS // max(dimension(x), 1)))
    return jnp.asarray(jax.lax.map(row, jnp.arange(problem.size), batch_size=several))


# Once for all objects of a class that differ in numbers alone.
_compiled_few_gradients, _compiled_whole_good, _compiled_each_good = map(
    jax.jit, (_few_gradients, _whole_good, _each_good)
)


def _off(means: np.ndarray, full: np.ndarray) -> bool:
    """Whether they differ by more than rounding and by a share that is worth a word."""
    mean = means.mean(axis=0)
    difference, *lengths = (float(np.linalg.norm(vector)) for vector in (mean - full, mean, full))
    return difference > max(OFF * max(lengths), 1e-3)


def _what(means: np.ndarray, full: np.ndarray) -> str:
    mean = means.mean(axis=0)
    lengths = np.linalg.norm(mean), np.linalg.norm(full)
    if min(lengths) > 0 and abs(mean @ full) > 0.999 * lengths[0] * lengths[1]:
        return f"{mean @ full / lengths[0] ** 2:.2g} times that, near x0"
    return f"one that is {np.linalg.norm(mean - full):.2g} away from it, near x0"


def _drawn(problem: Any, words: Any, n: int) -> Tree:
    return problem.sample(jax.random.wrap_key_data(words, impl=THREEFRY), n)


def _near(x: Tree) -> Tree:
    """A point in general position, about a half of 1 + |x| away in every coordinate."""
    rng = np.random.default_rng(1)

    def moved(leaf: jax.Array) -> jax.Array:
        step = rng.uniform(0.25, 0.75, leaf.shape) * rng.choice([-1, 1], leaf.shape)
        here = np.asarray(leaf)
        return jnp.asarray(here + (1 + np.abs(here)) * step, leaf.dtype)

    return jax.tree.map(moved, x)


def _flat(tree: Tree, rows: int | None = None) -> np.ndarray:
    """All numbers in a vector, or in one for each row."""
    shape = (-1,) if rows is None else (rows, -1)
    return np.concatenate([np.asarray(leaf, np.float64).reshape(shape) for leaf in jax.tree.leaves(tree)], axis=-1)


def _numbers(jaxpr: Any) -> int:
    """About how many numbers a traced function computes."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [
            _numbers(getattr(part, "jaxpr", part))
            for part in jax.tree.leaves(equation.params, is_leaf=_traced)
            if _traced(part)
        ]
        size = sum(np.prod(out.aval.shape, dtype=int) for out in equation.outvars)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            size *= np.prod([equation.invars[0].aval.shape[axis] for axis in contracted], dtype=int)
        total += sum(inner) * equation.params.get("length", 1) if inner else int(size)
    return total


def _traced(part: Any) -> bool:
    return hasattr(getattr(part, "jaxpr", part), "eqns")
