"""What a parameter is to its network: by the layer that holds it where that is known, else by its name and shape.

    matrix      a hidden layer's weights: outputs x inputs, or a convolution
    stack       matrices of several experts, (E, inputs, outputs)
    embedding   a row for every symbol
    table       positions, class tokens, prompts: added to activations or put beside them
    head        the weights of an output layer
    vector      biases, gains, and whatever has one axis longer than 1

A raw parameter whose name says nothing is not guessed: a table that is taken for a matrix hardly trains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

WHO = "assign"
ROLES = ("matrix", "stack", "embedding", "table", "head", "vector")
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
GATES = {"LSTM": 4, "GRU": 3, "LSTMCell": 4, "GRUCell": 3}
HIDDEN = re.compile(r"proj|^(q|k|v|o|query|key|up|down|gate|router|w\d?)$")
FUSED = re.compile(r"qkv|query_key_value|in_proj$|c_attn|wqkv")
HEAD = re.compile(r"(^|_)(lm_?)?(head|heads|classifier|logits|unembed\w*|readout|score)($|_|\d)")
POSITIONS = re.compile(r"(^|\.)(wpe|\w*pos(ition\w*)?(_\w*)?)$")
NAMES = (  # in this order, of the last part of a raw parameter's name
    (
        "table",
        re.compile(r"pos|place|wpe|relative|(^|_)rel(_|$)|token|(^|_)cls|mask|prompt|prefix|register|latent|slot"),
    ),
    ("vector", re.compile(r"bias(es)?$|(^|_)(gamma|scale|gain)$")),
    ("head", HEAD),
    ("embedding", re.compile(r"emb|wte|vocab|codebook|lookup")),
    (
        "matrix",
        re.compile(r"^w$|^w\d|(^|_)w[qkvoiug]?(_|\d|$)|weight|kernel|matrix|proj|lora|linear|dense|expert|mlp|ffn"),
    ),
    ("matrix", re.compile(r"(^|_)(fc|up|down|gate|router|in|out|query|key|value|qkv|[qkvo])\d*($|_)")),
)


@dataclass(frozen=True)
class Place:
    """A parameter with its role; `blocks` and `transposed` as the optimizer's options say."""

    name: str
    parameter: Tensor
    role: str
    blocks: int = 1
    transposed: bool = False


def places(model: nn.Module, head: nn.Module | None, roles: Mapping[str, str]) -> list[Place]:
    """Every parameter once, under its first name; one that an embedding shares is an embedding."""
    heads = heads_of(model) if head is None else [head]
    rows = [(name, m) for name, m in model.named_modules() if isinstance(m, EMBEDDINGS)]
    outer = {p: "head" for layer in heads for p in layer.parameters() if p.ndim > 1}
    outer |= {p: "table" if POSITIONS.search(name.lower()) else "embedding" for name, m in rows for p in m.parameters()}
    if unknown := roles.keys() - {name for name, _ in model.named_parameters()}:
        raise ValueError(f"{WHO}: roles must name parameters of the model; got {', '.join(sorted(unknown))}")
    found: dict[Tensor, Place] = {}
    for path, module in model.named_modules():
        for own, p in module.named_parameters(recurse=False):
            if p not in found:
                name = f"{path}.{own}" if path else own
                found[p] = _told(name, p, roles[name]) if name in roles else _place(name, p, module, outer.get(p))
    return list(found.values())


def _told(name: str, p: Tensor, role: str) -> Place:
    if role not in ROLES:
        raise ValueError(f"{WHO}: roles must be among {', '.join(ROLES)}; got {role!r} for {name}")
    least = {"stack": 3, "matrix": 2}.get(role, 0)
    if p.ndim < least:
        raise ValueError(f"{WHO}: a {role} must have at least {least} axes; got shape {tuple(p.shape)} for {name}")
    return _stack(name, p) if role == "stack" else Place(name, p, role)


def _place(name: str, p: Tensor, module: nn.Module, outer: str | None) -> Place:
    if outer is not None:
        return Place(name, p, outer)
    if p.ndim < 2 or isinstance(module, NORMS) or type(module).__name__.lower().endswith("norm"):
        return Place(name, p, "vector")
    known = _of_layer(name, p, module)
    return known if known is not None else _raw(name, p, getattr(module, "is_transposed", None))


def _of_layer(name: str, p: Tensor, module: nn.Module) -> Place | None:
    """Layers of torch, and those that other libraries call by the same names."""
    kind, own = type(module).__name__, name.rpartition(".")[2]
    layer = name.rpartition(".")[0].rpartition(".")[2]
    if isinstance(module, _ConvTransposeNd):
        return Place(name, p, "matrix", transposed=True)
    if isinstance(module, _ConvNd):
        return Place(name, p, "matrix", blocks=module.groups)
    if isinstance(module, nn.MultiheadAttention):
        return Place(name, p, "vector" if own.startswith("bias") else "matrix", 3 if own == "in_proj_weight" else 1)
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return Place(name, p, "matrix", GATES.get(kind, 1) if "weight_hr" not in own else 1)
    if kind == "Conv1D":  # of Hugging Face: a linear layer that is stored as inputs x outputs
        return Place(name, p, "matrix", _fused(layer, p.shape[0], p.shape[1]), True)
    if isinstance(module, nn.Linear) or ("Linear" in kind and own == "weight" and p.ndim == 2):
        return Place(name, p, "matrix", _fused(layer, p.shape[1], p.shape[0]))
    if isinstance(module, nn.Bilinear):
        return Place(name, p, "matrix")
    if "Embedding" in kind and own == "weight":
        return Place(name, p, "embedding")
    return None


def _fused(layer: str, inputs: int, outputs: int) -> int:
    """Queries, keys and values of equal width in one layer are three matrices."""
    return 3 if FUSED.search(layer.lower()) and outputs == 3 * inputs else 1


def _raw(name: str, p: Tensor, transposed: bool | None) -> Place:
    """A parameter that a module of the user's own holds; Hugging Face's experts say how they lie."""
    if sum(size > 1 for size in p.shape) < 2:
        return Place(name, p, "table" if p.ndim > 2 else "vector")
    if p.ndim > 2 and p.shape[0] == 1:  # broadcast over samples
        return Place(name, p, "table")
    own = name.rpartition(".")[2].lower()
    for role, pattern in NAMES:
        if pattern.search(own):
            return _matrices(name, p, transposed) if role == "matrix" else Place(name, p, role)
    if p.ndim == 3 and re.search(r"expert|moe", name.lower()):
        return _matrices(name, p, transposed)
    raise ValueError(
        f"{WHO}: roles must say what a raw parameter is whose name does not; got {name} of shape {tuple(p.shape)}, for "
        f'instance roles={{"{name}": "table"}} if it is added to activations or "matrix" if it multiplies them'
    )


def _matrices(name: str, p: Tensor, transposed: bool | None) -> Place:
    return _stack(name, p, transposed) if p.ndim == 3 else Place(name, p, "matrix")


def _stack(name: str, p: Tensor, transposed: bool | None = None) -> Place:
    """(E, inputs, outputs), unless its name says that it widens or narrows and its shape that it lies otherwise."""
    own, (first, last) = name.rpartition(".")[2].lower(), p.shape[1:3]
    down = re.search(r"down|(^|_)out", own) is not None
    up = re.search(r"(^|_)(up|in|gate)", own) is not None and not down
    if transposed is None:
        transposed = not ((up and first > last) or (down and first < last))
    return Place(name, p, "stack", p.shape[0], transposed)


def heads_of(model: nn.Module) -> list[nn.Module]:
    """Output layers: linear layers called so; else the last one, and others beside it that read the same features.

    A layer that is the only matrix of its network is no head.
    """
    linear = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        return []
    named = [i for i, (name, _) in enumerate(linear) if HEAD.search(name.rpartition(".")[2].lower())]
    found: list[Any] = [linear[i][1] for i in named or [len(linear) - 1]]
    for i in named or [len(linear) - 1]:
        above, head = linear[i][0].rpartition(".")[0], linear[i][1]
        beside = {own: layer for name, layer in linear for up, _, own in [name.rpartition(".")] if up == above}
        others = [layer for own, layer in beside.items() if not (HIDDEN.search(own) or FUSED.search(own))]
        found += [other for other in others if other not in found and _parallel(other, head, [*beside.values()])]
    own = {p for layer in found for p in layer.parameters()}
    return found if any(p.ndim > 1 and p not in own for p in model.parameters()) else []


def _parallel(layer: nn.Linear, head: nn.Linear, beside: list[nn.Linear]) -> bool:
    """Whether it reads what a head reads and feeds none of its siblings, as an earlier layer of that width would."""
    fed = any(other.in_features == layer.out_features for other in beside)
    return layer.in_features == head.in_features and not fed
