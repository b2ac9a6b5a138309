"""Ask a user's functions in single and in double precision within one process.

JAX keeps a NumPy array that a function mentions in the type of the mode that met it first, single or double precision;
in the other mode the function then fails, or is compiled into nonsense that XLA refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from normstorm._shared.programs import enter_mode

Tree = Any


@contextmanager
def in_precision(problem: Any, double: bool = True) -> Iterator[None]:
    """Ask this problem in double precision, or in single, by no program of the other one."""
    with jax.enable_x64(double):
        enter_mode(problem)
        yield


def ask(plain: Callable[..., Tree], compiled: Callable[..., Tree] | None, *arguments: Tree) -> Tree:
    """plain(*arguments), by way of its compiled form where there is one and it works."""
    if compiled is not None:
        try:
            return compiled(*arguments)
        except (TypeError, ValueError, jax.errors.JaxRuntimeError):
            pass  # the function's own errors come up again
    return _replayed(plain, *arguments)


def _replayed(function: Callable[..., Tree], *arguments: Tree) -> Tree:
    """function(*arguments), operation by operation, with its NumPy arrays in the types of the present mode."""
    traced, form = jax.make_jaxpr(function, return_shape=True)(*arguments)
    again: Any = jaxpr_as_fun(ClosedJaxpr(traced.jaxpr, [_of_this_mode(c) for c in traced.consts]))
    return jax.tree.unflatten(jax.tree.structure(form), again(*jax.tree.leaves(arguments)))


def _of_this_mode(constant: Any) -> Any:
    if not isinstance(constant, np.ndarray):
        return constant
    double = jnp.zeros(()).dtype == np.float64
    wanted = np.float64 if double and constant.dtype == np.float32 else constant.dtype
    return jnp.asarray(np.array(constant), jax.dtypes.canonicalize_dtype(wanted))
