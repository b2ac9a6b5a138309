"""The command: what it prints, what it refuses, and that a refusal leaves nothing behind."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from normstorm import Constants, __version__, plan
from normstorm.cli import process

CONSTANTS = {"L0": 1, "L1": 0, "sigma0": 1, "sigma1": 0, "gap": 1, "grad-norm": 1}
FLAGS = [word for name, value in CONSTANTS.items() for word in (f"--{name}", str(value))]
PROBLEM = Constants(L0=1, L1=0, sigma0=1, sigma1=0, gap=1, grad_norm=1)


def test_table(run) -> None:
    code, out, err = run("plan", *FLAGS, "--horizon", 100000, "--confidence", 0.99)
    expected = plan(PROBLEM, horizon=100_000)
    assert code == 0 and err == ""
    assert " ".join(expected.guarantee.split()) in " ".join(out.split())
    for shown in (repr(expected.alpha), repr(expected.beta), repr(expected.eta), "199,999"):
        assert shown in out
    assert all(term.name in out for term in expected.terms)
    assert "At the same horizon" in out and "paper's rule" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "\x1b" not in out


def test_anytime_table(run) -> None:
    code, out, err = run("plan", *FLAGS, "--horizon", 1000, "--anytime")
    expected = plan(PROBLEM, horizon=1000, anytime=True)
    assert code == 0 and err == ""
    assert " ".join(expected.guarantee.split()) in " ".join(out.split())
    for shown in (repr(expected.alpha), repr(expected.eta), repr(expected.shift), "100 to 1,000 steps", "1,999"):
        assert shown in out
    assert "After t steps" in out and "best for this t alone" in out
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (["--horizon", "1e3", "--anytime"], {"horizon": 1000, "anytime": True}),
        (["--horizon", "1e5"], {"horizon": 100_000}),
        (["--budget", "2e3", "--expectation"], {"budget": 2000, "confidence": None}),
        (["--horizon", "1000", "--rule", "paper"], {"horizon": 1000, "rule": "paper"}),
        (
            ["--horizon", "1000", "--batch", "4", "--sub-batch", "2", "--confidence", "0.9"],
            {"horizon": 1000, "batch": 4, "sub_batch": 2, "confidence": 0.9},
        ),
        (
            ["--horizon", "1000", "--certificate", "ville"],
            {"horizon": 1000, "certificate": "ville"},
        ),
    ],
)
def test_json_is_the_plan(run, words, question) -> None:
    code, out, err = run("plan", *FLAGS, *words, "--json")
    found = json.loads(out)
    comparison = found.pop("comparison")
    assert (code, err) == (0, "")
    assert found == json.loads(json.dumps(plan(PROBLEM, **question).to_dict()))
    other = question.get("rule") == "paper" or "anytime" in question
    assert comparison["rule"] == ("sharp" if other else "paper")


@pytest.mark.parametrize("question", [{"target": 0.5}, {"horizon": 1000}, {"budget": 2000}])
def test_comparison_asks_the_paper_the_same_question(run, question) -> None:
    [(name, value)] = question.items()
    _, out, _ = run("plan", *FLAGS, f"--{name}", value, "--expectation", "--json")
    ours = json.loads(out)
    theirs = plan(PROBLEM, **question, confidence=None, rule="paper")
    compared = ours["comparison"]
    assert compared["at"] == f"the same {name}"
    assert compared["horizon"] == theirs.horizon and compared["bound"] == theirs.bound
    assert compared["sample_gradients"] == theirs.sample_gradients
    assert compared["bound_ratio"] == theirs.bound / ours["bound"]
    cost_ratio = theirs.sample_gradients / ours["sample_gradients"]
    assert compared["sample_gradients_ratio"] == cost_ratio


def test_comparison_says_why_the_paper_cannot(run) -> None:
    words = ["plan", *FLAGS, "--sigma1", 1, "--horizon", 1000, "--batch", 4, "--expectation"]
    _, out, _ = run(*words)
    assert "No comparison with the paper's rule: batch must be an integer >= " in out
    _, out, _ = run(*words, "--json")
    assert "= 64" in json.loads(out)["comparison"]["reason"]


def test_constants_from_a_file_and_flags_above_it(run) -> None:
    lines = [f"{name} = {value}" for name, value in CONSTANTS.items()]
    Path("known.toml").write_text("\n".join(lines), encoding="utf-8")
    question = ["--constants", "known.toml", "--horizon", 1000, "--expectation", "--json"]
    _, out, _ = run("plan", *question)
    assert json.loads(out)["constants"] == PROBLEM.to_dict()
    _, out, _ = run("plan", *question, "--gap", 2, "--noise", "almost-sure")
    assert json.loads(out)["constants"] == PROBLEM.to_dict() | {"gap": 2, "noise": "almost-sure"}


def test_constants_in_mean_square_from_a_flag_or_a_file(run) -> None:
    both = replace(PROBLEM, mean_square=(0.5, 0, 0.25, 0)).to_dict()
    _, out, _ = run("plan", *FLAGS, "--mean-square", "0.5,0,0.25,0", "--horizon", 100, "--json")
    assert json.loads(out)["constants"] == both
    lines = [f"{name} = {value}" for name, value in CONSTANTS.items()]
    Path("known.toml").write_text("\n".join([*lines, "mean-square = [0.5, 0, 0.25, 0]"]), encoding="utf-8")
    _, out, _ = run("plan", "--constants", "known.toml", "--horizon", 100, "--json")
    assert json.loads(out)["constants"] == both
    for words, reason in (("2,0,1,0", "no number above the almost-sure one; got L0=2.0"), ("1,2", "a MeanSquare of")):
        code, _, err = run("plan", *FLAGS, "--mean-square", words, "--horizon", 100)
        assert code == 2 and reason in err


@pytest.mark.parametrize("suffix", ["html", "svg"])
def test_chart_is_written_and_named(run, suffix: str) -> None:
    file = Path(f"bound.{suffix}")
    code, out, err = run("plan", *FLAGS, "--horizon", 100, "--expectation", "--chart", file)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"chart: {file}"
    assert [path.name for path in Path.cwd().iterdir()] == [file.name]


REFUSALS = [
    ("--horizon 1.5", "horizon must be an integer of at most 30 digits"),
    ("--horizon ten", "horizon must be an integer of at most 30 digits"),
    ("--horizon 1e999999999", "horizon must be an integer of at most 30 digits"),
    ("--horizon 0", "horizon must be an integer in [1, "),
    ("--budget -3", "budget must be an integer in [1, "),
    ("--target abc", "target must be a number; got target=abc"),
    ("--target 0", "target must be a finite number > 0"),
    ("--target 1e-30 --rule paper", "target must be at least "),
    ("--horizon 9 --target 1", "exactly one of target, horizon, budget must be given"),
    ("", "exactly one of target, horizon, budget must be given; got none"),
    ("--horizon 9 --L0 -1", "L0 must be a finite number >= 0; got L0=-1.0"),
    ("--horizon 9 --gap nan", "gap must be a finite number >= 0; got gap=nan"),
    ("--horizon 9 --sigma0 inf", "sigma0 must be a finite number >= 0; got sigma0=inf"),
    ("--horizon 9 --sigma1 x", "sigma1 must be a number; got sigma1=x"),
    ("--horizon 9 --L0 0", "L0 and L1 must not both be 0"),
    ("--horizon 9 --gap 0", "gap must be > 0"),
    ("--horizon 9 --noise loud", "noise must be "),
    ("--horizon 9 --confidence 1", "confidence must be a number in (0, 1)"),
    ("--horizon 9 --expectation --confidence 0.9", "confidence must be left out with --expect"),
    ("--horizon 9 --batch 2 --sub-batch 3", "sub_batch must be an integer in [1, batch]"),
    ("--horizon 9 --rule best", "rule must be one of sharp, paper; got rule='best'"),
    ("--horizon 9 --certificate none", "certificate must be one of "),
    ("--horizon 9 --anytime --rule paper", "rule must be 'sharp' with anytime=True; got rule='paper'"),
    ("--horizon 9 --anytime --chart out.html", "chart must be left out with --anytime; got chart='out.html'"),
    ("--horizon 9 --chart out.jpg", "chart must end in one of .html, .svg, .png, .pdf"),
    ("--horizon 9 --chart no/out.html", "chart must lie in an existing directory"),
    ("--horizon 9 --chart folder.html", "chart must be a writable file; got folder.html"),
    ("--horizon 9 --constants no.toml", "constants must be a readable file; got no.toml"),
    ("--horizon 9 --constants broken.toml", "constants must be a TOML file; got broken.toml"),
    ("--horizon 9 --constants latin.toml", "constants must be a TOML file; got latin.toml"),
    ("--horizon 9 --constants unknown.toml", "keys of unknown.toml must be among L0, "),
    ("--horizon 9 --constants string.toml", "L0 in string.toml must be a number; got L0='1'"),
    ("--horizon 9 --constants truth.toml", "gap in truth.toml must be a number; got gap=True"),
    ("--horizon 9 --frobnicate", "No such option: --frobnicate"),
    ("--horizon", "requires an argument"),
]
FILES = {
    "broken.toml": b"L0 = ",
    "latin.toml": b"# caf\xe9",
    "unknown.toml": b"L2 = 1",
    "string.toml": b'L0 = "1"',
    "truth.toml": b"gap = true",
}


@pytest.mark.parametrize(("words", "sentence"), REFUSALS)
def test_refusals(run, words: str, sentence: str) -> None:
    for name, content in FILES.items():
        Path(name).write_bytes(content)
    Path("folder.html").mkdir()
    code, out, err = run("plan", *FLAGS, *words.split())
    assert (code, out) == (2, "")
    assert err.startswith("normstorm plan: ") and sentence in err
    assert err.count("\n") == 1
    assert {path.name for path in Path.cwd().iterdir()} == {*FILES, "folder.html"}


NO_TOML = {"no.toml": None, "broken.toml": b"L0 = ", "latin.toml": b"# caf\xe9", "deep.toml": b"L0 = " + 5000 * b"["}


@pytest.mark.parametrize("name", [*NO_TOML, "", "."])
def test_a_file_that_is_no_toml_is_refused_in_the_same_words_everywhere(run, name: str) -> None:
    if NO_TOML.get(name) is not None:
        Path(name).write_bytes(NO_TOML[name])
    said = []
    for command, option in (("plan", "constants"), ("compare", "spec")):
        code, out, err = run(command, f"--{option}", name)
        start = f"normstorm {command}: {option} must be a "
        assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith(start)
        said.append(err.removeprefix(start))
    assert said[0] == said[1] and f"; got {name or 'an empty name'} (" in said[0]


def test_missing_constants_are_named(run) -> None:
    code, out, err = run("plan", "--L0", 1, "--sigma0", 1, "--sigma1", 0, "--horizon", 9)
    assert (code, out) == (2, "")
    assert err.startswith("normstorm plan: ") and err.endswith("missing L1, gap\n")


def test_version_help_and_unknown_command(run) -> None:
    assert run("--version") == (0, f"normstorm {__version__}\n", "")
    code, out, _ = run()
    assert code == 0 and "plan" in out
    code, out, err = run("dance")
    assert (code, out) == (2, "") and err.startswith("normstorm: No such command 'dance'")


def test_module_runs_and_does_not_load_altair() -> None:
    code = "import runpy, sys; sys.argv = ['normstorm', *sys.argv[1:]]\n"
    code += "try: runpy.run_module('normstorm', run_name='__main__')\n"
    code += "except SystemExit as done: print(done.code, 'altair' in sys.modules, file=sys.stderr)"
    words = ["plan", *FLAGS, "--horizon", "100", "--expectation", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert json.loads(done.stdout)["horizon"] == 100
    assert done.stderr.split() == ["None", "False"]


@pytest.mark.parametrize(("code", "waits"), [(0, True), (2, True), (130, False)])
def test_an_interrupted_process_ends_at_once(code: int, waits: bool) -> None:
    """Without what Python does at its end, in which threads that still compile would crash."""
    text = "import atexit, sys; from normstorm.cli import main, process; atexit.register(print, 'waited')\n"
    text += f"main.main = lambda: sys.exit({code}); process.process()"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert (found.returncode, "waited" in found.stdout) == (code, waits)


COMPILING = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from normstorm._shared import files
from normstorm.cli import main, output, process

def writes(seconds):
    with files.whole():
        time.sleep(seconds)
        os.write(1, b"whole")

def stays():
    with output.exit_on_error("run", lambda: "left"):
        for turn in range(10**9):
            try:
                if turn == 0:
                    os.kill(os.getpid(), signal.SIGINT)
                {body}
            except KeyboardInterrupt:
                pass  # as in somebody else's callback

main.main = stays
process.process()
"""


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("time.sleep(60)", ""),
        ("writes(1) if turn == 1 else time.sleep(60)", "whole"),
    ],
)
def test_an_interruption_that_nobody_hears_ends_the_process(body: str, written: str) -> None:
    """The exception is swallowed, again and again; what writes a file is left to end."""
    text = COMPILING.format(body=body)
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=50)
    assert (found.returncode, found.stderr) == (130, "normstorm run: interrupted; left\n")
    assert found.stdout == written


def test_an_interruption_raises_nothing_while_jax_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception inside the import of its libraries ends the process; the thread answers in its place."""
    loading = SimpleNamespace(__spec__=SimpleNamespace(_initializing=True))
    monkeypatch.setitem(sys.modules, "jax", loading)
    process._unless_loading(2, None)
    loading.__spec__._initializing = False
    with pytest.raises(KeyboardInterrupt):
        process._unless_loading(2, None)
