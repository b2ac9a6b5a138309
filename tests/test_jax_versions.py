"""The engine's and the solver's tests with the lowest and with the newest JAX that pyproject.toml allows.

    python -m pytest -m study tests/test_jax_versions.py

Each makes an environment of its own, which takes some minutes and needs a package index.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOW, HIGH = re.search(r'"jax>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text()).groups()
FOLDERS = ("algorithms", "engine", "random", "solve")


@pytest.mark.study
@pytest.mark.parametrize("jax", [f"jax=={LOW}.0", f"jax>={LOW},<{HIGH}"])
def test_engine_and_solver(jax: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    others = tmp_path / "constraints.txt"
    others.write_text("\n".join(line for line in pins if not line.startswith(("jax==", "jaxlib=="))))
    pip = [python, "-m", "pip", "install", "--quiet", "--upgrade-strategy", "eager", "-c", others]
    subprocess.run([*pip, jax, "hatchling", "editables"], check=True)
    tools = ("pytest", "pytest-xdist", "hypothesis", "mpmath")
    subprocess.run([*pip, "--no-build-isolation", "-e", ROOT, jax, *tools], check=True)
    found = subprocess.run([python, "-c", "import jax; print(jax.__version__)"], capture_output=True, text=True)
    print(jax, "is", found.stdout.strip())
    tests = [str(ROOT / "tests" / folder) for folder in FOLDERS]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *tests]
    assert subprocess.run(command, cwd=ROOT, env=environment).returncode == 0
