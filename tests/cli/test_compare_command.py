"""`normstorm compare`: what it prints, writes and refuses, and how it is interrupted."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import own
import pyarrow.parquet as pq
import pytest

from normstorm.lab.compare.request import CompareRequest

OWN = f"{Path(own.__file__)}:problem"
WORDS = ["--problems", OWN, "--algorithms", "sgd,muon", "--budget", "600", "--seeds", "8", "--targets", "1.5,1"]
TABLES = ("rows", "targets", "choices", "verdicts", "bands", "seeds")
FILES = {"compare.html", "spec.toml", *(f"{name}.parquet" for name in TABLES)}


@pytest.fixture(autouse=True, scope="module")
def precision() -> Iterator[None]:
    """The command switches to double precision for its process; other tests keep theirs."""
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


def test_json_tables_and_page(run) -> None:
    code, out, err = run("compare", *WORDS, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "") and found["report"] == "build/compare/compare.html"
    assert found["spec"]["budget"] == 600 and found["spec"]["targets"] == [1.5, 1.0]
    assert [(row["algorithm"], row["kind"]) for row in found["rows"]] == [
        *(("sgd", "default"), ("sgd", "theorem"), ("muon", "default")),
    ]
    assert "matrix" in found["rows"][2]["reason"] and found["rows"][0]["seeds"] == 8
    assert found["sample_gradients"] == 2 * 8 * 600 and found["searched"] == 0
    assert [v["target"] for v in found["verdicts"]] == [1.5, 1.0, *3 * [None]]
    assert [v["goal"] for v in found["verdicts"]] == ["target", "target", "average", "last", "best"]
    assert found["rows"][0]["runaway"] is False and found["problems"][0]["settings_tried"] == 0
    assert {path.name for path in Path("build/compare").iterdir()} == FILES
    assert pq.read_table("build/compare/verdicts.parquet").to_pylist() == found["verdicts"]
    asked = CompareRequest.from_dict(
        {"problems": [OWN], "algorithms": ["sgd", "muon"], "budget": 600, "seeds": 8, "targets": [1.5, 1]}
    )
    assert CompareRequest.from_file("build/compare/spec.toml", {}) == asked

    words = found["command"].split()[1:]
    code, out, err = run(*words, "--no-progress")
    assert (code, err) == (0, "") and out.splitlines()[-1] == "page: build/compare/compare.html"
    assert "Cannot run: muon (x must be a matrix" in " ".join(out.split())
    again = pq.read_table("build/compare/seeds.parquet").to_pylist()
    assert [s["final"] for s in again if s["kind"] == "default"] and len(again) == 16


REFUSALS = [
    ("--problems nonsense", "problem must be path/to/file.py:name or one of dro-regression, "),
    ("--problems quadratic,quadratic", "problems must be different names"),
    ("--problems EMPTY", "problems must be different names"),
    ("--problems no.py:problem", "problem must name an existing Python file"),
    ("--problems OWN:nothing", "problem must name something that the file defines"),
    ("--problems OWN:without_constants", "problem must have proven constants; got 'my-problem'"),
    ("--problems OWN:raises --algorithms sgd", "got TypeError at line "),
    ("--algorithms foo", "algorithms must be all or some of normalized_storm, "),
    ("--algorithms EMPTY", "algorithms must be different names"),
    ("--budget 0", "budget must be an integer in [1, 1000000000]; got budget=0"),
    ("--budget 1.5", "budget must be an integer of at most 30 digits"),
    ("--budget 1e10", "budget must be an integer in [1, 1000000000]"),
    ("--seeds 1", "seeds must be an integer in [2, 100000]; got seeds=1"),
    ("--seeds many", "seeds must be an integer"),
    ("--tune-seeds 0", "tune-seeds must be an integer in [1, 10000]"),
    ("--tune-seeds x", "tune-seeds must be an integer of"),
    ("--first-seed -1", "first-seed must be an integer in [0, "),
    ("--targets a,b", "targets must be a number; got targets=a"),
    ("--targets EMPTY", "targets must be a number"),
    ("--targets 0", "targets must be different finite numbers > 0"),
    ("--targets nan", "targets must be different finite numbers > 0"),
    ("--targets 1,", "targets must be a number"),
    ("--spec missing.toml", "spec must be a readable file; got missing.toml (No such file or directory)"),
    ("--spec EMPTY", "spec must be a readable file; got an empty name"),
    ("--spec folder", "spec must be a readable file; got folder (Is a directory)"),
    ("--spec unknown.toml", "keys of a spec must be among problems, "),
    ("--spec wrong.toml", "budget must be an integer in [1, 1000000000]; got budget='many'"),
    ("--spec broken.toml", "spec must be a TOML file; got broken.toml ("),
    ("--out file/there", "out must be a writable directory, or lie in one; got file/there"),
    ("--out file", "out must be a writable directory, or lie in one; got file"),
    ("--out no/where", "out must be a writable directory, or lie in one; got no/where"),
    ("--out EMPTY", "out must be a writable directory, or lie in one; got an empty name"),
    ("--frobnicate", "No such option: --frobnicate"),
]
GIVEN = {"unknown.toml": "speed = 3\n", "wrong.toml": "budget = 'many'\n", "broken.toml": "budget\n", "file": ""}


@pytest.mark.parametrize(("words", "sentence"), REFUSALS)
def test_refusals(run, words: str, sentence: str) -> None:
    Path("folder").mkdir()
    for name, content in GIVEN.items():
        Path(name).write_text(content)
    given = ("" if word == "EMPTY" else word.replace("OWN:", f"{own.__file__}:") for word in words.split())
    code, out, err = run("compare", *given)
    assert (code, out) == (2, "")
    assert err.startswith("normstorm compare: ") and sentence in err and err.count("\n") == 1
    assert {path.name for path in Path.cwd().iterdir()} == {"folder", *GIVEN} and not any(Path("folder").iterdir())


def test_a_sampler_without_a_formula(run) -> None:
    text = "import jax, own\nfrom normstorm.problems import from_loss\n"
    text += "box = lambda key, n: jax.random.uniform(key, (n, 3))\n"
    text += "problem = from_loss(own.squares, box, start=own.START, constants=own.KNOWN, name='stream')\n"
    Path("stream.py").write_text(text)
    code, out, err = run("compare", "--problems", "stream.py:problem", "--algorithms", "sgd")
    assert (code, out) == (2, "") and err.count("\n") == 1 and not Path("build").exists()
    assert "problem must know grad F, which is what is measured; got 'stream.py:problem'" in err


def test_interrupted(tmp_path: Path) -> None:
    """SIGINT while one run is under way and others wait: nothing more is run and nothing is written."""
    code = "import os, signal, sys; from normstorm.lab.compare import bench as compare\n"
    code += "from normstorm.cli.main import main\n"
    code += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "def run(*args, progress, **options):\n    if signals: os.kill(os.getpid(), signals.pop())\n"
    code += "    for _ in range(10**9): progress(1, 2)\n"
    code += "signals = [signal.SIGINT]; compare.run = compare.run_lanes = run\n"
    code += "sys.argv = ['normstorm', *sys.argv[1:]]; main()"
    words = ["compare", "--problems", "quadratic", "--tune", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "normstorm compare: interrupted; nothing is kept\n" and list(tmp_path.iterdir()) == []
