"""The limit of loops that are one program: asked for before XLA starts, and never against whoever has set it."""

import os
import subprocess
import sys

import pytest

OPTION = "xla_cpu_small_while_loop_byte_threshold"
ASKED = f"--xla_backend_extra_options={OPTION}="
SHOW = "from normstorm._shared.xla_flags import LIMIT; import os; print(LIMIT, os.environ.get('XLA_FLAGS', ''))"


def told(code: str, flags: str | None) -> list[str]:
    """What a process of its own prints."""
    given = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    given |= {} if flags is None else {"XLA_FLAGS": flags}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("before", "flags", "limit", "after"),
    [
        ("import normstorm", None, "65536", [ASKED + "65536"]),
        ("import jax", "--xla_dump_max_hlo_modules=1", "65536", ["--xla_dump_max_hlo_modules=1", ASKED + "65536"]),
        ("import jax; jax.devices()", None, "1024", []),
        ("import jax; jax.devices()", ASKED + "77", "77", [ASKED + "77"]),
    ],
    ids=["first", "after an import", "too late", "set by the user"],
)
def test_the_limit_in_force(before: str, flags: str | None, limit: str, after: list[str]) -> None:
    assert told(f"{before}; {SHOW}", flags) == [limit, *after]


ONE_PROGRAM = """
import normstorm, jax, jax.numpy as jnp
def walk(x, n): return jax.lax.fori_loop(0, n, lambda i, x: jnp.sin(x) + x[::-1], x)
text = jax.jit(walk).lower(jnp.ones(40), 9).compile().as_text()
print('xla_cpu_small_call' in text)
"""


@pytest.mark.parametrize(("flags", "whole"), [(None, "True"), (ASKED + "1", "False")])
def test_a_loop_of_few_numbers_is_one_program(flags: str | None, whole: str) -> None:
    assert told(ONE_PROGRAM, flags) == [whole]
