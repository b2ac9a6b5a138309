"""From arrays to a certified point on data sets that scikit-learn ships, without a constant, beside other solvers.

    python -m benchmarks.lab.datasets [--only name,name] [--out benchmarks/results/datasets.json]

Columns are standardised, a column of ones is added, and rows are divided by their length (not for Huber's loss, where
the targets are standardised). The target is a hundredth of the first gradient norm.

normstorm      one of its ready models, a pass for the first gradient norm, and `minimize(problem, target=...)`: a race
               until a full pass certifies the target, exact, no confidence; the planning of its promise is included
L-BFGS         scipy's, which stops at that target (gtol, in the largest entry), with gradients compiled by JAX
scikit-learn   LogisticRegression (also for softmax) and SGDRegressor for Huber's loss, with their own tolerances; there
               is none for the robust loss

Seconds are CPU seconds of the process, which do not depend on what else the machine does: of the first call,
compilation included, in one process for each data set and after the imports; `again` is a second one. `wall` is the
time by the clock. Gradient norms are certified in the same way, whoever found the point.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.machine import describe
from benchmarks.pages import datasets_table, publish

RESULT = Path(__file__).parents[1] / "results" / "datasets.json"
SHARE = 0.01


class Case(NamedTuple):
    """A data set of `sklearn.datasets`, the loss, and its regulariser."""

    data: str
    loss: str
    l2: float


CASES = {
    "breast cancer, logistic": Case("load_breast_cancer", "logistic", 1e-3),
    "digits, softmax": Case("load_digits", "softmax", 1e-3),
    "wine, softmax": Case("load_wine", "softmax", 1e-3),
    "iris, softmax": Case("load_iris", "softmax", 1e-3),
    "diabetes, Huber": Case("load_diabetes", "huber", 1e-3),
    "diabetes, robust": Case("load_diabetes", "robust", 0.0),
}


def table_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets."""
    try:
        from sklearn import datasets
    except ImportError:
        words = "datasets: scikit-learn must be installed, its data sets are measured; got no such package"
        raise SystemExit(words) from None
    from normstorm.problems import unit_rows

    a, y = getattr(datasets, case.data)(return_X_y=True)
    spread = a.std(axis=0)
    a = (a - a.mean(axis=0))[:, spread > 0] / spread[spread > 0]
    a = np.column_stack([a, np.ones(len(a))])
    if case.data == "load_diabetes":
        y = (y - y.mean()) / y.std()
    return (a if case.loss == "huber" else unit_rows(a)), y


def problem_of(case: Case) -> Any:
    from normstorm import problems

    a, y = table_of(case)
    make: dict[str, Callable[..., Any]] = {
        "logistic": problems.logistic_regression,
        "softmax": problems.softmax_regression,
        "huber": problems.huber_regression,
        "robust": problems.robust_regression,
    }
    return make[case.loss](a, y, l2=case.l2)


def ours(case: Case) -> dict[str, Any]:
    """Arrays to certified point."""
    from normstorm import certify, minimize

    started, clock = time.process_time(), time.perf_counter()
    problem = problem_of(case)
    first = certify(problem, problem.start(), exact=True)
    target = SHARE * first.mean_norm
    found = minimize(problem, target=target, progress=False)
    told: dict[str, Any] = {"seconds": time.process_time() - started, "wall": time.perf_counter() - clock}
    told |= {"bound": found.certificate.upper_bound, "passes": (first.samples + found.sample_gradients) / problem.size}
    return told | {"sense": found.certificate.sense, "target": target, "certified": found.certificate.certified}


def lbfgs(case: Case, target: float) -> tuple[float, np.ndarray]:
    import jax
    from scipy.optimize import minimize

    started = time.process_time()
    problem = problem_of(case)
    x1 = np.asarray(problem.start())
    ask = jax.jit(lambda x: (problem.value(x), problem.full_grad(x)))

    def both(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = jax.device_get(ask(flat.reshape(x1.shape)))
        return float(value), np.asarray(gradient, float).ravel()

    options = {"gtol": target / np.sqrt(x1.size), "ftol": 0.0, "maxiter": 10_000, "maxfun": 100_000}
    found = minimize(both, x1.ravel(), jac=True, method="L-BFGS-B", options=options)
    return time.process_time() - started, found.x.reshape(x1.shape)


def sklearn_own(case: Case) -> tuple[float, np.ndarray] | None:
    if case.loss == "robust":
        return None
    from sklearn.linear_model import LogisticRegression, SGDRegressor

    a, y = table_of(case)
    started = time.process_time()
    if case.loss == "huber":
        model: Any = SGDRegressor(loss="huber", epsilon=1.0, alpha=case.l2, fit_intercept=False, random_state=0)
    else:
        model = LogisticRegression(C=1 / (case.l2 * len(a)), fit_intercept=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(a, y)
    x = model.coef_
    return time.process_time() - started, x if case.loss == "softmax" else np.ravel(x)


def measured(name: str) -> dict[str, Any]:
    """One data set, in this process."""
    import jax
    import scipy.optimize  # noqa: F401  not a part of what is timed
    import sklearn.linear_model  # noqa: F401

    from normstorm import certify

    jax.config.update("jax_enable_x64", True)
    case, problem = CASES[name], problem_of(CASES[name])
    mine, again = ours(case), ours(case)
    target = mine.pop("target")
    row: dict[str, Any] = {"name": name, "rows": problem.size, "numbers": int(np.size(problem.start()))}
    row |= {"target": target, "ours": mine | {"again": again["seconds"]}}
    for solver, found in (("lbfgs", lbfgs(case, target)), ("sklearn", sklearn_own(case))):
        if found is not None:
            bound = certify(problem, found[1], exact=True).upper_bound
            row[solver] = {"seconds": found[0], "bound": bound}
    row["advice"] = getattr(problem, "advice", "")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only")
    parser.add_argument("--one")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one)))
        return
    names = [n for n in CASES if options.only is None or any(part in n for part in options.only.split(","))]
    rows = []
    for name in names:
        call = [sys.executable, "-m", "benchmarks.lab.datasets", "--one", name]
        done = subprocess.run(call, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(rows[-1]), flush=True)
    report = {"machine": describe(), "share": SHARE, "rows": rows}
    publish(options.out, report, "evidence.md", "datasets", datasets_table(report))


if __name__ == "__main__":
    main()
