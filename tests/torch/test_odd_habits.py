"""What training loops do besides training: layers switched off, 16 bits without autocast, calls that were forgotten."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small import GEOMETRIES
from torch import Tensor, nn

from normstorm.torch import NormalizedStorm, assign, diagnose, plan_for

MEMORY = ["fast", "lean"]


def squares(*tensors: Tensor) -> Tensor:
    return torch.stack([(t * t).sum() for t in tensors]).sum()


@pytest.mark.parametrize("memory", MEMORY)
def test_nesterov_forgets_a_fresh_gradient_that_is_not_fresh(memory: str) -> None:
    """A tensor that only the old point has used counts with a gradient of zero at the new one."""
    w, s = (nn.Parameter(torch.tensor([v], dtype=torch.float64)) for v in (1.0, 2.0))
    opt = NormalizedStorm([w, s], 0.1, 0.5, nesterov=True, geometry="tensor", memory=memory)
    with opt.new_point():
        squares(w, s).backward()
    opt.step()
    with opt.old_point():
        squares(w, s).backward()
    with opt.new_point():
        squares(w).backward()
    opt.step()
    assert opt.state[s]["momentum"].item() == 0.5 * 4 - 0.5 * 4
    assert opt.state[s]["fresh"].item() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("geometry", ["euclidean", "tensor", "rms", "sign"])
def test_a_tensor_without_axes(geometry: str, dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.tensor(1.0, dtype=dtype))
    opt = NormalizedStorm([p], 0.25, geometry=geometry, correction=0)
    squares(p).backward()
    opt.step()
    assert p.shape == () and p.item() == 0.75


@pytest.mark.parametrize("size", [1e-6, 6e4])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_norms_that_do_not_fit_into_sixteen_bits(geometry: str, size: float) -> None:
    p = nn.Parameter(torch.ones(3, 2, dtype=torch.float16))
    wide = nn.Parameter(torch.ones(3, 2))
    p.grad = torch.full((3, 2), size).half()
    wide.grad = p.grad.float()
    for one in (p, wide):
        NormalizedStorm([one], 0.25, geometry=geometry, correction=0).step()
    torch.testing.assert_close(p.float(), wide, rtol=0, atol=0.01)
    assert (wide < 1).all()


@pytest.mark.filterwarnings("ignore::UserWarning")  # of global hooks and compiled modules
@pytest.mark.parametrize("way", ["module", "in place", "function"])
def test_compiled_layers_count_a_batch_once(way: str) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    opt = NormalizedStorm(model.parameters(), 0.1, module=None if way == "module" else model)
    compiled = torch.compile(model, backend="eager") if way == "module" else model
    if way == "in place":
        model.compile(backend="eager")

    def loss(x: Tensor) -> Tensor:
        return compiled(x).tanh().square().mean()

    mean = model[1].running_mean
    for _ in range(3):
        x = torch.randn(8, 4)
        before = mean.clone()
        opt.step(torch.compile(loss, backend="eager") if way == "function" else loss, batch=(x,))
        with torch.no_grad():
            torch.testing.assert_close(mean, 0.9 * before + 0.1 * model[0](x).mean(0))
    assert model[1].num_batches_tracked == 3 and model[1].momentum == 0.1


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("memory", MEMORY)
def test_a_step_given_up_between_its_passes(memory: str, scaled: bool) -> None:
    p = nn.Parameter(torch.ones(3))
    opt = NormalizedStorm([p], 0.1, memory=memory)
    opt.abandon()
    opt.step(lambda x: squares(p - x), batch=(torch.zeros(1, 3),))
    with opt.old_point(scaler=torch.amp.GradScaler("cpu", enabled=scaled)):
        with pytest.raises(RuntimeError, match=r"^NormalizedStorm: abandon must be called between"):
            opt.abandon()
        squares(p).backward()
    with pytest.raises(RuntimeError, match=r"^NormalizedStorm: add_param_group must not .* abandon\(\)$"):
        opt.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    where = p.detach().clone()
    opt.abandon()
    assert torch.equal(p, where) and p.grad is None
    assert opt.state_dict()["state"][0]["stage"] == (2 if scaled else 0)
    opt.step(lambda x: squares(p - x), batch=(torch.zeros(1, 3),))


@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize("memory", MEMORY)
def test_a_scaler_that_the_passes_do_not_know(memory: str, begin: bool) -> None:
    p = nn.Parameter(torch.ones(3))
    opt, scaler = NormalizedStorm([p], 0.1, memory=memory), torch.amp.GradScaler("cpu")
    for phase in (opt.old_point, opt.new_point) if begin else (opt.new_point,):
        with phase():
            scaler.scale(squares(p)).backward()
    with pytest.raises(RuntimeError, match=r"^NormalizedStorm: a GradScaler must be given to old_point"):
        scaler.step(opt)
    assert opt.state[p]["stage"] == 0


def test_the_state_of_another_optimizer() -> None:
    p = nn.Parameter(torch.ones(3))
    opt = NormalizedStorm([p], 0.1)
    before = opt.state_dict()
    with pytest.raises(ValueError, match=r"^NormalizedStorm.load_state_dict: every group .* got one without beta, "):
        opt.load_state_dict(torch.optim.AdamW([p]).state_dict())
    assert opt.state_dict() == before | {"state": opt.state_dict()["state"]}


@pytest.mark.parametrize("option", [{"memory": "lean"}, {"fused": False}, {"module": None}])
def test_some_options_are_not_a_groups(option: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^NormalizedStorm: \w+ must be the same for all groups; got "):
        NormalizedStorm([{"params": [nn.Parameter(torch.ones(3))], **option}], 0.1)


def test_a_loss_of_nothing() -> None:
    model, data = nn.Linear(3, 1), [(torch.ones(2, 3),)]
    said = "loss must depend on a parameter that requires a gradient; got one that does not"
    with pytest.raises(ValueError, match=f"^NormalizedStorm: {said}"):
        NormalizedStorm(model.parameters(), 0.1).step(lambda x: x.sum(), batch=data[0])
    with pytest.raises(ValueError, match=said):
        diagnose(model, lambda x: x.sum(), data, 0.1, steps=48)
    with pytest.raises(ValueError, match=f"^plan_for: {said}"):
        plan_for(model, lambda x: x.sum(), data, budget=100)


def test_a_diagnosis_moves_nothing_but_the_model() -> None:
    model, other = nn.Linear(3, 1), nn.Parameter(torch.ones(1))
    for params in ([*model.parameters(), other], [{"params": other}], [("other", other)]):
        with pytest.raises(ValueError, match=r"^diagnose: params must be parameters of the model; got 1 others"):
            diagnose(model, lambda x: model(x).sum(), [(torch.ones(2, 3),)], 0.1, params=params)
    assert other == 1


def test_the_only_linear_layer_of_a_convolutional_network_is_its_head() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    geometry = {p: group["geometry"] for group in assign(model) for p in group["params"]}
    assert geometry[model[0].weight] == "spectral" and geometry[model[2].weight] == "adam"
    assert [group["geometry"] for group in assign(nn.Linear(8, 3))] == ["spectral", "adam"]
    with pytest.raises(ValueError, match=r"^assign: head must be None or a torch.nn.Module; got str"):
        assign(model, "fc")  # type: ignore[arg-type]


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g * ctx.saved_tensors[0]


def test_a_product_needs_two_derivatives() -> None:
    """Autograd alone would say nothing and leave the product of this layer out."""
    model = nn.Linear(3, 1)
    opt = NormalizedStorm(model.parameters(), 0.1, difference="hvp")

    def loss(x: Tensor) -> Tensor:
        return Once.apply(model(x)).square().mean()

    opt.step(loss, batch=(torch.ones(2, 3),))
    with pytest.raises(RuntimeError, match=r"^NormalizedStorm: difference must be 'exact' .* got 'hvp'"):
        opt.step(loss, batch=(torch.ones(2, 3),))


def test_a_scaler_that_is_none() -> None:
    opt = NormalizedStorm([nn.Parameter(torch.ones(3))], 0.1)
    with pytest.raises(ValueError, match=r"^NormalizedStorm: scaler must be None or a GradScaler; got float"):
        opt.old_point(scaler=1024.0).__enter__()


@pytest.mark.parametrize("memory", MEMORY)
def test_a_closure_adds_to_gradients_that_wait(memory: str) -> None:
    """Accumulation as Lightning does it: the last of several backward calls is the closure's."""
    p, q = (nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
    opt, plain = (NormalizedStorm([x], 0.1, correction=0, memory=memory) for x in (p, q))
    for t in range(3):
        (squares(p) * t).backward()
        opt.step(lambda: squares(p - 3).backward())
        assert p.grad is None
        (squares(q) * t + squares(q - 3)).backward()
        plain.step()
        plain.zero_grad()
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


@pytest.mark.parametrize("memory", MEMORY)
def test_two_points_refuse_gradients_that_wait(memory: str) -> None:
    p = nn.Parameter(torch.ones(3))
    opt = NormalizedStorm([p], 0.1, memory=memory)

    def zeroing() -> None:
        opt.zero_grad()
        squares(p).backward()

    for _ in range(3):
        squares(p - 1.5).backward()  # somebody else's, as that of a generator for its discriminator
        opt.step(zeroing)
        opt.step(lambda: squares(p).backward())
        squares(p - 1.5).backward()
        with pytest.raises(RuntimeError, match=r"^NormalizedStorm: a closure must evaluate the whole batch"):
            opt.step(lambda: squares(p).backward())


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("correction", [0.0, 1.0])
def test_frozen_parameters_take_no_memory_until_they_learn(memory: str, correction: float) -> None:
    body, head = nn.Linear(3, 4), nn.Linear(4, 2)
    body.requires_grad_(False)
    opt = NormalizedStorm([*body.parameters(), *head.parameters()], 0.1, correction=correction, memory=memory)
    before = body.weight.clone()

    def step() -> None:
        opt.step(lambda x: head(body(x)).square().mean(), batch=torch.ones(5, 3))

    for _ in range(3):
        step()
    assert "momentum" not in opt.state[body.weight] and torch.equal(body.weight, before)
    body.requires_grad_(True)
    for _ in range(2):
        step()
    assert opt.state[body.weight]["momentum"].abs().sum() > 0 and not torch.equal(body.weight, before)
    again = NormalizedStorm([*body.parameters(), *head.parameters()], 0.1, correction=correction, memory=memory)
    again.load_state_dict(opt.state_dict())
    assert torch.equal(again.state[body.weight]["momentum"], opt.state[body.weight]["momentum"])
