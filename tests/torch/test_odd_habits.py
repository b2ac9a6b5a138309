"""What training loops do besides training: layers switched off, 16 bits without autocast, calls that were forgotten."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normstorm.torch import NormalizedStorm

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
