"""The transcriptions against each other: the cases in which one algorithm is another, what each costs, and limits."""

import ast
from collections.abc import Callable
from pathlib import Path as File

import numpy as np
import pytest
import transcriptions as tr
from transcription import algorithm_1
from transcriptions.cases import ALL, BIG, CASES, SPIDER, TABLES, W1, X1, B, D, N, T, oracle, run


def same(one: tr.Path, other: tr.Path, scale: float = 1.0) -> None:
    np.testing.assert_allclose(one.x, other.x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.m, scale * np.array(other.m), rtol=0, atol=1e-12)


def momentum_of_storm(weight: Callable[[int], float], step: Callable[[int], float]) -> tr.Path:
    """The STORM recursion with given weights and step sizes; weight(1) < 1 starts from m_0 = 0 and x_0 = x_1."""
    asked = oracle()
    path = tr.Path.start(X1)
    x_old, m = path.x[0], np.zeros(D)
    for t in range(1, T + 1):
        x, batch = path.x[-1], asked.samples(t, B)
        m = asked.mean(x, batch) + (1 - weight(t)) * (m - asked.mean(x_old, batch))
        path.step(asked, m, x - step(t) * m)
        x_old = x
    return path


def test_nothing_of_the_package_is_imported() -> None:
    for file in File(tr.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None)]
            assert not any(str(name).startswith(("normstorm", "jax")) for name in names), file


@pytest.mark.parametrize("name", ALL)
def test_cost(name: str) -> None:
    """Each published cost formula, and one entry per step."""
    function, parameters, cost, x1 = ALL[name]
    path = run(function, x1, **parameters)
    assert path.cost[-1] == cost
    assert np.shape(path.x) == (T + 1, *x1.shape)
    assert (len(path.m), len(path.cost)) == (T, T)
    assert np.isfinite(path.x).all()


def test_page_costs_what_the_coins_say() -> None:
    path = run("page", eta=0.05, p=0.4, S1=BIG, S2=B)
    fresh = 1 + sum(TABLES["coins"][1:] < 0.4)
    assert 1 < fresh < T
    assert path.cost[-1] == fresh * BIG + (T - fresh) * 2 * B


CORRECTED = [
    *("ssvr", "signstorm", "super adam", "svrg", "svrg picked", "sarah", "sarah picked"),
    *("spider 1", "spider 2", "l0l1", "symmetric", "storm", "storm plus", "meta storm", "meta storm sg"),
    *("meta storm na", "hybrid", "hybrid same", "normalized storm", "limuon 1"),
]


@pytest.mark.parametrize("name", CORRECTED)
def test_without_noise_a_corrected_estimate_is_the_gradient(name: str) -> None:
    function, parameters, _, x1 = ALL[name]
    path = run(function, x1, noise=0.0, **parameters)
    exact = oracle(0.0)
    for x, m in zip(path.x, path.m, strict=False):
        np.testing.assert_allclose(m, exact.full_grad(x), rtol=0, atol=1e-12)


def test_saga_remembers_where_each_component_was_asked_last() -> None:
    """The estimate from the points themselves; equal components do not make it the gradient, for the table is old."""
    exact = oracle()
    for name, table in (("saga", "samples"), ("saga_two_indices", "second")):
        path = run(name, eta=0.05)
        points = [X1] * N
        for t, x in enumerate(path.x[:-1]):
            i, j = TABLES["samples"][t][0], TABLES[table][t][0]
            old = np.mean([exact.grad(y, c) for c, y in enumerate(points)], axis=0)
            np.testing.assert_allclose(path.m[t], exact.grad(x, i) - exact.grad(points[i], i) + old, rtol=0, atol=1e-12)
            points[j] = x


@pytest.mark.parametrize(("K", "k"), [(1, 1), (5, 5), (5, 2)])
def test_normalized_storm_is_the_first_transcription(K: int, k: int) -> None:
    asked = oracle()
    batches = [np.array(asked.samples(t, K)) for t in range(1, T + 1)]
    xs, ms = algorithm_1(X1, batches, asked.grad, k, 0.9, 0.05)
    path = run("normalized_storm", eta=0.05, beta=0.9, K=K, k=k)
    np.testing.assert_allclose(path.x, xs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(path.m, ms, rtol=0, atol=1e-12)


def test_normalized_storm_without_momentum_is_normalised_sgd() -> None:
    same(run("normalized_storm", eta=0.05, beta=0.0, K=3), run("normalized_sgd", eta=0.05, K=3))


def test_hybrid_with_one_sample_set_is_storm() -> None:
    path = tr.hybrid_sarah_sgd(one_set(), X1, T, eta=0.05, beta=0.8, b_first=B, b=B, same=True)
    same(path, momentum_of_storm(lambda t: 1.0 if t == 1 else 0.2, lambda t: 0.05))


def one_set() -> tr.Oracle:
    """Big batches that are the ordinary ones."""
    return tr.Oracle(oracle().grad, n=N, **(TABLES | {"large": TABLES["samples"]}))


def test_sign_momentum() -> None:
    """Generalised SignSGD with b2 = 0 is Scion over the sign ball, and the sign of the average."""
    path = run("generalized_signsgd", eta=0.05, b1=0.9, b2=0.0, b=B)
    same(path, run("scion", eta=0.05, alpha=1 - 0.9, norm="sign", b=B))
    for x, m, moved in zip(path.x, path.m, path.x[1:], strict=False):
        np.testing.assert_allclose(moved, x - 0.05 * np.sign(m), rtol=0, atol=1e-12)


def test_signstorm_without_second_moment_is_ssvr() -> None:
    same(run("generalized_signstorm", eta=0.05, alpha=0.2, b2=0.0, b=B), run("ssvr", eta=0.05, alpha=0.2, b=B))


def test_limuon_is_mvr2() -> None:
    mvr = run("muon_mvr", W1, eta=0.05, beta=0.8, gamma=1.0, b=B)
    for extra in ({}, {"rank": 3}, {"rank": 3, "sketched": True}):
        same(run("limuon", W1, eta=0.05, alpha=1 - 0.8, b=B, **extra), mvr)
    low = run("limuon", W1, eta=0.05, alpha=1 - 0.8, b=B, rank=1)
    assert np.abs(np.array(low.x) - mvr.x).max() > 1e-3
    zero = run("muon_mvr", W1, eta=0.05, beta=0.8, b=B, init="zero")
    np.testing.assert_allclose(zero.m[0], (1 - 0.8) * mvr.m[0], rtol=1e-12)


def test_limuon_keeps_a_sketch_of_the_estimate() -> None:
    """Rank and sketch of size 2: what is kept of m_1 is its projection on the range of m_1 Omega_1."""
    narrow = tr.Oracle(oracle().grad, n=N, samples=TABLES["samples"], sketch=TABLES["sketch"][:, :, :2])
    path, batch = tr.limuon(narrow, W1, T, eta=0.05, alpha=0.2, rank=2, sketched=True), oracle().samples(2, 1)
    spanned = path.m[0] @ TABLES["sketch"][0][:, :2]
    kept = spanned @ np.linalg.pinv(spanned) @ path.m[0]
    expected = narrow.mean(path.x[1], batch) + 0.8 * (kept - narrow.mean(path.x[0], batch))
    np.testing.assert_allclose(path.m[1], expected, rtol=0, atol=1e-12)


def test_clipping_ends() -> None:
    clipped = run("clipped_sgd", eta=0.05, threshold=0.8, b=B)
    mixed = run("mixed_clipping", eta=0.05, gamma=0.05 * 0.8, beta=0.9, nu=0.0, b=B)
    np.testing.assert_allclose(mixed.x, clipped.x, rtol=0, atol=1e-12)
    steps = np.linalg.norm(np.diff(clipped.x, axis=0), axis=1)
    assert steps.max() <= 0.05 * 0.8 + 1e-12
    assert steps.min() < 0.05 * 0.8 - 1e-3  # both entries of the minimum are met
    same(run("clipped_sgd", eta=0.05, threshold=np.inf, b=B), run("sgd", eta=0.05, b=B))
    loose = run("mixed_clipping", eta=0.05, gamma=1e9, beta=0.9, nu=1.0, b=B)
    same(loose, run("momentum_sgd", eta=0.05, beta=0.9, b=B))
    soft = run("mixed_clipping", eta=0.05, gamma=0.04, beta=0.9, nu=0.0, soft=True, b=B)
    np.testing.assert_allclose(soft.x, run("soft_clipped_sgd", eta=0.05, gamma=0.04, b=B).x, rtol=0, atol=1e-12)


def test_page_with_a_certain_coin_is_sgd() -> None:
    page = tr.page(one_set(), X1, T, eta=0.05, p=1.0, S1=BIG, S2=B)
    same(page, run("sgd", eta=0.05, b=BIG))


def test_page_with_a_hopeless_coin_is_spider_without_restart() -> None:
    page = run("page", eta=0.05, p=0.0, S1=BIG, S2=B, normalized=True)
    same(page, run("symmetric_spider", gamma=0.05, S1=BIG, S2=B, q=T))


def test_super_adam_without_preconditioner_is_storm() -> None:
    k, m, c = 1.0, 10.0, 3.0
    path = run("super_adam", gamma=0.2, k=k, m=m, c=c, H="identity", b=B)

    def mu(t: int) -> float:
        return k / (m + t) ** (1 / 3)

    same(path, momentum_of_storm(lambda t: 1.0 if t == 1 else c * mu(t - 1) ** 2, lambda t: 0.2 * mu(t)))


def test_mars_with_the_whole_correction_is_storm_from_zero() -> None:
    """The clip off and gamma = 1; lion gives the step no say in m."""
    path = run("mars", eta=0.05, gamma=1.0, b1=0.8, clip=False, flavour="lion", b=B)
    asked, m = oracle(), np.zeros(D)
    for t, x in enumerate(path.x[:-1], 1):
        batch = asked.samples(t, B)
        m = asked.mean(x, batch) + 0.8 * (m - asked.mean(path.x[max(t - 2, 0)], batch))
        np.testing.assert_allclose(path.m[t - 1], m, rtol=0, atol=1e-12)


def test_averages() -> None:
    """Without interpolation schedule-free SGD is averaged SGD; its answer is always the mean of z."""
    mean, free = run("averaged_sgd", eta=0.05, b=B), run("schedule_free_sgd", eta=0.05, beta=0.0, b=B)
    same(mean, run("sgd", eta=0.05, b=B))
    same(mean, free)
    np.testing.assert_allclose(free.points, mean.points, rtol=0, atol=1e-12)
    leaning = run("schedule_free_sgd", eta=0.05, beta=0.9, b=B)
    z = (np.array(leaning.x) - 0.9 * np.array(leaning.points)) / 0.1
    np.testing.assert_allclose(leaning.points, np.cumsum(z, axis=0) / np.arange(1, T + 2)[:, None], rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.diff(z, axis=0), -0.05 * np.array(leaning.m), rtol=0, atol=1e-12)
    ema = run("averaged_sgd", eta=0.05, ema=0.8, b=B)
    np.testing.assert_allclose(
        ema.points[1:], 0.8 * np.array(ema.points[:-1]) + 0.2 * np.array(ema.x[1:]), rtol=0, atol=1e-12
    )
    np.testing.assert_array_equal(ema.points[0], X1)


def test_momentum_forms() -> None:
    for ahead in (False, True):
        ema = run("momentum_sgd", eta=0.5, beta=0.9, nesterov=ahead, b=B)
        ball = run("momentum_sgd", eta=0.5 * (1 - 0.9), beta=0.9, form="heavy_ball", nesterov=ahead, b=B)
        same(ema, ball, scale=1 - 0.9)
    first = run("momentum_sgd", eta=0.05, beta=0.9, init="first", b=B)
    assert np.abs(np.array(first.x) - run("momentum_sgd", eta=0.05, beta=0.9, b=B).x).max() > 1e-3
    same(run("momentum_sgd", eta=0.05, beta=0.0, nesterov=True, b=B), run("sgd", eta=0.05, b=B))


def test_nesterov_is_the_classical_two_sequences() -> None:
    """y_{t+1} = z_t - eta g(z_t), z_{t+1} = y_{t+1} + beta (y_{t+1} - y_t): z is our x."""
    path, asked = run("momentum_sgd", eta=0.05, beta=0.9, form="heavy_ball", nesterov=True, b=B), oracle()
    y = z = X1
    for t in range(1, T + 1):
        ahead = z - 0.05 * asked.mean(z, asked.samples(t, B))
        y, z = ahead, ahead + 0.9 * (ahead - y)
        np.testing.assert_allclose(path.x[t], z, rtol=0, atol=1e-12)


def test_normalised_relatives() -> None:
    same(run("nigt", eta=0.05, beta=0.0, b=B), run("normalized_sgd", eta=0.05, K=B))
    plain = run("normalized_sgd", eta=0.05, K=B)
    np.testing.assert_allclose(run("sngm", eta=0.05, beta=0.0, b=B).x, plain.x, rtol=0, atol=1e-12)
    agnostic = run("nsgd_agnostic", c=0.1, b=B)
    steps = np.linalg.norm(np.diff(agnostic.x, axis=0), axis=1)
    np.testing.assert_allclose(steps, 0.1 * np.arange(1, T + 1) ** -0.75, rtol=1e-12)
    weights = np.arange(2, T + 1)[:, None] ** -0.5
    g, m = seen(agnostic)[0], np.array(agnostic.m)
    np.testing.assert_allclose(m[1:], (1 - weights) * m[:-1] + weights * g[1:], rtol=0, atol=1e-12)


def test_nigt_transports_exactly_where_gradients_are_linear() -> None:
    """On one quadratic, m_t is grad F(x_t) for every beta."""
    still = tr.Oracle(lambda x, s: 2 * x - 1, samples=[[0]] * T)
    path = tr.nigt(still, X1, T, eta=0.05, beta=0.9)
    np.testing.assert_allclose(path.m, 2 * np.array(path.x[:-1]) - 1, rtol=0, atol=1e-12)


def test_spider_stops() -> None:
    parameters = SPIDER | {"L": 2, "n0": 1}
    moving = run("spider_1", stop=0.0, **parameters)
    stop = sorted(np.linalg.norm(moving.m, axis=1))[T // 2] / 2
    path = run("spider_1", stop=stop, **parameters)
    last = next(t for t, m in enumerate(path.m) if np.linalg.norm(m) <= 2 * stop)
    assert 0 < last < T - 1
    np.testing.assert_array_equal(path.x[: last + 1], moving.x[: last + 1])
    assert all((x == path.x[last]).all() for x in path.x[last:])
    assert set(path.cost[last:]) == {moving.cost[last]}


def test_l0l1_spider_without_l1_is_spider() -> None:
    same(run("l0l1_spider", L0=2, L1=0, **SPIDER), run("spider_2", L=2, n0=1, **SPIDER))


def test_finite_sum_relatives() -> None:
    """One step per epoch is gradient descent; SPIDER with full restarts is SARAH where its minimum is the constant."""
    descent = run("beta_gd", gamma=0.05, beta=0.0)
    same(run("svrg", eta=0.05, period=1, b=B), descent)
    same(run("sarah", eta=0.05, period=1, b=B), descent)
    spider = run("spider_2", eps=1e9, L=10, n0=1, S1=None, S2=B, q=5)
    same(spider, run("sarah", eta=1 / 20, period=5, b=B))


def test_picked_epochs_begin_at_an_iterate_of_the_last_one() -> None:
    for name, points in (("svrg", 5), ("sarah", 6)):
        plain, picked = (run(name, eta=0.05, period=5, b=B, picked=p) for p in (False, True))
        chosen = int(TABLES["picks"][4] * points)
        np.testing.assert_array_equal(picked.x[5], plain.x[chosen])
        np.testing.assert_array_equal(picked.x[:5], plain.x[:5])


def test_adaptive_first_steps() -> None:
    """Worked by hand at step 1, where sums have one term."""
    g = oracle().mean(X1, oracle().samples(1, B))
    size = np.linalg.norm(g)
    a2, power = (1 + size**2) ** (-2 / 3), (1.1 ** (1 / 0.3) + size**2) ** 0.3
    expected = {
        "adagrad": 0.05 * g / np.sqrt(0.01 + size**2),
        "storm": 0.1 / (0.1 + size**2) ** (1 / 3) * g,
        "storm plus": g / (size**2 / a2) ** (1 / 3),
        "meta storm": 0.05 * g / power,
        "meta storm sg": 0.05 * g * (1 + size**2 / 0.64) ** (-2 / 3 * 0.35) / power,
        "meta storm na": 0.05 * g * (1 + 1 / 0.64) ** (-2 / 3 * 0.35) / power,
        "signsgd": 0.05 * np.sign(g) / np.sqrt(0.01),
    }
    for name, step in expected.items():
        function, parameters, _ = CASES[name]
        np.testing.assert_allclose(X1 - run(function, **parameters).x[1], step, rtol=1e-12)


def seen(path: tr.Path) -> tuple[np.ndarray, np.ndarray]:
    """g(x_t; xi_t) and g(x_{t-1}; xi_t) along a path, with x_0 = x_1."""
    asked, old = oracle(), [path.x[0], *path.x]
    pairs = [[asked.mean(y[t - 1], asked.samples(t, B)) for t in range(1, T + 1)] for y in (path.x, old)]
    return np.array(pairs[0]), np.array(pairs[1])


def squares(rows: np.ndarray) -> np.ndarray:
    return np.sum(rows * rows, axis=1)


@pytest.mark.parametrize("name", ["storm", "storm plus", "meta storm", "meta storm sg", "meta storm na", "super adam"])
def test_weights_in_closed_form(name: str) -> None:
    """The weight that the path itself shows, d_t - g_t = (1 - a_t) (d_{t-1} - h_t), against sums over its gradients."""
    path = run(CASES[name][0], **CASES[name][1])
    g, h = seen(path)
    d, before = np.array(path.m), np.array(path.m)[:-1] - h[1:]
    shown = 1 - np.sum((d - g)[1:] * before, axis=1) / squares(before)
    grown, steps = np.cumsum(squares(g))[:-1], np.arange(1, T)
    expected = {
        "storm": np.minimum(1, 20 * (0.1 / (0.1 + grown) ** (1 / 3)) ** 2),
        "storm plus": (1 + grown) ** (-2 / 3),
        "meta storm": (1 + np.cumsum(squares(g[:-1] - h[1:])) / 0.64) ** (-2 / 3),
        "meta storm sg": (1 + grown / 0.64) ** (-2 / 3),
        "meta storm na": (1 + steps / 0.64) ** (-2 / 3),
        "super adam": (10 + steps) ** (-2 / 3),
    }[name]
    np.testing.assert_allclose(shown, expected, rtol=1e-9)


def test_steps_in_closed_form() -> None:
    """Directions recomputed from the estimates of the whole path."""

    def check(name: str, direction: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
        path = run(CASES[name][0], **CASES[name][1])
        g, _ = seen(path)
        np.testing.assert_allclose(-np.diff(path.x, axis=0), direction(g, np.array(path.m)), rtol=0, atol=1e-12)

    def faded(rows: np.ndarray, beta: float) -> np.ndarray:
        """(1 - beta) sum over i <= t of beta^{t-i} row_i."""
        ages = np.subtract.outer(np.arange(T), np.arange(T))
        return (1 - beta) * np.where(ages >= 0, beta ** np.maximum(ages, 0), 0) @ rows

    def size(rows: np.ndarray) -> np.ndarray:
        return np.linalg.norm(rows, axis=1, keepdims=True)

    mu = 0.5 / (10 + np.arange(1, T + 1)[:, None]) ** (1 / 3)
    ones = 1 - 0.95 ** np.arange(1, T + 1)[:, None], 1 - 0.99 ** np.arange(1, T + 1)[:, None]
    check("clipped with offset", lambda g, m: np.minimum(0.05, 0.05 * 0.8 / (size(g) + 0.5)) * g)
    check("l0l1", lambda g, v: np.minimum(0.25, np.minimum(0.05 / size(v), 0.1 / size(v) ** 2)) * v)
    check("symmetric", lambda g, v: 0.05 * v / size(v) ** (2 / 3))
    check("super adam", lambda g, d: mu * d / (np.sqrt(faded(g * g, 0.999)) + 1e-3))
    check("super adam global", lambda g, d: mu * d / (faded(size(g), 0.999) + 1e-3))
    check("signsgd", lambda g, m: 0.05 * m / np.sqrt(faded(m * m, 0.99)))
    check("mars lion", lambda g, m: 0.05 * np.sign(m))

    def adamw(g: np.ndarray, m: np.ndarray) -> np.ndarray:
        c = (m - 0.95 * np.vstack([np.zeros(D), m[:-1]])) / (1 - 0.95)
        assert size(c).max() <= 1 + 1e-12
        assert size(c).min() < 0.9  # clipped and not
        return 0.05 * (m / ones[0]) / (np.sqrt(faded(c * c, 0.99) / ones[1]) + 1e-8)

    check("mars", adamw)
    check("mars approximate", adamw)


def test_matrix_steps() -> None:
    muon, asked = run("muon", W1, eta=0.05, b=B, method="svd", decay=0.1), oracle()
    inside = run("scion", W1, eta=0.05, alpha=0.2, norm="spectral", radius=3.0, constrained=True, b=B)
    for t in range(T):
        ahead = 0.95 * muon.m[t] + 0.05 * asked.mean(muon.x[t], asked.samples(t + 1, B))
        U, _, Vt = np.linalg.svd(ahead, full_matrices=False)
        np.testing.assert_allclose(muon.x[t + 1], 0.995 * muon.x[t] - 0.05 * U @ Vt, rtol=0, atol=1e-12)
        mixed = 0.95 * inside.x[t] - 0.15 * tr.ball(inside.m[t], "spectral")
        np.testing.assert_allclose(inside.x[t + 1], mixed, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
def test_orthogonal_factors(shape: tuple[int, int]) -> None:
    M = np.random.default_rng(3).normal(size=shape)
    for method, low, high in (("svd", 1 - 1e-12, 1 + 1e-12), ("newton_schulz", 0.6, 1.3)):
        factor = tr.orthogonal(M, method)
        values = np.linalg.svd(factor, compute_uv=False)
        assert low <= values.min()
        assert values.max() <= high
        assert np.sum(factor * M) > 0
        assert (tr.orthogonal(0 * M, method) == 0).all()
    low_rank = tr.orthogonal(np.outer(M[:, 0], M[0]))
    np.testing.assert_allclose(np.linalg.norm(low_rank), 1, rtol=1e-12)


@pytest.mark.parametrize("norm", ["euclidean", "sign", "mean_sign", "spectral", "column", "row", "rms"])
def test_balls(norm: str) -> None:
    d = np.random.default_rng(4).normal(size=(3, 5))
    point = tr.ball(d, norm)
    np.testing.assert_allclose(tr.ball(3 * d, norm), point, rtol=1e-7)
    assert np.sum(point * d) > 0
    measured = {  # each ball by its own norm
        "euclidean": np.linalg.norm(point),
        "sign": np.abs(point).max(),
        "mean_sign": 5 * np.abs(point).max(),
        "spectral": np.sqrt(5 / 3) * np.linalg.norm(point, 2),
        "column": np.linalg.norm(point, axis=0).max() / np.sqrt(3),
        "row": np.sqrt(5) * np.linalg.norm(point, axis=1).max(),
        "rms": np.linalg.norm(point) / np.sqrt(15),
    }
    np.testing.assert_allclose(measured[norm], 1, rtol=1e-7)


def test_a_zero_gradient_means_stay() -> None:
    for name, (function, parameters, _, x1) in ALL.items():
        flat = tr.Oracle(lambda x, s: 0 * x, n=N, **TABLES)
        path = getattr(tr, function)(flat, x1, T, **(parameters | ({"constrained": False} if "row" in name else {})))
        for points in (path.x, path.points):  # (1 - c) x + c x rounds
            np.testing.assert_allclose(points, [x1] * (T + 1), rtol=1e-14, err_msg=name)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="needs a finite sum"):
        tr.beta_gd(tr.Oracle(lambda x, s: x), X1, 1, gamma=0.1, beta=1.0)
    with pytest.raises(ValueError, match="at most 16"):
        run("sgd", eta=0.1, b=17)
    with pytest.raises(ValueError, match="'samples'; got t=25"):
        tr.sgd(oracle(), X1, T + 1, eta=0.1)
