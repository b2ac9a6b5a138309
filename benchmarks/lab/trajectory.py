"""The trajectory certificate: an attack on it, and what it says of the plans' own runs.

    python -m benchmarks.lab.trajectory [--only attack|table] [--settings 240] [--runs 2000]
                                        [--problems a,b] [--seeds 3]

Attack: random settings in which noise, weights and steps work against it and know the error of the estimate, every run
checked after every block of 1, 8 or 100 steps. Beside violations it counts the one event behind each instance, a
supermartingale that reaches 1/delta: how much of delta is really spent. Table: for every problem of the registry the
plan for 100,000 sample gradients, confidence .95, and for its own runs the promised bound, the certified one from
constants alone and the one with the problem's ranges too, each over the true average. Writes results/trajectory.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import describe
from benchmarks.pages import RESULTS
from normstorm.algorithms.catalogue import from_plan
from normstorm.algorithms.observers import follow
from normstorm.engine.run import run
from normstorm.problems import registry
from normstorm.theory import trajectory as tr
from normstorm.theory.planner.planner import plan
from normstorm.theory.trajectory import Closure, Layout, Observed, Ranges

DELTA, HORIZON, D = 0.1, 401, 2
BLOCKS = 1, 8, 100  # steps that are followed together
BUDGET, CONFIDENCE = 100_000, 0.95
LAYOUTS = (tr.WHOLE, Layout(6, 2, 2, 1, 2, 2, 6, 1), Layout(4, 4, 2, 2, 0, 0, 2, 2, 2, 2))
NOISES, DIRECTIONS, STEPS, WEIGHTS, SOURCES = 2, 5, 5, 4, 3


class Setting(NamedTuple):
    """One opponent.

    noise       0: two points, the rarer one with chance q;  1: so that a piece lies at its centre with chance 1 - q
    direction   of two points: 0 at random, 1 that of the error, 2 against it, 3 turning with x, 4 that of m
    step        0 constant, 1 clipped, 2 long after m grew, 3 long where m points uphill, 4 anywhere
    weights     0 constant, 1 falling, 2 small while the error falls, 3 to and fro
    source      of ranges: 0 the problem, 1 constants, 2 both
    hidden      by how much, relatively, the weight depends on the samples of its step
    """

    noise: Any
    direction: Any
    step: Any
    weights: Any
    source: Any
    q: Any
    sigma0: Any
    sigma1: Any
    turning: Any
    alpha: Any
    eta: Any
    L1: Any
    hidden: Any
    start: Any


class Walk(NamedTuple):
    x: Any
    m: Any
    m_prev: Any
    error: Any  # m - grad F(x)
    before: Any  # the length of the error before
    followed: Any
    gradients: Any  # sums of theta times ||grad F|| and times the length of the error over steps before t
    errors: Any
    logs: Any  # of the supermartingales, (J,)
    broken: Any  # whether the theorem was, its bound of errors was, and any supermartingale reached 1/delta, (2 + J,)
    least: Any  # bound/true average, and bound/true sum of errors, the smallest so far


def opponents(rng: np.random.Generator) -> Setting:
    source = int(rng.integers(SOURCES))
    growing = source > 0 and rng.random() < 0.5
    return Setting(
        noise=int(rng.random() < 0.25),
        direction=int(rng.integers(DIRECTIONS)),
        step=int(rng.integers(STEPS - (source > 0))),
        weights=0 if source == 1 else int(rng.integers(WEIGHTS)),
        source=source,
        q=float(rng.choice([0.5, 0.2, 0.05, 0.01])),
        sigma0=float(10 ** rng.uniform(-1, 1)),
        sigma1=float(rng.uniform(0, 0.5)) * growing,
        turning=float(rng.uniform(0, 1)),
        alpha=float(10 ** rng.uniform(-1.7, -0.2)),
        eta=float(10 ** rng.uniform(-3, -1)),
        L1=float(rng.uniform(0, 1)) * growing,
        hidden=float(rng.choice([0.0, 0.0, 0.3])),
        start=float(rng.uniform(0.2, 2)),
    )


def drawn(s: Setting, key: Any, n: int, level: Any, toward: Any, v: Any) -> tuple[Any, Any]:
    """(n, D) noise vectors of mean 0 and length at most `level`, and the radius of a ball that holds them."""
    rare, turn = jax.random.split(key)
    hit = jax.random.uniform(rare, (n, 1)) < s.q
    two = jnp.where(hit, 1.0, -s.q / (1 - s.q)) * level
    angle = 2 * jnp.pi * jax.random.uniform(turn, (n,))
    anywhere = s.direction == 0
    points = jnp.where(anywhere, jnp.stack([jnp.cos(angle), jnp.sin(angle)], 1), toward) * two
    atom = jnp.where(hit, (1 - s.q) / s.q, -1.0) * v
    return jnp.where(s.noise == 1, atom, points), level * jnp.where(anywhere, 1.0, 0.5 / (1 - s.q)) * (1 + 1e-12)


def reach(cut: Layout, a: Any, known: Ranges, sure: Any) -> Any:
    """How far from its centre a piece may lie."""
    fresh, pair = a / cut.K, (1 - a) / cut.k
    head = (3 * pair + fresh) * known.change + fresh * (known.deviation + sure)
    tail = fresh * (known.change + known.deviation + sure)
    return jnp.maximum(cut.head * head, cut.tail * tail)


def unit(v: Any) -> Any:
    return v / jnp.maximum(jnp.linalg.norm(v), 1e-300)


def length(v: Any) -> Any:
    return jnp.linalg.norm(v, axis=-1)


@partial(jax.jit, static_argnames=("cut", "runs", "fresh", "block"))
def attack(s: Setting, fixed: Any, known: Any, cut: Layout, runs: int, seed: Any, fresh: int, block: int) -> Any:
    """All runs of one opponent against F(x) = ||x||^2/2: for each, what broke, and the smallest ratios.

    `known` is w_1, and the w that is kept once it is reached, or None.
    """
    first_w, settled = known
    x1 = jnp.array([s.start, 0.3 * s.start])
    bottom = 0.5 * jnp.sum(x1 * x1)
    closure = Closure(1 + s.turning, s.L1, s.sigma0, s.sigma1, bottom, length(x1))
    J = len(tr.QUIETER)

    # Ranges from one source alone: those of the other are too large to count.
    closure = closure._replace(
        sigma0=jnp.where(s.source == 0, jnp.inf, s.sigma0), L0=jnp.where(s.source == 0, 1e300, 1 + s.turning)
    )

    def stated(spread: Any, change: Any) -> Ranges:
        return Ranges(*(jnp.where(s.source == 1, jnp.inf, v) for v in tr.from_problem(spread, change)))

    def weight(t: Any, w: Walk) -> Any:
        quiet = jnp.where(length(w.error) < w.before, 0.3, 1.5) * s.alpha
        rules = s.alpha, t ** (-2 / 3), quiet, s.alpha * jnp.where(t % 7 < 4, 1.0, 0.2)
        return jnp.clip(jnp.select([s.weights == i for i in range(WEIGHTS)], rules), 1e-3, 1.0)

    def moved(w: Walk, key: Any) -> Any:
        size, old = length(w.m), length(w.m_prev)
        long = jnp.where(size > old, 2.0, 0.2), jnp.where(w.m @ w.x < 0, 2.0, 0.2)
        rules = 1.0, jnp.minimum(1.0, size), *long, 1.0
        eta = s.eta * jnp.select([s.step == i for i in range(STEPS)], [jnp.asarray(r, float) for r in rules])
        return w.x - eta * jnp.where(s.step == 4, unit(jax.random.normal(key, (D,))), unit(w.m))

    def check(w: Walk) -> Walk:
        last = tr.last_weight(jnp, w.followed)
        true = (w.gradients + last * length(w.x)) / (w.followed.weight + last)
        off, most = w.errors + last * length(w.error), tr.errors(jnp, fixed, w.followed)
        bound = tr.average_bound(jnp, fixed, w.followed)
        event = w.logs >= jnp.log(1 / DELTA)
        broken = w.broken | jnp.concatenate([jnp.array([true > bound, off > most]), event])
        least = jnp.minimum(w.least, jnp.array([bound / jnp.maximum(true, 1e-300), most / jnp.maximum(off, 1e-300)]))
        return w._replace(broken=broken, least=least)

    def begin(key: Any) -> Walk:
        level = s.sigma0 + s.sigma1 * length(x1)
        noise, spread = drawn(s, key, fresh, level, unit(x1), unit(x1) * level * s.q)
        pieces = (x1 + noise).reshape(cut.firsts, -1, D).mean(1)
        m = jnp.mean(pieces, 0)
        counts = jnp.arange(1, cut.firsts)[:, None]
        squares = jnp.sum((pieces[1:] - jnp.cumsum(pieces, 0)[:-1] / counts) ** 2) / cut.firsts**2
        known = tr.smallest(jnp, [Ranges(level, level, 0.0), stated(spread, 0.0)])
        seen = tr.follow_first_step(jnp, fixed, cut, first_w, known, length(m), squares)
        zero = jnp.zeros(())
        broken, least = jnp.zeros(2 + J, bool), jnp.full(2, jnp.inf)
        return Walk(x1, m, m, m - x1, zero, seen, zero, zero, jnp.zeros(J), broken, least)

    def step(w: Walk, given: Any) -> Any:
        """One step of the run: the new walk, what is observed of it, and what is not."""
        t, key = given
        keys = jax.random.split(key, 3)
        x, x_old = moved(w, keys[0]), w.x
        far, a = length(x - x_old), weight(t, w)
        fresh_weight, pair = a / cut.K, (1 - a) / cut.k
        level, change = s.sigma0 + s.sigma1 * length(x), (1 + s.turning) * far
        angle = 20 * jnp.sum(x)
        ways = unit(w.error), -unit(w.error), jnp.stack([jnp.cos(angle), jnp.sin(angle)]), unit(w.m)
        toward = jnp.select([s.direction == i for i in range(1, DIRECTIONS)], ways, unit(w.error))
        lean = ((1 - a) * (x - x_old) + a * (x - w.m)) / a  # a piece of noise -lean would lie at its centre
        v = unit(lean) * jnp.minimum(length(lean), level * s.q / (1 - s.q) * jnp.minimum(1.0, (1 - s.q) / s.q))
        noise, spread = drawn(s, keys[1], cut.K, level, toward, v)
        turn = s.turning * far * noise / level
        here, there = x + noise, x_old + noise - turn
        k = cut.k
        mean = [jnp.mean(part, 0) for part in (here, here[:k], there[:k])]
        d_here = cut.head * noise[:k].reshape(cut.heads, -1, D).mean(1)
        d = d_here * fresh_weight + cut.head * pair * turn[:k].reshape(cut.heads, -1, D).mean(1)
        y = d + cut.head * (fresh_weight * x + pair * (x - x_old))
        head = jnp.sum((y - cut.head * fresh_weight * w.m) ** 2)
        tail = jnp.zeros(())
        if cut.tails:
            more = cut.tail * fresh_weight * noise[k:].reshape(cut.tails, -1, D).mean(1)
            tail = jnp.sum((more + cut.tail * fresh_weight * (x - w.m)) ** 2)
            d = jnp.concatenate([d, more])
        used = jnp.clip(a * (1 + s.hidden * jnp.sign(noise[0, 0])), 1e-4, 1.0)
        hidden = (used - a) * (mean[0] - w.m - mean[1] + mean[2])
        m = used * mean[0] + (1 - used) * (w.m + mean[1] - mean[2])
        seen = Observed(a, far, length(m), head, tail, length(hidden))
        after = w._replace(x=x, m=m, m_prev=w.m, error=m - x, before=length(w.error))
        return after, (seen, stated(spread, change), d, w.error, length(w.x))

    def together(w: Walk, given: Any) -> Any:
        after, rows = jax.lax.scan(step, w, given)
        n = given[0].shape[0]
        end, after = w.followed.t + n, after._replace(followed=w.followed)

        def part(w: Walk) -> Walk:
            """Until ranges grow: a part of the block, from where the last one ended."""
            old, done = w.followed, n - (end - w.followed.t)
            seen, local, d, error, gradient = jax.tree.map(lambda v: jnp.roll(v, -done, 0), rows)
            new = tr.follow_block(jnp, fixed, cut, closure, local, old, seen, n - done, settled, least=tr.SHORTEST)
            known = tr.smallest(jnp, [tr.from_constants(jnp, closure, fixed, old, seen.moved, n), local])
            terms = tr.block_terms(jnp, fixed, cut, known, old, seen, settled)
            taken = jnp.arange(n) < new.t - old.t

            def event(logs: Any, given: Any) -> Any:
                """What was paid for squares, against what they stand for."""
                place, here, weight, pieces, error = given
                e, gained = weight * (1 - here.alpha) * error[None] + jnp.zeros((J, 1)), jnp.zeros(J)
                for piece in pieces:
                    root = jnp.sqrt(jnp.sum(e * e, 1) + terms.p**2)
                    gained += weight * (e @ piece) / root + weight**2 / (2 * terms.p) * jnp.sum(piece * piece)
                    e = e + weight * piece
                gained -= terms.of_squares * weight**2 * (here.head + here.tail)
                counts = terms.observes & (place < terms.good) & taken[place]  # else it paid its range
                logs = logs + jnp.where(counts, gained / (1 / fixed.lam + fixed.B), 0.0)
                return logs, logs

            logs, every = jax.lax.scan(event, w.logs, (jnp.arange(n), seen, terms.w, d, error))
            return w._replace(
                followed=new,
                gradients=w.gradients + jnp.sum(jnp.where(taken, terms.theta * gradient, 0.0)),
                errors=w.errors + jnp.sum(jnp.where(taken, terms.theta * length(error), 0.0)),
                logs=logs,
                broken=w.broken.at[2:].max(jnp.any(every >= jnp.log(1 / DELTA), 0)),
            )

        return check(jax.lax.while_loop(lambda w: w.followed.t < end, part, after)), None

    def one(key: Any) -> Any:
        keys = jax.random.split(key, HORIZON)
        first = check(begin(keys[0]))
        steps = jnp.arange(2.0, HORIZON + 1), keys[1:]
        blocks = jax.tree.map(lambda v: v.reshape(-1, block, *v.shape[1:]), steps)
        last, _ = jax.lax.scan(together, first, blocks)
        return last.broken, last.least

    return jax.vmap(one)(jax.random.split(jax.random.key(seed), runs))


def attacked(settings: int, runs: int) -> dict[str, Any]:
    rng, rows, started = np.random.default_rng(16), [], time.process_time()
    for i in range(settings):
        s, cut = opponents(rng), LAYOUTS[i % len(LAYOUTS)]
        if i % 4 == 1:  # nothing but noise with or against the error: most of delta is spent
            s = s._replace(noise=0, direction=int(rng.integers(1, 3)), source=1, weights=0, step=0, sigma1=0.0, L1=0.0)
            s = s._replace(turning=0.0, hidden=0.0, eta=1e-3, q=float(rng.choice([0.5, 0.2, 0.1])), start=1e-3)
        level = s.sigma0 + s.sigma1 * s.start
        fixed = tr.instances(level, level, s.alpha, HORIZON, DELTA, cut)
        if i % 4:  # any numbers that are fixed before the run will do: of these the event is more likely
            off = level * (1 if s.source else 2)
            far = float(reach(cut, s.alpha, Ranges(level, off, 0.0), off)) / s.alpha
            lam = np.array([0.2, 0.4, 0.6, 0.8]) / far
            fixed = fixed._replace(lam=lam, B=10 ** rng.uniform(-1.5, 0, 4) / lam, p=10 ** rng.uniform(-1, 1) * fixed.p)
        fixed = jax.tree.map(jnp.asarray, fixed)
        fresh = cut.firsts * cut.first
        first_w = float(np.exp(-rng.choice([0.0, 1.0, 3.0]))) / s.alpha
        known = first_w, None if s.weights else 1 / s.alpha  # one that is settled, if weights are equal
        block = BLOCKS[i // len(LAYOUTS) % len(BLOCKS)]
        broken, least = attack(jax.tree.map(jnp.asarray, s), fixed, known, cut, runs, i, fresh, block)
        often = np.mean(np.asarray(broken), 0) / DELTA
        ratios = np.min(np.asarray(least), 0)
        rows.append({"theorem": often[0], "errors": often[1], "event": max(often[2:]), "least": ratios[0]})
        rows[-1] |= {"least_errors": ratios[1], "finite": bool(ratios[0] < np.inf), **s._asdict(), "layout": cut.K}
    found: dict[str, Any] = {name: max(r[name] for r in rows) for name in ("theorem", "errors", "event")}
    found |= {name: min(r[name] for r in rows) for name in ("least", "least_errors")}
    found |= {"finite": sum(r["finite"] for r in rows), "settings": settings, "runs": runs, "delta": DELTA}
    found["cpu_seconds"] = round(time.process_time() - started, 1)
    print(
        f"{settings} settings x {runs} runs of {HORIZON} steps, delta {DELTA}, every block checked: frequency/delta "
        f"at most "
        f"{found['theorem']:.3g} (theorem), {found['errors']:.3g} (sum of errors), {found['event']:.3g} (event); "
        f"bound/true at least {found['least']:.3g} (average), {found['least_errors']:.3g} (errors); "
        f"{found['finite']} settings with finite bounds; {found['cpu_seconds']} CPU seconds"
    )
    return {**{k: v if isinstance(v, int) else float(v) for k, v in found.items()}, "horizon": HORIZON}


def certified(name: str, seeds: int) -> dict[str, Any]:
    """One problem: medians over seeds of bounds over the true average of the same run.

    `ratio` is that of the smallest of the three, which holds with the sum of their deltas. The first steps have no
    weight in what is certified, and none in the average beside it; `all_steps` is over the average of all.
    """
    problem = registry.get(name)
    constants, x = problem.constants(None, "almost-sure"), problem.start()
    found = plan(constants, budget=BUDGET, confidence=CONFIDENCE)
    row: dict[str, Any] = {"problem": name, "promised": found.bound, "start": constants.first_gradient}
    row |= {"horizon": found.horizon, "batch": found.batch, "sub_batch": found.sub_batch, "seeds": seeds}
    known = {"steps": found.horizon, "delta": 1 - CONFIDENCE, "constants": constants}
    for kind, source in (("constants", SimpleNamespace(name=name)), ("ranges", problem)):
        algorithm = follow(from_plan(found), source, x, **known)
        trace, watch = run(problem, algorithm, x, found.horizon, seeds, candidates=1, records=2), algorithm.observer
        bounds = [
            float(tr.average_bound(np, watch.fixed, jax.tree.map(lambda leaf, i=i: leaf[i], trace.observer.followed)))
            for i in range(seeds)
        ]
        begins = tr.steps_to_settle(watch.first_w, found.alpha)
        every = true = trace.mean_grad_norm
        row |= {f"{kind}_all_steps": statistics.median(b / t for b, t in zip(bounds, true, strict=True))}
        if begins:
            early = run(problem, from_plan(found), x, begins, seeds, candidates=1, records=2).mean_grad_norm
            true = (found.horizon * true - begins * early) / (found.horizon - begins)
        row |= {"without_weight": begins, "true": statistics.median(true), kind: statistics.median(bounds)}
        row[f"{kind}_ratio"] = statistics.median(b / t for b, t in zip(bounds, true, strict=True))
        row[f"{kind}_least"] = min(b / t for b, t in zip(bounds, true, strict=True))
    row["promised_ratio"] = found.bound / statistics.median(every)
    row["ratio"] = min(row[f"{kind}_ratio"] for kind in ("promised", "constants", "ranges"))
    return {key: float(v) if isinstance(v, np.floating) else v for key, v in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["attack", "table"])
    parser.add_argument("--settings", type=int, default=240)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--problems", type=lambda text: text.split(","), default=list(registry.PROBLEMS))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    file = RESULTS / "trajectory.json"
    report = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    stamp = {"date": datetime.date.today().isoformat(), "machine": {**describe(), "jax": jax.__version__}}
    if given.only != "table":
        report["attack"] = {**stamp, **attacked(given.settings, given.runs)}
    if given.only != "attack":
        rows = {row["problem"]: row for row in report.get("table", {}).get("rows", ())}
        for name in given.problems:
            rows[name] = certified(name, given.seeds)
            r = rows[name]
            print(
                f"{name:22} true {r['true']:.4g}  promised {r['promised']:.4g} ({r['promised_ratio']:.2f})  constants "
                f"{r['constants']:.4g} ({r['constants_ratio']:.2f})  ranges {r['ranges']:.4g} "
                f"({r['ranges_ratio']:.2f})",
                flush=True,
            )
        names = "promised_ratio", "constants_ratio", "ranges_ratio", "ratio"
        middle = {name: statistics.median(r[name] for r in rows.values()) for name in names}
        report["table"] = {**stamp, "budget": BUDGET, "confidence": CONFIDENCE, "median": middle}
        report["table"]["rows"] = list(rows.values())
        shown = ", ".join(f"{value:.2f} ({name})" for name, value in middle.items())
        print(f"medians of bound/true over {len(rows)} problems: {shown}")
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
