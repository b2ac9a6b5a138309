"""The optimizer against copies that are kept and formulas that are written out: 50 steps, float64, 1e-12."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from pairwise import every, pairwise
from reference import Reference, alone
from small import (
    ENTRANCES,
    GEOMETRIES,
    LR,
    STEPS,
    K,
    Stacked,
    apart,
    batches,
    by_accumulation,
    by_batch,
    by_closure,
    grouped,
    loss_of,
    momenta_apart,
    network,
    pieces,
    reference,
    with_tensors,
)
from torch import Tensor, nn

from normstorm.torch import NormalizedStorm
from normstorm.torch.directions import directions

CLOSE, SHORT = 1e-12, 20
MEMORY = ("fast", "lean")
SETTINGS: dict[str, dict[str, Any]] = {
    "nesterov": {"nesterov": True},
    "decay": {"weight_decay": 0.3},
    "scale": {"scale": 0.4},
    "half": {"correction": 0.5},
    "maximize": {"maximize": True},
    "no memory": {"beta": 0.0},
    "zero": {"start": "zero"},
    "all": {"nesterov": True, "weight_decay": 0.3, "scale": 0.4, "correction": 0.25, "beta": 0.7},
}


def cases(options: dict[str, Any], **more: Any) -> Any:
    """The marker for the pairwise cases of some options, each with a name that tells its values."""
    found = [tuple(case.values()) for case in pairwise(options, **more)]
    return pytest.mark.parametrize(tuple(options), found, ids=["-".join(map(str, values)) for values in found])


def optimizer(model: nn.Module, groups: list[dict[str, Any]], **options: Any) -> NormalizedStorm:
    groups = [g | ({"spectral_dtype": torch.float64} if g["geometry"] == "spectral" else {}) for g in groups]
    return NormalizedStorm(with_tensors(model, groups), lr=0.5, **options)


Path = list[tuple[list[Tensor], list[Tensor]]]


def path_of(slow: Reference, k: int, steps: int = STEPS, lr: Any = None) -> Path:
    """(weights, estimate) after every call."""
    path = []
    for t, batch in enumerate(batches(steps)):
        if lr is not None:
            for group in slow.groups:
                group["lr"] = lr(t)
        slow.step(*batch, k=k)
        path.append((slow.x, slow.m))
    return path


@cache
def expected(geometry: str, k: int) -> Path:
    model = network()
    return path_of(reference(model, grouped(model, geometry, lr=LR[geometry])), k)


def follow(opt: Any, model: nn.Module, path: Path, entrance: Any = by_batch, k: int = K, sign: float = 1) -> None:
    """The same weights and the same estimate after every call."""
    loss = loss_of(model)
    for batch, (x, m) in zip(batches(len(path)), path, strict=True):
        entrance(opt, loss, batch, k)
        assert apart(model, x) < CLOSE
        assert momenta_apart(opt, model, [sign * v for v in m]) < CLOSE


def whole_batch(case: dict[str, Any]) -> bool:
    """A closure evaluates the whole batch."""
    return case.get("entrance") != "closure" or case["k"] == K


WAYS = {"memory": MEMORY, "entrance": list(ENTRANCES), "k": (K, K // 4, 1)}


@cases(WAYS | {"geometry": GEOMETRIES}, allowed=whole_batch, also=filter(whole_batch, every(WAYS)))
def test_every_entrance(memory: str, entrance: str, k: int, geometry: str) -> None:
    model = network()
    opt = optimizer(model, grouped(model, geometry, lr=LR[geometry]), memory=memory)
    follow(opt, model, expected(geometry, k), ENTRANCES[entrance], k)


def test_the_matrix_could_fail() -> None:
    """Another k, another geometry, another batch: all of them are far away from each other."""
    last = {(g, k): expected(g, k)[-1][0] for g in GEOMETRIES for k in (K, K // 4, 1)}
    pairs = [(a, b) for a in last for b in last if a < b]
    assert min(max(float((x - y).abs().max()) for x, y in zip(last[a], last[b], strict=True)) for a, b in pairs) > 1e-3


@cache
def expected_with(setting: str, geometry: str, k: int) -> Path:
    model = network()
    return path_of(reference(model, grouped(model, geometry, lr=LR[geometry], **SETTINGS[setting])), k, SHORT)


PATHS = {"memory": MEMORY, "geometry": ("euclidean", "spectral"), "setting": list(SETTINGS)}


@cases({"k": (K, 2)} | PATHS, also=every(PATHS))
def test_options(memory: str, k: int, geometry: str, setting: str) -> None:
    model, path = network(), expected_with(setting, geometry, k)
    opt = optimizer(model, grouped(model, geometry, lr=LR[geometry], **SETTINGS[setting]), memory=memory)
    if setting != "maximize":
        return follow(opt, model, path, k=k)
    for batch, (x, _) in zip(
        batches(len(path)), path, strict=True
    ):  # which sign the estimate has is the optimizer's affair
        by_batch(opt, loss_of(model), batch, k)
        assert apart(model, x) < CLOSE


ONE_POINT = {"memory": MEMORY, "nesterov": (False, True)}


@cases(ONE_POINT | {"geometry": GEOMETRIES}, also=every(ONE_POINT | {"geometry": ("euclidean", "sign")}))
def test_one_point(memory: str, geometry: str, nesterov: bool) -> None:
    """Without correction: backward, step, as with every other optimizer; the move is made at once."""
    model = network()
    groups = grouped(model, geometry, lr=LR[geometry], correction=0.0, nesterov=nesterov, weight_decay=0.1)
    slow, loss = reference(model, groups), loss_of(model)
    opt = optimizer(model, groups, memory=memory)
    for batch in batches(SHORT):
        opt.zero_grad()
        loss(*batch).backward()
        opt.step()
        slow.step(*batch)
        assert apart(model, slow.x) < CLOSE
        assert momenta_apart(opt, model, slow.m) < CLOSE


FREED = ONE_POINT | {"geometry": ("euclidean", "sign")}


@cases(FREED | {"entrance": ("closure", "batch")}, also=every(FREED))
def test_one_point_by_other_entrances(memory: str, entrance: str, geometry: str, nesterov: bool) -> None:
    """In lean memory gradients are freed during the backward, unless the direction still needs them."""
    model = network()
    groups = grouped(model, geometry, lr=LR[geometry], correction=0.0, nesterov=nesterov)
    path = path_of(reference(model, groups), K, SHORT)
    follow(optimizer(model, groups, memory=memory), model, path, ENTRANCES[entrance])


@pytest.mark.parametrize("memory", MEMORY)
def test_one_point_with_a_scaler(memory: str) -> None:
    model = network()
    groups = grouped(model, "euclidean", lr=0.05, correction=0.0)
    slow, loss, scaler = reference(model, groups), loss_of(model), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    opt = optimizer(model, groups, memory=memory)
    for batch in batches(SHORT):
        opt.zero_grad()
        scaler.scale(loss(*batch)).backward()
        scaler.step(opt)
        scaler.update()
        slow.step(*batch)
        assert apart(model, slow.x) < CLOSE


@cases({"memory": MEMORY, "k": (K, 2), "geometry": ("euclidean", "sign", "spectral"), "nesterov": (False, True)})
def test_hessian_vector_product(memory: str, k: int, geometry: str, nesterov: bool) -> None:
    model = network()
    groups = grouped(model, geometry, lr=0.004, weight_decay=0.1, nesterov=nesterov)
    path = path_of(reference(model, groups, "hvp"), k, SHORT)
    follow(optimizer(model, groups, memory=memory, difference="hvp"), model, path, k=k)


@cases({"memory": MEMORY, "geometry": ("euclidean", "spectral"), "correction": (0.3, 1.0)})
def test_stale(memory: str, geometry: str, correction: float) -> None:
    model = network()
    groups = grouped(model, geometry, lr=LR[geometry], correction=correction)
    slow, loss = reference(model, groups, "stale"), loss_of(model)
    opt = optimizer(model, groups, memory=memory, difference="stale")
    for batch in batches(SHORT):
        opt.zero_grad()
        loss(*batch).backward()
        opt.step()
        slow.step(*batch)
        assert apart(model, slow.x) < CLOSE


SCHEDULES: dict[str, Any] = {
    "lambda": lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, lambda t: 1 / (1 + t)),
    "cosine": lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, SHORT),
    "one cycle": lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=SHORT + 1, cycle_momentum=False),
    "warm-up": lambda opt: torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=10),
}


@cases({"memory": MEMORY, "correction": (0.0, 1.0), "schedule": list(SCHEDULES)})
def test_schedules(memory: str, correction: float, schedule: str) -> None:
    """lr is read when the move is made: at one point by the call itself, at two points by the call after it."""
    model = network()
    groups = grouped(model, "euclidean", lr=0.05, correction=correction)
    slow, loss = reference(model, groups), loss_of(model)
    opt = optimizer(model, groups, memory=memory)
    scheduler = SCHEDULES[schedule](opt)
    rates = []
    for batch in batches(SHORT):
        slow.groups[0]["lr"] = opt.param_groups[0]["lr"]
        rates.append(slow.groups[0]["lr"])
        slow.step(*batch)
        by_closure(opt, loss, batch, K)
        scheduler.step()
        assert apart(model, slow.x) < CLOSE
    assert max(rates) > 2 * min(rates)


def mixed_groups() -> list[dict[str, Any]]:
    """Every option of its own in every group; the two global ones share a norm."""
    return [
        {"params": [0], "geometry": "spectral", "lr": 0.004, "beta": 0.8, "nesterov": True},
        {"params": [1, 5], "geometry": "euclidean", "lr": 0.05, "beta": 0.6, "correction": 0.5, "scale": 2.0},
        {"params": [2], "geometry": "row", "lr": 0.004, "weight_decay": 0.2, "maximize": True},
        {"params": [3], "geometry": "rms", "lr": 0.005, "correction": 0.0},
        {"params": [4], "geometry": "euclidean", "lr": 0.04, "weight_decay": 0.1, "nesterov": True},
    ]


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("memory", MEMORY)
def test_groups_of_all_kinds(memory: str, entrance: str) -> None:
    """One group with a correction makes every group wait for the next call: the old point is one point."""
    model = network()
    groups = [g | ({"nesterov": False} if entrance == "scaler" else {}) for g in mixed_groups()]
    path = path_of(reference(model, groups), K, SHORT)
    opt = optimizer(model, groups, memory=memory)
    loss = loss_of(model)
    for batch, (x, _) in zip(batches(SHORT), path, strict=True):
        ENTRANCES[entrance](opt, loss, batch, K)
        assert apart(model, x) < CLOSE


@pytest.mark.parametrize("announced", [2, 5])
def test_accumulation_in_lean_memory_with_a_wrong_count(announced: int) -> None:
    """Fewer backward calls than announced are folded when the pass ends; more would move weights too early."""
    model = network()
    opt = optimizer(model, grouped(model, "euclidean", lr=0.05), memory="lean")
    loss, data = loss_of(model), batches()
    for batch, (x, _) in zip(data[:3], expected("euclidean", K), strict=False):
        by_accumulation(opt, loss, batch, K)
        assert apart(model, x) < CLOSE
    parts = list(pieces(data[3]))
    with pytest.raises(RuntimeError, match="backwards") if announced < 3 else nullcontext():
        for point in (opt.old_point, opt.new_point):
            with point(backwards=announced):
                for share, part in parts:
                    (share * loss(*part)).backward()
        opt.step()
    assert apart(model, expected("euclidean", K)[3][0]) < CLOSE


@pytest.mark.parametrize("memory", MEMORY)
def test_closure_with_several_backwards(memory: str) -> None:
    model = network()
    opt = optimizer(model, grouped(model, "euclidean", lr=0.05), memory=memory)
    loss = loss_of(model)
    for (x, y), (weights, m) in zip(batches()[:SHORT], expected("euclidean", K)[:SHORT], strict=True):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            opt.zero_grad()
            total = torch.zeros(())
            for half in (slice(0, 4), slice(4, 8)):
                part = loss(x[half], y[half]) / 2
                part.backward()
                total = total + part.detach()
            return total

        opt.step(closure, backwards=2)
        assert apart(model, weights) < CLOSE
        assert momenta_apart(opt, model, m) < CLOSE


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("correction", [0.0, 1.0])
def test_averages_of_squares(memory: str, correction: float) -> None:
    """Of gradients with one point, of estimates with two; a coordinate whose squares are all zero stays."""
    model = network()
    options = {"correction": correction, "nesterov": True, "beta2": 0.8, "start": "zero"}
    groups = grouped(model, "adam", lr=0.005, **options)
    path = path_of(reference(model, groups), K, SHORT)
    follow(optimizer(model, groups, memory=memory), model, path, ENTRANCES["batch"])


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("neurons", [False, True])
@pytest.mark.parametrize("portion", [1, 2**23])
def test_several_matrices_in_a_tensor(
    memory: str, neurons: bool, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused queries, keys and values, and a stack of experts: every matrix by itself, whoever shares its batch."""
    monkeypatch.setattr("normstorm.torch.directions.TOGETHER", portion)
    model = Stacked()
    options = {"geometry": "spectral", "lr": 0.01, "neurons": neurons, "correction": 0.5}
    groups = [{"params": [i], "blocks": n, **options} for i, n in enumerate((2, 2))]
    slow = reference(model, groups)
    whole = reference(model, [group | {"blocks": 1} for group in groups])
    opt = optimizer(model, groups, memory=memory)
    for batch in batches(SHORT):
        by_batch(opt, loss_of(model), batch, K)
        slow.step(*batch)
        whole.step(*batch)
        assert apart(model, slow.x) < CLOSE
    assert apart(model, whole.x) > 1e-3


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("correction", [0.0, 1.0])
def test_a_step_leaves_no_cycles(memory: str, correction: float) -> None:
    """They would have to be collected in the midst of training."""
    model = network()
    opt = optimizer(model, grouped(model, "spectral", lr=0.01, correction=correction, nesterov=True), memory=memory)
    first, second, third = batches(3)
    for batch in (first, second):
        by_batch(opt, loss_of(model), batch, K)
    gc.collect()
    gc.disable()
    try:
        by_batch(opt, loss_of(model), third, K)
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("portion", [1, 40, 2**23])
@pytest.mark.parametrize("geometry", ["euclidean", "spectral"])
def test_lean_is_fast(geometry: str, portion: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many gradients wait for each other, and however many directions are made at one time."""
    monkeypatch.setattr("normstorm.torch.hooks.FEW", portion)
    monkeypatch.setattr("normstorm.torch.directions.TOGETHER", portion)
    models = [network(), network()]
    opts = [
        optimizer(model, grouped(model, geometry, lr=LR[geometry]), memory=memory)
        for model, memory in zip(models, MEMORY, strict=True)
    ]
    for batch in batches(SHORT):
        values = [by_closure(opt, loss_of(model), batch, K).detach() for opt, model in zip(opts, models, strict=True)]
        assert abs(float(values[0] - values[1])) < CLOSE
        assert apart(models[0], [p.detach() for p in models[1].parameters()]) < CLOSE


@pytest.mark.parametrize("form", ["tuple", "list", "dict", "tensor"])
def test_forms_of_a_batch(form: str) -> None:
    model = network()
    opt = optimizer(model, grouped(model, "euclidean", lr=0.05))
    loss = loss_of(model)
    for (x, y), (weights, _) in zip(batches()[:SHORT], expected("euclidean", 2)[:SHORT], strict=True):
        if form == "tensor":
            both = torch.cat([x.flatten(1), y[:, None].double()], 1)
            opt.step(lambda b: loss(b[:, :-1].reshape(-1, 1, 4, 4), b[:, -1].long()), batch=both, k=2)
        elif form == "dict":
            opt.step(lambda b: loss(b["x"], b["y"]), batch={"x": x, "y": y}, k=2)
        else:
            opt.step(loss, batch=(x, y) if form == "tuple" else [x, y], k=2)
        assert apart(model, weights) < CLOSE


@pytest.mark.parametrize("entrance", ["closure", "batch"])
def test_value_is_the_loss_at_the_new_point(entrance: str) -> None:
    model = network()
    opt, loss = optimizer(model, grouped(model, "euclidean", lr=0.05)), loss_of(model)
    for batch in batches(5):
        value = ENTRANCES[entrance](opt, loss, batch, K)
        torch.testing.assert_close(value.detach(), loss(*batch).detach(), rtol=0, atol=CLOSE)


def test_reference_directions() -> None:
    """The reference itself, by what every direction must be."""
    n = torch.randn(5, 3, dtype=torch.float64)
    assert float(alone("row", n).pow(2).sum(1).sub(1).abs().max()) < CLOSE
    assert float(alone("column", n).pow(2).sum(0).sub(1).abs().max()) < CLOSE
    assert abs(float(alone("tensor", n).norm()) - 1) < CLOSE
    assert abs(float(alone("rms", n).pow(2).mean()) - 1) < CLOSE
    values = torch.linalg.svdvals(alone("spectral", n)) / (5 / 3) ** 0.5
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
    for geometry in GEOMETRIES[1:]:
        assert float((alone(geometry, n) * n).sum()) > 0
        assert not alone(geometry, 0 * n).any()


def test_looking_ahead_and_a_scaler_do_not_go_together() -> None:
    """The gradient that looks ahead would have to be kept apart from the one that waits in .grad."""
    model = network()
    opt = optimizer(model, grouped(model, "euclidean", lr=0.05, nesterov=True))
    with pytest.raises(ValueError, match="nesterov must be False for two points with an enabled GradScaler"):
        ENTRANCES["scaler"](opt, loss_of(model), batches(1)[0], K)


@pytest.mark.parametrize("geometry", [g for g in GEOMETRIES if g != "euclidean"])
@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (4, 4), (6, 2, 3, 3)])
def test_a_direction_lies_in_memory_as_its_parameter(geometry: str, shape: tuple[int, ...]) -> None:
    """Else the kernels could not take both, and the move would read across the rows."""
    tensors = [torch.randn(shape) for _ in range(3)]
    for u in directions(geometry, tensors, torch.bfloat16 if geometry == "spectral" else None):
        assert u.stride() == tensors[0].stride()
        assert u.dtype == tensors[0].dtype
