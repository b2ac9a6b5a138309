"""The noise that a kernel draws itself is the noise of seed and step, for crowds and for single lanes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import Toy

from normstorm._shared.jax_internals import one_kernel
from normstorm.algorithms import momentum_nsgd
from normstorm.engine import noise
from normstorm.engine.layout import Changing, program_shape
from normstorm.engine.program import Shape, Words
from normstorm.random import index, numbers, seed_words, step_key

SEEDS = [3, 2**40 + 1, *range(100, 114)]


class Parted(Toy):
    """Samples of several parts and kinds."""

    def sample(self, key: jax.Array, n: int) -> Any:
        normals, uniforms = numbers(key, 3 * n, n, self.dtype)
        return {"a": normals.reshape(n, 3), "b": (uniforms, index(jax.random.fold_in(key, 7), (n,), 1000))}

    def grad(self, x: jax.Array, batch: Any) -> jax.Array:
        return x + jnp.mean(batch["a"] * batch["b"][0][:, None], axis=0) * jnp.mean(batch["b"][1])


def shape_of(words: Words) -> Shape:
    shape, _ = program_shape(*words, jnp.ones(3), True, lambda: Changing(True, True))
    assert shape.whole
    return shape


@pytest.mark.parametrize("make", [Toy, Parted])
def test_it_is_that_of_seed_and_step(make: Any) -> None:
    words = Words(make(3), momentum_nsgd(alpha=0.1, eta=0.1, K=2))
    shape = shape_of(words)._replace(block=64)
    seeds = jnp.asarray(seed_words(SEEDS).T)

    @jax.jit
    def drawn(live: Any, times: jax.Array) -> Any:
        def all_of_it(live: Any, times: jax.Array) -> Any:
            def step(held: Any, t: Any) -> Any:
                held = noise.refill(words, shape, noise.source(shape, seeds, live), held, t)
                return held, noise.of_step(shape, held, t)

            return jax.lax.scan(step, noise.nothing_drawn(words, shape), times)[1]

        return one_kernel(all_of_it, live, times)

    @jax.jit
    @partial(jax.vmap, in_axes=(None, 0))
    @partial(jax.vmap, in_axes=(0, None), out_axes=-1)
    def alone(seed: jax.Array, t: Any) -> Any:
        return words.algorithm.draw(words.problem, step_key(seed, t + 1))

    times = jnp.asarray([*range(70), 127, 128, 3, 200, 1000, 1001], jnp.int32)
    wanted = jax.tree.leaves(alone(seeds.T, times))
    for live in (1, 8, 9, 16):
        for a, b in zip(jax.tree.leaves(drawn(live, times)), wanted, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a[..., :live], b[..., :live], rtol=1e-14, atol=1e-15)
            assert len(np.unique(a[..., :live])) > 1


def test_it_is_drawn_as_far_as_it_reaches() -> None:
    words = Words(Toy(3), momentum_nsgd(alpha=0.1, eta=0.1))
    shape = shape_of(words)
    for live, reach in ((1, shape.block), (8, shape.block), (9, shape.few), (16, shape.few)):
        given = noise.source(shape, jnp.asarray(seed_words(SEEDS).T), jnp.int32(live))
        assert int(noise.at_once(shape, given)) == reach
        held = noise.refill(words, shape, given, noise.nothing_drawn(words, shape), jnp.int32(2 * shape.block + 5))
        assert int(held.since) == 2 * shape.block + 5 // reach * reach
        assert int(noise.reach(shape, given, held)) == int(held.since) + reach
        kept = held._replace(parts=jax.tree.map(jnp.zeros_like, held.parts))
        again = noise.refill(words, shape, given, kept, held.since + reach - 1)
        assert not any(leaf.any() for leaf in jax.tree.leaves(again.parts))
        later = noise.refill(words, shape, given, kept, held.since + reach)
        assert all(leaf.any() for leaf in jax.tree.leaves(later.parts))
