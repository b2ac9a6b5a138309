"""The preset: what it makes of the tensors of usual networks, and that every one of them trains."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from normstorm.torch import NormalizedStorm, assign, describe, spectral_storm
from normstorm.torch.roles import places


class Conv1D(nn.Module):
    """As Hugging Face's: x @ weight + bias, weight inputs x outputs."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Own(nn.Module):
    """A network of raw parameters."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(*shape)))


class Net(nn.Module):
    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)


def roles_of(model: nn.Module, **given: Any) -> dict[str, tuple[str, int, bool]]:
    found = places(model, given.get("head"), given.get("roles", {}))
    return {place.name: (place.role, place.blocks, place.transposed) for place in found}


RAW: dict[str, tuple[tuple[int, ...], tuple[str, int, bool]]] = {  # name: shape, role, blocks, transposed
    "pos_embed": ((1, 5, 4), ("table", 1, False)),
    "pos_embedding": ((5, 4), ("table", 1, False)),
    "wpe": ((5, 4), ("table", 1, False)),
    "cls_token": ((1, 1, 4), ("table", 1, False)),
    "class_token": ((1, 4), ("vector", 1, False)),
    "anything": ((1, 5, 4), ("table", 1, False)),
    "relative_position_bias_table": ((9, 2), ("table", 1, False)),
    "wte": ((7, 4), ("embedding", 1, False)),
    "embed": ((7, 4), ("embedding", 1, False)),
    "lm_head": ((7, 4), ("head", 1, False)),
    "unembed": ((4, 7), ("head", 1, False)),
    "W": ((4, 4), ("matrix", 1, False)),
    "w_in": ((4, 4), ("matrix", 1, False)),
    "w1": ((3, 4, 6), ("stack", 3, True)),
    "experts_up": ((3, 4, 6), ("stack", 3, True)),
    "up_proj": ((3, 6, 4), ("stack", 3, False)),
    "down_proj": ((3, 4, 6), ("stack", 3, False)),
    "up_proj_bias": ((3, 6), ("vector", 1, False)),
    "layer_scale": ((4,), ("vector", 1, False)),
}


@pytest.mark.parametrize("name", RAW)
def test_raw_parameters(name: str) -> None:
    shape, expected = RAW[name]
    assert roles_of(Own(**{name: shape}))[name] == expected


def test_layers_that_are_known() -> None:
    layers = {
        "conv": nn.Conv1d(4, 6, 3),
        "depth": nn.Conv2d(4, 4, 3, groups=4),
        "back": nn.ConvTranspose2d(4, 6, 3),
        "attention": nn.MultiheadAttention(4, 2, add_bias_kv=True),
        "cell": nn.LSTM(4, 3),
        "c_attn": Conv1D(12, 4),
        "qkv": nn.Linear(4, 12),
        "norm": nn.LayerNorm((3, 4)),
        "words": nn.Embedding(7, 4),
        "wpe": nn.Embedding(5, 4),
        "fc": nn.Linear(4, 7),
    }
    found = roles_of(Net(**layers))
    expected = {
        "conv.weight": ("matrix", 1, False),
        "depth.weight": ("matrix", 4, False),
        "back.weight": ("matrix", 1, True),
        "attention.in_proj_weight": ("matrix", 3, False),
        "attention.bias_k": ("vector", 1, False),
        "attention.out_proj.weight": ("matrix", 1, False),
        "cell.weight_hh_l0": ("matrix", 4, False),
        "c_attn.weight": ("matrix", 3, True),
        "qkv.weight": ("matrix", 3, False),
        "norm.weight": ("vector", 1, False),
        "words.weight": ("embedding", 1, False),
        "wpe.weight": ("table", 1, False),
        "fc.weight": ("head", 1, False),
        "fc.bias": ("vector", 1, False),
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("names", [("head", "aux"), ("out", "extra"), ("lm_head", "value")])
def test_a_layer_after_the_head(names: tuple[str, str]) -> None:
    layers = {"first": nn.Linear(3, 4), "second": nn.Linear(4, 4), names[0]: nn.Linear(4, 7), names[1]: nn.Linear(4, 2)}
    found = roles_of(Net(**layers))
    assert [found[f"{name}.weight"][0] for name in layers] == ["matrix", "matrix", "head", "head"]
    assert roles_of(Net(**layers), head=layers["second"])["second.weight"][0] == "head"


def test_tied_weights_are_an_embedding() -> None:
    model = Net(words=nn.Embedding(7, 4), body=nn.Linear(4, 4), head=nn.Linear(4, 7, bias=False))
    model.head.weight = model.words.weight
    assert roles_of(model) == {
        "words.weight": ("embedding", 1, False),
        "body.weight": ("matrix", 1, False),
        "body.bias": ("vector", 1, False),
    }


def test_what_cannot_be_known_is_asked() -> None:
    model = Own(thing=(5, 4))
    with pytest.raises(ValueError, match=r"^assign: roles must say what .*; got thing of shape \(5, 4\), "):
        spectral_storm(model)
    assert roles_of(model, roles={"thing": "table"})["thing"] == ("table", 1, False)
    spectral_storm(model, roles={"thing": "matrix"})
    for roles, sentence in (
        ({"thing": "flat"}, r"roles must be among matrix, .*; got 'flat' for thing"),
        ({"other": "table"}, r"roles must name parameters of the model; got other"),
        ({"thing": "stack"}, r"a stack must have at least 3 axes; got shape \(5, 4\) for thing"),
    ):
        with pytest.raises(ValueError, match=f"^assign: {sentence}"):
            assign(model, roles=roles)


def test_the_assignment_is_shown() -> None:
    model = Net(c_attn=Conv1D(12, 4), norm=nn.LayerNorm(4), head=nn.Linear(4, 7))
    model.norm.requires_grad_(False)
    lines = describe(model).splitlines()
    assert lines[0].split() == ["parameter", "shape", "role", "geometry", "scale", "matrices"]
    assert lines[1].split() == ["c_attn.weight", "4", "x", "12", "matrix", "spectral", "1", "3", "transposed"]
    assert lines[3].split() == ["norm.weight", "4", "vector", "(frozen)", "adam", "0.15"]
    assert lines[5].split() == ["head.weight", "7", "x", "4", "head", "adam", "0.15"]
    assert len(lines) == 1 + len(list(model.parameters()))


# Several matrices in one tensor.


def pieces_of(name: str, p: Tensor) -> list[Tensor]:
    """The matrices of a tensor, outputs x inputs, each by itself."""
    if name == "fused":
        return list(p.chunk(3))
    if name == "fused, transposed":
        return [part.T for part in p.chunk(3, dim=1)]
    if name == "convolution, transposed":
        return [p.transpose(0, 1).flatten(1)]
    return list(p) if name == "experts" else [part.T for part in p]


STACKS: dict[str, tuple[tuple[int, ...], int, bool]] = {
    "fused": ((12, 5), 3, False),
    "fused, transposed": ((5, 12), 3, True),
    "convolution, transposed": ((3, 6, 2, 2), 1, True),
    "experts": ((3, 6, 4), 3, False),
    "experts, transposed": ((3, 4, 6), 3, True),
}


@pytest.mark.parametrize(("memory", "neurons"), [("fast", False), ("lean", False), ("fast", True)])
@pytest.mark.parametrize("name", STACKS)
def test_a_stack_moves_as_its_matrices_do(name: str, memory: str, neurons: bool) -> None:
    shape, blocks, transposed = STACKS[name]
    p = nn.Parameter(torch.randn(*shape, dtype=torch.float64))
    parts = [nn.Parameter(part.detach().clone().contiguous()) for part in pieces_of(name, p)]
    options = {"geometry": "spectral", "correction": 0.0, "nesterov": True, "memory": memory, "neurons": neurons}
    opt = NormalizedStorm([p], 0.1, blocks=blocks, transposed=transposed, **options)
    apart = NormalizedStorm(parts, 0.1, **options)
    for _ in range(3):
        target = torch.randn(*shape, dtype=torch.float64)
        own = [part.detach() for part in pieces_of(name, target)]
        opt.step(lambda y: (p - y[0]).pow(4).sum(), batch=target[None])
        apart.step(
            lambda y, own=own: sum((a - b).pow(4).sum() for a, b in zip(parts, own, strict=True)), batch=torch.ones(1)
        )
    for found, expected in zip(pieces_of(name, p), parts, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert p.is_contiguous()


@pytest.mark.parametrize(
    ("shape", "options", "sentence"),
    [
        ((7, 4), {"blocks": 3}, r"blocks must divide the axis of outputs; got blocks=3 and a tensor of shape \(7, 4\)"),
        ((6, 4), {"blocks": 3, "transposed": True}, r"blocks must divide the axis of outputs; got "),
        ((6, 4), {"blocks": 3, "geometry": "sign"}, r"blocks and transposed must be 1 and False unless "),
        ((6, 4), {"blocks": 0}, r"blocks must be an integer >= 1; got blocks=0"),
        ((6, 4), {"transposed": 2}, r"transposed must be True or False; got transposed=2"),
    ],
)
def test_stacks_that_are_none(shape: tuple[int, ...], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^NormalizedStorm: {sentence}"):
        NormalizedStorm([nn.Parameter(torch.ones(*shape))], 0.1, **({"geometry": "spectral"} | options))


# Frozen layers, and layers that come later.


def test_what_is_unfrozen_later_trains() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    opt = spectral_storm(model)
    before = model[0].weight.clone()
    for learn in (False, True):
        model[0].requires_grad_(learn)
        opt.step(lambda x: model(x).square().mean(), batch=torch.ones(5, 3))
        assert torch.equal(model[0].weight, before) != learn


def test_groups_that_are_added_to_a_preset() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    opt = spectral_storm(model)
    model.append(nn.Linear(2, 2))
    opt = copy.deepcopy({"opt": opt, "model": model})["opt"]
    added = list(opt.module[3].parameters())
    opt.add_param_group({"params": added, "lr": 0.5})
    names = "geometry", "scale", "beta", "nesterov", "start", "lr"
    kinds = {p: tuple(group[name] for name in names) for group in opt.param_groups for p in group["params"]}
    assert [kinds[p] for p in added] == 2 * [("adam", 0.15, 0.9, False, "first", 0.5)]
    stranger = nn.Parameter(torch.ones(3, 3))
    with pytest.raises(
        ValueError, match=r"^assign: a group of tensors that are not the model's must name its geometry"
    ):
        opt.add_param_group({"params": stranger})
    opt.add_param_group({"params": stranger, "geometry": "spectral"})
    assert opt.param_groups[-1]["geometry"] == "spectral"


# Nothing stays untrained; benchmarks/torch/presets.py has the table with others beside.


class Order(nn.Module):
    """Which of two marks comes first: chance is log 2 without positions, and the class token reads them."""

    def __init__(self, T: int, d: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.patch, self.head = nn.Linear(2, d), nn.Linear(d, 2)
        self.cls_token, self.pos_embed = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(0.02 * torch.randn(*shape))
        self.layer = nn.TransformerEncoderLayer(d, 2, 2 * d, 0.0, batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.cls_token.expand(len(x), 1, -1), self.patch(x)], 1) + self.pos_embed
        return self.head(self.layer(x)[:, 0])


def marks(n: int, T: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    places = torch.rand(n, T, generator=draw).argsort(1)[:, :2]
    x = 0.3 * torch.randn(n, T, 2, generator=draw)
    x[torch.arange(n), places[:, 0], 0] += 2
    x[torch.arange(n), places[:, 1], 1] += 2
    return x, (places[:, 0] < places[:, 1]).long()


@pytest.mark.parametrize("shape", [(1, 6, 8), (6, 8)])
def test_positions_train(shape: tuple[int, ...]) -> None:
    model, draw = Order(5, 8, shape), torch.Generator().manual_seed(1)
    opt = spectral_storm(model)
    for _ in range(120):
        x, y = marks(32, 5, draw)
        opt.zero_grad()
        cross_entropy(model(x), y).backward()
        opt.step()
    with torch.no_grad():
        x, y = marks(256, 5, draw)
        assert cross_entropy(model(x), y) < 0.4
