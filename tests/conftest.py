"""Settings and fixtures shared by all tests."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from normstorm.cli.main import main

settings.register_profile("normstorm", deadline=None, derandomize=True)
settings.load_profile("normstorm")

CACHE = "JAX_COMPILATION_CACHE_DIR"


def pytest_configure(config: pytest.Config) -> None:
    """Workers and commands of one session compile a program once; every session begins with nothing."""
    gc.set_threshold(20_000, 20)  # compiled programs are many objects that stay: looking through them takes long
    if CACHE not in os.environ:
        config.own_cache = os.environ[CACHE] = tempfile.mkdtemp(prefix="normstorm-")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "own_cache"):
        shutil.rmtree(config.own_cache, ignore_errors=True)


DOUBLE = {"algorithms", "engine", "problems", "random"}  # folders whose tests run in double precision


@pytest.fixture(autouse=True)
def double_precision(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path.parent.name not in DOUBLE:
        yield
        return
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Call the command in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["normstorm", *map(str, words)])
        with pytest.raises(SystemExit) as done:
            main()
        out, err = capsys.readouterr()
        return done.value.code or 0, out, err

    return call
