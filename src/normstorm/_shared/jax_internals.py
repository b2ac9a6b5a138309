"""Every use of a part of JAX that is experimental, or that JAX does not promise to keep, each with its reason.

The upper bound on JAX in pyproject.toml is there because of this file; a newer JAX is tried here first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.custom_batching import custom_vmap as custom_vmap  # keys of many seeds are drawn as columns, not one by one
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import ClosedJaxpr as ClosedJaxpr  # a traced function with other constants: both precisions
from jax.extend.core import jaxpr_as_fun as jaxpr_as_fun
from jax.extend.random import define_prng_impl as define_prng_impl  # threefry in plain arithmetic, which XLA fuses
from jax.interpreters import partial_eval

abstract: Any = jax.ShapeDtypeStruct  # which JAX leaves without types
_marks: Any = set_xla_metadata


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Compile `function` apart from what uses its result, on a CPU: else XLA computes it again for every user of it."""
    if jax.default_backend() != "cpu":
        return function(*arguments)

    def body(*arguments: Any) -> Any:
        with _marks(inlineable="true"):  # the operations inside would inherit the mark
            return function(*arguments)

    with _marks(inlineable="false"):
        return jax.jit(body)(*arguments)


def compiler_options(wide: bool, quick: bool = False, whole: bool = False) -> dict[str, Any]:
    """What XLA is asked for on a CPU; an option that it does not know, or no more, is left out.

    wide    registers of 512 bits, where the processor has them, for which XLA does not reach by itself
    quick   each operation's program by the older of XLA's two ways to write it, in half the time; what it writes is as
            good for few numbers of x, and slower for many
    whole   in one piece, not in 32 for as many threads: later on an idle machine, and less work in all on a busy one
    """
    if jax.default_backend() != "cpu":
        return {}
    asked = {
        "xla_cpu_prefer_vector_width": (wide, 512),
        "xla_cpu_use_fusion_emitters": (quick, False),
        "xla_cpu_parallel_codegen_split_count": (whole, 1),
    }
    return {option: value for option, (wanted, value) in asked.items() if wanted and _known(option, value)}


@cache
def _known(option: str, value: Any) -> bool:
    """Whether this version of XLA takes the option; a version that does not says so when it compiles."""
    try:
        jax.jit(lambda: 0, compiler_options={option: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


@cache
def loops_are_programs() -> bool:
    """Whether XLA makes one program of a loop of 8,000 bytes: not if it started before normstorm asked for that.

    It is seen from a loop, because flags may have been changed since, and an XLA that has started does not say.
    """
    if jax.default_backend() != "cpu":
        return False

    def loop(x: jax.Array, count: int) -> Any:
        return jax.lax.fori_loop(0, count, lambda i, x: x + x[::-1], x)

    text = jax.jit(loop).lower(np.ones(1000, np.float32), 9).compile().as_text()
    return "xla_cpu_small_call" in (text or "")


def barrier(tree: Any) -> Any:
    """Keep what comes before apart from what comes after, on a CPU: fused, neither would run along memory there.

    On a GPU the fewer programs the better, and what lies between them must keep its order in memory.
    """
    if jax.default_backend() != "cpu":
        return tree
    return jax.lax.optimization_barrier(tree)  # type: ignore[no-untyped-call]


def unused(jaxpr: Any, argument: int, results: int) -> bool:
    """Whether the first results of a traced function do not use this argument. JAX has no public name for this."""
    wanted = [i < results for i in range(len(jaxpr.outvars))]
    return not partial_eval.dce_jaxpr(jaxpr, wanted)[1][argument]


def pallas() -> tuple[Any, Any]:
    """Kernels of a GPU and their Triton backend; imported late, because a CPU never needs them."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    return pl, triton
