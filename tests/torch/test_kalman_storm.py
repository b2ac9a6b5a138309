"""KalmanStorm against the NumPy transcription of the engine's filter, and what a step may and may not do."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transcriptions.common import Oracle
from transcriptions.kalman import kalman_storm

from normstorm.torch import KalmanStorm

K, STEPS, SIZE = 4, 60, 5
RNG = np.random.default_rng(3)
X1 = RNG.normal(size=SIZE)


def rows(count: int, shift: float = 0.0, rare: float = 0.0) -> list[tuple[np.ndarray, float]]:
    """Least squares whose samples disagree about curvature; a part of them may have most of it."""
    features = [RNG.normal(size=SIZE) * np.linspace(0.3, 1.5, SIZE) + 0.3 for _ in range(count)]
    features = [a * (8 if RNG.uniform() < rare else 0.5) for a in features] if rare else features
    return [(a, RNG.normal() + shift) for a in features]


# At half of the way the target jumps: V is wrong then, which the check of V has to find.
LARGE, SAMPLES = rows(3 * K), [rows(K, 8.0 * (t > STEPS / 2)) for t in range(STEPS + 1)]
UNEVEN = [rows(K, rare=0.04) for _ in range(STEPS + 1)]


def gradient(x: np.ndarray, sample: Any) -> np.ndarray:
    a, b = sample
    return a * (a @ x - b)


def closure_of(optimizer: KalmanStorm, x: Tensor, batch: Any) -> Any:
    a, b = (torch.tensor(np.array(part)) for part in zip(*batch, strict=True))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = 0.5 * (a @ x - b).square().mean()
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize(("samples", "alarmed"), [(SAMPLES, True), (UNEVEN, False)])
def test_it_follows_the_transcription(samples: Any, alarmed: bool) -> None:
    path = kalman_storm(Oracle(gradient, samples=samples, large=[LARGE]), X1, STEPS, K=K)
    x = nn.Parameter(torch.tensor(X1))
    optimizer = KalmanStorm([x])
    for part in (1, 2, 0):  # the first part is also that of the first curvature
        optimizer.step(closure_of(optimizer, x, LARGE[part * K : (part + 1) * K]))
    for t in range(2, STEPS + 1):
        optimizer.step(closure_of(optimizer, x, samples[t - 1]))
        np.testing.assert_allclose(x.detach().numpy(), path.x[t - 1], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(optimizer.state[x]["m"].numpy(), path.m[-1], rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(optimizer.error_bar, path.bar, rtol=1e-7)
    optimizer.finish()
    np.testing.assert_allclose(x.detach().numpy(), path.x[STEPS], rtol=1e-8, atol=1e-10)
    assert not alarmed or optimizer.param_groups[0]["filter"]["alarms"] > 0


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 2))


def trained(steps: int, optimizer: KalmanStorm, model: nn.Module, seed: int = 0) -> list[float]:
    draw, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        x = torch.randn(16, 6, generator=draw)

        def closure(x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x[:, :2].sin()).square().mean()
            loss.backward()
            return loss

        losses.append(float(optimizer.step(closure).detach()))
    return losses


@pytest.mark.parametrize("options", [{}, {"geometry": "spectral"}, {"geometry": "spectral", "longer": True}], ids=str)
def test_it_trains_without_a_rate_and_goes_on_from_a_checkpoint(options: dict[str, Any]) -> None:
    model = network()
    optimizer = KalmanStorm(model.parameters(), **options)
    losses = trained(120, optimizer, model)
    assert np.mean(losses[-20:]) < 0.7 * np.mean(losses[:10])
    other = network()
    other.load_state_dict(model.state_dict())
    second = KalmanStorm(other.parameters(), **options)
    second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    torch.manual_seed(5)
    expected = trained(5, optimizer, model, 7)
    torch.manual_seed(5)
    assert trained(5, second, other, 7) == expected


def test_a_batch_is_counted_once_and_masks_are_drawn_again() -> None:
    model = network()
    optimizer = KalmanStorm(model.parameters())
    trained(10, optimizer, model)
    assert int(model[1].num_batches_tracked) == 10


def bowl() -> tuple[nn.Parameter, KalmanStorm, Any]:
    """x^2/2, or no number if it is not to be fine."""
    x = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = KalmanStorm([x])

    def closure(fine: bool = True) -> Tensor:
        optimizer.zero_grad()
        loss = (0.5 if fine else float("nan")) * x.square().sum()
        loss.backward()
        return loss

    return x, optimizer, closure


def test_what_is_not_finite_is_taken_back() -> None:
    x, optimizer, closure = bowl()
    for _ in range(4):
        optimizer.step(closure)
    before = x.item()
    optimizer.step(lambda: closure(x.item() == before))
    assert optimizer.param_groups[0]["filter"]["taken_back"] == 1
    assert x.item() == pytest.approx(before, rel=1e-15)
    with pytest.raises(RuntimeError, match="gradients must be finite where no step has led to"):
        KalmanStorm([x]).step(lambda: closure(False))


def test_a_state_of_an_earlier_version_goes_on_and_a_loss_may_be_a_number() -> None:
    x = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))

    def closure() -> float:
        x.grad = x.detach().clone()
        return 0.5 * x.item() ** 2

    first = KalmanStorm([x], longer=True)
    for _ in range(5):
        first.step(closure)
    saved = first.state_dict()
    del saved["param_groups"][0]["filter"]["waited"]
    second = KalmanStorm([x], longer=True)
    second.load_state_dict(saved)
    before = x.item()
    for _ in range(3):
        second.step(closure)
    assert x.item() < before and second.param_groups[0]["filter"]["waited"] == 0


def test_a_lengthened_step_that_raises_the_loss_is_taken_back() -> None:
    """By more than it should fall; after that, lengths are plain again, and a plain step is not looked at."""
    x = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = KalmanStorm([x], longer=True)

    def closure(risen: float = 0.0) -> Tensor:
        optimizer.zero_grad()
        loss = 0.5 * x.square().sum() + risen
        loss.backward()
        return loss

    for _ in range(6):
        optimizer.step(closure)
    state, before = optimizer.param_groups[0]["filter"], x.item()
    assert state["factor"] > 1 and state["length"] > 0
    optimizer.step(lambda: closure(0.0 if x.item() == before else 10.0))
    assert (state["taken_back"], state["factor"]) == (1, 1.0)
    assert x.item() == pytest.approx(before, rel=1e-15)
    before = x.item()
    optimizer.step(lambda: closure(0.0 if x.item() == before else 10.0))
    assert state["taken_back"] == 1 and x.item() < before


def test_after_ten_moves_no_step_may_raise_the_loss_out_of_all_proportion() -> None:
    """Plain or lengthened; a plain one that was taken back has met more curvature than was known."""
    x = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = KalmanStorm([x], longer=True)

    def closure(risen: float = 0.0) -> Tensor:
        optimizer.zero_grad()
        loss = 0.5 * x.square().sum() + risen
        loss.backward()
        return loss

    state = optimizer.param_groups[0]["filter"]
    for _ in range(14):
        optimizer.step(closure)
    state["factor"], bend, before = 1.0, state["bend"], x.item()
    assert state["moves"] > 10 and state["length"] > 0
    optimizer.step(lambda: closure(0.0 if x.item() == before else 10.0))
    assert (state["taken_back"], state["bend"]) == (1, 2 * bend)
    assert x.item() == pytest.approx(before, rel=1e-15)


@pytest.mark.parametrize("start", [3.0, 0.0])
def test_steps_do_not_grow_without_end_where_no_curvature_is_seen(start: float) -> None:
    """They double up to the length of the first weights (1 if these are 0): 300 steps go no farther than 300 of it."""
    x = nn.Parameter(torch.tensor([start], dtype=torch.float64))
    optimizer = KalmanStorm([x])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = 2 * x.sum()
        loss.backward()
        return loss

    for _ in range(300):
        optimizer.step(closure)
    length = start or 1.0
    assert 100 * length < start - x.item() <= 300 * length


def test_a_step_that_was_taken_back_is_not_the_longest() -> None:
    x, optimizer, closure = bowl()
    for _ in range(3):
        optimizer.step(closure)
    state, before, gone = optimizer.param_groups[0]["filter"], x.item(), 0.0
    assert state["length"] > 0
    optimizer.step(lambda: closure(x.item() == before))
    assert (state["taken_back"], state["longest"]) == (1, 0.0)
    for _ in range(3):
        last = x.item()
        optimizer.step(closure)
        gone = max(gone, abs(x.item() - last))
    assert state["longest"] == pytest.approx(gone)
    gone = max(gone, state["length"])
    optimizer.finish()
    assert state["longest"] == pytest.approx(gone)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"geometry": "sign"}, "geometry must be one of euclidean, spectral"),
        ({"scale": 0.0}, "scale must be"),
        ({"longer": 1}, "longer must be True or False"),
    ],
)
def test_refusals(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"KalmanStorm: {sentence}"):
        KalmanStorm([nn.Parameter(torch.ones(2))], **given)


def test_what_a_step_needs() -> None:
    optimizer = KalmanStorm([nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match="closure must be a function"):
        optimizer.step()
    with pytest.raises(ValueError, match="params must all be given at the beginning"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with pytest.raises(ValueError, match="real floating-point"):
        KalmanStorm([nn.Parameter(torch.ones(2, dtype=torch.complex64))])


def test_where_nothing_bends_it_does_not_try_the_same_step_for_ever() -> None:
    """The loss falls evenly and ends at 10."""
    x = nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
    optimizer = KalmanStorm([x])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (-x if x.item() < 10 else x * torch.nan).sum()
        loss.backward()
        return loss

    for _ in range(100):
        optimizer.step(closure)
    assert 9.9 < x.item() < 10


def test_a_state_that_knows_no_mean_of_squares_takes_the_cautious_one() -> None:
    first, second = (KalmanStorm([nn.Parameter(torch.ones(2))]) for _ in range(2))
    saved = first.state_dict()
    saved["param_groups"][0]["filter"]["bend"] = 3.0
    del saved["param_groups"][0]["filter"]["square"]
    second.load_state_dict(saved)
    assert second.param_groups[0]["filter"]["square"] == 3.0
