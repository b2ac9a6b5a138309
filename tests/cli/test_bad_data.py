"""Bad data on the command line: one sentence that names the place, exit code 2, no page."""

from pathlib import Path

import jax
import pytest

HEAD = """
import jax.numpy as jnp
import numpy as np
from normstorm import Constants
from normstorm.problems import from_loss

table = np.genfromtxt("rows.csv", delimiter=",", skip_header=1)
known = Constants(L0=1, L1=0, sigma0=1, sigma1=0, gap=1, noise="almost-sure")
"""
PROBLEM = "problem = from_loss(loss, (table[:, :2], table[:, 2]), start=np.zeros(2), constants=known)\n"
ROWS = ["a,b,y", *(f"{i / 10},{1 - i / 10},{i % 2}" for i in range(9))]


@pytest.fixture(autouse=True)
def precision():
    """The command switches to double precision for its process."""
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize(
    ("row", "loss", "sentence"),
    [
        ("0.1,,1", "def loss(x, row): return (row[0] @ x - row[1]) ** 2", "got nan in data[0], row 9, column 1"),
        ("0.1,0.2,yes", "def loss(x, row): return (row[0] @ x - row[1]) ** 2", "got nan in data[1], row 9"),
        ("1,2,inf", "def loss(x, row): return (row[0] @ x - row[1]) ** 2", "got inf in data[1], row 9"),
        ("1,2,0", "def loss(x, row): return (row[0] * x - row[1]) ** 2", "loss must return one number"),
        ("1,2,0", "def loss(x, a, y): return (a @ x - y) ** 2", "got loss(x, a, y)"),
        ("1,2,0", "def loss(x, row): return row[1] @ x", "got ValueError at line 9 of mine.py: "),
        ("1,2,0", "def loss(x, row): return jnp.log(row[0] @ x - row[1])", "got a loss that is not finite, of row 0"),
    ],
)
def test_one_sentence_and_exit_code_2(run, tmp_path: Path, row: str, loss: str, sentence: str) -> None:
    (tmp_path / "rows.csv").write_text("\n".join([*ROWS, row]))
    (tmp_path / "mine.py").write_text(f"{HEAD}{loss}\n{PROBLEM}")
    code, out, err = run("run", "mine.py:problem", "--target", "1", "--seeds", "1")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("normstorm run: ") and sentence in err
    assert not (tmp_path / "build").exists()
