"""Every sample of a search against stated constants: a counterexample anywhere on the way is found."""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erf

from normstorm import Constants, minimize
from normstorm.algorithms.kalman import kalman_storm
from normstorm.algorithms.sgd import sgd
from normstorm.problems import from_loss
from normstorm.random import seed_words, step_key
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
    true = minimize(stated(PLAIN), method="plan", seeds=2, progress=False, **more)
    steps = true.trace.stopped_at if "stop" in more else np.array([true.trace.steps] * 2)
    assert true.contradictions.found == 0 and true.contradictions.checked > 3 * int(steps[0])
    monkeypatch.setattr(sys.modules["normstorm.solve.minimize"], "witnessed", lambda algorithm, constants: algorithm)
    alone = minimize(stated(PLAIN), method="plan", seeds=2, progress=False, **more)
    np.testing.assert_allclose(alone.trace.last, true.trace.last, rtol=1e-12)
    assert alone.trajectory.bound == pytest.approx(true.trajectory.bound, rel=1e-12)
    assert alone.trajectory.averages == pytest.approx(true.trajectory.averages, rel=1e-12, nan_ok=True)


def test_an_observer_of_another_kind_is_left_alone() -> None:
    alone = witnessed(kalman_storm(), PLAIN)
    assert alone.watched and witnessed(alone, GROWING) is alone


def test_what_is_false_on_the_way_of_a_plan_is_found() -> None:
    found = minimize(stated(PLAIN, bend=3.0), method="plan", budget=4000, progress=False)
    assert found.contradictions.smoothness > 0 and found.contradictions.first.startswith("in step ")
    assert found.void and not found.certificate.certified


def path(problem, algorithm, seed: int, steps: int):
    """x_t, and the gradients of s_t at x_t and x_{t-1}, by plain steps."""
    words, x = seed_words([seed])[0], jnp.asarray(START)
    state, _ = algorithm.first(problem, x, algorithm.draw(problem, step_key(words, 1)))
    points, here, there = [START], [np.asarray(state.m)], [None]
    for t in range(2, steps + 1):
        drawn = algorithm.draw(problem, step_key(words, t))
        rows = drawn[0] if isinstance(drawn, tuple) else drawn
        points.append(np.asarray(state.x))
        here.append(np.asarray(problem.grad(state.x, rows)))
        there.append(np.asarray(problem.grad(state.x_prev, rows)))
        state, _ = algorithm.step(problem, state, drawn, t)
    return points, here, there


def oracle(c: Constants, points, here, there):
    """Ratios of seen and allowed for every step from 2 on, written a second time."""

    def local(g):
        return (np.linalg.norm(g) + c.sigma0) / (1 - c.sigma1)

    bound, noise, smooth = min(c.first_gradient, local(here[0])), [], []
    for t in range(1, len(points)):
        d = np.linalg.norm(points[t] - points[t - 1])
        before, grown = min(bound, local(here[t - 1])), bound + (c.L0 + c.L1 * bound) * d
        now = min(grown, local(here[t]))
        noise.append(np.linalg.norm(there[t] - here[t - 1]) / (2 * (c.sigma0 + c.sigma1 * before)))
        change = np.linalg.norm(here[t] - there[t])
        smooth.append(change / ((c.L0 + c.L1 * min(before, now)) * d) if d > 0 and d * c.L1 <= 1 else 0.0)
        bound = grown
    return np.array(noise), np.array(smooth)


def test_comparisons_are_those_of_an_oracle() -> None:
    constants = GROWING
    problem, steps = stated(constants, noise=1.0), 12
    with jax.enable_x64(True):
        algorithm = kalman_storm()
        stages = Stages(problem, witnessed(algorithm, constants), START, steps, [5])
        stages.go(1)
        stages.go(steps)  # one chunk: within it the oracle's bound grows as the witness's does
        seen = jax.tree.map(lambda leaf: np.asarray(leaf)[0], stages.observed)
        noise, smooth = oracle(constants, *path(problem, algorithm, 5, steps))
    for one, ratios in ((seen.noise, noise), (seen.smooth, smooth)):
        assert one.ratio == pytest.approx(ratios.max(), rel=1e-5) and one.step == 2 + int(ratios.argmax())
    assert seen.checked == (steps - 1) + np.count_nonzero(smooth) and list(seen.wrong) == [
        (noise > 1).sum(),
        (smooth > 1).sum(),
    ]


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
