"""The written-out threefry gives JAX's bits, and the normals are normal."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from normstorm.random import THREEFRY, index, minus_log, normal, numbers, seed_words, step_key, step_words, threefry


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 3])
def test_same_bits_as_jax(seed: int) -> None:
    theirs = jax.random.key(seed)
    ours = jax.random.wrap_key_data(jnp.asarray(seed_words([seed])[0]), impl=THREEFRY)
    for dtype in (jnp.uint8, jnp.uint16, jnp.uint32, jnp.uint64):
        np.testing.assert_array_equal(jax.random.bits(ours, (3, 5), dtype), jax.random.bits(theirs, (3, 5), dtype))
    for make in (lambda k: jax.random.split(k, 3), lambda k: jax.random.fold_in(k, 9)):
        np.testing.assert_array_equal(jax.random.key_data(make(ours)), jax.random.key_data(make(theirs)))
    np.testing.assert_array_equal(
        jax.random.key_data(step_key(jax.random.key_data(ours), 9)), jax.random.key_data(jax.random.fold_in(theirs, 9))
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
def test_logarithm(dtype: str, tolerance: float) -> None:
    u = np.concatenate([2.0 ** -np.arange(1, 34), np.linspace(1e-3, 1, 1001)]).astype(dtype)
    exact = -np.log(u.astype(float))
    np.testing.assert_allclose(minus_log(jnp.asarray(u)), exact, rtol=tolerance / 4, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_normals(dtype: str) -> None:
    """Kolmogorov's distance over n = 200,000: P(sqrt(n) D > 2.7) < 1e-6; moments within 6 standard errors (< 1e-7)."""
    n = 200_000
    z = np.asarray(jax.jit(lambda k: normal(k, (n,), dtype))(jax.random.key(1)))
    assert z.dtype == dtype
    z = np.sort(z.astype(float))
    cdf = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in z])
    assert np.sqrt(n) * np.abs(cdf - (np.arange(n) + 0.5) / n).max() < 2.7
    for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs((z**power).mean() - mean) < 6 * math.sqrt(variance / n)


@pytest.mark.parametrize("x64", [True, False])
def test_keys_of_many_steps_are_those_of_one(x64: bool) -> None:
    with jax.enable_x64(x64):
        seeds = jnp.asarray(seed_words([0, 7, 2**40 + 3]))
        for t in (0, 5, 2**30):
            many = np.asarray(step_words(seeds, jnp.int32(t), 2))
            assert many.shape == (2, 2, 3)
            for i, j in np.ndindex(2, 3):
                np.testing.assert_array_equal(many[i, :, j], jax.random.key_data(step_key(seeds[j], t + 1 + i)))


def test_normals_differ_between_steps_and_seeds() -> None:
    draw = jax.jit(lambda words, t: normal(step_key(words, t), (50,), "float64"))
    drawn = np.array([draw(jnp.asarray(seed_words([s])[0]), t) for s in (1, 2) for t in (1, 2)])
    assert len(np.unique(drawn)) == drawn.size


def test_normals_refuse_what_they_cannot_draw() -> None:
    key = jax.random.key(0)
    for bad in (jax.random.split(key, 3), jax.random.key_data(key), jax.random.key(0, impl="rbg")):
        with pytest.raises(ValueError, match=r"^normal: key must be one typed threefry key"):
            normal(bad, (2,))
    for dtype in ("int32", "float16", "complex128"):
        with pytest.raises(ValueError, match=r"^normal: dtype must be float64 or float32; got dtype="):
            normal(key, (2,), dtype)
    with pytest.raises(ValueError, match=r"^normal: shape must have no negative entry"):
        normal(key, (-1,))
    assert normal(key, ()).shape == () and normal(key, (3, 0)).shape == (3, 0)


def test_members_of_a_pair_are_independent() -> None:
    """Correlations of powers over n pairs are within 5 standard errors (false alarm < 4e-6)."""
    n = 100_000
    z = np.asarray(jax.jit(lambda k: normal(k, (2 * n,), "float64"))(jax.random.key(3)))
    a, b = z[:n], z[n:]
    for f, g in ((np.abs, np.abs), (np.square, np.square), (np.sign, np.sign), (np.array, np.array)):
        assert abs(np.corrcoef(f(a), g(b))[0, 1]) < 5 / math.sqrt(n)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_uniform_numbers_are_the_words_after_those_of_the_normals(dtype: str) -> None:
    key, count = jax.random.key(5), 40
    normals, uniforms, seven = jax.jit(lambda k: (*numbers(k, 7, count, dtype), normal(k, (7,), dtype)))(key)
    np.testing.assert_array_equal(normals, seven)
    counters = np.arange(4, 4 + count, dtype=np.uint32)
    pair = jnp.asarray(jax.random.key_data(key))
    a, b = (np.asarray(w).astype(np.uint64) for w in threefry((pair[0], pair[1]), (np.zeros_like(counters), counters)))
    exact = ((a << np.uint64(32)) | b).astype(object)
    bits = 52 if dtype == "float64" else 23
    assert uniforms.dtype == dtype
    np.testing.assert_array_equal(uniforms, [int(word) // 2 ** (64 - bits) / 2**bits for word in exact])


@pytest.mark.parametrize("size", [1, 3, 1000, 2**16, 2**16 + 1, 10**9, 2**31 - 1])
def test_an_index_is_the_upper_half_of_a_product(size: int) -> None:
    key = jax.random.key(6)
    pair, counters = jnp.asarray(jax.random.key_data(key)), np.arange(60, dtype=np.uint32)
    words, _ = threefry((pair[0], pair[1]), (np.zeros_like(counters), counters))
    expected = [int(word) * size >> 32 for word in np.asarray(words)]
    np.testing.assert_array_equal(np.asarray(index(key, (20, 3), size)).ravel(), expected)


def test_an_index_is_uniform() -> None:
    """Pearson's statistic with 9 degrees of freedom exceeds 50 with probability 1.1e-7."""
    drawn = np.asarray(jax.jit(lambda k: index(k, (100_000,), 10))(jax.random.key(7)))
    assert np.sum((np.bincount(drawn, minlength=10) - 10_000) ** 2) / 10_000 < 50


def test_numbers_and_indices_refuse_what_they_cannot_draw() -> None:
    key = jax.random.key(0)
    for size in (0, 2**31, 2.5, True):
        with pytest.raises(ValueError, match=r"^index: size must be an integer in \[1, 2\*\*31\); got size="):
            index(key, (2,), size)
    with pytest.raises(ValueError, match=r"^index: key must be one typed threefry key"):
        index(jax.random.key_data(key), (2,), 3)
    for shape in (5, (2.0,)):
        with pytest.raises(ValueError, match=r"^normal: shape must be a sequence of integers; got shape="):
            normal(key, shape)
    with pytest.raises(ValueError, match=r"^numbers: normals and uniforms must be >= 0; got -1 and 0$"):
        numbers(key, -1, 0)
    with pytest.raises(ValueError, match=r"^numbers: dtype must be float64 or float32; got dtype=int64$"):
        numbers(key, 1, 1, int)
    normals, uniforms = numbers(key, 0, 0)
    assert normals.shape == uniforms.shape == (0,)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("x64", [True, False])
def test_many_keys_draw_the_same_as_one(dtype: str, x64: bool) -> None:
    if dtype == "float64" and not x64:
        pytest.skip("there is no float64 then")

    def draw(keys: jax.Array) -> tuple[jax.Array, ...]:
        typed = jax.random.wrap_key_data(keys, impl=THREEFRY)
        return jax.vmap(lambda k: (*numbers(k, 5, 2, dtype), index(k, (3, 2), 77)))(typed)

    with jax.enable_x64(x64):
        keys = jnp.asarray(seed_words(range(2**33, 2**33 + 8)))
        plain = jax.jit(draw)(keys)
        alone = jax.jit(draw)
        single = [alone(keys[i : i + 1]) for i in range(8)]
    for i, b in enumerate(plain):
        np.testing.assert_allclose(
            b, np.concatenate([s[i] for s in single]), rtol=0, atol=4 * float(np.finfo(dtype).eps) if i == 0 else 0
        )


def test_single_and_double_precision_draw_the_same() -> None:
    key = jax.random.key(8)
    drawn = jax.jit(lambda k: [numbers(k, 99, 50, dtype) for dtype in ("float32", "float64")])(key)
    for single, double in zip(*drawn, strict=True):
        np.testing.assert_allclose(single, double, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "draw", [lambda key: numbers(key, 3, 2), lambda key: index(key, (4,), 9), lambda key: jax.random.bits(key, (3,))]
)
def test_nothing_is_captured(draw) -> None:
    """JAX 0.11 refuses arrays that a function with its own vmap has captured, in a `cond` of a batch."""
    key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl=THREEFRY)
    assert not jax.make_jaxpr(draw)(key).consts
