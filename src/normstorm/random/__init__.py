"""Random numbers as a pure function of (seed, step): threefry written out, and normals that cost little.

The key of step t of a seed is threefry(seed, t). It depends on nothing else, so a run gives the same numbers
alone, in a crowd, in pieces and after a resume. The bits are those of `jax.random`; writing the twenty rounds out
in plain arithmetic lets the compiler fuse and vectorise them. `normal` replaces the inverse error function of
`jax.random.normal` by the formula of Box and Muller with polynomials; `numbers` gives normals and uniform numbers by
one pass of threefry, and `index` rows of a table. They are optional: `jax.random` is slower, not wrong.

Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011); Box and Muller, "A Note on
the Generation of Random Normal Deviates" (Annals of Mathematical Statistics 29, 1958).
Departures: a pair of normals is made from 64 bits (the largest value is sqrt(66 log 2) < 6.77, and the distribution
function is off by at most 2^-32, in single precision by 2^-25 at zero); an index comes from 32 bits, so that its
probabilities are off by at most 2^-32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import bitcast_convert_type
from numpy.polynomial import Chebyshev, Polynomial

from normstorm._shared.jax_internals import apart, custom_vmap, define_prng_impl

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
U32 = np.uint32


def series(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    """Horner's rule, lowest power first."""
    total = jnp.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total


def fitted(function: Callable[[np.ndarray], np.ndarray], low: float, high: float, degree: int) -> list[float]:
    """Coefficients of the polynomial that meets `function` in Chebyshev's points, lowest power first."""
    return [float(c) for c in Chebyshev.interpolate(function, degree, (low, high)).convert(kind=Polynomial).coef]


# Logarithm, sine and cosine as polynomials: a library's own are calls, or chains that a compiler does not fuse.
LOW, MIDDLE = math.sqrt(0.5), 0.75 * math.sqrt(2)  # mantissas lie in [LOW, 2 LOW), an interval around MIDDLE
DEGREES = {"float64": (14, 7), "float32": (8, 4)}
LOGARITHM = {t: fitted(lambda v: np.log(MIDDLE + v), LOW - MIDDLE, MIDDLE - LOW, n) for t, (n, _) in DEGREES.items()}
# sin(pi v / 2) / v and cos(pi v / 2), of w = v^2
SINE = {t: fitted(lambda w: math.pi / 2 * np.sinc(np.sqrt(w) / 2), 0, 1, n) for t, (_, n) in DEGREES.items()}
COSINE = {t: fitted(lambda w: np.cos(math.pi / 2 * np.sqrt(w)), 0, 1, n) for t, (_, n) in DEGREES.items()}


def threefry(key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 with 20 rounds."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ U32(0x1BD11BDA))
    a, b = counter[0] + schedule[0], counter[1] + schedule[1]
    for group in range(5):
        for r in ROTATIONS[group % 2]:
            a = a + b
            b = ((b << U32(r)) | (b >> U32(32 - r))) ^ a
        a = a + schedule[(group + 1) % 3]
        b = b + schedule[(group + 2) % 3] + U32(group + 1)
    return a, b


# Traced once for each form of its arguments and then written in place: tracing a program would be mostly this.
in_place = partial(jax.jit, inline=True)
_threefry = in_place(threefry)


def words(key: jax.Array, shape: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Two 32-bit words for every element of `shape`."""
    size = math.prod(shape)
    if size >= 2**32:
        raise ValueError(f"words: shape must have fewer than 2**32 elements; got shape={tuple(shape)}")
    return _halves(_drawn(key, lambda: (U32(0), lax.iota(jnp.uint32, size).reshape(shape))))


def _drawn(key: jax.Array, counter: Callable[..., tuple[Any, Any]], *arguments: Any) -> Any:
    """The two words of `threefry`, computed once: in one word of 64 bits if there are such words, else as a pair.

    The key comes whole, (2, ...), and the counter as a function: what is cut out of a key or counted elsewhere would be
    another operation of every step.
    """

    def both(key: jax.Array, *arguments: Any) -> Any:
        return _threefry((key[0], key[1]), counter(*arguments))

    if jax.default_backend() != "cpu":
        return both(key, *arguments)
    if jnp.zeros(()).dtype != np.float64:
        return tuple(apart(lambda *given, i=i: both(*given)[i], key, *arguments) for i in range(2))
    return apart(lambda *given: _pack(*both(*given)), key, *arguments)


def _halves(word: Any) -> tuple[jax.Array, jax.Array]:
    if isinstance(word, tuple):
        return word
    return (word >> np.uint64(32)).astype(jnp.uint32), word.astype(jnp.uint32)


def _seed(seed: Any) -> jax.Array:
    seed = jnp.asarray(seed)
    low = seed.astype(jnp.uint32)
    high = (seed >> 32).astype(jnp.uint32) if seed.dtype.itemsize == 8 else jnp.zeros_like(low)
    return jnp.stack([high, low])


def _split(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    return jnp.stack(words(key, shape), axis=-1)


def _fold_in(key: jax.Array, data: Any) -> jax.Array:
    high, low = _seed(data)
    return jnp.stack(_halves(_drawn(key, lambda *counter: counter, high, low)))


def _bits(key: jax.Array, bit_width: int, shape: Sequence[int]) -> jax.Array:
    a, b = words(key, shape)
    if bit_width == 64:
        return _pack(a, b)
    return (a ^ b).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[bit_width])


THREEFRY = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_bits, fold_in=_fold_in, name="threefry_inline", tag="tfi"
)


def seed_words(seeds: Sequence[int]) -> np.ndarray:
    """One row (high, low) of 32-bit words for every seed."""
    whole = np.array(seeds, np.uint64)
    return np.stack([whole >> np.uint64(32), whole & np.uint64(0xFFFFFFFF)], axis=1).astype(np.uint32)


def step_key(seed: jax.Array, step: Any) -> jax.Array:
    """The typed key of one step of one seed; `seed` is a row of seed_words."""
    return jax.random.fold_in(jax.random.wrap_key_data(seed, impl=THREEFRY), step)


def step_words(seeds: jax.Array, t: Any, steps: int) -> jax.Array:
    """The words of the keys of steps after t, (steps, 2, seeds): those of `step_key`, for rows of seed_words."""
    later = np.arange(1, steps + 1, dtype=np.uint32)[:, None]
    word = _drawn(seeds.T, lambda t: (U32(0), t.astype(jnp.uint32) + later), jnp.asarray(t))
    return jnp.stack(_halves(word), axis=1)


def normal(key: jax.Array, shape: Sequence[int], dtype: Any = float) -> jax.Array:
    """Standard normals in pairs, sqrt(2 E) (+-cos(pi v / 2), sin(pi v / 2)): E exponential, v uniform on (-1, 1).

    `key` is a typed threefry key. Two words make a pair: 32 bits for the radius, 31 for v, one for the sign.
    """
    _check("normal", key, shape, dtype)
    return numbers(key, math.prod(shape), 0, dtype)[0].reshape(shape)


def numbers(key: jax.Array, normals: int, uniforms: int, dtype: Any = float) -> tuple[jax.Array, jax.Array]:
    """So many standard normals, and so many numbers that are uniform on [0, 1), all independent."""
    if min(normals, uniforms) < 0:
        raise ValueError(f"numbers: normals and uniforms must be >= 0; got {normals} and {uniforms}")
    name = _check("numbers", key, (), dtype)
    drawn = _for_many_keys(_rows, normals, uniforms, name)(jax.random.key_data(key))
    return drawn[uniforms:], drawn[:uniforms]


def index(key: jax.Array, shape: Sequence[int], size: int) -> jax.Array:
    """Integers that are uniform on 0..size-1: the upper half of the product of `size` and 32 random bits."""
    _check("index", key, shape)
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or not 1 <= size < 2**31:
        raise ValueError(f"index: size must be an integer in [1, 2**31); got size={size!r}")
    return _for_many_keys(_index_rows, math.prod(shape), size)(jax.random.key_data(key)).reshape(shape)


def _index_rows(keys: jax.Array, count: int, size: int) -> jax.Array:
    word = _halves(_counted(keys, 0, count))[0]
    low, high = U32(size & 0xFFFF), U32(size >> 16)
    a, b = word >> U32(16), word & U32(0xFFFF)
    # word * size = (a 2^16 + b)(high 2^16 + low), without a wider word; no sum here reaches 2^32.
    middle = a * low + ((b * low) >> U32(16))
    whole = a * high + (middle >> U32(16)) + ((b * high + (middle & U32(0xFFFF))) >> U32(16))
    return whole.astype(jnp.int32)


def _check(who: str, key: jax.Array, shape: Sequence[int], dtype: Any = float) -> str:
    """Refuse what cannot be drawn; else the name of the type."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.shape or jax.random.key_data(key).size != 2:
        must = "must be one typed threefry key, as jax.random.key makes it"
        raise ValueError(f"{who}: key {must}; got {key.dtype}{key.shape}")
    if not isinstance(shape, Sequence) or not all(isinstance(n, (int, np.integer)) for n in shape):
        raise ValueError(f"{who}: shape must be a sequence of integers; got shape={shape!r}")
    if min(shape, default=0) < 0:
        raise ValueError(f"{who}: shape must have no negative entry; got shape={tuple(shape)}")
    name = str(jax.dtypes.canonicalize_dtype(dtype))
    if name not in DEGREES:
        raise ValueError(f"{who}: dtype must be float64 or float32; got dtype={name}")
    return name


@cache
def _for_many_keys(rows: Callable[..., jax.Array], *sizes: Any) -> Callable[[jax.Array], jax.Array]:
    """From a function of keys (2, n) with a column for each: of one key, or of many, which then lie along columns."""
    columns = in_place(lambda keys: rows(keys, *sizes))

    @custom_vmap
    def drawn(key: jax.Array) -> Any:
        return columns(key[:, None])[:, 0]

    @drawn.def_vmap
    def drawn_many(axis_size: int, in_batched: Any, keys: jax.Array) -> tuple[jax.Array, bool]:
        return jnp.moveaxis(columns(keys.T), -1, 0), True

    return drawn


def _rows(keys: jax.Array, normals: int, uniforms: int, dtype: str) -> jax.Array:
    """Row i holds the i-th number of every key: uniform numbers, then pairs of normals, two words for each.

    What several rows need is computed apart: fused with each of them, it would be computed several times.
    """
    pairs = -(-normals // 2)
    word = _counted(keys, 0, pairs)
    radius = apart(lambda word: _radius(_halves(word)[0], dtype), word)
    along, across = _pair(radius, _halves(word)[1])
    uniform = _below_one(*_halves(_counted(keys, pairs, pairs + uniforms)), dtype)
    return jnp.concatenate([uniform, along, across[: normals - pairs]])


def _counted(keys: jax.Array, start: int, stop: int) -> Any:
    """The words of counters start .. stop - 1, a row for each, for every key."""
    return _drawn(keys, lambda: (U32(0), jnp.arange(start, stop, dtype=jnp.uint32)[:, None]))


def _pair(radius: jax.Array, angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """radius sin(pi v / 2) and +-radius cos(pi v / 2); v and the sign come from the bits of `angle`."""
    dtype = str(radius.dtype)
    if dtype == "float64":
        v = (small_whole((angle | U32(1)).astype(jnp.uint64)) - 2.0**31) * 2.0**-31
        sign = bitcast_convert_type(angle.astype(jnp.uint64) << np.uint64(63), jnp.int64)
    else:
        v = bitcast_convert_type((angle | U32(1)) ^ U32(2**31), jnp.int32).astype(dtype) * 2.0**-31
        sign = bitcast_convert_type(angle << U32(31), jnp.int32)
    sine = radius * v * series(SINE[dtype], v * v)
    across = bitcast_convert_type(radius * series(COSINE[dtype], v * v), sign.dtype)
    return sine, bitcast_convert_type(across ^ sign, radius.dtype)


def _radius(word: jax.Array, dtype: str) -> jax.Array:
    """sqrt(2 E): 32 bits as u in (0, 1), written below a leading one, and half a unit more; float32 may round to 1."""
    if dtype == "float32":
        u = word.astype(jnp.float32) * 2.0**-32 + 2.0**-33
    else:
        upper = word.astype(jnp.uint64) << np.uint64(20)
        u = bitcast_convert_type(upper | np.uint64(0x3FF0000000080000), jnp.float64) - 1
    return jnp.sqrt(jnp.maximum(2 * minus_log(u), 0))


def _below_one(a: jax.Array, b: jax.Array, dtype: str) -> jax.Array:
    """The upper 52 (or 23) bits of two words as a number in [0, 1)."""
    if dtype == "float32":
        return bitcast_convert_type((a >> U32(9)) | U32(0x3F800000), jnp.float32) - 1
    return bitcast_convert_type((_pack(a, b) >> np.uint64(12)) | np.uint64(0x3FF0000000000000), jnp.float64) - 1


def _pack(high: jax.Array, low: jax.Array) -> jax.Array:
    return (high.astype(jnp.uint64) << np.uint64(32)) | low.astype(jnp.uint64)


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
    return jnp.negative(exponent * math.log(2) + series(LOGARITHM[str(u.dtype)], m - MIDDLE))


def small_whole(n: jax.Array) -> jax.Array:
    """A small unsigned integer as a floating-point number of its width, by writing it below a large power of two."""
    if n.dtype == jnp.uint64:
        return bitcast_convert_type(n | np.uint64(0x4330000000000000), jnp.float64) - 2.0**52
    return bitcast_convert_type(n | np.uint32(0x4B000000), jnp.float32) - 2.0**23
