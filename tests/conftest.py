"""Settings and fixtures shared by all tests."""

import ctypes
import functools
import gc
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import settings

from normstorm.cli.main import main
from normstorm.theory.planner import planner
from normstorm.theory.planner.allocate import Allocator
from normstorm.theory.planner.anytime import anytime_plan
from normstorm.theory.planner.solver import Answer

settings.register_profile("normstorm", deadline=None, derandomize=True)
settings.load_profile("normstorm")

CACHE = "JAX_COMPILATION_CACHE_DIR"
LARGE = 1.4e9  # bytes in memory, of which a third stays
FULL = 1e9  # bytes of compiled programs


def pytest_configure(config: pytest.Config) -> None:
    """A program is compiled once for all workers, commands and sessions."""
    gc.set_threshold(100_000, 50)  # compiled programs are many objects that stay: looking through them takes long
    if CACHE not in os.environ:
        os.environ[CACHE] = str(_cache())
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # also what is small: there are thousands


def pytest_collection_finish() -> None:
    """What was imported stays, and need not be looked through again."""
    gc.collect()
    gc.freeze()


def _cache() -> Path:
    """A folder of the environment, named after the versions; within it, JAX names a program after its own content."""
    content = hashlib.sha256(f"{sys.version} {version('jax')} {version('jaxlib')}".encode())
    folder = Path(sys.prefix) / "compilation-cache" / content.hexdigest()[:16]
    # JAX could keep the folder small itself, and would look through all of it whenever it writes.
    full = sum(file.stat().st_size for file in folder.glob("*")) > FULL
    for other in folder.parent.glob("*"):
        if full or other != folder:
            shutil.rmtree(other, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """What a worker has compiled stays in its memory: it forgets that after a test, if it has become large."""
    yield
    if "jax" in sys.modules and _resident() > LARGE:
        sys.modules["jax"].clear_caches()
        gc.collect()
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):  # else what was freed stays with the process
            libc.malloc_trim(0)


def _resident() -> int:
    """Bytes; 0 where the system does not say."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if file.exists() else 0


DOUBLE = {"algorithms", "engine", "problems", "random"}  # folders whose tests run in double precision


@pytest.fixture(autouse=True)
def double_precision(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path.parent.name not in DOUBLE:
        yield
        return
    import jax

    with jax.enable_x64(True):
        yield


FOUND: dict[tuple[object, ...], Answer] = {}
ANYTIME = functools.cache(anytime_plan)
SEARCHES = {"for_target": Allocator.for_target, "for_budget": Allocator.for_budget}


@pytest.fixture(autouse=True)
def plans_are_searched_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the planner's search found for a question is remembered, except by the tests of theory."""

    if "theory" not in request.path.parts:
        for name in SEARCHES:
            monkeypatch.setattr(Allocator, name, _remembered(name))
        monkeypatch.setattr(planner, "anytime_plan", ANYTIME)


def _remembered(name: str) -> Callable[[Allocator, float], Answer]:
    def search(self: Allocator, asked: float) -> Answer:
        question = (self.solver.constants, self.solver.delta, self.solver.pool, self.batch, self.sub_batch, name, asked)
        if question not in FOUND:
            FOUND[question] = SEARCHES[name](self, asked)
        return FOUND[question]

    return search


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
