"""One seed is measured in another way than several, because that compiles sooner: to the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from normstorm.engine import recording
from normstorm.engine.recording import NEVER, Path, RunningStats, SavedIterates, save, updated

STEPS, SEEDS, D = 256, 2, 3
T0 = 512


def path(fails: int | None) -> Path:
    """A chunk of random steps; one of the first seed's norms is not finite."""
    rng = np.random.default_rng(0)
    size, norm = rng.uniform(1, 2, (2, STEPS, SEEDS))
    if fails is not None:
        norm[fails, 0] = np.nan
    cost = rng.integers(1, 5, (STEPS, SEEDS)).astype(np.uint32)
    return jax.tree.map(jnp.asarray, Path(rng.normal(size=(STEPS, SEEDS, D)), None, size, None, norm, cost, ()))


def before() -> RunningStats:
    zero, least, none = np.zeros((SEEDS, 3)), np.full(SEEDS, 1.5), np.zeros(SEEDS, np.int32)
    x, count = np.full((SEEDS, D), 7.0), np.full(SEEDS, 2**32 - 3, np.uint32)
    return jax.tree.map(jnp.asarray, RunningStats(zero, zero, least, count, count, none, x, least, none, x))


def first(tree, axis):
    return jax.tree.map(lambda a: a[(slice(None),) * axis + (slice(0, 1),)], tree)


@pytest.mark.parametrize("fails", [None, 40, 130])
@pytest.mark.parametrize(("start", "end"), [(T0, T0 + STEPS), (T0 + 37, T0 + 38), (T0 + 90, T0 + 200)])
def test_one_seed_has_the_statistics_that_it_has_among_several(fails: int | None, start: int, end: int) -> None:
    several, took = updated(before(), path(fails), T0, start, end, False)
    alone, took_alone = updated(first(before(), 0), first(path(fails), 1), T0, start, end, False)
    assert took_alone[0] == took[0] == (fails is None or not start <= T0 + fails < end)
    for name, one, many in zip(RunningStats._fields, alone, several, strict=True):
        if name == "lost":
            continue  # what rounding took, which is what may differ
        np.testing.assert_allclose(one[0], many[0], rtol=1e-14 if name == "sums" else 0, err_msg=name)


@pytest.mark.parametrize("fails", [None, 40])
def test_few_numbers_are_kept_as_many_are(fails: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept() -> tuple[RunningStats, SavedIterates]:
        chunk, end = first(path(fails), 1), T0 + 200
        stats, _ = updated(first(before(), 0), chunk, T0, T0, end, False)
        due = jnp.asarray([T0, T0 + 10, T0 + 60, end, end + 1, NEVER], jnp.int32)[:, None]
        return stats, save(stats, SavedIterates(jnp.zeros((6, 1, D)), due), chunk.handed, T0, end)

    few = kept()
    monkeypatch.setattr(recording, "FEW", 0)
    jax.tree.map(np.testing.assert_array_equal, few, kept())
    x = np.asarray(path(None).x)[:, 0]
    want = [0 * x[0], x[9], x[59] if fails is None else x[40], x[199] if fails is None else x[40], 0 * x[0], 0 * x[0]]
    np.testing.assert_array_equal(few[1].x[:, 0], want)
