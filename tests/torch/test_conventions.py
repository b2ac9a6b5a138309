"""The habits of torch.optim: what is refused and how, schedulers, state, groups, copies, hooks, precision."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from pairwise import pairwise
from small import (
    ENTRANCES,
    GEOMETRIES,
    MATRIX_GEOMETRIES,
    K,
    apart,
    batches,
    by_batch,
    by_closure,
    by_phases,
    grouped,
    loss_of,
    momenta_apart,
    network,
    reference,
    with_tensors,
)
from torch import Tensor, nn
from torch.optim import lr_scheduler

from normstorm.torch import NormalizedStorm, spectral_storm

MEMORY = ("fast", "lean")
NAN, INF = float("nan"), float("inf")


def matrix(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*(shape or (3, 4)), dtype=torch.float64))


# What is refused.

WRONG: list[tuple[str, Any]] = [
    *(("lr", value) for value in (-0.1, NAN, INF, "fast", None)),
    *(("beta", value) for value in (1, 1.0, -0.1, 2, NAN, "0.9", None)),
    *(("geometry", value) for value in ("cubic", None, 2, "Sign")),
    *(("correction", value) for value in (-0.1, 1.1, NAN, "all", None)),
    *(("weight_decay", value) for value in (-0.1, NAN, INF, "some")),
    *(("scale", value) for value in (-1.0, NAN, INF, "big")),
    *(("nesterov", value) for value in ("yes", 2, None)),
    *(("maximize", value) for value in ("yes", 2, None)),
    *(("start", value) for value in ("second", None)),
    *(("difference", value) for value in ("false", None)),
    *(("memory", value) for value in ("slim", None)),
    *(("spectral_dtype", value) for value in ("float32", torch.int32)),
    *(("fused", value) for value in ("yes", 2)),
    *(("module", value) for value in ("net", 2)),
]
PER_GROUP = (
    "lr",
    "beta",
    "geometry",
    "correction",
    "weight_decay",
    "nesterov",
    "scale",
    "start",
    "maximize",
    "spectral_dtype",
)


def sentence(name: str) -> str:
    return rf"^NormalizedStorm: {name} must [^;]+; got {name}=.+"


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_refused_by_the_constructor(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=sentence(name)):
        NormalizedStorm([matrix()], **({"lr": 0.1} | {name: value}))


@pytest.mark.parametrize(("name", "value"), [case for case in WRONG if case[0] in PER_GROUP and case[1] is not None])
def test_refused_in_a_group(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=sentence(name)):
        NormalizedStorm([{"params": [matrix()]}, {"params": [matrix()], name: value}], lr=0.1)
    opt = NormalizedStorm([matrix()], lr=0.1)
    with pytest.raises(ValueError, match=sentence(name)):
        opt.add_param_group({"params": [matrix()], name: value})


def test_torch_refuses_what_it_always_refuses() -> None:
    p = matrix()
    with pytest.raises(TypeError, match="iterable"):
        NormalizedStorm(p, lr=0.1)
    with pytest.raises(ValueError, match="empty"):
        NormalizedStorm([], lr=0.1)
    with pytest.raises(TypeError, match=r"optimize Tensors|Tensor"):
        NormalizedStorm([3.0], lr=0.1)
    with pytest.raises(ValueError, match="leaf"):
        NormalizedStorm([p * 2], lr=0.1)
    with pytest.raises(ValueError, match="more than one parameter group"):
        NormalizedStorm([{"params": [p]}, {"params": [p]}], lr=0.1)
    with pytest.raises(TypeError):
        NormalizedStorm([p])
    with pytest.raises(TypeError, match="momentum"):
        NormalizedStorm([p], lr=0.1, momentum=0.9)


@pytest.mark.parametrize("geometry", MATRIX_GEOMETRIES)
def test_vectors_have_no_rows(geometry: str) -> None:
    with pytest.raises(ValueError, match=rf"^NormalizedStorm: .*{geometry}"):
        NormalizedStorm([nn.Parameter(torch.zeros(3))], lr=0.1, geometry=geometry)


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^NormalizedStorm: .*complex"):
        NormalizedStorm([nn.Parameter(torch.zeros(3, 3, dtype=torch.complex64))], lr=0.1)


@pytest.mark.parametrize("correction", [0.0, 1.0])
@pytest.mark.parametrize("memory", MEMORY)
def test_sparse_gradients_are_refused(memory: str, correction: float) -> None:
    table = nn.Embedding(5, 3, sparse=True)
    opt = NormalizedStorm(table.parameters(), lr=0.1, memory=memory, correction=correction)
    start = table.weight.detach().clone()

    def closure() -> Tensor:
        opt.zero_grad()
        value = table(torch.tensor([1, 2])).pow(2).sum()
        value.backward()
        return value

    with pytest.raises(RuntimeError, match=r"^NormalizedStorm: .*sparse"):  # the class that torch has for it
        opt.step(closure)
    assert torch.equal(table.weight, start)


BATCHES: dict[str, tuple[Any, Any, str]] = {  # batch, k, what the sentence is about
    "k = 0": ((torch.ones(4, 1), torch.ones(4)), 0, "k"),
    "k > K": ((torch.ones(4, 1), torch.ones(4)), 5, "k"),
    "k is no integer": ((torch.ones(4, 1), torch.ones(4)), 2.5, "k"),
    "lengths differ": ((torch.ones(4, 1), torch.ones(3)), None, "batch"),
    "empty": ((torch.ones(0, 1), torch.ones(0)), None, "batch"),
    "no tensors": ((), None, "batch"),
    "a number": (3, None, "batch"),
    "not tensors": (([1, 2], [3, 4]), None, "batch"),
    "a tensor without samples": (torch.ones(()), None, "batch"),
}


@pytest.mark.parametrize("name", BATCHES)
def test_refused_batches(name: str) -> None:
    batch, k, subject = BATCHES[name]
    p = matrix()
    opt = NormalizedStorm([p], lr=0.1)
    with pytest.raises(ValueError, match=rf"^NormalizedStorm: {subject} must "):
        opt.step(lambda *parts: p.sum(), batch=batch, k=k)


def begun(memory: str = "fast", **options: Any) -> tuple[nn.Module, NormalizedStorm, list[tuple[Tensor, Tensor]]]:
    model, data = network(), batches(8)
    opt = NormalizedStorm(model.parameters(), 0.05, memory=memory, **options)
    for batch in data[:2]:
        by_phases(opt, loss_of(model), batch, K)
    return model, opt, data[2:]


def new_before_old(opt: Any, loss: Any, batch: Any) -> None:
    with opt.new_point():
        loss(*batch).backward()


def old_twice(opt: Any, loss: Any, batch: Any) -> None:
    for _ in range(2):
        with opt.old_point():
            loss(*batch).backward()


def one_within_the_other(opt: Any, loss: Any, batch: Any) -> None:
    with opt.old_point():
        loss(*batch).backward()
        with opt.new_point():
            loss(*batch).backward()


def step_before_new(opt: Any, loss: Any, batch: Any) -> None:
    with opt.old_point():
        loss(*batch).backward()
    opt.step()


def step_of_nothing(opt: Any, loss: Any, batch: Any) -> None:
    loss(*batch).backward()
    opt.step()


def rest_without_share(opt: Any, loss: Any, batch: Any) -> None:
    with opt.old_point():
        loss(*batch).backward()
    with opt.new_point():
        loss(*batch).backward()
    with opt.rest():
        loss(*batch).backward()


def no_rest(opt: Any, loss: Any, batch: Any) -> None:
    with opt.old_point():
        loss(*batch).backward()
    with opt.new_point(share=0.5):
        loss(*batch).backward()
    opt.step()


def closure_within_phases(opt: Any, loss: Any, batch: Any) -> None:
    with opt.old_point():
        loss(*batch).backward()
    by_closure(opt, loss, batch, K)


def no_backward(opt: Any, loss: Any, batch: Any) -> None:
    with opt.old_point():
        loss(*batch)
    with opt.new_point():
        loss(*batch)
    opt.step()


def bad_share(opt: Any, loss: Any, batch: Any) -> None:
    with opt.old_point():
        loss(*batch).backward()
    with opt.new_point(share=1.5):
        loss(*batch).backward()


ORDERS = [
    new_before_old,
    old_twice,
    one_within_the_other,
    step_before_new,
    step_of_nothing,
    rest_without_share,
    no_rest,
    closure_within_phases,
    bad_share,
]


@pytest.mark.parametrize("wrong", ORDERS)
@pytest.mark.parametrize("memory", MEMORY)
def test_wrong_order_is_an_error(memory: str, wrong: Any) -> None:
    """And not the end: a closure can go on from wherever the error has left the weights."""
    model, opt, data = begun(memory)
    with pytest.raises((ValueError, RuntimeError), match=r"^NormalizedStorm: "):
        wrong(opt, loss_of(model), data[0])
        wrong(opt, loss_of(model), data[0])
    opt.abandon()
    for batch in data[1:3]:
        by_closure(opt, loss_of(model), batch, K)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_two_points_need_a_closure() -> None:
    model = network()
    opt = NormalizedStorm(model.parameters(), 0.05)
    loss_of(model)(*batches(1)[0]).backward()
    with pytest.raises((ValueError, RuntimeError), match=r"^NormalizedStorm: .*closure"):
        opt.step()


# Schedulers.

SCHEDULERS: dict[str, Any] = {
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda t: 0.9**t),
    "MultiplicativeLR": lambda opt: lr_scheduler.MultiplicativeLR(opt, lambda t: 0.8),
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, 3),
    "MultiStepLR": lambda opt: lr_scheduler.MultiStepLR(opt, [2, 5]),
    "ConstantLR": lambda opt: lr_scheduler.ConstantLR(opt, total_iters=4),
    "LinearLR": lambda opt: lr_scheduler.LinearLR(opt, total_iters=4),
    "ExponentialLR": lambda opt: lr_scheduler.ExponentialLR(opt, 0.7),
    "PolynomialLR": lambda opt: lr_scheduler.PolynomialLR(opt, 12),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 12),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 4),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, 0.01, 0.1, 3, cycle_momentum=False),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, 0.1, total_steps=12, cycle_momentum=False),
    "ReduceLROnPlateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=1),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, 0.1, total_iters=3), lr_scheduler.ExponentialLR(opt, 0.5)], [3]
    ),
    "ChainedScheduler": lambda opt: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(opt, 0.1, total_iters=3), lr_scheduler.ExponentialLR(opt, 0.5)]
    ),
    "SWALR": lambda opt: torch.optim.swa_utils.SWALR(opt, 0.01, anneal_epochs=4),
}


@pytest.mark.parametrize("correction", [0.0, 1.0])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name: str, correction: float) -> None:
    """The rates are those of SGD under the same scheduler, and a normalised step is as long as its rate."""
    model, loss = network(), None
    loss = loss_of(model)
    opt = NormalizedStorm(model.parameters(), 0.05, correction=correction)
    other = torch.optim.SGD([matrix()], 0.05)
    schedulers = [SCHEDULERS[name](o) for o in (opt, other)]
    for t, batch in enumerate(batches(8)):
        before = [p.detach().clone() for p in model.parameters()]
        by_closure(opt, loss, batch, K)
        moved = sum((p.detach() - b).pow(2).sum() for p, b in zip(model.parameters(), before, strict=True)).sqrt()
        lr = opt.param_groups[0]["lr"]
        assert lr == other.param_groups[0]["lr"]
        assert float(moved) == pytest.approx(0 if correction and t == 0 else lr, abs=1e-14)
        other.step()
        for scheduler in schedulers:
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))


# Groups.

OVERRIDES: dict[str, tuple[Any, Any]] = {  # option: value of the constructor, value of the group
    "lr": (0.1, 0.02),
    "beta": (0.9, 0.5),
    "geometry": ("euclidean", "sign"),
    "correction": (1.0, 0.5),
    "weight_decay": (0.0, 0.5),
    "nesterov": (False, True),
    "scale": (1.0, 3.0),
    "start": ("first", "zero"),
    "maximize": (False, True),
    "spectral_dtype": (torch.bfloat16, torch.float64),
}


@pytest.mark.parametrize("name", OVERRIDES)
@pytest.mark.parametrize("memory", MEMORY)
def test_every_option_can_be_overridden(memory: str, name: str) -> None:
    """A group's own value is as good as the constructor's, and the other group keeps the default."""
    common, own = OVERRIDES[name]
    options: dict[str, Any] = {"lr": 0.1, "memory": memory, "geometry": "tensor"} | {name: common}
    if name == "spectral_dtype":
        options["geometry"] = "spectral"
    if name == "geometry":
        options["geometry"] = "tensor"
    ends = {}
    for kind in ("default", "override", "set later", "everywhere"):
        torch.manual_seed(6)
        a, b = matrix(3, 4), matrix(3, 4)
        group = {"params": [b]} | ({name: own} if kind == "override" else {})
        opt = NormalizedStorm([{"params": [a]}, group], **(options | ({name: own} if kind == "everywhere" else {})))
        if kind == "set later":
            opt.param_groups[1][name] = own
        for target in torch.randn(6, K, 3, dtype=torch.float64):
            opt.step(
                lambda y, a=a, b=b: (a.exp().sum(1) - y).pow(2).mean() + (b.exp().sum(1) - y).pow(2).mean(),
                batch=target,
            )
        ends[kind] = a.detach(), b.detach()
    for kind in ("override", "set later"):
        torch.testing.assert_close(ends[kind][0], ends["default"][0], rtol=0, atol=0)
        torch.testing.assert_close(ends[kind][1], ends["everywhere"][1], rtol=0, atol=0)
    assert float((ends["override"][1] - ends["default"][1]).abs().max()) > 1e-5


def test_groups_hold_every_option() -> None:
    opt = NormalizedStorm([{"params": [matrix()], "beta": 0.5}, {"params": [matrix()]}], lr=0.1)
    assert [group["beta"] for group in opt.param_groups] == [0.5, 0.9]
    for group in opt.param_groups:
        assert set(PER_GROUP) <= set(group)


@pytest.mark.parametrize("memory", MEMORY)
def test_named_parameters(memory: str) -> None:
    model = network()
    opt = NormalizedStorm(model.named_parameters(), 0.05, memory=memory)
    slow = reference(model, grouped(model, "euclidean", lr=0.05))
    for batch in batches(4):
        by_closure(opt, loss_of(model), batch, K)
        slow.step(*batch)
    assert apart(model, slow.x) < 1e-12
    assert opt.state_dict()["param_groups"][0]["param_names"] == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("geometry", ["euclidean", "sign"])
@pytest.mark.parametrize("memory", MEMORY)
def test_a_group_that_comes_later(memory: str, geometry: str) -> None:
    """Its estimate begins with the gradient at the next step, and does not move before the one after that."""
    model, data = network(), batches(8)
    early, late = list(model.parameters())[:4], list(model.parameters())[4:]
    opt = NormalizedStorm(early, 0.05, memory=memory, geometry=geometry)
    for p in late:
        p.requires_grad_(False)
    for batch in data[:3]:
        by_closure(opt, loss_of(model), batch, K)
    for p in late:
        p.requires_grad_(True)
    opt.add_param_group({"params": late, "lr": 0.01})
    assert all("momentum" in opt.state[p] for p in late)
    start = [p.detach().clone() for p in late]
    by_closure(opt, loss_of(model), data[3], K)
    fresh = torch.autograd.grad(loss_of(model)(*data[3]), late)
    for p, before, g in zip(late, start, fresh, strict=True):
        assert torch.equal(p, before)
        torch.testing.assert_close(opt.state[p]["momentum"], g, rtol=0, atol=1e-14)
    for batch in data[4:]:
        by_closure(opt, loss_of(model), batch, K)
    assert all(not torch.equal(p, before) for p, before in zip(late, start, strict=True))


# State.

MODES: dict[str, tuple[dict[str, Any], Any]] = {  # options, how a step is asked for
    "closure": ({}, by_closure),
    "lean": ({"memory": "lean"}, by_closure),
    "k < K": ({}, lambda o, loss, b, k: by_batch(o, loss, b, 3)),
    "k < K, lean": ({"memory": "lean"}, lambda o, loss, b, k: by_batch(o, loss, b, 3)),
    "phases": ({}, by_phases),
    "phases, lean": ({"memory": "lean"}, by_phases),
    "ahead": ({"nesterov": True}, by_closure),
    "ahead, lean": ({"nesterov": True, "memory": "lean"}, by_closure),
    "one point": ({"correction": 0.0, "nesterov": True}, by_closure),
    "one point, lean": ({"correction": 0.0, "memory": "lean"}, by_closure),
    "stale": ({"difference": "stale", "correction": 0.3}, by_closure),
    "stale, lean": ({"difference": "stale", "memory": "lean"}, by_closure),
    "hvp": ({"difference": "hvp"}, by_batch),
    "hvp, lean": ({"difference": "hvp", "memory": "lean"}, by_batch),
    "spectral": ({"geometry": "spectral"}, by_closure),
    "decay": ({"weight_decay": 0.2}, by_closure),
}


def matrices_only() -> nn.Module:
    torch.manual_seed(7)
    layers = nn.Conv2d(1, 2, 2, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3, bias=False)
    return nn.Sequential(*layers).double()


def saved(*parts: Any) -> Any:
    """Through a file, with nothing but tensors and plain containers."""
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("mode", MODES)
def test_resume_is_exact_at_every_step(mode: str) -> None:
    options, ask = MODES[mode]
    steps = 6

    def begin() -> tuple[nn.Module, NormalizedStorm, Any]:
        model = matrices_only()
        opt = NormalizedStorm(model.parameters(), 0.05, **options)
        return model, opt, lr_scheduler.CosineAnnealingLR(opt, steps)

    def go_on(run: tuple[nn.Module, NormalizedStorm, Any], data: Any) -> None:
        model, opt, scheduler = run
        for batch in data:
            ask(opt, loss_of(model), batch, K)
            scheduler.step()

    data, whole = batches(steps), begin()
    go_on(whole, data)
    for done in range(steps):
        first, second = begin(), begin()
        go_on(first, data[:done])
        with torch.no_grad():
            for p in second[0].parameters():
                p.add_(1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a scheduler that resumes before the first step says so
            for part, state in zip(second, saved(*first), strict=True):
                part.load_state_dict(state)
        go_on(second, data[done:])
        for p, q in zip(whole[0].parameters(), second[0].parameters(), strict=True):
            assert torch.equal(p, q)
            assert torch.equal(whole[1].state[p]["momentum"], second[1].state[q]["momentum"])


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("first", "then"), [("fast", "lean"), ("lean", "fast")])
def test_state_loads_into_the_other_memory(first: str, then: str, nesterov: bool) -> None:
    model, data = network(), batches(8)
    slow = reference(model, grouped(model, "euclidean", lr=0.05, nesterov=nesterov))
    opt = NormalizedStorm(model.parameters(), 0.05, memory=first, nesterov=nesterov)
    for batch in data[:4]:
        by_closure(opt, loss_of(model), batch, K)
        slow.step(*batch)
    other = NormalizedStorm(model.parameters(), 0.9, memory=then)
    other.load_state_dict(saved(opt)[0])
    assert other.param_groups[0]["lr"] == 0.05
    del opt
    for batch in data[4:]:
        by_closure(other, loss_of(model), batch, K)
        slow.step(*batch)
    assert apart(model, slow.x) < 1e-12
    assert momenta_apart(other, model, slow.m) < 1e-12


@pytest.mark.parametrize("nesterov", [False, True])
def test_state_is_there_from_the_beginning(nesterov: bool) -> None:
    """A checkpoint of the first minute has the shape of all others."""
    model = network()
    opt = NormalizedStorm(model.parameters(), 0.05, nesterov=nesterov)
    before = copy.deepcopy(opt.state_dict())  # what state_dict returns is alive
    by_closure(opt, loss_of(model), batches(1)[0], K)
    after = opt.state_dict()
    assert before["state"].keys() == after["state"].keys() == set(range(6))
    for i in range(6):
        assert before["state"][i].keys() == after["state"][i].keys()
        assert before["state"][i]["momentum"].shape == after["state"][i]["momentum"].shape
    assert {int(s["stage"]) for s in after["state"].values()} == {2}


def test_stages() -> None:
    model = network()
    found = []
    for correction in (1.0, 0.0):
        opt = NormalizedStorm(model.parameters(), 0.05, correction=correction)
        found.append({int(s["stage"]) for s in opt.state.values()})
        by_closure(opt, loss_of(model), batches(1)[0], K)
        found.append({int(s["stage"]) for s in opt.state.values()})
    assert found == [{0}, {2}, {0}, {1}]


def test_what_state_is_refused() -> None:
    model = network()
    opt = NormalizedStorm(model.parameters(), 0.05)
    good = saved(opt)[0]
    parameters = list(model.parameters())
    with pytest.raises(ValueError, match="group"):
        NormalizedStorm([{"params": parameters[:2]}, {"params": parameters[2:]}], 0.05).load_state_dict(good)
    with pytest.raises(ValueError, match="group"):
        NormalizedStorm(parameters[:3], 0.05).load_state_dict(good)
    with pytest.raises(ValueError, match="shape"):
        NormalizedStorm([matrix(7, 7) for _ in parameters], 0.05).load_state_dict(good)
    foreign = torch.optim.Adam(parameters, 0.05)
    with pytest.raises((ValueError, KeyError)):
        opt.load_state_dict(foreign.state_dict())
    by_closure(opt, loss_of(model), batches(1)[0], K)  # a refusal spoils nothing


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize("memory", MEMORY)
def test_copies_go_their_own_way(copier: Any, memory: str) -> None:
    model, data = network(), batches(8)
    opt = NormalizedStorm(model.parameters(), 0.05, memory=memory, module=model)
    slow = reference(model, grouped(model, "euclidean", lr=0.05))
    for batch in data[:3]:
        by_closure(opt, loss_of(model), batch, K)
        slow.step(*batch)
    before = [p.detach().clone() for p in model.parameters()]
    other_model, other = copier((model, opt))
    for batch in data[3:]:
        by_closure(other, loss_of(other_model), batch, K)
        slow.step(*batch)
    assert apart(other_model, slow.x) < 1e-12
    assert apart(model, before) == 0
    for batch in data[3:]:
        by_closure(opt, loss_of(model), batch, K)
    assert apart(model, slow.x) < 1e-12


@pytest.mark.parametrize("memory", MEMORY)
def test_an_optimizer_that_is_gone_leaves_no_hooks(memory: str) -> None:
    """A second optimizer on the same parameters is not disturbed by the first."""
    model, data = network(), batches(6)
    opt = NormalizedStorm(model.parameters(), 0.05, memory=memory)
    for batch in data[:2]:
        by_closure(opt, loss_of(model), batch, K)
    del opt
    slow = reference(model, grouped(model, "euclidean", lr=0.05))
    other = NormalizedStorm(model.parameters(), 0.05, memory="fast")
    for batch in data[2:]:
        by_closure(other, loss_of(model), batch, K)
        slow.step(*batch)
    assert apart(model, slow.x) < 1e-12
    loss_of(model)(*data[0]).backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("memory", MEMORY)
def test_gradients_outside_a_step_are_left_alone(memory: str) -> None:
    """Between two steps a user may ask for gradients, to print their norm say."""
    model, data = network(), batches(6)
    opt = NormalizedStorm(model.parameters(), 0.05, memory=memory)
    slow = reference(model, grouped(model, "euclidean", lr=0.05))
    for batch in data:
        by_closure(opt, loss_of(model), batch, K)
        slow.step(*batch)
        opt.zero_grad()
        loss_of(model)(*batch).backward()
        expected = slow.gradient(slow.x, batch)
        assert all(
            torch.allclose(p.grad, g, rtol=0, atol=1e-12) for p, g in zip(model.parameters(), expected, strict=True)
        )
        assert apart(model, slow.x) < 1e-12


# Hooks.


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_step_hooks_are_called_once(entrance: str) -> None:
    model, calls = network(), []
    opt = NormalizedStorm(model.parameters(), 0.05)
    opt.register_step_pre_hook(lambda o, args, kwargs: calls.append("before"))
    opt.register_step_post_hook(lambda o, args, kwargs: calls.append("after"))
    for batch in batches(3):
        ENTRANCES[entrance](opt, loss_of(model), batch, K)
    assert calls == ["before", "after"] * 3


def test_state_dict_hooks() -> None:
    opt, calls = NormalizedStorm([matrix()], 0.05), []

    def marked(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        calls.append("saved")
        return state | {"mark": 1}

    opt.register_state_dict_pre_hook(lambda _: calls.append("saving"))
    opt.register_state_dict_post_hook(marked)
    opt.register_load_state_dict_pre_hook(lambda _, state: calls.append("loading"))
    opt.register_load_state_dict_post_hook(lambda _: calls.append("loaded"))
    state = opt.state_dict()
    assert state["mark"] == 1
    opt.load_state_dict(state)
    assert calls == ["saving", "saved", "loading", "loaded"]


# Other things that people do.


@pytest.mark.parametrize("preset", [False, True], ids=["euclidean", "preset"])
def test_compiled_step_is_the_step(preset: bool) -> None:
    """The compiler leaves it alone, to the last bit, also where a scheduler changes the learning rate."""
    ends, graphs = [], []

    def counted(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    for compiled in (False, True):
        model = network()
        opt = spectral_storm(model) if preset else NormalizedStorm(model.parameters(), 0.05, correction=0.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
        step = torch.compile(opt.step, backend=counted) if compiled else opt.step
        for batch in batches(20):
            opt.zero_grad()
            loss_of(model)(*batch).backward()
            step()
            schedule.step()
        ends.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)
    assert len(graphs) <= 2
    torch._dynamo.reset()


DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, none is here")
    ),
]


PRECISIONS = pairwise({"memory": MEMORY, "dtype": (torch.float32, torch.bfloat16), "geometry": GEOMETRIES})


@pytest.mark.parametrize(("memory", "dtype", "geometry"), [tuple(case.values()) for case in PRECISIONS])
@pytest.mark.parametrize("device", DEVICES)
def test_precision(memory: str, device: str, dtype: torch.dtype, geometry: str) -> None:
    """Weights keep their precision and place, the path is that of float64 up to what that precision can hold."""
    model = network().to(device, dtype)
    groups = grouped(model, geometry, lr=0.01)
    slow = reference(copy.deepcopy(model).double().cpu(), groups)
    opt = NormalizedStorm(with_tensors(model, groups), lr=1.0, memory=memory, spectral_dtype=torch.float32)
    for x, y in batches(8):
        by_closure(opt, loss_of(model), (x.to(device, dtype), y.to(device)), K)
        slow.step(x.to(dtype).double(), y)
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(dtype, device)}
    assert {opt.state[p]["momentum"].device.type for p in model.parameters()} == {device}
    far = apart(model.double().cpu(), slow.x)
    smooth = geometry not in ("sign", "spectral")
    assert far < (1e-5 if dtype == torch.float32 and smooth else 0.15)


@pytest.mark.parametrize("device", DEVICES)
def test_state_goes_to_another_device(device: str) -> None:
    model = network()
    opt = NormalizedStorm(model.parameters(), 0.05)
    by_closure(opt, loss_of(model), batches(1)[0], K)
    there = network().to(device)
    other = NormalizedStorm(there.parameters(), 0.05)
    other.load_state_dict(saved(opt)[0])
    for p, q in zip(model.parameters(), there.parameters(), strict=True):
        assert other.state[q]["momentum"].device == q.device
        assert torch.equal(other.state[q]["momentum"].cpu(), opt.state[p]["momentum"])


def test_parameters_without_data() -> None:
    """As large models are built: on the device "meta", and the state with them."""
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    opt = NormalizedStorm(model.parameters(), 0.05)
    assert {opt.state[p]["momentum"].device.type for p in model.parameters()} == {"meta"}


@pytest.mark.parametrize("correction", [0.0, 1.0])
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("memory", MEMORY)
def test_a_zero_gradient_means_stay(memory: str, geometry: str, correction: float) -> None:
    p = matrix(3, 4)
    start = p.detach().clone()
    opt = NormalizedStorm([p], 0.05, geometry=geometry, memory=memory, correction=correction)
    for _ in range(3):
        by_closure(opt, lambda x: (0 * p).sum(), (torch.ones(K, 1),), K)
        assert torch.equal(p, start)
    for _ in range(2):
        by_closure(opt, lambda x: p.pow(2).sum(), (torch.ones(K, 1),), K)
    assert torch.isfinite(p).all()
    assert not torch.equal(p, start)


@pytest.mark.parametrize("geometry", ["row", "column"])
def test_a_zero_row_stays(geometry: str) -> None:
    p = matrix(3, 4)
    start = p.detach().clone()
    opt = NormalizedStorm([p], 0.05, geometry=geometry, correction=0.0)
    kept = torch.ones(3, 4, dtype=torch.float64)
    kept[1], kept[:, 2] = 0, 0
    by_closure(opt, lambda x: (kept * p).sum(), (torch.ones(K, 1),), K)
    assert torch.equal(p == start, kept == 0)


def test_empty_parameters() -> None:
    p, nothing = matrix(3, 4), nn.Parameter(torch.zeros(0, 4, dtype=torch.float64))
    for geometry in GEOMETRIES:
        opt = NormalizedStorm([p, nothing], 0.05, geometry=geometry)
        for _ in range(3):
            by_closure(opt, lambda x: p.pow(2).sum() + nothing.sum(), (torch.ones(K, 1),), K)
        assert torch.isfinite(p).all()


def test_maximize_climbs() -> None:
    ends = {}
    for maximize in (False, True):
        p = nn.Parameter(torch.ones(3, dtype=torch.float64))
        opt = NormalizedStorm([p], 0.05, maximize=maximize)
        for _ in range(5):
            by_closure(opt, lambda x, p=p, up=maximize: (-1 if up else 1) * p.pow(2).sum(), (torch.ones(K, 1),), K)
        ends[maximize] = p.detach()
    torch.testing.assert_close(ends[True], ends[False], rtol=0, atol=0)
    assert float(ends[True].max()) < 1


def test_repr_shows_the_options() -> None:
    text = repr(NormalizedStorm([matrix()], 0.05))
    for name in PER_GROUP:
        assert f"{name}: " in text


def test_weights_that_change_between_steps() -> None:
    """A user's own projection between two calls: the next pass begins where the weights are."""
    model, data = network(), batches(6)
    opt = NormalizedStorm(model.parameters(), 0.05)
    slow = reference(model, grouped(model, "euclidean", lr=0.05))
    for batch in data:
        by_closure(opt, loss_of(model), batch, K)
        slow.step(*batch)
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.clamp_(-0.2, 0.2)
                slow.x[i] = slow.x[i].clamp(-0.2, 0.2)
    assert apart(model, slow.x) < 1e-12
