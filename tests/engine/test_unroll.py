"""A function of one seed, written out number by number for many lanes, agrees with jax.vmap."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from normstorm.engine.gpu import unroll

LANES = 8
TABLE = np.random.default_rng(5).normal(size=(7, 3))


def moves(x, s):
    turned = x.reshape(2, 3).T[::-1]
    wide = jnp.concatenate([turned, jnp.broadcast_to(s, (3, 1))], axis=1)
    return jnp.pad(wide, ((1, 0), (0, 1)), constant_values=2.0)[:, 1::2], jnp.split(x, 3), jnp.expand_dims(s, 0)


def sums(x, s):
    grid = x.reshape(2, 3) * s
    running = jnp.cumsum(grid, axis=1) + jnp.cumsum(grid[::-1], axis=0)[::-1]
    return grid.sum(), grid.max(axis=0), grid.min(axis=1), jnp.prod(x), jnp.all(x > -9), jnp.any(x > s), running


def products(x, s):
    return TABLE @ x[:3], x.reshape(2, 3) @ x.reshape(3, 2), jnp.einsum("bi,bj->bij", x.reshape(2, 3), TABLE[:2] * s)


def rows(table, x, s):
    index = (jnp.abs(x[:4]) * 10).astype(jnp.int32) % 7
    return table[index], jnp.sum(table[index[:1]] * s), table[:2]


def smooth(x, s):
    def loss(x):
        return jnp.sum(jax.nn.softplus(x) * x) + jnp.where(s > 0, jnp.tanh(s) * x[0] ** 3, jax.nn.relu(x[1]))

    return jax.grad(loss)(x), jax.nn.one_hot(jnp.argmax(TABLE[:, 0]), 7), jnp.arange(6.0) * x


def looping(x, s):
    return jax.lax.scan(lambda c, v: (c + v * s, c), s, x), jax.lax.cond(s > 0, jnp.sin, jnp.cos, s), jnp.sort(x)


PLAIN = (moves, sums, products, smooth)


@pytest.fixture
def numbers():
    generator = np.random.default_rng(3)
    return jnp.asarray(generator.normal(size=(6, LANES))), jnp.asarray(generator.normal(size=LANES))


def expected(function, numbers):
    return jax.jit(jax.vmap(function, in_axes=-1, out_axes=-1))(*numbers)


def written_out(function, numbers, *common):
    """By `unroll`, inside a compiled function; results as arrays with the lanes on the last axis."""

    def parts(leaf):
        return unroll.filled(leaf.shape[:-1], lambda i: leaf[i])

    def join(parts):
        entries = [jnp.broadcast_to(e, (LANES,)) for e in parts.flat]
        return jnp.stack(entries).reshape(*parts.shape, LANES)

    return jax.jit(lambda n: jax.tree.map(join, unroll.apply(function, common, tuple(map(parts, n)))))(numbers)


@pytest.mark.parametrize("function", PLAIN)
def test_written_out(function, numbers):
    found, exact = written_out(function, numbers), expected(function, numbers)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14), found, exact)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rows_of_a_shared_table(numbers, dtype):
    """Each lane reads rows of its own; in another precision, only what is read is converted."""

    def function(table, *numbers):
        return rows(table.astype(dtype), *numbers)

    table = jnp.asarray(TABLE)
    exact = expected(partial(function, table), numbers)
    stored = unroll.Stored(table, lambda i: table[i])
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), written_out(function, numbers, stored), exact)


def test_what_cannot_be_written_out(numbers, monkeypatch):
    with pytest.raises(unroll.UnrollError, match="scan"):
        written_out(looping, numbers)
    with pytest.raises(unroll.UnrollError, match="gather"):
        written_out(lambda x, s: rows(x.reshape(2, 3), x, s), numbers)
    monkeypatch.setattr(unroll, "LIMIT", 3)
    with pytest.raises(unroll.UnrollError, match="more than 3 operations"):
        written_out(smooth, numbers)


def test_equal_numbers_are_computed_once(numbers):
    """A factor that all coordinates share is one operation, not one for each of them."""
    counted = []
    whole = unroll._Writer.count
    try:
        unroll._Writer.count = lambda self, n: counted.append(n) or whole(self, n)
        written_out(lambda x, s: jnp.broadcast_to(jnp.exp(s), (6,)) + 0 * jnp.sin(jnp.broadcast_to(s, (6,))), numbers)
    finally:
        unroll._Writer.count = whole
    assert sum(counted) == 4
