"""A run takes back its own checkpoint and no other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy import Toy

from normstorm.algorithms import normalized_storm
from normstorm.engine import run


def test_a_run_refuses_what_is_not_its_own(tmp_path: Path) -> None:
    def go(*, alpha: float = 0.1, steps: int = 20, x: float = 1.0, seeds: Any = 2, fingerprint: str = "f") -> Any:
        algorithm = normalized_storm(alpha=alpha, eta=0.01)
        return run(Toy(10), algorithm, np.full(10, x), steps, seeds, checkpoint=tmp_path / "r", fingerprint=fingerprint)

    first = go()
    again = go()
    np.testing.assert_array_equal(first.last, again.last)
    for change, word in [
        ({"alpha": 0.2}, "algorithm and x0"),
        ({"x": 2.0}, "algorithm and x0"),
        ({"steps": 21}, "steps"),
        ({"seeds": [0, 2]}, "seeds"),
        ({"fingerprint": "g"}, "fingerprint"),
    ]:
        with pytest.raises(ValueError, match=f"must belong to this run; its {word} is"):
            go(**change)


class Mine:
    """A class that JAX does not know."""

    name = "mine"

    def __init__(self, scale: float, centre: float) -> None:
        self.scale, self.table, self.toy = scale, {"centre": np.full(3, centre)}, Toy(3)

    def sample(self, key: Any, n: int) -> Any:
        return self.toy.sample(key, n)

    def grad(self, x: Any, batch: Any) -> Any:
        return self.scale * self.toy.grad(x - self.table["centre"], batch)


@pytest.mark.parametrize(
    ("problem", "same", "other"),
    [
        (Toy(3, q=1.0), Toy(3, q=1.0), Toy(3, q=2.0)),
        (Mine(1.0, 0.0), Mine(1.0, 0.0), Mine(1.0, 1e-9)),
    ],
)
def test_a_run_refuses_what_belongs_to_other_numbers(problem: Any, same: Any, other: Any, tmp_path: Path) -> None:
    """Also without a fingerprint."""
    file, storm = tmp_path / "c.safetensors", normalized_storm(alpha=0.1, eta=0.1)
    first = run(problem, storm, np.ones(3), 40, 2, checkpoint=file)
    np.testing.assert_array_equal(run(same, storm, np.ones(3), 40, 2, checkpoint=file).last, first.last)
    with pytest.raises(ValueError, match="must belong to this run; its problem's numbers is"):
        run(other, storm, np.ones(3), 40, 2, checkpoint=file)
