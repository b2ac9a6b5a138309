"""Small loops as one program: asked for before XLA starts, and never against whoever has set the limit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

OPTION = "xla_cpu_small_while_loop_byte_threshold"
ASKED = f"--xla_backend_extra_options={OPTION}="
OTHER = "--xla_dump_max_hlo_modules=1"
SHOW = """
from normstorm._shared.jax_internals import loops_are_programs
print(loops_are_programs(), os.environ.get('XLA_FLAGS', ''))
"""


def told(code: str, flags: str | None) -> str:
    """What a process of its own prints."""
    given = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    given |= {} if flags is None else {"XLA_FLAGS": flags}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("before", "flags", "after"),
    [
        ("", None, f"True {ASKED}65536"),
        ("import jax", f" {OTHER}  ", f"True {OTHER} {ASKED}65536"),
        ("import jax; jax.devices()", None, "False"),
        ("", ASKED + "1024", f"False {ASKED}1024"),
        (f"import normstorm; os.environ['XLA_FLAGS'] = '{OTHER}'", None, f"False {OTHER}"),
    ],
    ids=["first", "after an import", "too late", "set by the user", "taken back"],
)
def test_whether_small_loops_are_programs(before: str, flags: str | None, after: str) -> None:
    assert told(f"import os; {before or 'pass'}\nimport normstorm{SHOW}", flags) == after


def test_a_file_of_flags_is_left_alone(tmp_path: Path) -> None:
    """XLA ends the process if it cannot find it."""
    file = tmp_path / "flags"
    file.write_text("--xla_force_host_platform_device_count=5\n")
    assert told("import normstorm, jax; print(jax.device_count())", str(file)) == "5"


WRITES = """
import os, sys
if sys.argv[1:] == ["late"]:
    import jax
    jax.devices()
import numpy as np
from normstorm.algorithms import normalized_storm
from normstorm.engine import run
from normstorm.problems import get
try:
    storm = normalized_storm(alpha=0.1, eta=0.01)
    run(get("quadratic", dim=3), storm, np.ones(3, np.float32), 20, 1, checkpoint="file")
    print("done")
except ValueError as error:
    print(error)
"""


def test_a_checkpoint_is_refused_where_loops_go_another_way(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WRITES)
    given = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}

    def go(*words: str) -> str:
        command = [sys.executable, str(script), *words]
        done = subprocess.run(command, env=given, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    assert go() == "done\n" == go()
    assert "its small loops is 'one program', this run's is 'by operations'" in go("late")
