"""`normstorm run`, `problems` and `algorithms`: what they print, write and refuse, and how a run is interrupted."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import own
import pytest

from normstorm import Constants, minimize, plan
from normstorm.algorithms.catalogue import CATALOGUE
from normstorm.problems.registry import PROBLEMS
from normstorm.report.requests import RunRequest
from normstorm.report.run_page import page
from normstorm.report.run_report import RunReport
from normstorm.theory.plan import round_up

OWN = f"{Path(own.__file__)}:problem"
SAME = ["quadratic", "--target", "0.5", "--confidence", "0.95", "--seeds", "4", "--method", "plan", "--samples", "200"]
HOSTILE = "<script>alert(1)</script> & mine"
OBSERVED = {"median", "q95", "q99", "max"}


@pytest.fixture(autouse=True, scope="module")
def precision() -> Iterator[None]:
    """The command switches to double precision for its process; other tests keep theirs."""
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="module")
def report() -> RunReport:
    """The run of `SAME`, without the command."""
    problem = PROBLEMS["quadratic"].make()
    with jax.enable_x64(True):
        result = minimize(problem, target=0.5, confidence=0.95, seeds=4, method="plan", samples=200, progress=False)
    request = RunRequest("quadratic", target=0.5, confidence=0.95, seeds=4, method="plan", samples=200)
    date = datetime(2026, 1, 2, tzinfo=UTC)
    return RunReport(problem, request, "a <b>sum</b>", ("choose", "stop"), result, 1.5, date, "page.html")


class Page(HTMLParser):
    """Text outside scripts, and what would be loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.open: list[str] = []
        self.loads: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)


def test_json_is_the_run(run, report: RunReport) -> None:
    code, out, err = run("run", *SAME, "--json", "--report", "page.html")
    found = json.loads(out)
    expected = json.loads(json.dumps(report.to_dict()))
    assert (code, err) == (0, "") and found.keys() == expected.keys()
    differ = {key for key in found if found[key] != expected[key]}
    assert differ == {"problem", "seconds"}, "the description and the clock alone are the fixture's own"
    constants = report.problem.constants()
    assert found["constants"] == constants.to_dict()
    compared = found["plan"].pop("comparison")
    assert found["plan"] == json.loads(json.dumps(plan(constants, target=0.5, confidence=0.95).to_dict()))
    paper = plan(constants, target=0.5, confidence=0.95, rule="paper")
    assert (compared["rule"], compared["at"], compared["bound"]) == ("paper", "the same target", paper.bound)
    assert found["observed"]["seeds"] == 4 and found["observed"]["mean_grad_norm"].keys() == OBSERVED
    assert found["observed_bound"]["bound"] >= found["observed"]["mean_grad_norm"]["median"] * 0.5
    assert found["precision"]["dtype"] == "float64" and found["precision"]["adequate"] is True
    assert found["certificate"]["confidence"] == 0.95 and found["certificate"]["samples"] == 200
    assert found["sample_gradients"] == found["plan"]["sample_gradients"] + 8 * 200
    assert found["versions"].keys() == {"normstorm", "python", "numpy", "jax"} and found["seconds"] > 0
    assert [path.name for path in Path.cwd().iterdir()] == ["page.html"]


def test_a_users_file(run) -> None:
    words = ["--target", "0.5", "--seeds", "2", "--method", "plan", "--samples", "100", "--choose", "last", "--json"]
    code, out, err = run("run", OWN, *words)
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["constants"] == own.KNOWN.to_dict() and found["plan"]["confidence"] == 0.99
    assert found["problem"]["name"] == own.NAME and found["problem"]["dimension"] == 3
    true = np.linalg.norm(np.array(found["choice"]["x"]) - own.ROWS.mean(axis=0))
    assert 0 < true <= found["certificate"]["upper_bound"]
    text = Path("build/run.html").read_text(encoding="utf-8")
    assert own.NAME not in text and own.NAME in Page(text).text


def test_a_race(run) -> None:
    words = ["run", OWN, "--target", "0.2", "--seeds", "2"]
    code, out, err = run(*words, "--json")
    found = json.loads(out)
    race, certificate = found["race"], found["certificate"]
    assert (code, err) == (0, "") and found["method"] == "race" and race["ended_by"] == "fast arm"
    assert certificate["upper_bound"] <= 0.2 and certificate["sense"] == "exact" and found["x"] == found["choice"]["x"]
    true = np.linalg.norm(np.array(found["x"]) - own.ROWS.mean(axis=0))
    assert true <= certificate["upper_bound"] and found["value"]["kind"] == "all rows"
    assert found["sample_gradients"] == race["cost"] == race["search"] + race["testing"]
    assert race["promise_cost"] <= race["plan_cost"] and found["observed"]["violations"] == race["violations"] == 0
    code, out, err = run(*words)
    assert (code, err) == (0, "") and "nan" not in out and all(len(line) <= 80 for line in out.splitlines())
    for text in (out, Page(Path("build/run.html").read_text(encoding="utf-8")).text):
        shown = " ".join(text.split())
        assert certificate["guarantee"] in shown and f"{race['search']:,} (" in shown
        assert f"{race['plan_cost']:,} (" in shown and "nan" not in shown.split()
        assert any(f"{found['x'][0]:.{digits}g}" in shown for digits in (6, 8))  # terminal and page
        assert f"{found['value']['value']:.8g} (exact, all rows)" in shown


def test_table(run, report: RunReport) -> None:
    code, out, err = run("run", *SAME, "--no-progress")
    shown = " ".join(out.split())
    result = report.result
    assert (code, err) == (0, "")
    follows = result.observed_bound()["statement"]
    for sentence in (
        result.plan.guarantee,
        result.certificate.guarantee,
        result.promise,
        follows,
        "Defaults: choose, stop.",
    ):
        assert sentence in shown
    assert f"maximum {round_up(report.observed['mean_grad_norm']['max'])} {round_up(result.plan.bound)}" in shown
    assert "violations 0 of 4" in shown and f"the returned point {result.sample_gradients:,}" in shown
    assert out.splitlines()[-1] == "report: build/run.html" and Path("build/run.html").is_file()
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "\x1b" not in out


def test_page_stands_alone_and_escapes(report: RunReport) -> None:
    hostile = SimpleNamespace(name=HOSTILE, is_exact=True, infimum=0.0, infimum_kind="exact")
    asked = replace(report.request, problem=f"{HOSTILE}.py:x")
    report = replace(report, problem=hostile, request=asked, report='"><img src=x>.html')
    text = page(report)
    found = Page(text)
    assert found.loads == [] and found.open == []
    assert not re.search(r"(import|from|@import|url)\s*\(?['\"]?https?:", text)
    assert "default-src 'none'" in text
    assert HOSTILE in found.text and "a <b>sum</b>" in found.text
    assert HOSTILE not in text and "<b>" not in text
    plan_, certificate = report.result.plan, report.result.certificate
    precision = report.result.precision
    for sentence in (plan_.guarantee, certificate.guarantee, report.result.promise, report.command):
        assert sentence in found.text
    assert precision.statement in found.text and "float64" in found.text and "Warning" not in found.text
    assert repr(plan_.eta) in found.text and all(term.meaning in found.text for term in plan_.terms)
    assert f"proven bound {round_up(plan_.bound)}" in text
    assert jax.__version__ in found.text and np.__version__ in found.text
    assert [name for name in ("gradient", "value", "error") if f'vegaEmbed("#{name}"' not in text] == []


def test_diverged_seeds_are_shown(report: RunReport) -> None:
    trace = report.result.trace
    lost = np.array([0, 0, 17, 0])
    means = np.where(lost > 0, np.inf, trace.mean_grad_norm)
    norms = np.where((lost > 0)[:, None] & (trace.record_steps >= 17), np.nan, trace.grad_norm)
    broken = replace(trace, diverged_at=lost, mean_grad_norm=means, grad_norm=norms, value=norms, error=norms)
    found = replace(report, result=replace(report.result, trace=broken))
    shown = Page(page(found)).text
    assert "diverged seeds 1 of 4" in shown and "seeds above the bound 1 of 4" in shown
    assert "Diverged seeds seed step of the first number that is not finite 2 17" in shown
    observed = found.to_dict()["observed"]
    assert observed["violations"] == observed["diverged"] == 1
    assert observed["mean_grad_norm"]["max"] is None and observed["mean_grad_norm"]["median"] > 0


def test_too_few_digits_are_a_warning_on_the_page(report: RunReport) -> None:
    precision = replace(report.result.precision, dtype="float32", step_lost=0.4, bound=np.inf)
    found = replace(report, result=replace(report.result, precision=precision))
    shown = Page(page(found)).text
    assert f"Warning. {precision.statement}" in shown and "not kept in float32" in shown and "no bound follows" in shown
    shown = json.loads(json.dumps(found.to_dict(), allow_nan=False))["precision"]
    assert shown["adequate"] is False and shown["bound"] is None and shown["step_lost"] == 0.4


def test_sampled_problems_say_what_cannot_be_seen(report: RunReport) -> None:
    blind = SimpleNamespace(name="blind", is_exact=False, infimum=None, infimum_kind="unknown")
    trace = replace(report.result.trace, mean_grad_norm=np.full(4, np.nan))
    found = replace(report, problem=blind, result=replace(report.result, trace=trace))
    shown = Page(page(found)).text
    assert "not observable" in shown and "There are no charts" in shown and "diverged seeds 0 of 4" in shown
    assert "nan" not in shown and report.result.certificate.guarantee in shown
    assert "vegaEmbed" not in page(found)
    observed = json.loads(json.dumps(found.to_dict(), allow_nan=False))["observed"]
    assert observed["mean_grad_norm"] == dict.fromkeys(OBSERVED) and observed["violations"] is None


def interrupted(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; SIGINT from inside after the first chunk of steps, so no clock is needed."""
    code = "import os, signal, sys; from normstorm.solve.progress import Progress\n"
    code += "from normstorm.cli.main import main\n"
    # Whoever started the tests may have told all processes to ignore the signal.
    code += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "Progress.__enter__ = lambda self: lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
    code += "sys.argv = ['normstorm', *sys.argv[1:]]; main()"
    return subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True)


STREAM = """
import jax
import own
from normstorm.problems import from_loss

def box(key, n):
    return jax.random.uniform(key, (n, 3), minval=-0.5, maxval=0.5)

problem = from_loss(own.squares, box, start=own.START, constants=own.KNOWN, name="stream")
"""


def test_a_sampler_without_data(run, tmp_path: Path) -> None:
    (tmp_path / "stream.py").write_text(STREAM)
    words = ["run", "stream.py:problem", "--budget", "4000", "--seeds", "3", "--method", "plan", "--samples", "400"]
    code, out, err = run(*words, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "") and found["problem"]["is_exact"] is False
    assert found["observed"]["mean_grad_norm"] == dict.fromkeys(OBSERVED) and found["observed"]["diverged"] == 0
    assert 0 < np.linalg.norm(found["choice"]["x"]) <= found["certificate"]["upper_bound"], "grad F(x) = x"
    shown = Page(Path("build/run.html").read_text(encoding="utf-8")).text
    assert "F is only sampled here" in shown and "There are no charts" in shown and "nan" not in shown.split()
    code, out, err = run(*words)
    assert (code, err) == (0, "") and "F is only sampled here" in out and "nan" not in out


def test_interrupted_and_resumed(run, tmp_path: Path) -> None:
    words = ["run", *SAME, "--json", "--report", "page.html", "--checkpoint", "run.ckpt"]
    done = interrupted(words, tmp_path)
    sentence = "normstorm run: interrupted; the same command resumes from run.ckpt\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", sentence)
    assert [path.name for path in tmp_path.iterdir()] == ["run.ckpt"]

    _, whole, _ = run(*words[:-2])
    code, resumed, err = run(*words)
    assert (code, err) == (0, "")
    differ = {key for key, value in json.loads(whole).items() if json.loads(resumed)[key] != value}
    assert differ <= {"seconds"}

    code, out, err = run(*words, "--seeds", 3)
    assert (code, out) == (2, "") and err.startswith("normstorm run: run.ckpt must belong to this run")
    (tmp_path / "run.ckpt").write_bytes(b"something else")
    code, out, err = run(*words)
    assert (code, out) == (2, "") and err.startswith("normstorm run: run.ckpt must be an undamaged safetensors file")
    assert err.count("\n") == 1


def test_an_edited_file_does_not_resume_the_run_of_the_old_one(run, tmp_path: Path) -> None:
    text = Path(own.__file__).read_text()
    (tmp_path / "mine.py").write_text(text)
    words = [
        "run",
        "mine.py:problem",
        "--target",
        "0.5",
        "--method",
        "plan",
        "--seeds",
        "2",
        "--checkpoint",
        "run.ckpt",
    ]
    assert run(*words)[0] == 0 and (tmp_path / "run.ckpt").is_file()
    (tmp_path / "mine.py").write_text(text.replace("0.5 * jnp.sum((x - row) ** 2)", "0.5 * jnp.sum((x - row) ** 4)"))
    code, out, err = run(*words)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("normstorm run: run.ckpt must belong to this run; its fingerprint is ")
    (tmp_path / "mine.py").write_text(f"# {text}")
    assert run(*words)[0] == 0, "a comment is no other problem"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [([], "nothing is kept"), (["--checkpoint", "no.ckpt"], "the same command starts anew")],
)
def test_interrupted_with_nothing_to_resume(run, monkeypatch, words: list[str], sentence: str) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("normstorm.solve.minimize", interrupt)
    code, out, err = run("run", *SAME, *words)
    assert (code, out) == (130, "") and err.startswith("normstorm run: interrupted; ") and sentence in err
    assert list(Path.cwd().iterdir()) == []


REFUSALS = [
    ("nowhere --target 1", "problem must be path/to/file.py:name or one of dro-regression, "),
    ("quadratik", "problem must be path/to/file.py:name or one of dro-regression, "),
    ("quadratik --seeds 0 --target 1 --budget 9", "problem must be path/to/file.py:name or one of dro-regression, "),
    ("no.py:problem --target 1", "problem must name an existing Python file"),
    ("OWN:nothing --target 1", "problem must name something that the file defines"),
    ("OWN:without_constants --target 1 --method plan", "constants must be given to from_loss"),
    ("OWN:raises --target 1", "got TypeError at line "),
    ("quadratic", "exactly one of target, budget must be given; got neither"),
    ("quadratic --target 1 --budget 9 --method plan", "exactly one of target, budget must be given; got target=1.0, "),
    ("quadratic --target 1 --budget 9", "budget must be an integer >= 16; got budget=9"),
    ("quadratic --target 1 --method best", "method must be one of race, plan; got method='best'"),
    ("quadratic --target 1 --method plan --algorithm sgd", "algorithm must be None unless method is 'race'"),
    (
        "quadratic --target 1 --algorithm sgd",
        "algorithm must be one that needs no arguments, or an Algorithm; got",
    ),
    ("quadratic --target 1 --algorithm best", "algorithm must be None, an Algorithm or one of normalized_storm, "),
    ("quadratic --target 1 --choose last", "choose must be left out if method is 'race'; got choose='last'"),
    ("quadratic --target abc", "target must be a number; got target=abc"),
    ("quadratic --target -1", "target must be a finite number > 0"),
    ("quadratic --target nan", "target must be a finite number > 0"),
    ("quadratic --budget 1.5", "budget must be an integer of at most 30 digits"),
    ("quadratic --budget 0", "budget must be an integer in [1, "),
    ("quadratic --target 1e-3 --method plan", "target and budget must lead to at most "),
    ("quadratic --target 1 --confidence 1", "confidence must be a number in (0, 1); got confidence=1.0"),
    ("quadratic --target 1 --confidence 0.9999999999999999", "confidence must be at most 0.9999999999999991; got"),
    ("quadratic --target 1 --confidence 1e-300", "confidence must be at least 1e-16; got confidence=1e-300"),
    ("quadratic --target 1 --confidence x", "confidence must be a number; got confidence=x"),
    ("quadratic --target 1 --seeds 0", "seeds must be an integer in [1, 100000]; got seeds=0"),
    ("quadratic --target 1 --seeds many", "seeds must be an integer of at most 30 digits"),
    ("quadratic --target 1 --samples 1", "samples must be an integer in [2, 100000000]; got samples=1"),
    ("quadratic --target 1 --choose best", "choose must be one of two-phase, random, smallest, last"),
    ("quadratic --target 1 --report page.pdf", "report must end in .html; got page.pdf"),
    ("quadratic --target 1 --report no/page.html", "report must lie in an existing directory"),
    ("quadratic --target 1 --report folder.html", "report must be a writable file; got folder.html"),
    ("quadratic --target 1 --checkpoint a.html --report ./a.html", "report must be another file than the checkpoint"),
    ("quadratic --target 1 --checkpoint no/run.ckpt", "checkpoint must lie in an existing directory"),
    (f"quadratic --target 1 --checkpoint {'a' * 256}", "checkpoint must have a name of 1 to 240 bytes"),
    ("quadratic --target 1 --checkpoint folder.html", "checkpoint must be a writable file"),
    ("quadratic --target 1 --frobnicate", "No such option: --frobnicate"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSALS)
def test_refusals(run, words: str, sentence: str) -> None:
    Path("folder.html").mkdir()
    code, out, err = run("run", *(word.replace("OWN:", f"{own.__file__}:") for word in words.split()))
    assert (code, out) == (2, "")
    assert err.startswith("normstorm run: ") and sentence in err and err.count("\n") == 1
    assert [path.name for path in Path.cwd().iterdir()] == ["folder.html"]


def test_an_empty_name_is_no_problem(run) -> None:
    code, out, err = run("run", "", "--target", 1)
    assert (code, out) == (2, "") and err.endswith("; got problem=''\n") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("raise SystemExit(3)", "mine.py:problem must run without an error; got SystemExit: 3"),
        (
            "import dataclasses, own, sys\nproblem = dataclasses.replace(own.problem, known=lambda x: sys.exit(4))",
            "problem must run without an error; got SystemExit at line 2 of mine.py: 4",
        ),
    ],
)
def test_a_file_that_exits_is_refused(run, tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    assert run("run", "mine.py:problem", "--target", 1) == (2, "", f"normstorm run: {sentence}\n")


def test_defaults_are_for_the_default_problem(run, monkeypatch) -> None:
    asked = {}

    def remember(problem: object, **question: object) -> None:
        asked.update(question, name=problem.name)
        raise ValueError("minimize: enough")

    monkeypatch.setattr("normstorm.solve.minimize", remember)
    assert run("run") == (2, "", "normstorm run: enough\n")
    assert asked["name"] == "dro-regression" and asked["target"] > 0 and asked["seeds"] > 1
    start = PROBLEMS["dro-regression"].make().constants()
    assert asked["target"] < start.grad_norm, "the default must promise more than the start has"
    run("run", "--budget", 1000)
    assert asked["target"] is None and asked["budget"] == 1000


def test_problems(run) -> None:
    code, out, err = run("problems", "--json")
    rows = json.loads(out)
    assert (code, err) == (0, "") and [row["name"] for row in rows] == list(PROBLEMS)
    for row in rows:
        for sense, known in row["constants"].items():
            assert Constants(**known).noise == sense
        assert row["dimension"] >= 1 and row["infimum_kind"] in ("exact", "lower bound", "numerical")
    code, out, err = run("problems")
    assert (code, err) == (0, "") and all(len(line) <= 80 for line in out.splitlines())
    assert all(out.count(f" {row['name']} ") >= 3 for row in rows), "once in each table"


def test_algorithms(run) -> None:
    code, out, err = run("algorithms", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert (code, err) == (0, "") and rows.keys() == CATALOGUE.keys()
    assert all(row["source"] and row["cost"] and row["description"] for row in rows.values())
    assert "K + k" in rows["normalized_storm"]["cost"]
    assert "Liu, Jagabathula, Zhou" in rows["normalized_storm"]["source"]
    assert rows["storm"].keys() >= {"assumes", "rate", "state", "needs", "sample_gradients", "departures"}
    code, out, err = run("algorithms")
    assert (code, err) == (0, "") and all(name in out for name in rows)
    assert all(len(line) <= 80 for line in out.splitlines())
    assert all(out.count(f"\n {word} ") == len(rows) for word in ("assumes", "rate", "state"))


def test_a_target_that_is_not_reached_has_an_exit_code_of_its_own(run, tmp_path: Path) -> None:
    """3, with the page and all that was found; as where samples contradict what the answer rests on."""
    words = ["run", f"{own.__file__}:without_constants", "--seeds", "1", "--json"]
    code, out, err = run(*words, "--target", "1e-9", "--budget", "200")
    found = json.loads(out)
    assert (code, err, found["certificate"]["certified"]) == (3, "", False) and Path("build/run.html").exists()
    assert run(*words, "--target", "0.1")[0] == 0
    text = "import own\nfrom dataclasses import replace\n"
    text += "problem = replace(own.problem, known=replace(own.KNOWN, gap=1e-3))\n"
    (tmp_path / "false.py").write_text(text)
    code, out, _ = run("run", "false.py:problem", "--target", "0.1", "--seeds", "1", "--json")
    assert code == 3 and json.loads(out)["contradictions"]["start"] > 0


def test_a_void_certificate_is_not_shown_as_certified(run, tmp_path, monkeypatch) -> None:
    """A stream whose samples are farther from their mean than is stated: no row and no tile says certified."""
    monkeypatch.chdir(tmp_path)
    lines = [
        "import jax, numpy as np",
        "from normstorm import Constants",
        "from normstorm.problems import from_loss",
        "known = Constants(1.0, 0.0, 0.01, 0.0, 4.0, noise='almost-sure')",
        "draw = lambda key, n: jax.random.uniform(key, (n, 2), minval=-1.0)",
        "problem = from_loss(lambda x, u: 0.5 * ((x - u) ** 2).sum(), draw, start=np.ones(2), constants=known)",
    ]
    (tmp_path / "loud.py").write_text("\n".join(lines))
    code, out, _ = run("run", "loud.py:problem", "--target", "0.5", "--seeds", "2", "--no-progress")
    shown = " ".join(out.split())
    assert code == 3 and "nothing is certified" in shown
    assert "seeds with a certified point 0 of 2" in shown and "largest void bound" in shown
    assert "is at most, void" in " ".join(Page(Path("build/run.html").read_text(encoding="utf-8")).text.split())
