"""Who may import whom, and what importing the package costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "normstorm"
ROOMS = {  # room: rooms of ours that it may import
    "theory": set(),
    "results": set(),
    "pytrees": set(),
    "compiler": set(),
    "modes": set(),
    "random": {"compiler"},
    "engine": {"results", "pytrees", "random", "compiler", "files"},
    "problems": {"pytrees", "random", "theory.constants"},
    "files": set(),
    "options": set(),
    "point_certificate": {"theory", "modes", "pytrees"},
    "solve": {"theory", "engine", "results", "point_certificate", "modes"},
    "torch": {"theory", "files", "pages"},
    "optax": {"theory"},
    "charts": {"theory", "files"},
    "curves": {"theory", "results"},
    "outcome": {"solve", "theory", "__version__"},
    "catalogue": {"engine.algorithms", "engine.facts", "problems", "outcome"},
    "tables": {"theory", "outcome"},
    "pages": set(),
    "report": {"theory", "outcome", "curves", "files", "pages"},
    "reproduction": {"lab.claims", "outcome", "curves", "files", "pages"},
    "lab": {"theory", "engine", "problems", "results", "solve", "torch", "optax", "charts", "outcome", "pages"},
    "commands": {"solve", "catalogue", "outcome", "report", "tables", "files", "options"},
    "compare_command": {"catalogue", "commands", "lab", "files", "options"},
    "reproduce_command": {"commands", "lab.claims", "reproduction", "files", "options"},
    "cli": {"theory", "charts", "tables", "commands", "compare_command", "reproduce_command", "options", "__version__"},
    "__init__": {"theory", "solve", "point_certificate"},
    "__main__": {"cli"},
}
OUTSIDE = {"theory": {"numpy", "scipy"}}  # beside the standard library, nothing else
NEVER = {"torch": {"jax"}, "engine": {"torch"}, "problems": {"torch"}}


def imports(file: Path) -> set[str]:
    """Absolute dotted names; `from a import b` counts as a.b, because b may be a module."""
    package = ("normstorm", *file.relative_to(SOURCE).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            stem = ".".join((*base, *([node.module] if node.module else [])))
            found |= {f"{stem}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("name", sorted(str(f.relative_to(SOURCE)) for f in SOURCE.rglob("*.py")))
def test_import_directions(name: str) -> None:
    file = SOURCE / name
    room = Path(name).with_suffix("").parts[0]
    assert room in ROOMS, f"say in ROOMS what {room} may import"
    for name in imports(file):
        if name.startswith("normstorm."):
            inner = name.removeprefix("normstorm.")
            allowed = ROOMS[room] | {room}
            assert any(f"{inner}.".startswith(f"{a}.") for a in allowed), f"{room} imports {name}"
        else:
            top = name.partition(".")[0]
            assert top not in NEVER.get(room, set()), f"{room} imports {name}"
            known = OUTSIDE.get(room, {top}) | sys.stdlib_module_names
            assert top in known, f"{room} imports {name}"


@pytest.mark.parametrize("module", ["normstorm", "normstorm.theory"])
def test_import_is_light(module: str) -> None:
    heavy = {"jax", "torch", "altair", "vl_convert", "typer", "rich", "scipy", "pandas"}
    code = f"import sys, {module}; print(*sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_needs_jax_comes_when_it_is_asked_for() -> None:
    code = "import sys, normstorm; before = 'jax' in sys.modules; run = normstorm.minimize\n"
    code += "from normstorm import Result, certify\n"
    code += "print(before, 'jax' in sys.modules, run.__name__, Result.__name__)\n"
    code += "print(normstorm.certify.__module__, certify is normstorm.certify, hasattr(normstorm, 'nothing'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = "False True minimize Result normstorm.point_certificate True False"
    assert done.stdout.split() == expected.split()


def test_the_command_plans_without_jax() -> None:
    code = "import sys, normstorm.cli; print(*sorted({'jax', 'altair', 'rich'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
