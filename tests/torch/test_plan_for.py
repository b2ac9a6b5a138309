"""Plans for models: given constants are used as they are, measured ones are near the truth."""

import math

import pytest
import torch
from torch import nn

from normstorm.theory import Constants, plan
from normstorm.torch import NormalizedStorm
from normstorm.torch.plans import estimate_constants, plan_for

torch.set_num_threads(1)
KNOWN = Constants(L0=1, L1=0, sigma0=1, sigma1=0, gap=1, grad_norm=1)


class Point(nn.Module):
    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(x)


def additive(K: int = 8, d: int = 20, sigma: float = 0.5):
    """(1/2) h'x^2 + sigma z'x: L0 = max h, L1 = 0, noise of one sample sigma sqrt(d), F* = 0."""
    model, draw = Point(torch.linspace(-3, 3, d)), torch.Generator().manual_seed(0)
    h = torch.linspace(0.5, 2, d)

    def loss(z):
        return 0.5 * (h * model.x**2).sum() + sigma * (z @ model.x).mean()

    return model, loss, lambda: torch.randn(K, d, generator=draw), h


def test_given_constants_make_the_theory_s_plan() -> None:
    model, loss, data, _ = additive()
    expected = plan(KNOWN, horizon=1000, confidence=0.99)
    assert plan_for(model, loss, data, horizon=1000, confidence=0.99, constants=KNOWN) == expected
    assert plan_for(model, loss, data, target=0.5, constants=KNOWN) == plan(KNOWN, target=0.5, confidence=None)


def test_measured_constants_are_near_the_truth() -> None:
    model, loss, data, h = additive()
    found = estimate_constants(model, loss, data)
    x = model.x.detach()
    assert 0.5 <= found.L0 / 1.5 <= 2.0 + 1e-3 and found.noise == "mean-square"
    reach = found.L1 * float((h * x).norm())
    assert found.L0 + reach <= 1.5 * 2.0 * 1.01
    noise = math.hypot(found.sigma0, found.sigma1 * float((h * x).norm())) / 1.5
    # The largest of 24 chi-square means with 20 degrees of freedom: between 1 and 1.6 times their root mean square.
    assert 0.95 <= noise / (0.5 * math.sqrt(20)) <= 1.7
    assert found.gap == pytest.approx(float(0.5 * (h * x**2).sum()), rel=0.02)
    assert found.grad_norm == pytest.approx(1.5 * float((h * x).norm()), rel=0.02)


def test_a_sample_s_curvature_counts_not_a_batch_s() -> None:
    """f = (1/2) r ||x||^2 with r = 0 or 4: the mean square of r is 8, whatever the batch."""
    found = []
    for K in (1, 8):
        model, draw = Point(torch.full((4,), 2.0)), torch.Generator().manual_seed(K)

        def loss(r, model=model):
            return 0.5 * (4 * r).mean() * (model.x**2).sum()

        def data(K=K, draw=draw):
            return torch.randint(2, (K,), generator=draw).float()

        found.append(estimate_constants(model, loss, data, probes=30))
    for constants, K in zip(found, (1, 8), strict=True):
        smooth = constants.L0 / 1.5 + constants.L1 / 1.5 * 8
        assert math.sqrt(8) * 0.7 <= smooth <= (4.0 if K == 1 else 8.0)


def test_the_plan_runs() -> None:
    model, loss, data, _ = additive()
    before = model.x.detach().clone()
    found = plan_for(model, loss, data, budget=2000)
    assert torch.equal(model.x.detach(), before) and found.confidence is None
    assert "if assumptions 1, 2, 3B and 4B hold" in found.guarantee
    optimizer = NormalizedStorm.from_plan(model.parameters(), found)
    assert optimizer.param_groups[0]["lr"] == found.eta and optimizer.param_groups[0]["beta"] == found.beta
    optimizer.step(loss, batch=(torch.zeros(found.batch, 20),), k=found.sub_batch)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, "plan: exactly one of target, horizon, budget must be given; got none"),
        ({"horizon": 10, "confidence": 0.9}, "plan_for: confidence must be None unless constants are given.*"),
        ({"horizon": 10, "lower": math.nan}, "plan_for: lower must be a finite number; got lower=nan"),
        ({"horizon": 10, "lower": 1e9}, "plan_for: lower must be below the loss, .*; got lower=1000000000.0"),
        ({"horizon": 10, "probes": 1}, "plan_for: probes must be an integer >= 4; got probes=1"),
        ({"horizon": 10, "model": None}, "plan_for: model must be a torch.nn.Module; got NoneType"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(change, sentence) -> None:
    model, loss, data, _ = additive()
    given = {"model": model, "loss": loss, "data": data} | change
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        plan_for(**given)
