"""What is estimated: the tests that a false STORM fails, what the two passes see, and what failures leave behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import Reference
from small import ENTRANCES, K, apart, batches, by_batch, by_closure, by_scaler, grouped, loss_of, network, reference
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from normstorm.torch import NormalizedStorm

MEMORY = ("fast", "lean")
LR, BETA = 0.05, 0.8


class False_STORM(torch.optim.Optimizer):  # noqa: N801
    """d_t = g_t + beta (d_{t-1} - g_{t-1}) with the gradient of the previous batch: plain gradients in disguise."""

    def __init__(self, params: Any, lr: float, beta: float) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        value = closure()
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                before = state["momentum"] - state["last"] if state else torch.zeros_like(p)
                state["last"] = p.grad.clone()
                state["momentum"] = p.grad + group["beta"] * before
                p.data.sub_(group["lr"] * state["momentum"] / state["momentum"].norm())
        return value


class Mean(False_STORM):
    """An exponential mean of gradients, with none of the second evaluation."""

    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        value = closure()
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].get("momentum", p.grad)
                self.state[p]["momentum"] = group["beta"] * m + (1 - group["beta"]) * p.grad
                p.data.sub_(group["lr"] * self.state[p]["momentum"] / self.state[p]["momentum"].norm())
        return value


def true_storm(memory: str, **options: Any) -> Callable[..., NormalizedStorm]:
    return lambda params, lr, beta: NormalizedStorm(params, lr, beta, memory=memory, **options)


def error_law(make: Callable[..., torch.optim.Optimizer], k: int | None = None) -> float:
    """How far e_t = m_t - grad F(x_t) is from beta e_{t-1} + (1 - beta) noise_t; F is quadratic, the noise is added."""
    curvature = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 3.0]], dtype=torch.float64)
    x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    opt, error, worst = make([x], LR, BETA), None, 0.0

    def loss(noise: Tensor) -> Tensor:
        return 0.5 * x @ curvature @ x + noise.mean(0) @ x

    for noise in torch.randn(40, K, 3, dtype=torch.float64):
        point = x.detach().clone()
        if k is None:
            by_closure(opt, loss, (noise,), K)
        else:
            opt.step(loss, batch=noise, k=k)
        point = x.detach().clone() if isinstance(opt, NormalizedStorm) else point  # the point of the new gradient
        found = opt.state[x]["momentum"] - curvature @ point
        expected = noise.mean(0) if error is None else BETA * error + (1 - BETA) * noise.mean(0)
        worst, error = max(worst, float((found - expected).abs().max())), found
    return worst


@pytest.mark.parametrize("k", [None, K, 2, 1])
@pytest.mark.parametrize("memory", MEMORY)
def test_error_follows_the_law(memory: str, k: int | None) -> None:
    assert error_law(true_storm(memory), k) < 1e-13


@pytest.mark.parametrize("make", [False_STORM, Mean])
def test_false_storms_break_the_law(make: Any) -> None:
    assert error_law(make) > 0.02


@pytest.mark.parametrize("correction", [0.0, 0.5])
def test_half_a_correction_breaks_the_law(correction: float) -> None:
    """The law is of the whole correction alone: a weaker one lags behind the moving point."""
    assert error_law(true_storm("fast", correction=correction)) > 0.01


def estimates(make: Callable[..., torch.optim.Optimizer]) -> dict[str, float]:
    """The least distance, over steps 3 to 20, of the estimate from each of its look-alikes."""
    torch.manual_seed(5)
    model = network()
    parameters = list(model.parameters())
    opt, loss = make(parameters, LR, BETA), loss_of(model)
    away = {"gradient": 9.0, "mean": 9.0, "quasi-hyperbolic": 9.0}
    mean = None
    for t, batch in enumerate(batches(20), 1):
        points = [p.detach().clone() for p in parameters]
        by_closure(opt, loss, batch, K)
        if isinstance(opt, NormalizedStorm):
            points = [p.detach().clone() for p in parameters]
        m = torch.cat([opt.state[p]["momentum"].flatten() for p in parameters])
        slow = Reference(points, reference(model, grouped(model, "euclidean", lr=LR)).loss, grouped(model, "euclidean"))
        g = torch.cat([v.flatten() for v in slow.gradient(points, batch)])
        mean = g if mean is None else BETA * mean + (1 - BETA) * g
        if t < 3:
            continue
        away["gradient"] = min(away["gradient"], float((m - g).norm()))
        away["mean"] = min(away["mean"], float((m - mean).norm()))
        part = ((m - mean) @ (g - mean)) / (g - mean).pow(2).sum()
        away["quasi-hyperbolic"] = min(away["quasi-hyperbolic"], float((m - mean - part * (g - mean)).norm()))
    return away


@pytest.mark.parametrize("memory", MEMORY)
def test_it_is_none_of_its_look_alikes(memory: str) -> None:
    """Not the gradient, not its mean, not any mixture of the two."""
    assert min(estimates(true_storm(memory)).values()) > 1e-3


def test_a_false_storm_is_the_gradient() -> None:
    assert estimates(False_STORM)["gradient"] < 1e-13
    assert estimates(Mean)["mean"] < 1e-13


@pytest.mark.parametrize("correction", [0.2, 0.7, 1.0])
@pytest.mark.parametrize("memory", MEMORY)
def test_stale_is_quasi_hyperbolic_momentum(memory: str, correction: float) -> None:
    model = network()
    parameters = list(model.parameters())
    opt = NormalizedStorm(parameters, LR, BETA, correction=correction, difference="stale", memory=memory)
    x = [p.detach().clone() for p in parameters]
    gradient = Reference(x, reference(model, grouped(model, "euclidean")).loss, grouped(model, "euclidean")).gradient
    mean = None
    for batch in batches(30):
        opt.zero_grad()
        loss_of(model)(*batch).backward()
        opt.step()
        g = gradient(x, batch)
        mean = g if mean is None else [BETA * a + (1 - BETA) * b for a, b in zip(mean, g, strict=True)]
        n = [correction * b + (1 - correction) * a for a, b in zip(mean, g, strict=True)]
        size = sum(v.pow(2).sum() for v in n).sqrt()
        x = [a - LR * b / size for a, b in zip(x, n, strict=True)]
        assert apart(model, x) < 1e-14


@pytest.mark.parametrize("k", [K, 3])
@pytest.mark.parametrize("memory", MEMORY)
def test_on_a_quadratic_the_product_is_the_difference(memory: str, k: int) -> None:
    ends = []
    for difference in ("exact", "hvp"):
        torch.manual_seed(3)
        weights = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        opt = NormalizedStorm([weights], LR, BETA, memory=memory, difference=difference, weight_decay=0.1)
        for _ in range(30):
            batch = torch.randn(K, 4, dtype=torch.float64), torch.randn(K, 3, dtype=torch.float64)
            opt.step(lambda a, b, w=weights: mse_loss(a @ w.T, b), batch=batch, k=k)
        ends.append((weights.detach().clone(), opt.state[weights]["momentum"].clone()))
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-13)


def test_product_needs_the_batch_entrance() -> None:
    model = network()
    opt = NormalizedStorm(model.parameters(), LR, difference="hvp")
    first, second = batches(2)
    opt.step(loss_of(model), batch=first)
    with pytest.raises((ValueError, RuntimeError), match="hvp"):
        by_closure(opt, loss_of(model), second, K)


# What the two passes see.


class Recorder(nn.Module):
    """Remembers which samples came, the masks of a dropout layer, and the points at which it was asked."""

    def __init__(self, *, normed: bool = False) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2)
        self.norm = nn.BatchNorm1d(6) if normed else nn.Identity()
        self.double()
        self.calls: list[dict[str, Any]] = []

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(self.first(x))
        kept = self.drop(torch.ones_like(inner))
        weight = self.first.weight.detach().clone()
        self.calls.append({"samples": x[:, 0].tolist(), "mask": kept.bool().tolist(), "weight": weight})
        return self.last(torch.tanh(inner) * kept)


def numbered(steps: int, size: int = K) -> list[tuple[Tensor, Tensor]]:
    """Samples whose first entry is a number of their own."""
    x = torch.randn(steps, size, 4, dtype=torch.float64)
    x[:, :, 0] = torch.arange(steps * size).reshape(steps, size) / (steps * size)
    return list(zip(x, torch.randn(steps, size, 2, dtype=torch.float64), strict=True))


def squares(model: nn.Module) -> Callable[..., Tensor]:
    return lambda x, y: mse_loss(model(x), y)


def watched(entrance: str, k: int, memory: str, steps: int = 5) -> list[list[dict[str, Any]]]:
    """The calls of every step, of a run with dropout."""
    model, data = Recorder(), numbered(steps)
    opt = NormalizedStorm(model.parameters(), LR, BETA, memory=memory, module=model)
    found = []
    for batch in data:
        ENTRANCES[entrance](opt, squares(model), batch, k)
        found.append(model.calls)
        model.calls = []
    return found


@pytest.mark.parametrize(("entrance", "k"), [(e, k) for e in ENTRANCES for k in (K, 3) if e != "closure" or k == K])
@pytest.mark.parametrize("memory", MEMORY)
def test_both_passes_see_the_same(entrance: str, k: int, memory: str) -> None:
    """The head at the old point and at the new one: the same samples, the same masks, another point."""
    data_of_steps = watched(entrance, k, memory)
    seen = []
    for calls in data_of_steps[1:]:
        points: list[Tensor] = []
        for call in calls:
            if not points or not torch.equal(points[-1], call["weight"]):
                points.append(call["weight"])
        assert len(points) == 2
        passes = [[c for c in calls if torch.equal(c["weight"], point)] for point in points]
        old, new = ([(s, m) for c in part for s, m in zip(c["samples"], c["mask"], strict=True)] for part in passes)
        assert len(old) == k
        assert len(new) == K
        assert old == new[:k]
        seen.append(str([m for _, m in old]))
    assert len(set(seen)) == len(seen)  # other masks at every step


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_replay_takes_no_random_numbers(entrance: str) -> None:
    """After a step the generator stands where one pass over the batch would have left it."""
    model, data = Recorder(), numbered(4)
    opt = NormalizedStorm(model.parameters(), LR, BETA, module=model)
    ENTRANCES[entrance](opt, squares(model), data[0], K)
    for batch in data[1:]:
        before = torch.get_rng_state()
        ENTRANCES[entrance](opt, squares(model), batch, K)
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        parts = [batch] if entrance != "accumulation" else [tuple(p[i : i + 3] for p in batch) for i in (0, 3, 6)]
        with torch.no_grad():
            for part in parts:
                model(part[0])
        assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("entrance", ["closure", "batch", "phases", "scaler"])
@pytest.mark.parametrize("memory", MEMORY)
def test_statistics_are_updated_once(entrance: str, memory: str, told: bool) -> None:
    """BatchNorm normalises both passes by the batch, and only the new point enters its running statistics."""
    model = Recorder(normed=True)
    twin = copy.deepcopy(model)
    opt = NormalizedStorm(model.parameters(), LR, BETA, memory=memory, module=model if told else None)
    for t, batch in enumerate(numbered(5), 1):
        ENTRANCES[entrance](opt, squares(model), batch, K)
        with torch.no_grad():
            for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
                mine.copy_(theirs)
        twin(batch[0])
        assert int(model.norm.num_batches_tracked) == t
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(getattr(model.norm, name), getattr(twin.norm, name), rtol=0, atol=1e-14)
    assert model.norm.training
    assert model.norm.momentum == 0.1
    assert model.norm.track_running_stats


@pytest.mark.parametrize("memory", MEMORY)
def test_batch_norm_at_the_old_point_uses_the_batch(memory: str) -> None:
    """The whole path with BatchNorm in training mode, against copies."""

    def build() -> nn.Module:
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).double()

    model, twin = build(), build()
    names = [name for name, _ in twin.named_parameters()]

    def loss(points: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        return mse_loss(torch.func.functional_call(twin, dict(zip(names, points, strict=True)), (x,)), y)

    slow = Reference(list(twin.parameters()), loss, grouped(twin, "euclidean", lr=LR))
    opt = NormalizedStorm(model.parameters(), LR, memory=memory, module=model)
    for batch in numbered(20):
        by_closure(opt, squares(model), batch, K)
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12


@pytest.mark.parametrize("k", [K, 3, 1])
@pytest.mark.parametrize("memory", MEMORY)
def test_cost(memory: str, k: int) -> None:
    """K sample gradients at the first step, K + k at every later one."""
    asked = [sum(len(call["samples"]) for call in calls) for calls in watched("batch", k, memory)]
    assert asked == [K] + [K + k] * 4


def test_cost_of_a_closure() -> None:
    assert [len(calls) for calls in watched("closure", K, "fast")] == [1, 2, 2, 2, 2]


@pytest.mark.parametrize("options", [{"correction": 0.0}, {"difference": "stale"}])
@pytest.mark.parametrize("memory", MEMORY)
def test_one_point_costs_one_pass(memory: str, options: dict[str, Any]) -> None:
    model = Recorder()
    opt = NormalizedStorm(model.parameters(), LR, BETA, memory=memory, **options)
    for batch in numbered(4):
        by_closure(opt, squares(model), batch, K)
    assert len(model.calls) == 4


# Buffers of gradients that are used again.


@pytest.mark.parametrize("memory", MEMORY)
def test_gradients_zeroed_in_place(memory: str) -> None:
    model = network()
    slow, loss = reference(model, grouped(model, "euclidean", lr=LR)), loss_of(model)
    opt = NormalizedStorm(model.parameters(), LR, memory=memory)
    for batch in batches(15):

        def closure(batch: Any = batch) -> Tensor:
            opt.zero_grad(set_to_none=False)
            value = loss(*batch)
            value.backward()
            return value

        opt.step(closure)
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12


@pytest.mark.parametrize("correction", [0.0, 1.0])
@pytest.mark.parametrize("difference", ["exact", "stale"])
@pytest.mark.parametrize("memory", MEMORY)
def test_gradients_that_are_views_of_one_buffer(memory: str, difference: str, correction: float) -> None:
    """As DDP hands them out: p.grad is the same memory for ever, and is written again by every backward."""
    model = network()
    groups = grouped(model, "euclidean", lr=LR, correction=correction)
    slow, loss = reference(model, groups, difference), loss_of(model)
    options = {"correction": correction, "difference": difference, "memory": memory}
    opt = NormalizedStorm(model.parameters(), LR, **options)
    flat = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)

    def closure(batch: Any) -> Tensor:
        start = 0
        flat.zero_()
        for p in model.parameters():
            p.grad = flat[start : start + p.numel()].view_as(p)
            start += p.numel()
        value = loss(*batch)
        value.backward()
        return value

    for batch in batches(15):
        opt.step(lambda batch=batch: closure(batch))
        flat.fill_(float("nan"))
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12


@pytest.mark.parametrize("memory", MEMORY)
def test_closure_that_does_not_zero(memory: str) -> None:
    """The optimizer owns the gradients of its two passes; what an earlier pass left behind is not added to them."""
    model = network()
    slow, loss = reference(model, grouped(model, "euclidean", lr=LR)), loss_of(model)
    opt = NormalizedStorm(model.parameters(), LR, memory=memory)
    for batch in batches(6):

        def closure(batch: Any = batch) -> Tensor:
            value = loss(*batch)
            value.backward()
            return value

        opt.step(closure)
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12


class Partly(nn.Module):
    """One layer that is used, one that never is, one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle, self.frozen = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.frozen(x))


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("geometry", ["euclidean", "sign"])
@pytest.mark.parametrize("memory", MEMORY)
def test_parameters_without_gradient_stay(memory: str, geometry: str, entrance: str) -> None:
    """Also their decay waits; the norm is that of the others."""
    model = Partly()
    start = copy.deepcopy(model)
    options: dict[str, Any] = {"geometry": geometry, "weight_decay": 0.1}
    alone = copy.deepcopy(model)
    opt = NormalizedStorm(model.parameters(), LR, memory=memory, **options)
    other = NormalizedStorm(alone.used.parameters(), LR, memory=memory, **options)
    for batch in numbered(6):
        ENTRANCES[entrance](opt, squares(model), batch, K)
        ENTRANCES[entrance](other, squares(alone), batch, K)
    for part in ("idle", "frozen"):
        for now, then in zip(getattr(model, part).parameters(), getattr(start, part).parameters(), strict=True):
            assert torch.equal(now, then)
    assert apart(model.used, [p.detach() for p in alone.used.parameters()]) < 1e-14
    assert apart(model.used, [p.detach() for p in start.used.parameters()]) > 1e-3


class Branches(nn.Module):
    """Two branches, of which a batch takes one: the sign of its first entry says which."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.stem, self.left, self.right = nn.Linear(4, 5), nn.Linear(5, 2), nn.Linear(5, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return (self.left if x[0, 0] > 0 else self.right)(torch.tanh(self.stem(x)))


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("geometry", ["euclidean", "sign"])
@pytest.mark.parametrize("memory", MEMORY)
def test_parameters_with_a_gradient_now_and_then(memory: str, geometry: str, entrance: str) -> None:
    """A branch that is not taken makes the move that was due, keeps its estimate, and rests; a new one begins anew."""
    model = Branches()
    names = [name for name, _ in model.named_parameters()]

    def loss(points: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        return mse_loss(torch.func.functional_call(model, dict(zip(names, points, strict=True)), (x,)), y)

    options: dict[str, Any] = {"geometry": geometry, "weight_decay": 0.1}
    slow = Reference(list(model.parameters()), loss, [{"params": list(range(6)), "lr": LR, **options}])
    opt = NormalizedStorm(model.parameters(), LR, memory=memory, **options)
    turns = []
    for (x, y), turn in zip(numbered(12), "LLRLRRLLLRLL", strict=True):
        x[:, 0] = 0.5 if turn == "L" else -0.5
        ENTRANCES[entrance](opt, squares(model), (x, y), K)
        slow.step(x, y)
        assert apart(model, slow.x) < 1e-12
        turns.append(int(opt.state[model.left.weight]["stage"]))
    assert set(turns) == {1, 2}


# What failures leave behind.


class Bomb(torch.autograd.Function):
    """The identity, whose backward fails when it is armed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, armed: bool) -> Tensor:
        ctx.armed = armed
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if ctx.armed:
            raise ArithmeticError("planted")
        return grad, None


class Fragile(nn.Module):
    """Fails in the forward ("forward") or in the middle of the backward ("backward") of a call that is told."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList([nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 2)])
        self.double()
        self.calls, self.plan = 0, {}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        failure = self.plan.get(self.calls)
        if failure == "forward":
            raise ArithmeticError("planted")
        x = torch.tanh(self.layers[0](x))
        x = torch.tanh(self.layers[1](Bomb.apply(x, failure == "backward")))
        return self.layers[2](x)


def fragile(memory: str, **options: Any) -> tuple[Fragile, NormalizedStorm, Reference, list[tuple[Tensor, Tensor]]]:
    model = Fragile()
    twin = copy.deepcopy(model)
    names = [name for name, _ in twin.named_parameters()]

    def loss(points: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        return mse_loss(torch.func.functional_call(twin, dict(zip(names, points, strict=True)), (x,)), y)

    group = {"params": list(range(len(names))), "lr": LR, **options}
    slow = Reference(list(twin.parameters()), loss, [group])
    return model, NormalizedStorm(model.parameters(), LR, memory=memory, **options), slow, numbered(10)


def stages(opt: NormalizedStorm, model: nn.Module) -> set[int]:
    return {int(opt.state[p]["stage"]) for p in model.parameters()}


@pytest.mark.parametrize("entrance", ["closure", "batch", "phases"])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("memory", MEMORY)
def test_failure_before_anything_moved(memory: str, nesterov: bool, entrance: str) -> None:
    """Nothing has changed, and the same step can be asked again."""
    model, opt, slow, data = fragile(memory, nesterov=nesterov)
    for t, batch in enumerate(data):
        if t == 4:
            before = copy.deepcopy((model.state_dict(), opt.state_dict()["state"]))
            model.plan = {model.calls + 1: "forward"}
            with pytest.raises(ArithmeticError, match="planted"):
                ENTRANCES[entrance](opt, squares(model), batch, K)
            torch.testing.assert_close((model.state_dict(), opt.state_dict()["state"]), before, rtol=0, atol=0)
        ENTRANCES[entrance](opt, squares(model), batch, K)
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12


@pytest.mark.parametrize("entrance", ["closure", "batch", "phases"])
@pytest.mark.parametrize("memory", MEMORY)
def test_failure_within_the_old_backward(memory: str, entrance: str) -> None:
    """One buffer of gradients: nothing has moved. Lean memory: some layers have, so all of them go, and begin anew."""
    model, opt, slow, data = fragile(memory)
    for t, batch in enumerate(data):
        if t == 4:
            model.plan = {model.calls + 1: "backward"}
            with pytest.raises(ArithmeticError, match="planted"):
                ENTRANCES[entrance](opt, squares(model), batch, K)
            if stages(opt, model) == {0}:
                assert memory == "lean"
                slow.move()
                slow.begin_anew()
            assert apart(model, slow.x) < 1e-12
        ENTRANCES[entrance](opt, squares(model), batch, K)
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12


@pytest.mark.parametrize("entrance", ["closure", "batch", "phases"])
@pytest.mark.parametrize("failure", ["forward", "backward"])
@pytest.mark.parametrize("memory", MEMORY)
def test_failure_at_the_new_point(memory: str, failure: str, entrance: str) -> None:
    """The weights are at x_t, and the estimate begins anew there."""
    model, opt, slow, data = fragile(memory)
    for t, batch in enumerate(data):
        if t == 4:
            model.plan = {model.calls + 2: failure}
            with pytest.raises(ArithmeticError, match="planted"):
                ENTRANCES[entrance](opt, squares(model), batch, K)
            slow.move()
            slow.begin_anew()
            assert stages(opt, model) == {0}
            assert apart(model, slow.x) < 1e-12
        ENTRANCES[entrance](opt, squares(model), batch, K)
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12


@pytest.mark.parametrize("entrance", ["closure", "batch", "phases"])
@pytest.mark.parametrize("failure", ["forward", "backward"])
@pytest.mark.parametrize("memory", MEMORY)
def test_failure_at_the_first_step(memory: str, failure: str, entrance: str) -> None:
    model, opt, slow, data = fragile(memory)
    model.plan = {1: failure}
    with pytest.raises(ArithmeticError, match="planted"):
        ENTRANCES[entrance](opt, squares(model), data[0], K)
    assert apart(model, slow.x) == 0
    for batch in data:
        ENTRANCES[entrance](opt, squares(model), batch, K)
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12


@pytest.mark.parametrize("geometry", ["euclidean", "sign"])
@pytest.mark.parametrize("failure", ["forward", "backward"])
@pytest.mark.parametrize("memory", MEMORY)
def test_failure_at_one_point(memory: str, failure: str, geometry: str) -> None:
    """Nothing has moved. In lean memory some gradients are in the estimate already, so that begins anew."""
    model, opt, slow, data = fragile(memory, correction=0.0, geometry=geometry)
    for t, batch in enumerate(data):
        if t == 4:
            model.plan = {model.calls + 1: failure}
            with pytest.raises(ArithmeticError, match="planted"):
                by_closure(opt, squares(model), batch, K)
            assert apart(model, slow.x) < 1e-12
            assert stages(opt, model) == ({0} if (memory, failure) == ("lean", "backward") else {1})
            if stages(opt, model) == {0}:
                slow.begin_anew()
        by_closure(opt, squares(model), batch, K)
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12


@pytest.mark.parametrize(("k", "which"), [(K, 1), (K, 2), (3, 1), (3, 2), (3, 3)])
@pytest.mark.parametrize("memory", MEMORY)
def test_overflow_leaves_everything(memory: str, k: int, which: int) -> None:
    """An infinity in any pass: weights and estimate as before, the scale halved; the same batch can follow."""
    model, opt, slow, data = fragile(memory)
    calls = 0

    def loss(x: Tensor, y: Tensor, *, infinite: int = 0) -> Tensor:
        nonlocal calls
        calls += 1
        value = squares(model)(x, y)
        return value * torch.inf if calls == infinite else value

    for t, batch in enumerate(data):
        if t == 4:
            calls, scale = 0, opt.scaler_of_test.get_scale()
            before = copy.deepcopy((model.state_dict(), opt.state_dict()["state"]))
            by_scaler(opt, lambda x, y: loss(x, y, infinite=which), batch, k)
            assert calls >= which
            torch.testing.assert_close((model.state_dict(), opt.state_dict()["state"]), before, rtol=0, atol=0)
            assert opt.scaler_of_test.get_scale() == scale / 2
        by_scaler(opt, loss, batch, k)
        slow.step(*batch, k=k)
        assert apart(model, slow.x) < 1e-12


@pytest.mark.parametrize("memory", MEMORY)
def test_overflow_at_the_first_step(memory: str) -> None:
    model, opt, slow, data = fragile(memory)
    by_scaler(opt, lambda x, y: squares(model)(x, y) * torch.inf, data[0], K)
    assert apart(model, slow.x) == 0
    for batch in data:
        by_scaler(opt, squares(model), batch, K)
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12


@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("failure", ["forward", "backward"])
@pytest.mark.parametrize("memory", MEMORY)
def test_failure_with_a_scaler_leaves_everything(memory: str, failure: str, which: int) -> None:
    model, opt, slow, data = fragile(memory)
    for t, batch in enumerate(data):
        if t == 4:
            before = copy.deepcopy((model.state_dict(), opt.state_dict()["state"]))
            model.plan = {model.calls + which: failure}
            with pytest.raises(ArithmeticError, match="planted"):
                by_scaler(opt, squares(model), batch, K)
            torch.testing.assert_close((model.state_dict(), opt.state_dict()["state"]), before, rtol=0, atol=0)
        by_scaler(opt, squares(model), batch, K)
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12


@pytest.mark.parametrize("memory", MEMORY)
def test_unscaled_before_it_is_asked_for(memory: str) -> None:
    """The scale may change between steps; the estimate never contains it."""
    model, opt, slow, data = fragile(memory)
    for t, batch in enumerate(data):
        by_scaler(opt, squares(model), batch, K)
        opt.scaler_of_test.update(2.0 ** (5 + t % 3))
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12


@pytest.mark.parametrize("correction", [0.0, 1.0])
@pytest.mark.parametrize("memory", MEMORY)
def test_unscaled_by_the_caller(memory: str, correction: float) -> None:
    """As before clipping: scaler.unscale_(opt), then scaler.step(opt)."""
    model, opt, slow, data = fragile(memory, correction=correction)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**9)
    for batch in data:
        if correction:
            with opt.old_point(scaler=scaler):
                scaler.scale(squares(model)(*batch)).backward()
            with opt.new_point():
                scaler.scale(squares(model)(*batch)).backward()
        else:
            opt.zero_grad()
            scaler.scale(squares(model)(*batch)).backward()
        scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12


def test_batch_entrance_owns_the_gradients() -> None:
    """What somebody left in p.grad before is no part of the estimate."""
    model = network()
    slow = reference(model, grouped(model, "euclidean", lr=LR))
    opt = NormalizedStorm(model.parameters(), LR)
    for batch in batches(4):
        for p in model.parameters():
            p.grad = torch.full_like(p, 7.0)
        by_batch(opt, loss_of(model), batch, K)
        slow.step(*batch)
        assert apart(model, slow.x) < 1e-12
