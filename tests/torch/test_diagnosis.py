"""Every number of a diagnosis against a problem where it is known, and nobody's model is touched."""

import gc
import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from normstorm.torch import NormalizedStorm, diagnose
from normstorm.torch.diagnosis import race
from normstorm.torch.diagnosis.diagnosis import _verdict
from normstorm.torch.diagnosis.forecast import forecast, momentum_error, two_point_error
from normstorm.torch.diagnosis.page import page
from normstorm.torch.diagnosis.probe import from_products
from normstorm.torch.diagnosis.sketch import Sketch

torch.set_num_threads(1)


@pytest.fixture
def long_races() -> None:
    """Asked for by tests of who wins; elsewhere nobody but the walker goes all the way."""


@pytest.fixture(autouse=True)
def short_races(request, monkeypatch) -> None:
    if "long_races" not in request.fixturenames:
        run = race.run
        monkeypatch.setattr(race, "run", lambda *given: run(*given[:-1], 10))


class Point(nn.Module):
    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(x)


def quadratic(x, h, *, sigma=0.0, spread=0.0, K=4, seed=0):
    """Mean over samples of (1/2) sum h (1 + spread r_i) x_i^2 + sigma z'x, r = +-1 and z standard normal, dimension d.

    Noise of a batch: sigma^2 d/K + spread^2 ||h x||^2 / K.  Difference over a step s: spread^2 ||h s||^2 / K.
    """
    model, draw = Point(x.clone()), torch.Generator().manual_seed(seed)
    d = len(x)

    def loss(r, z):
        return (0.5 * (h * (1 + spread * r) * model.x**2).sum(1) + sigma * z @ model.x).mean()

    def data():
        r = torch.randint(2, (K, d), generator=draw).to(x) * 2 - 1
        return r, torch.randn(K, d, generator=draw, dtype=x.dtype)

    return model, loss, data


def test_noise_of_an_additive_quadratic_is_known_and_its_curvature_has_none() -> None:
    d, sigma, K = 50, 0.7, 4
    x = torch.full((d,), 3.0, dtype=torch.float64)
    model, loss, data = quadratic(x, torch.ones_like(x), sigma=sigma, K=K)
    found = diagnose(model, loss, data, lr=1e-3, steps=200)
    # 38 squared norms of 50 normals each: relative deviation 0.5 * sqrt(2 / 1900) = 1.6 % of the length; five of them.
    assert found.noise == pytest.approx(sigma * math.sqrt(d / K), rel=0.08)
    assert found.curvature_noise == pytest.approx(0, abs=1e-9)
    assert found.gradient == pytest.approx(3 * math.sqrt(d), rel=0.05)
    assert found.drift == pytest.approx(1e-3, rel=1e-6)  # h = 1: the gradient moves as far as x does
    assert found.batch == K and found.parameters == d
    assert found.rounding == 0


def test_curvature_noise_of_random_quadratics_is_known() -> None:
    d, spread, K, lr = 40, 0.5, 4, 1e-2
    x = torch.full((d,), 10.0, dtype=torch.float64)
    model, loss, data = quadratic(x, torch.full_like(x, 2.0), spread=spread, K=K)
    found = diagnose(model, loss, data, lr=lr, steps=100)
    assert found.curvature_noise == pytest.approx(spread * 2 * lr / math.sqrt(K), rel=0.1)
    assert found.drift == pytest.approx(2 * lr, rel=0.1)
    assert found.noise == pytest.approx(spread * 2 * 10 * math.sqrt(d / K), rel=0.1)
    assert found.change == pytest.approx(found.drift / found.gradient, rel=0.2)


def test_a_straight_way_drifts_steadily_and_a_bouncing_one_leads_nowhere(long_races) -> None:
    x = torch.tensor([5.0, 0.0], dtype=torch.float64)
    straight = diagnose(*quadratic(x, torch.ones_like(x)), lr=1e-3, beta=0.8, steps=80)
    assert straight.bounce == pytest.approx(1) and straight.exponent == pytest.approx(1)
    assert straight.window == 5 and straight.window_drift == pytest.approx(5e-3)
    # A valley whose sharp side is narrower than the step: two points know the gradient, jump across it and back.
    valley = torch.tensor([5.0, 0.004], dtype=torch.float64)
    jumping = diagnose(*quadratic(valley, torch.tensor([0.01, 100.0], dtype=torch.float64)), lr=0.01, steps=80)
    assert jumping.bounce < -0.9 and jumping.exponent < 0.5
    assert (jumping.verdict, jumping.reason) == ("does not pay", "bounce")
    calm = diagnose(*quadratic(valley, torch.tensor([0.01, 100.0], dtype=torch.float64)), lr=1e-6, steps=48)
    assert calm.bounce > 0.9


def test_what_momentum_lags_behind_is_the_forecast() -> None:
    """m - g on a line: the gradient moves by d a step, so momentum is beta/(1 - beta) d behind."""
    beta, d = 0.9, 0.3
    g = [t * d for t in range(400)]
    m = g[0]
    for value in g[1:]:
        m = beta * m + (1 - beta) * value
    assert momentum_error(beta, 0.0, d, 1.0) == pytest.approx(g[-1] - m)


def test_errors_of_both_estimates_by_simulation() -> None:
    """20,000 runs in one dimension; a standard deviation from so many is known to 0.5 %."""
    draw = np.random.default_rng(0)
    beta, noise, curvature, runs = 0.9, 1.3, 0.2, 20_000
    one, two = draw.normal(0, noise, runs), draw.normal(0, noise, runs)
    for _ in range(200):
        one = beta * one + (1 - beta) * draw.normal(0, noise, runs)
        two = beta * two + (1 - beta) * draw.normal(0, noise, runs) + beta * draw.normal(0, curvature, runs)
    assert momentum_error(beta, noise, 0.0, 1.0) == pytest.approx(one.std(), rel=0.03)
    assert two_point_error(beta, noise, curvature) == pytest.approx(two.std(), rel=0.03)


def test_the_forecast_is_the_best_of_its_grid_and_goes_the_right_way() -> None:
    easy = forecast(8, noise=1.0, drift=1e-3, exponent=1.0, curvature_noise=1e-4)
    assert easy.ratio < 0.5 and easy.beta > easy.momentum_beta
    hard = forecast(8, noise=1.0, drift=1e-3, exponent=0.0, curvature_noise=1e-2)
    assert hard.ratio > 1
    assert forecast(1, 0.0, 0.0, 0.0, 0.0).ratio == 1
    assert forecast(1, 0.0, 0.0, 0.0, 1.0).beta == 0
    assert forecast(6, 1.0, 0.1, 1.0, 0.1).k <= 6


def test_seen_takes_the_noise_off() -> None:
    own, cross = np.diag([5.0, 3.0, 3.0, 9.0]), np.diag([4.0, 1.0, 4.0, 9.0])
    cross[1, 2] = cross[2, 1] = -1.0
    seen = from_products(own, cross, 3)
    assert (seen.gradient, seen.noise, seen.drift, seen.window_drift) == (2, 1, 1, 3)
    assert seen.exponent == 1 and seen.bounce == -0.5 and seen.curvature_noise == pytest.approx(math.sqrt(2))
    assert seen.change == pytest.approx(math.sqrt(0.6))


def network():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
    x, y = torch.randn(64, 6), torch.randint(2, (64,))
    batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)]

    def loss(inputs, labels):
        return nn.functional.cross_entropy(model(inputs), labels)

    return model, loss, batches


def test_the_model_is_left_untouched() -> None:
    model, loss, batches = network()
    model[3].eval()
    model[4].bias.requires_grad_(False)
    loss(*batches[0]).backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    homes = {name: (value, value.data_ptr()) for name, value in model.named_parameters()}
    grads = {name: (p.grad, None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    found = diagnose(model, loss, batches, lr=0.01, steps=48)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for name, p in model.named_parameters():
        assert p is homes[name][0] and p.data_ptr() == homes[name][1]
        assert p.grad is grads[name][0] and (p.grad is None or torch.equal(p.grad, grads[name][1]))
    assert [m.training for m in model] == [True, True, True, False, True] and not model[4].bias.requires_grad
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]
    assert found.parameters == sum(p.numel() for p in model.parameters()) - 2


def test_the_model_is_left_untouched_when_the_loss_fails() -> None:
    model, loss, batches = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calls = iter(range(60))

    def broken(inputs, labels):
        if next(calls) == 50:
            raise RuntimeError("broken")
        return loss(inputs, labels)

    with pytest.raises(RuntimeError, match="broken"):
        diagnose(model, broken, batches, lr=0.01)
    assert model.training and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_same_question_has_the_same_answer() -> None:
    first, second = (diagnose(*network(), lr=0.01, steps=48) for _ in range(2))
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)


def test_low_precision_isfrom_products() -> None:
    """Autocast inside the loss; the smaller the step, the more of the difference is rounding."""
    model, loss, batches = network()

    def narrow(inputs, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(inputs, labels)

    fine = diagnose(model, loss, batches, lr=1e-2, steps=48).rounding
    rough = diagnose(model, narrow, batches, lr=1e-2, steps=48).rounding
    tiny = diagnose(model, loss, batches, lr=1e-5, steps=48).rounding
    assert 0 < fine < 1e-3 < rough and 10 * fine < tiny


@pytest.mark.parametrize("geometry", ["sign", "tensor", "rms"])
def test_other_geometries_and_groups(geometry: str) -> None:
    model, loss, batches = network()
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[4].parameters()), "scale": 0.5}]
    found = diagnose(model, loss, batches, 1e-3, geometry=geometry, steps=48, params=groups)
    assert found.geometry == geometry and math.isfinite(found.loss)
    assert [sorted(group) for group in groups] == [["params"], ["params", "scale"]]


def test_the_race_is_run_by_momentum_in_groups_too(monkeypatch) -> None:
    made = []

    class Watched(NormalizedStorm):
        def __init__(self, *given, **options) -> None:
            super().__init__(*given, **options)
            made.append([group["correction"] for group in self.param_groups])

    monkeypatch.setattr("normstorm.torch.diagnosis.diagnosis.NormalizedStorm", Watched)
    model, loss, batches = network()
    diagnose(model, loss, batches, 1e-3, steps=48, params=[{"params": list(model.parameters()), "correction": 0.5}])
    assert made[0] == [1.0] and [0.0] in made and all(found in ([0.0], [1.0]) for found in made)


def test_words_and_page(tmp_path, capsys) -> None:
    found = diagnose(*network(), lr=0.01, steps=48)
    text = found.explain()
    assert f"k = {found.forecast.k} of the 16 samples" in text and "not a guarantee" in text
    found.show()
    assert "curvature noise" in capsys.readouterr().out
    found.save(tmp_path / "diagnosis.html")
    html = (tmp_path / "diagnosis.html").read_text(encoding="utf-8")
    assert html == page(found) and found.verdict in html and "http://" not in html and "https://" not in html
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["verdict"] == found.verdict
    for verdict, reason in [
        ("pays", "accuracy"),
        ("pays", "race"),
        *(("does not pay", r) for r in ("noise", "close", "horizon", "signal")),
    ]:
        assert str(round(found.ratio, 2)) in replace(found, verdict=verdict, reason=reason).explain()
    assert "hvp" in replace(found, rounding=0.9).explain()
    assert "could not be measured" in replace(found, rounding=None).explain()
    with pytest.raises(ValueError, match=r"diagnosis must end in \.html; got x\.txt"):
        found.save("x.txt")


def test_a_loss_that_is_not_finite_is_refused() -> None:
    model, loss, batches = network()
    sentence = "^diagnose: loss must be finite along the probe; got nan$"
    with pytest.raises(ValueError, match=sentence):
        diagnose(model, lambda x, y: loss(x, y) * math.nan, batches, 0.01)


def test_momentum_ahead_with_the_same_gradients_is_a_veto(long_races) -> None:
    """Far away with hardly any noise, twice the steps go twice as far: lr steps less loss, about lr steps ||g||; times
    0.75, because losses are those of the second half."""
    x = torch.full((16,), 10.0, dtype=torch.float64)
    found = diagnose(*quadratic(x, torch.ones_like(x), sigma=3.0), lr=1e-3, steps=64)
    assert (found.verdict, found.reason) == ("does not pay", "race")
    assert found.lead == pytest.approx(-0.75 * 1e-3 * 64 * 40, rel=0.05)
    assert "steps count more than accuracy" in found.explain()


def test_noise_at_the_floor_pays(long_races) -> None:
    """At the minimum there is only noise, the same at both points."""
    x = torch.zeros(64, dtype=torch.float64)
    found = diagnose(*quadratic(x, torch.ones_like(x), sigma=1.0), lr=1e-2, steps=100, horizon=10_000)
    assert found.verdict == "pays" and found.reason in ("race", "accuracy")
    assert found.forecast.beta > 0.99 and found.ratio < 0.5


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"lr": 0}, "diagnose: lr must be a number > 0; got lr=0"),
        ({"beta": 1}, r"diagnose: beta must be a number in \[0, 1\); got beta=1"),
        ({"geometry": "round"}, "diagnose: geometry must be one of euclidean, .*; got geometry='round'"),
        ({"horizon": 0}, "diagnose: horizon must be an integer >= 1; got horizon=0"),
        ({"steps": 10}, "diagnose: steps must be an integer >= 48; got steps=10"),
        ({"model": 3}, "diagnose: model must be a torch.nn.Module; got int"),
        ({"model": nn.ReLU()}, "diagnose: model must have a parameter that requires a gradient; got none"),
        ({"loss": 3}, "diagnose: loss must be a function of a batch; got int"),
        ({"data": 3}, "diagnose: data must be an iterable of batches or a function that returns one; got int"),
        ({"data": []}, "diagnose: data must not run out of batches; got an iterator that ended"),
        ({"data": [(1, 2)]}, "diagnose: batch must be a tensor, or .*"),
        ({"loss": lambda x, y: 1.0}, "NormalizedStorm: loss must return a tensor with one number; got float"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(change, sentence) -> None:
    model, loss, batches = network()
    given = {"model": model, "loss": loss, "data": batches, "lr": 0.01, "steps": 48} | change
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        diagnose(**given)


def test_the_horizon_decides_between_speed_and_accuracy(long_races) -> None:
    """Both halves of a race are straight lines here: momentum's lead grows by what it gains in a doubling."""
    x = torch.full((16,), 10.0, dtype=torch.float64)
    near, far = (
        diagnose(*quadratic(x, torch.ones_like(x), sigma=3.0), lr=1e-3, steps=64, horizon=horizon)
        for horizon in (64, 256)
    )
    assert (near.horizon, far.horizon) == (64, 256)
    assert far.lead == pytest.approx(near.lead + 2 * (near.lead / 2), rel=0.1)
    assert "the next 256 steps" in far.explain()


def test_an_undecided_race_leaves_it_to_the_forecast() -> None:
    good = forecast(8, noise=1.0, drift=1e-3, exponent=1.0, curvature_noise=1e-4)
    poor = forecast(8, noise=1.0, drift=1e-3, exponent=0.0, curvature_noise=1e-2)
    facts = {"lead": 0.0, "lead_error": 0.1, "race_loss": 1.0, "horizon": 10**6}
    cases = {
        "accuracy": (good, 0.5, 2.0, {}),
        "race": (poor, -0.5, 1.0, {"lead": 0.3}),
        "bounce": (good, -0.5, 2.0, {}),
        "noise": (poor, 0.5, 2.0, {}),
        "signal": (good, 0.5, 1.01, {}),
        "close": (replace(good, error=0.8 * good.momentum_error), 0.5, 2.0, {}),
        "horizon": (good, 0.5, 2.0, {"horizon": 100}),
    }
    for reason, (found, bounce, gain, change) in cases.items():
        verdict = "pays" if reason in ("accuracy", "race") else "does not pay"
        assert _verdict(found, bounce, gain, facts | change) == (verdict, reason)
    assert _verdict(good, 0.5, 2.0, facts | {"lead": -0.3}) == ("does not pay", "race")
    assert _verdict(good, 0.5, 2.0, facts | {"lead": 0.001, "lead_error": 0.0})[1] == "accuracy"


def test_sketches_keep_products() -> None:
    """Exactly where vectors are short; else up to deviations of sqrt(2 / SIZE) = 0.6 %, of which five are allowed."""
    vectors = [[torch.randn(300, 400), torch.randn(7)] for _ in range(2)]
    vectors[1][0] += vectors[0][0]
    a, b = (Sketch(5)(vector) for vector in vectors)
    exact = sum(float((x.double() * y.double()).sum()) for x, y in zip(*vectors, strict=True))
    size = math.sqrt(float(a @ a) * float(b @ b))
    assert float(a @ b) == pytest.approx(exact, abs=0.03 * size) and float(a @ b) != exact
    both = Sketch(5)([x - y for x, y in zip(*vectors, strict=True)])
    torch.testing.assert_close(both, a - b, rtol=0, atol=1e-4)
    short = [torch.randn(5, 5), torch.randn(3)]
    assert float(Sketch(1)(short) @ Sketch(1)(short)) == pytest.approx(
        sum(float(x.double().pow(2).sum()) for x in short)
    )


def test_a_probe_holds_at_most_eight_copies() -> None:
    """Of tensors as large as the parameters, wherever Python sees them; asked in the midst of the loss."""
    model, most, calls = nn.Linear(4000, 1, bias=False), [0], [0]

    def loss(x):
        calls[0] += 1
        if calls[0] % 50 == 0:
            seen = {t.data_ptr(): t.nbytes for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter)}
            most[0] = max(most[0], sum(size for size in seen.values() if size in (16000, 32000)) // 16000)
        return (model.weight.square().sum() - x).square().mean()

    diagnose(model, loss, lambda: torch.randn(4), lr=1e-3, steps=48)
    assert 3 <= most[0] <= 8


def test_a_probe_asks_no_more_than_is_documented(long_races) -> None:
    """10 N + 8 N / w + 6 gradients of a batch, w = 3 for N = 48; other losses are asked without a gradient."""
    asked = {True: 0, False: 0}
    model, loss, data = quadratic(torch.ones(4), torch.ones(4), sigma=1.0)

    def counted(*batch):
        asked[torch.is_grad_enabled()] += 1
        return loss(*batch)

    diagnose(model, counted, data, lr=1e-3, steps=48)
    most = 10 * 48 + 8 * 48 / 3 + 6
    assert 0.8 * most <= asked[True] <= most
    assert asked[False] <= 1920 * race.FRESH / 64
