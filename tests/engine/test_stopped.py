"""A run that its observer ends, seed by seed."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from normstorm.algorithms import normalized_storm
from normstorm.algorithms.observers import follow
from normstorm.engine import Trace, run
from normstorm.problems import registry

PROBLEM = registry.get("logistic-nonconvex")
X1 = PROBLEM.start()
STEPS = 400


def watched(target: float | None) -> Any:
    plain = normalized_storm(alpha=0.1, eta=0.02, K=40, k=8)
    return follow(plain, PROBLEM, X1, steps=STEPS, delta=0.1, constants=PROBLEM.constants(), target=target)


@pytest.fixture(scope="module")
def ended() -> Trace:
    with jax.enable_x64(True):
        return run(PROBLEM, watched(0.06), X1, STEPS, 6, width=8)


def test_seeds_end_at_their_own_time(ended: Trace) -> None:
    assert np.all((ended.stopped_at > 1) & (ended.stopped_at < STEPS))
    assert len(set(ended.stopped_at.tolist())) > 1
    assert np.array_equal(ended.cost, 40 + 48 * (ended.stopped_at - 1))


@pytest.mark.parametrize("seed", [0, 5])
def test_a_seed_is_that_of_a_run_of_so_many_steps(seed: int, ended: Trace) -> None:
    last = int(ended.stopped_at[seed])
    alone = run(PROBLEM, watched(None), X1, last, [seed], width=8)
    assert ended.mean_grad_norm[seed] == pytest.approx(alone.mean_grad_norm[0], rel=1e-6)
    assert ended.mean_estimate_norm[seed] == pytest.approx(alone.mean_estimate_norm[0], rel=1e-6)
    for one, other in (
        (ended.last, alone.last),
        (ended.estimate, alone.estimate),
        (ended.smallest.x, alone.smallest.x),
    ):
        np.testing.assert_allclose(one[seed], other[0], rtol=1e-4, atol=1e-6)  # the same steps in another program
    before = run(PROBLEM, watched(0.06), X1, last - 1, [seed], width=8)
    assert before.stopped_at[0] == 0


def test_nothing_is_recorded_after_the_end_and_saved_points_stand_still(ended: Trace) -> None:
    after = ended.record_steps[None, :] > ended.stopped_at[:, None]
    assert np.isnan(ended.grad_norm[after]).all()
    assert np.isfinite(ended.grad_norm[~after]).all()
    late = ended.candidates.step > ended.stopped_at[:, None]
    assert late.any()
    for seed, slot in np.argwhere(late):
        step = run(PROBLEM, watched(None), X1, int(ended.stopped_at[seed]), [int(seed)], width=8)
        x = ended.candidates.x[seed, slot]
        assert np.linalg.norm(x - step.last[0]) == pytest.approx(0.02, rel=1e-5)
        break


def test_other_seeds_and_pieces_change_nothing(ended: Trace, tmp_path: Path) -> None:
    file = tmp_path / "run.ckpt"
    few = run(PROBLEM, watched(0.06), X1, STEPS, [3, 1], width=8, progress_steps=32, checkpoint=file)
    again = run(PROBLEM, watched(0.06), X1, STEPS, [3, 1], width=8, checkpoint=file)
    for name in ("stopped_at", "cost", "mean_grad_norm", "last"):
        assert np.array_equal(getattr(few, name), getattr(ended, name)[[3, 1]]), name
        assert np.array_equal(getattr(few, name), getattr(again, name)), name


def test_a_target_that_is_not_reached_ends_nothing() -> None:
    whole = run(PROBLEM, watched(1e-6), X1, 40, 2, width=8)
    assert np.array_equal(whole.stopped_at, [0, 0])
    assert np.array_equal(whole.cost, [40 + 48 * 39] * 2)
    assert jax.tree.leaves(whole.observer)
