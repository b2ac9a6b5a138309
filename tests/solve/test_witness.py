"""Every sample of a search against stated constants: a counterexample anywhere on the way is found."""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erf

from normstorm import Constants, minimize
from normstorm.algorithms.estimators import draw_large_batch
from normstorm.algorithms.kalman import kalman_storm
from normstorm.algorithms.normalized_storm import normalized_storm
from normstorm.algorithms.sgd import sgd
from normstorm.problems import from_loss
from normstorm.random import seed_words, step_key
from normstorm.solve.promise import descend, keep, promise_of
from normstorm.solve.stages import Stages
from normstorm.solve.watch import check_run, steps_check
from normstorm.solve.witness import witnessed

START = np.array([4.0, 1.0])
MIDDLE = 2.0


def box(key, n):
    return jax.random.uniform(key, (n, 2), minval=-0.5, maxval=0.5)


def loss(x, u, noise=0.0, bend=0.0):
    """F = .2 ||x||^2, and around x_0 = 2 louder samples or a gradient that rises and falls."""
    z = (x[0] - MIDDLE) / 0.5
    hill = 0.5 * jnp.sqrt(jnp.pi) / 2 * erf(z)
    return 0.2 * jnp.sum(x**2) + u @ x + noise * u[1] * hill + bend * hill


# ||u|| <= .7072, the curvature is .4 but for the hill, F(x_1) = 3.4.
PLAIN = Constants(0.5, 0, 0.75, 0, 4, noise="almost-sure")
GROWING = Constants(0.41, 0.1, 0.7, 0.1, 4, noise="almost-sure")


def stated(constants, **odd):
    return from_loss(lambda x, u: loss(x, u, **odd), box, start=START, constants=constants)


@pytest.mark.parametrize(
    ("constants", "odd", "kind"),
    [
        (replace(PLAIN, L0=20), {"noise": 16.0}, "noise"),
        (replace(GROWING, L0=20), {"noise": 16.0}, "noise"),
        (PLAIN, {"bend": 3.0}, "smoothness"),
        (GROWING, {"bend": 3.0}, "smoothness"),
    ],
    ids=["sigma0", "sigma1", "L0", "L1"],
)
def test_what_is_false_on_the_way_alone_is_found(constants, odd, kind: str) -> None:
    problem = stated(constants, **odd)
    found = minimize(problem, target=0.3, progress=False)
    assert abs(float(found.x[0])) < 1  # far from where the constants are false
    ends = check_run(problem, found.trace, constants, START, found.x)
    assert ends.noise == ends.smoothness == 0  # fresh samples at the ends saw nothing
    assert getattr(found.contradictions, kind) > 0 and found.contradictions.first.startswith("in step ")
    assert not found.certificate.certified and found.void and "contradicted constants" in found.reason


def test_true_constants_are_not_contradicted_by_any_step() -> None:
    found = minimize(stated(GROWING), target=0.3, seeds=3, progress=False)
    assert found.contradictions.found == 0 and found.certificate.certified and not found.void
    assert found.contradictions.checked > 2 * int(found.trace.stopped_at[0])


@pytest.mark.parametrize("more", [{"budget": 4000}, {"target": 1.2, "stop": "certified"}], ids=["plan", "certified"])
def test_a_run_of_a_plan_is_held_to_them_too(more, monkeypatch) -> None:
    with jax.enable_x64(True):
        true = minimize(stated(PLAIN), method="plan", seeds=2, progress=False, **more)
        steps = true.trace.stopped_at if "stop" in more else np.array([true.trace.steps] * 2)
        assert true.contradictions.found == 0 and true.contradictions.checked > 3 * int(steps[0])
        nobody = lambda algorithm, constants: algorithm  # noqa: E731
        monkeypatch.setattr(sys.modules["normstorm.solve.minimize"], "witnessed", nobody)
        alone = minimize(stated(PLAIN), method="plan", seeds=2, progress=False, **more)
    np.testing.assert_allclose(alone.trace.last, true.trace.last, rtol=1e-9)  # means of samples are rounded otherwise
    assert alone.trajectory.bound == pytest.approx(true.trajectory.bound, rel=1e-9)
    assert alone.trajectory.averages == pytest.approx(true.trajectory.averages, rel=1e-9, nan_ok=True)


def test_an_observer_of_another_kind_is_left_alone() -> None:
    alone = witnessed(kalman_storm(), PLAIN)
    assert alone.watched and witnessed(alone, GROWING) is alone


def test_what_is_false_on_the_way_of_a_plan_is_found() -> None:
    found = minimize(stated(PLAIN, bend=3.0), method="plan", budget=4000, progress=False)
    assert found.contradictions.smoothness > 0 and found.contradictions.first.startswith("in step ")
    assert found.void and not found.certificate.certified


def each(problem, x, rows):
    """Gradients of single samples."""
    return np.asarray(jax.vmap(lambda row: problem.grad(x, row[None]))(rows))


def path(problem, algorithm, seed: int, steps: int):
    """x_t, and the gradients of all samples of step t at x_t and of the first k at x_{t-1}, by plain steps."""
    words, x, k = seed_words([seed])[0], jnp.asarray(START), algorithm.estimator.k
    step = jax.jit(lambda state, drawn, t: algorithm.step(problem, state, drawn, t)[0])
    drawn = algorithm.draw(problem, step_key(words, 1))
    first = draw_large_batch(problem, drawn[1], 3 * algorithm.estimator.K)
    state, _ = algorithm.first(problem, x, drawn)
    points, here, there = [START], [each(problem, x, first)], [None]
    for t in range(2, steps + 1):
        drawn = algorithm.draw(problem, step_key(words, t))
        points.append(np.asarray(state.x))
        here.append(each(problem, state.x, drawn[0]))
        there.append(each(problem, state.x_prev, drawn[0][:k]))
        state = step(state, drawn, t)
    return points, here, there


def farthest(rows):
    """How far some row is at least from any point, as every row says."""
    a = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    square = np.mean(a**2)
    return np.array([(one + square / one) / 2 if one**2 >= square * (1 - 1e-9) > 0 else 0.0 for one in a])


def oracle(c: Constants, points, here, there):
    """Ratios of seen and allowed, (comparisons of a step) for every step, written a second time."""

    def local(g):
        return (np.linalg.norm(g) + c.sigma0) / (1 - c.sigma1)

    k = len(there[1])
    means = [here[0].mean(axis=0), *(rows[:k].mean(axis=0) for rows in here[1:])]
    bound = min(c.first_gradient, local(means[0]))
    noise, smooth, batch = [[]], [[]], [farthest(here[0]) / (c.sigma0 + c.sigma1 * bound)]
    for t in range(1, len(points)):
        d = np.linalg.norm(points[t] - points[t - 1])
        before, grown = min(bound, local(means[t - 1])), bound + (c.L0 + c.L1 * bound) * d
        now = min(grown, local(means[t]))
        far = np.linalg.norm(there[t].mean(axis=0) - means[t - 1])
        noise.append([far / (2 * (c.sigma0 + c.sigma1 * before))])
        change = np.linalg.norm(here[t][:k] - there[t], axis=1)
        smooth.append(change / ((c.L0 + c.L1 * min(before, now)) * d) if d > 0 and d * c.L1 <= 1 else [])
        batch.append(farthest(here[t]) / (c.sigma0 + c.sigma1 * now) if len(here[t]) > 1 else [])
        bound = grown
    return noise, smooth, batch


@pytest.mark.parametrize(("K", "k"), [(1, 1), (6, 6), (6, 2)])
def test_comparisons_are_those_of_an_oracle(K: int, k: int) -> None:
    constants = replace(GROWING, sigma0=0.1)
    problem, steps = stated(constants, noise=1.0), 12
    with jax.enable_x64(True):
        algorithm = kalman_storm(K=K, k=k)
        stages = Stages(problem, witnessed(algorithm, constants), START, steps, [5])
        stages.go(1)
        stages.go(steps)  # one chunk: within it the oracle's bound grows as the witness's does
        seen = jax.tree.map(lambda leaf: np.asarray(leaf)[0], stages.observed)
        told = oracle(constants, *path(problem, algorithm, 5, steps))
    for one, ratios in zip((seen.noise, seen.smooth, seen.batch), told, strict=True):
        largest = np.array([max(step, default=0.0) for step in ratios])
        over = np.flatnonzero(largest > 1)
        place = over[0] if len(over) else largest.argmax()
        assert one.ratio == pytest.approx(largest[place], rel=1e-5) and one.step == 1 + place
    counts = [sum(len(step) for step in ratios) for ratios in told]
    wrong = [sum((np.array(step) > 1).sum() for step in ratios) for ratios in told]
    assert seen.checked == sum(counts) and list(seen.wrong) == [wrong[0] + wrong[2], wrong[1]]
    assert K == 1 or wrong[2] > 0  # .1 is too little for one of six


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: kalman_storm(K=32), "Filtered"),
        (lambda: kalman_storm(K=32, k=8), "Filtered"),
        (lambda: normalized_storm(alpha=0.1, eta=0.05, K=32, k=8), "Corrected"),
        (lambda: normalized_storm(alpha=0.1, eta=0.05, K=32), "Corrected"),
        (lambda: sgd(eta=0.1, K=32), "Momentum"),
    ],
)
def test_single_samples_of_a_batch_tell_what_its_mean_does_not(make, kind) -> None:
    """Noise up to .7 where .3 is stated, and curvature .4 + u_0 (u_0 of mean 0) where .6 is: means of 32 obey both."""

    def bent(x, u):
        return 0.2 * jnp.sum(x**2) + 0.5 * u[0] * jnp.sum(x**2)

    loud, odd = replace(PLAIN, sigma0=0.3), Constants(0.6, 0, 4, 0, 4, noise="almost-sure")
    with jax.enable_x64(True):
        assert type(make().estimator).__name__ == kind
        for problem, false, true in (
            (stated(loud), loud, PLAIN),
            (from_loss(bent, box, start=START, constants=odd), odd, replace(odd, L0=0.9)),
        ):
            smooth = false is odd
            if smooth and kind == "Momentum":
                continue  # no sample at two points
            for constants, wrong in ((false, True), (true, False)):
                algorithm = witnessed(make(), constants)
                stages = Stages(problem, algorithm, START, 60, [3])
                stages.go(60)
                seen = jax.tree.map(lambda leaf: np.asarray(leaf)[0], stages.observed)
                assert bool(seen.wrong[int(smooth)]) == wrong and not seen.wrong[1 - int(smooth)]
                assert seen.noise.ratio < 1  # means say nothing
            if smooth and kind == "Filtered":
                points, here, there = path(problem, make(), 3, 30)
                turns = [
                    np.linalg.norm((h[: len(p)] - p).mean(axis=0)) for h, p in zip(here[1:], there[1:], strict=True)
                ]
                ways = np.linalg.norm(np.diff(points, axis=0), axis=1)
                assert np.all(turns <= 0.6 * ways + 1e-12) and ways.max() > 0


def test_a_batch_in_a_race_tells_what_is_false_on_the_way_alone() -> None:
    constants = replace(PLAIN, L0=20)
    problem = stated(constants, noise=4.0)
    found = minimize(problem, target=0.3, algorithm=kalman_storm(K=32), progress=False)
    ends = check_run(problem, found.trace, constants, START, found.x)
    assert ends.noise == ends.smoothness == 0 and found.contradictions.noise > 0
    assert "a sample of its batch is at least" in found.contradictions.first
    assert found.void and not found.certificate.certified


def rows_of_squares(bend: float):
    """F = ||x||^2/2 of rows whose curvature is 1 +- bend."""
    signs = np.where(np.arange(20_000) % 2, 1.0, -1.0)
    rows = np.column_stack([np.random.default_rng(0).uniform(-0.5, 0.5, (20_000, 2)), signs])
    return (lambda x, row: 0.5 * (1 + bend * row[2]) * jnp.sum((x - row[:2]) ** 2)), rows


def test_samples_of_a_promise_are_held_too() -> None:
    """SPIDER's single samples turn by 1.5 times the way where 1.3 is stated; their means and F by about 1."""
    known = Constants(1.3, 0, 6, 0, 9, noise="almost-sure")
    for bend, wrong in ((0.0, False), (0.5, True)):
        loss, rows = rows_of_squares(bend)
        problem = from_loss(loss, rows, start=START, constants=known)
        promise = promise_of(known, 1.2, 0.99, problem)
        assert promise.by == "SPIDER"
        with jax.enable_x64(True):
            _, said = keep(promise, problem, START, [0], None, None, known)
        assert bool(said.smoothness) == wrong and said.noise == 0 and said.checked > 0
        assert not wrong or said.first.startswith("in step ")


def test_exact_descent_is_held_to_its_own_steps() -> None:
    """Curvature 4 where 1 is stated: grad F changes by four times its length."""
    problem = from_loss(lambda x, row: 2 * jnp.sum((x - row) ** 2), np.zeros((5, 2)), start=START)
    known = Constants(1, 0, 6, 0, 9, noise="almost-sure")
    found = descend(problem, START, known, 0.1, 4)[2]
    assert found.smoothness == found.checked == 3 and found.first.startswith("in step 1 of exact descent")
    assert descend(problem, START, replace(known, L0=4), 0.1, 4)[2].found == 0


def test_the_closest_sample_is_compared_with_the_gradient_itself() -> None:
    """Noise of length .7 where .69999 is stated: two samples are hardly ever 2 sigma0 apart, but one is too far."""

    def circle(key, n):
        angle = jax.random.uniform(key, (n,), maxval=2 * jnp.pi)
        return 0.7 * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)

    false = replace(PLAIN, sigma0=0.69999)
    problem = from_loss(loss, circle, start=START, constants=false, objective=lambda x: 0.2 * jnp.sum(x**2))
    with jax.enable_x64(True):
        algorithm = witnessed(kalman_storm(), false)
        stages = Stages(problem, algorithm, START, 12, [1])
        stages.go(12)
        seen = stages.observed
        assert seen.wrong.sum() == 0
        found = steps_check(problem, algorithm, [1], seen, false)
    assert found.noise > 0 and "in step" in found.first and "sigma0, sigma1 allow" in found.first


def test_one_gradient_a_step_is_held_to_both_lines() -> None:
    with jax.enable_x64(True):
        for odd, wrong in (({}, False), ({"noise": 30.0}, True)):
            stages = Stages(stated(PLAIN, **odd), witnessed(sgd(eta=0.1), PLAIN), START, 100, 2)
            stages.go(100)
            assert bool(stages.observed.wrong.sum()) == wrong


def test_a_step_that_is_too_long_leaves_no_bound_and_no_blindness() -> None:
    """L0 = 0, as on separable losses: after a step longer than 1/L1 nothing is known of the gradient, not NaN."""
    observer = witnessed(kalman_storm(), Constants(0, 5, 0.05, 0.05, 1, noise="almost-sure")).observer
    grown = observer._grown(jnp.asarray(0.5), jnp.asarray([0.1, 0.3, 0.1]))
    assert np.isinf(grown[1:]).all() and grown[0] == pytest.approx(0.75)
