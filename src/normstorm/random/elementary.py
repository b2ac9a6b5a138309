"""Logarithm, sine and cosine as polynomials, and whole numbers as floating-point ones by their bits.

A library's own are calls or long chains of operations; these are a few multiplications that a compiler keeps in one
loop with what their argument comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import bitcast_convert_type
from numpy.polynomial import Chebyshev, Polynomial


def series(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    """Horner's rule, lowest power first."""
    total = jnp.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total


def fitted(function: Callable[[np.ndarray], np.ndarray], low: float, high: float, degree: int) -> list[float]:
    """Coefficients of the polynomial that meets `function` in Chebyshev's points, lowest power first."""
    return [float(c) for c in Chebyshev.interpolate(function, degree, (low, high)).convert(kind=Polynomial).coef]


LOW, MIDDLE = math.sqrt(0.5), 0.75 * math.sqrt(2)  # mantissas lie in [LOW, 2 LOW), an interval around MIDDLE
DEGREES = {"float64": (14, 7), "float32": (8, 4)}
LOGARITHM = {t: fitted(lambda v: np.log(MIDDLE + v), LOW - MIDDLE, MIDDLE - LOW, n) for t, (n, _) in DEGREES.items()}
SINE = {t: fitted(lambda w: math.pi / 2 * np.sinc(np.sqrt(w) / 2), 0, 1, n) for t, (_, n) in DEGREES.items()}
COSINE = {t: fitted(lambda w: np.cos(math.pi / 2 * np.sqrt(w)), 0, 1, n) for t, (_, n) in DEGREES.items()}


def minus_log(u: jax.Array) -> jax.Array:
    """-log u for 0 < u < 2: u = 2^e m with m in [sqrt(1/2), sqrt 2), and a polynomial for log m.

    Nothing here is slow and used twice, so the compiler keeps it in one loop with the bits that it comes from.
    """
    double = u.dtype == jnp.float64
    word: Any = np.uint64 if double else np.uint32
    bits, bias = (52, 1023) if double else (23, 127)
    root = np.array(LOW, u.dtype).view(word)
    shifted = bitcast_convert_type(u, word) + (np.array(1, u.dtype).view(word) - root)
    exponent = small_whole(shifted >> word(bits)) - bias
    m = bitcast_convert_type((shifted & word(2**bits - 1)) + root, u.dtype)
    minus: jax.Array = -(exponent * math.log(2) + series(LOGARITHM[str(u.dtype)], m - MIDDLE))
    return minus


def small_whole(n: jax.Array) -> jax.Array:
    """A small unsigned integer as a floating-point number of its width, by writing it below a large power of two."""
    if n.dtype == jnp.uint64:
        return bitcast_convert_type(n | np.uint64(0x4330000000000000), jnp.float64) - 2.0**52
    return bitcast_convert_type(n | np.uint32(0x4B000000), jnp.float32) - 2.0**23


def sine_ratio(w: jax.Array) -> jax.Array:
    """sin(pi v / 2) / v with w = v^2 <= 1."""
    return series(SINE[str(w.dtype)], w)


def cosine(w: jax.Array) -> jax.Array:
    """cos(pi v / 2) with w = v^2 <= 1."""
    return series(COSINE[str(w.dtype)], w)
