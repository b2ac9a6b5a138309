"""Habits of training loops around two points: clipping, second optimizers, random numbers, schedulers, loggers."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from normstorm.torch import NormalizedStorm, spectral_storm

MEMORY = ["fast", "lean"]


def pair(correction: float = 1.0, **options: Any) -> tuple[nn.Module, NormalizedStorm]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return model, NormalizedStorm(model.parameters(), 0.1, correction=correction, **options)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


X = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(8, 3)


def squared(model: nn.Module, x: Tensor = X) -> Tensor:
    return (model(x) - 1).square().mean()


# Clipping, and what Lightning asks of an optimizer.


def clipped(model: nn.Module, opt: NormalizedStorm) -> Any:
    """As Lightning wraps a closure: zero, backward, then the clipping."""

    def closure() -> Tensor:
        opt.zero_grad()
        value = squared(model)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return value

    return closure


@pytest.mark.parametrize("memory", MEMORY)
def test_clipping_between_two_points_is_refused(memory: str) -> None:
    model, opt = pair(memory=memory)
    before = weights(model)
    with pytest.raises(RuntimeError, match=r"^NormalizedStorm: gradients must not be changed inside a pass if "):
        opt.step(clipped(model, opt))
    assert torch.equal(weights(model), before)


def test_clipping_at_one_point() -> None:
    model, opt = pair(0.0, beta=0.0, norms=True)
    opt.step(clipped(model, opt))
    assert float(opt.last_norms["gradient"]) == pytest.approx(0.01, rel=1e-3)
    model, opt = pair(0.0, memory="lean")
    with pytest.raises(RuntimeError, match=r"^NormalizedStorm: memory must be 'fast' where a closure changes "):
        opt.step(clipped(model, opt))


def test_a_scaler_unscales_at_one_point_and_is_told_at_two() -> None:
    """Lightning's bf16-mixed refuses to clip where the optimizer unscales by itself; its 16-mixed calls a closure
    itself and then scaler.step."""
    model, opt = pair(0.0)
    assert not opt._step_supports_amp_scaling
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    plain, other = pair(0.0)
    for _ in range(3):
        scaler.scale(squared(model)).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        squared(plain).backward()
        other.step()
        other.zero_grad()
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=1e-9)
    model, opt = pair()
    assert opt._step_supports_amp_scaling
    scaler.scale(squared(model)).backward()
    with pytest.raises(RuntimeError, match=r"^NormalizedStorm: step\(\) needs gradients at two points .* 16-mixed"):
        scaler.step(opt)


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_lightning_clips_in_mixed_precision() -> None:
    lightning = pytest.importorskip("lightning", reason="needs lightning")

    class Module(lightning.LightningModule):
        def __init__(self, correction: float) -> None:
            super().__init__()
            self.net, self.correction = nn.Linear(3, 1), correction

        def training_step(self, batch: Any, _: int) -> Tensor:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> NormalizedStorm:
            return NormalizedStorm(self.parameters(), 0.1, correction=self.correction)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 3)), batch_size=4)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "devices": 1, "max_epochs": 1}

    def fit(correction: float, **more: Any) -> nn.Module:
        module = Module(correction)
        before = module.net.weight.detach().clone()
        lightning.Trainer(**quiet, **more).fit(module, data)
        assert not torch.equal(before, module.net.weight)
        return module

    fit(0.0, precision="bf16-mixed", gradient_clip_val=0.5)
    with pytest.raises(RuntimeError, match=r"gradient"):
        fit(1.0, precision="bf16-mixed", gradient_clip_val=0.5)
    with pytest.raises(RuntimeError, match=r"^NormalizedStorm: gradients must not be changed"):
        fit(1.0, gradient_clip_val=0.5)


# Several optimizers, accumulation.


@pytest.mark.parametrize("memory", MEMORY)
def test_gradients_of_another_optimizer_are_those_of_the_new_point(memory: str) -> None:
    model, _ = pair()
    storm = NormalizedStorm(model[0].parameters(), 0.1, memory=memory)
    other = torch.optim.SGD(model[2].parameters(), 0.1)
    for _ in range(3):
        other.zero_grad()
        storm.step(lambda x: squared(model, x), batch=X)
        found = [p.grad.clone() for p in model[2].parameters()]
        expected = torch.autograd.grad(squared(model), list(model[2].parameters()))
        torch.testing.assert_close(found, list(expected), rtol=0, atol=1e-12)
        other.step()


@pytest.mark.parametrize("memory", MEMORY)
def test_two_optimizers_share_a_model_and_zero_it_as_a_whole(memory: str) -> None:
    model, _ = pair()
    halves = [NormalizedStorm(model[i].parameters(), 0.05, memory=memory) for i in (0, 2)]

    def closure() -> Tensor:
        model.zero_grad()
        value = squared(model)
        value.backward()
        return value

    first = squared(model).item()
    for _ in range(6):
        for opt in halves:
            opt.step(closure)
    assert squared(model).item() < 0.8 * first


@pytest.mark.parametrize("memory", MEMORY)
def test_two_optimizers_in_one_pass(memory: str) -> None:
    """One after the other within the same phases, both are what they are alone, each with a norm of its own."""
    together, _ = pair()
    alone = copy.deepcopy(together)
    ways = [
        [NormalizedStorm(m[i].parameters(), 0.1, memory=memory, geometry="tensor") for i in (0, 2)] for m in (together,)
    ]
    one = NormalizedStorm(alone.parameters(), 0.1, memory=memory, geometry="tensor")
    a, b = ways[0]
    for _ in range(4):
        with a.old_point(), b.old_point():
            squared(together).backward()
        with a.new_point(), b.new_point():
            squared(together).backward()
        a.step()
        b.step()
        one.step(lambda x: squared(alone, x), batch=X)
    torch.testing.assert_close(weights(together), weights(alone), rtol=0, atol=1e-12)


def test_accelerate_calls_a_closure_for_the_last_batch_alone() -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    accelerate.state.GradientState._reset_state()
    try:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model, opt = pair(norms=True)
        prepared = accelerator.prepare(opt)
        with accelerator.accumulate(model):
            prepared.step(lambda: accelerator.backward(squared(model)))
        with (
            pytest.raises(
                ValueError, match=r"^NormalizedStorm: a closure must evaluate all batches .* got backwards=1 "
            ),
            accelerator.accumulate(model),
        ):
            prepared.step(lambda: accelerator.backward(squared(model)))
        opt.step(lambda: [accelerator.backward(squared(model)) for _ in range(2)], backwards=2)
        expected = torch.cat(
            [g.flatten() for g in torch.autograd.grad(squared(model), list(model.parameters()))]
        ).norm()
        torch.testing.assert_close(opt.last_norms["gradient"], expected)
    finally:
        accelerate.state.AcceleratorState._reset_state(True)
        accelerate.state.GradientState._reset_state()


# Schedulers.


@pytest.mark.parametrize("make", [spectral_storm, lambda m: NormalizedStorm(m.parameters(), 0.1)])
def test_schedulers_that_cycle_momentum(make: Any) -> None:
    model, _ = pair()
    opt, plain = make(model), torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1, momentum=0.9)
    for kind in (
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=6),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2),
    ):
        schedulers = [kind(o) for o in (opt, plain)]
        for _ in range(4):
            opt.step(lambda x: squared(model, x), batch=X)
            plain.step()
            assert opt.param_groups[0]["beta"] == plain.param_groups[0]["momentum"]
            for scheduler in schedulers:
                scheduler.step()
    opt.param_groups[0]["momentum"] = 1.5
    with pytest.raises(ValueError, match=r"^NormalizedStorm: beta must be a number in \[0, 1\); got beta=1.5"):
        opt.step(lambda x: squared(model, x), batch=X)


# Random numbers.

HERE = torch.Generator().manual_seed(3)


def drawn_by_a_helper() -> float:
    return float(torch.rand((), generator=HERE))


class Noisy(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 1, dtype=torch.float64)
        self.own = torch.Generator().manual_seed(1)
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.rand(3, generator=self.own)
        self.seen.append(x.sum().item())
        return super().forward(x)


@pytest.mark.parametrize("entrance", ["closure", "batch"])
@pytest.mark.parametrize(
    "source", ["random", "numpy", "RandomState", "default_rng", "Random", "global", "helper", "module"]
)
def test_both_points_draw_the_same(source: str, entrance: str) -> None:
    legacy, modern, own = np.random.RandomState(0), np.random.default_rng(0), random.Random(0)
    draws = {
        "random": random.random,
        "numpy": np.random.rand,
        "RandomState": lambda: legacy.rand(),
        "default_rng": lambda: modern.random(),
        "Random": lambda: own.random(),
        "global": lambda: float(torch.rand((), generator=HERE)),
        "helper": drawn_by_a_helper,
        "module": lambda: 0.0,
    }
    draw, model = draws[source], Noisy()
    opt = NormalizedStorm(model.parameters(), 0.1)

    def loss(x: Tensor) -> Tensor:
        return model(x + draw()).square().mean()

    def closure() -> Tensor:
        opt.zero_grad()
        value = loss(X)
        value.backward()
        return value

    for _ in range(3):
        opt.step(closure) if entrance == "closure" else opt.step(loss, batch=X)
    assert len(model.seen) == 5 and len(set(model.seen)) == 3
    assert model.seen[1] == model.seen[2] and model.seen[3] == model.seen[4]


# Running statistics with k < K.


@pytest.mark.parametrize("difference", ["exact", "hvp"])
@pytest.mark.parametrize("k", [2, 4, 6])
def test_a_batch_in_two_parts_counts_once(k: int, difference: str) -> None:
    """By its larger part, or the first if they are equal; each part is normalised by itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=1.0, affine=False), nn.Linear(3, 1)).double()
    opt = NormalizedStorm(model.parameters(), 0.1, difference=difference)
    for t in range(1, 4):
        x = torch.randn(8, 3, dtype=torch.float64)
        opt.step(lambda x: squared(model, x), batch=x, k=k)
        assert model[0].num_batches_tracked == t
        torch.testing.assert_close(model[0].running_mean, (x[:k] if k >= 4 else x[k:]).mean(0))


# The last move, lengths, and gradients that are no numbers.


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("nesterov", [False, True])
def test_the_last_move(memory: str, nesterov: bool) -> None:
    model, opt = pair(memory=memory, nesterov=nesterov)
    twin, other = pair(memory=memory, nesterov=nesterov)
    opt.finish()
    for m, o in ((model, opt), (twin, other)):
        for _ in range(3):
            o.step(lambda x, m=m: squared(m, x), batch=X)
    opt.finish()
    after = weights(model)
    assert float((after - weights(twin)).norm()) == pytest.approx(0.1)
    with other.old_point():  # makes the same move
        squared(twin).backward()
    torch.testing.assert_close(weights(twin), after, rtol=0, atol=1e-15)
    opt.finish()
    assert torch.equal(weights(model), after)
    opt.step(lambda x: squared(model, x), batch=X)
    with opt.old_point(), pytest.raises(RuntimeError, match=r"^NormalizedStorm: finish must not be asked between"):
        opt.finish()


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("correction", [0.0, 1.0])
def test_lengths_for_loggers(correction: float, memory: str) -> None:
    model, opt = pair(correction, memory=memory, norms=True)
    assert opt.last_norms == {}
    for _ in range(3):
        before = copy.deepcopy(model)
        opt.step(lambda x: squared(model, x), batch=X)
        at = model if correction else before
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(squared(at), list(at.parameters()))]).norm()
        torch.testing.assert_close(opt.last_norms["gradient"], expected)
        m = torch.cat([opt.state[p]["momentum"].flatten() for p in model.parameters()])
        torch.testing.assert_close(opt.last_norms["estimate"], m.norm())
    assert copy.deepcopy(opt).last_norms.keys() == {"gradient", "estimate"}


@pytest.mark.parametrize("entrance", ["closure", "gradients", "batch"])
@pytest.mark.parametrize("correction", [0.0, 1.0])
def test_a_step_that_is_not_finite_is_left_out(correction: float, entrance: str) -> None:
    model, opt = pair(correction, skip_nonfinite=True)

    def step(factor: float) -> None:
        if entrance == "batch":
            opt.step(lambda x: factor * squared(model, x), batch=X)
        elif entrance == "closure" or correction:
            opt.step(lambda: (opt.zero_grad(), (factor * squared(model)).backward()))
        else:
            (factor * squared(model)).backward()
            opt.step()
            opt.zero_grad()

    step(1.0)
    step(1.0)
    before = weights(model), copy.deepcopy(opt.state_dict()["state"])
    step(float("nan"))
    assert opt.skipped == 1 and torch.equal(weights(model), before[0])
    for i, state in opt.state_dict()["state"].items():
        assert state["stage"] == before[1][i]["stage"] and torch.equal(state["momentum"], before[1][i]["momentum"])
    step(1.0)
    assert opt.skipped == 1 and torch.isfinite(weights(model)).all() and not torch.equal(weights(model), before[0])
    with pytest.raises(ValueError, match=r"^NormalizedStorm: memory must be 'fast' with skip_nonfinite"):
        pair(memory="lean", skip_nonfinite=True)


def test_an_overflow_at_the_new_point_starts_anew() -> None:
    model, opt = pair(skip_nonfinite=True)
    opt.step(lambda x: squared(model, x), batch=X)
    with opt.old_point():
        squared(model).backward()
    with opt.new_point():
        (float("inf") * squared(model)).backward()
    opt.step()
    assert opt.skipped == 1 and {state["stage"] for state in opt.state.values()} == {0}
    assert torch.isfinite(weights(model)).all()
