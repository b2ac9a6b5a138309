"""Who may import whom, and what importing the package costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "normstorm"
BELOW = {  # room: the rooms that it may import
    "_shared": "",
    "theory": "_shared",
    "random": "_shared",
    "problems": "_shared random theory",
    "algorithms": "_shared random theory",
    "engine": "_shared random algorithms problems",
    "solve": "_shared random theory problems algorithms engine",
    "lab": "_shared random theory problems algorithms engine solve",
    "report": "_shared theory engine solve lab",
    "torch": "_shared theory report",
    "optax": "_shared algorithms",
    "cli": "_shared theory problems algorithms engine solve lab report",
}
ROOT = {"__init__.py", "__main__.py", "py.typed"}
OUTSIDE = {"theory": {"numpy"}}  # beside the standard library, nothing else
NEVER = {"torch": {"jax"}}
SHARED = {  # names that more than one room defines, and why that is no second meaning
    "plan": "the command and the function that it calls",
    "run": "the command and the function that it calls",
    "reproduce": "the command and the function that it calls",
    "estimate_constants": "the command, and the functions for a problem in JAX and for a model in PyTorch",
    "load": "from a file: a problem, a checkpoint",
    "save": "for later: into a file, and an iterate of a run",
    "show": "print on the terminal",
    "rows": "a table as rows",
    "markdown": "a table as Markdown",
    "page": "an HTML page as text; PAGE is an algorithm that was published under this name",
    "normalized_storm": "the same algorithm for the engine and for optax",
    "newton_schulz": "the same iteration in JAX and in PyTorch",
}


def imports(file: Path) -> set[str]:
    """Absolute dotted names; `from a import b` counts as a.b, because b may be a module. Types alone do not count."""
    package = ("normstorm", *file.relative_to(SOURCE).parts[:-1])
    found = set()
    body = ast.parse(file.read_text(encoding="utf-8")).body
    run = [part for part in body if not isinstance(part, ast.If) or ast.unparse(part.test) != "TYPE_CHECKING"]
    for node in (inner for part in run for inner in ast.walk(part)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            stem = ".".join((*base, *([node.module] if node.module else [])))
            found |= {f"{stem}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("room", sorted(BELOW))
def test_import_directions(room: str) -> None:
    for file in (SOURCE / room).rglob("*.py"):
        for name in imports(file):
            top, _, rest = name.partition(".")
            if top == "normstorm":
                assert rest.partition(".")[0] in {room, "__version__", *BELOW[room].split()}, f"{file} imports {name}"
            else:
                assert top in OUTSIDE.get(room, {top}) | sys.stdlib_module_names, f"{file} imports {name}"
                assert top not in NEVER.get(room, ()), f"{file} imports {name}"


def test_every_module_has_a_room() -> None:
    here = {p.name for p in SOURCE.iterdir() if p.name != "__pycache__"}
    assert here == ROOT | BELOW.keys()


def test_a_word_has_one_meaning() -> None:
    rooms: dict[str, set[str]] = {}
    for file in SOURCE.rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                rooms.setdefault(node.name, set()).add(file.relative_to(SOURCE).parts[0])
    twice = {name: sorted(found) for name, found in rooms.items() if len(found) > 1}
    assert twice.keys() == SHARED.keys(), {name: twice.get(name) for name in twice.keys() ^ SHARED.keys()}


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
    expected = "False True minimize Result normstorm.solve.certify True False"
    assert done.stdout.split() == expected.split()


def test_the_command_plans_without_jax() -> None:
    code = "import sys, normstorm.cli.main; print(*sorted({'jax', 'altair', 'rich'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_step_is_read_in_few_files() -> None:
    """Every file of this package that `Algorithm.step` enters on its way to XLA, but for those of the problem."""
    import jax

    from normstorm.algorithms import normalized_storm
    from normstorm.problems import registry

    problem, storm, entered = registry.get("quadratic", dim=2), normalized_storm(alpha=0.1, eta=0.1), set()
    samples = storm.draw(problem, jax.random.key(0))
    state, _ = storm.first(problem, problem.start(), samples)
    before = sys.getprofile()
    sys.setprofile(lambda frame, *_: entered.add(frame.f_code.co_filename))
    try:
        jax.make_jaxpr(lambda state, samples: storm.step(problem, state, samples, 2)[0])(state, samples)
    finally:
        sys.setprofile(before)
    read = {str(Path(file).relative_to(SOURCE)) for file in entered if file.startswith(str(SOURCE))}
    read = {file for file in read if not file.startswith("problems")}
    assert {"algorithms/core.py", "algorithms/estimators.py", "algorithms/geometries.py"} < read
    assert len(read) <= 8, sorted(read)
