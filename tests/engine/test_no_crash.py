"""No table and no problem ends the process: unused columns and arguments, constants, integers and truth values.

XLA ends a process that compiles what it cannot, without an exception. So the cases run in a process of their own; this
file is its program. A case names itself before it begins, so that the last name is the guilty.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm import Constants, minimize
from normstorm.algorithms import normalized_storm
from normstorm.cli.process import process
from normstorm.engine import run
from normstorm.problems import from_loss

STORM = normalized_storm(alpha=0.3, eta=0.01, K=2)
ROWS, STEPS, SEEDS = 50, 7, 3
LAST = "all of them"
RNG = np.random.default_rng(0)
A, Y, ID = RNG.uniform(0.5, 1, ROWS), RNG.uniform(-1, 1, ROWS), np.arange(ROWS)
AY = {"a": A, "y": Y}
# With q = E a^2 and c = E a y the noise is (a^2 - q)/q (grad F + c) - (a y - c), in both numbers: .66 |grad F| + 1.46.
KNOWN = Constants(L0=1, L1=0, sigma0=2, sigma1=1, gap=2, grad_norm=3, noise="almost-sure")


def loss(x: Any, row: Any) -> jax.Array:
    """Coordinate by coordinate."""
    return jnp.sum((row["a"] * x - row["y"]) ** 2) / 2


def table(**more: Any) -> Any:
    return from_loss(loss, {**AY, **more}, start=np.zeros(2), constants=KNOWN, infimum=0.0)


def last(problem: Any, x0: Any = None, seeds: int = SEEDS) -> np.ndarray:
    return np.asarray(run(problem, STORM, problem.start() if x0 is None else x0, STEPS, seeds).last)


def data() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Columns that say nothing: the path is that of the table without them."""

    def part_of_x(x: Any, row: Any) -> jax.Array:
        return loss(x[:2], row)

    def numbered(x: Any, row: Any) -> jax.Array:
        return jnp.sum((row[1] * x - row[2]) ** 2) / 2

    def marked(x: Any, row: Any) -> jax.Array:
        return jnp.where(row["mark"], loss(x, row), 0.0) * row["one"] + 0 * row["id"]

    yield "unused integers", lambda: last(table(id=ID))
    yield "unused truth values, many seeds", lambda: last(table(b=ID > 9), seeds=70)[:SEEDS]
    yield "an unused constant", lambda: last(table(one=np.ones(ROWS)))
    several = {"_": ID, "b": ID > 3, "c": np.ones((ROWS, 4)), "d": np.ones((ROWS, 0))}
    yield "several unused", lambda: last(table(**several))
    yield "a tuple", lambda: last(from_loss(numbered, (ID, A, Y), start=np.zeros(2)))
    used = {**AY, "mark": np.ones(ROWS, bool), "one": np.ones(ROWS, np.int8), "id": ID}
    yield "used and without effect", lambda: last(from_loss(marked, used, start=np.zeros(2)))
    yield "a part of x", lambda: last(from_loss(part_of_x, {**AY, "id": ID}, start=np.zeros(4)))[:, :2]


@dataclass
class Plain:
    """A class that JAX does not know, with attributes that nobody uses."""

    sample: Any
    grad: Any = lambda x, batch: 2 * x
    table: Any = ()
    name: str = "plain"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Leaves:
    """One that it knows."""

    scale: Any
    unused: Any

    def sample(self, key: jax.Array, n: int) -> Any:
        return jax.random.normal(key, (n,)), jnp.arange(n)

    def grad(self, x: Any, batch: Any) -> Any:
        return self.scale * x + 0 * jnp.mean(batch[0])


def classes() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Gradients 2 x, whatever samples there are: seven steps towards 0."""
    x0 = np.ones(2)

    def normal(key: jax.Array, n: int) -> Any:
        return jax.random.normal(key, (n, 2))

    samples: dict[str, Any] = {
        "unused samples": normal,
        "samples that are zero": lambda key, n: jnp.zeros((n, 2)),
        "samples of all types": lambda key, n: (normal(key, n), jnp.ones(n, bool), jnp.arange(n), jnp.ones((n, 0))),
    }
    for name, sample in samples.items():
        yield name, lambda sample=sample: last(Plain(sample), x0)
    yield "unused attributes", lambda: last(Plain(normal, table={"a": ID, "b": [ID > 3, "text"]}), x0)
    yield "unused leaves", lambda: last(Leaves(2.0, {"a": ID, "b": ID > 3, "c": 1.0, "d": np.ones(0)}), x0)
    yield (
        "a gradient of the samples' constants",
        lambda: last(Plain(samples["samples of all types"], lambda x, batch: 2 * x * jnp.mean(batch[1])), x0),
    )

    def pulled(x: Any, sample: Any) -> jax.Array:
        return jnp.sum(x**2)

    yield "a sampler of which nothing is used", lambda: last(from_loss(pulled, normal, start=x0))


def whole() -> None:
    """The main job, from Python."""
    print("minimize", flush=True)
    found = minimize(table(id=ID, b=ID > 3), budget=400, confidence=0.9, method="plan", samples=32, progress=False)
    assert np.isfinite(found.certificate.upper_bound)


def compared(cases: Iterator[tuple[str, Callable[[], Any]]], expected: np.ndarray) -> None:
    for name, case in cases:
        print(name, flush=True)
        np.testing.assert_allclose(case(), expected, rtol=1e-9, atol=1e-12, err_msg=name)


def main(folder: str) -> None:
    jax.config.update("jax_enable_x64", True)
    compared(data(), last(table()))
    compared(classes(), np.full((SEEDS, 2), 1 - STEPS * 0.01 / 2**0.5))
    whole()
    print(LAST, flush=True)
    os.chdir(folder)
    sys.argv = [
        "normstorm",
        "run",
        f"{__file__}:problem",
        "--target",
        "2",
        "--method",
        "plan",
        "--samples",
        "64",
        "--seeds",
        "2",
    ]
    process()


def finished(*words: object) -> str:
    """What it printed. A program of the compilation cache is one that the same compiler took, with the same flags."""
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if " @ " not in line]  # no frames of XLA
    assert done.returncode == 0, "\n".join([f"exit code {done.returncode}", done.stdout[-500:], *said[-30:]])
    return done.stdout


def test_the_process_lives(tmp_path: Path) -> None:
    """From Python, and by the command."""
    names = [name for name, _ in (*data(), *classes())] + ["minimize", LAST]
    *shown, end = finished(__file__, tmp_path).splitlines()
    assert shown[: len(names)] == names and end == "report: build/run.html"


problem = table(id=ID, mark=ID > 3)

if __name__ == "__main__":
    main(sys.argv[1])
