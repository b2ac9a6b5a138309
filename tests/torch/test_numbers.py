"""NumPy's numbers serve the optimizer like Python's."""

from typing import Any

import numpy as np
import pytest
import torch

from normstorm.torch import NormalizedStorm


def moved(lr: Any, beta: Any, k: Any) -> torch.Tensor:
    weights = torch.nn.Parameter(torch.ones(3))
    optimizer = NormalizedStorm([weights], lr=lr, beta=beta)
    for _ in range(2):
        optimizer.step(lambda rows: ((weights - rows) ** 2).mean(), batch=torch.arange(4.0)[:, None], k=k)
    return weights.detach()


@pytest.mark.parametrize("real, whole", [(np.float32, np.int64), (np.array, np.array), (torch.tensor, torch.tensor)])
def test_numbers_of_other_libraries(real: Any, whole: Any) -> None:
    assert torch.equal(moved(real(0.25), real(0.5), whole(2)), moved(0.25, 0.5, 2))


@pytest.mark.parametrize("wrong", [True, np.True_, np.array(True), torch.tensor(True), np.ones(1, int), 2.0, "2"])
def test_no_integers(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^NormalizedStorm: k must be an integer in \[1, K\]; got k=.*, K=4$"):
        moved(0.25, 0.5, wrong)


@pytest.mark.parametrize("wrong", [True, np.array(True), "0.5", np.array([0.5, 0.5])])
def test_no_numbers(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^NormalizedStorm: beta must be a number in \[0, 1\); got beta="):
        moved(0.25, wrong, 2)
