"""What is to be compared, as a value, as a TOML file and as flags; every refusal is one sentence."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from normstorm.algorithms.catalogue import CATALOGUE

ALL = "all"
PROBLEMS = ("noisy-valley", "dro-chi2", "phase-retrieval", "exp-quad")
MOST_BUDGET, MOST_SEEDS, MOST_TUNE_SEEDS, LAST_SEED = 10**9, 100_000, 10_000, 2**62


@dataclass(frozen=True)
class Spec:
    """What is compared; `problems` are names or path/to/file.py:name.

    targets      averages of the gradient norm to be reached; none: chosen from what the runs reach
    tune         search a small grid for every algorithm, with `tune_seeds` seeds after those of the comparison
    first_seed   the comparison has the seeds first_seed, first_seed + 1, ...
    """

    problems: tuple[str, ...] = PROBLEMS
    algorithms: tuple[str, ...] = tuple(CATALOGUE)
    budget: int = 100_000
    seeds: int = 200
    targets: tuple[float, ...] = ()
    tune: bool = False
    tune_seeds: int = 16
    first_seed: int = 0

    def to_toml(self) -> str:
        """A file that asks for the same."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.algorithms == tuple(CATALOGUE):
            values["algorithms"] = ALL
        if not self.targets:
            del values["targets"]
        # TOML's strings, numbers, booleans and lists of them are written as in JSON.
        return "".join(f"{_key(name)} = {json.dumps(value)}\n" for name, value in values.items())


def make(given: dict[str, Any]) -> Spec:
    """From names to values, all of them checked; names may be written with - or _."""
    named: dict[str, Any] = {}
    for name, value in given.items():
        key = name.replace("-", "_")
        if key not in CHECKS or key in named:
            known = ", ".join(map(_key, CHECKS))
            raise ValueError(f"compare: keys of a spec must be among {known}, each at most once; got {name}")
        named[key] = CHECKS[key](_key(key), value)
    return Spec(**named)


def read(file: str, flags: dict[str, Any]) -> Spec:
    """What a TOML file asks for; flags win."""
    given = _table(file)
    make(given)
    return make({name: v for name, v in given.items() if name.replace("-", "_") not in flags} | flags)


def _table(file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        shown = file if file else "an empty name"
        raise ValueError(f"compare: spec must be a readable file; got {shown} ({error.strerror})") from None
    except RecursionError:
        raise ValueError(f"compare: spec must be a TOML file; got {file} (nested too deeply)") from None
    except ValueError as error:
        raise ValueError(f"compare: spec must be a TOML file; got {file} ({error})") from None


def _key(name: str) -> str:
    return name.replace("_", "-")


def _names(name: str, value: Any) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    good = isinstance(listed, list | tuple) and listed and all(isinstance(v, str) and v for v in listed)
    if not good or len(set(listed)) < len(listed):
        raise ValueError(f"compare: {name} must be different names, at least one; got {name}={value!r}")
    return tuple(listed)


def _algorithms(name: str, value: Any) -> tuple[str, ...]:
    listed = _names(name, value)
    if listed == (ALL,):
        return tuple(CATALOGUE)
    for one in listed:
        if one not in CATALOGUE:
            raise ValueError(f"compare: {name} must be all or some of {', '.join(CATALOGUE)}; got {one!r}")
    return listed


def _whole(least: int, most: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"compare: {name} must be an integer in [{least}, {most}]; got {name}={value!r}")
        return value

    return check


def _targets(name: str, value: Any) -> tuple[float, ...]:
    listed = value if isinstance(value, list | tuple) else [value]
    good = all(isinstance(v, int | float) and not isinstance(v, bool) and 0 < v < math.inf for v in listed)
    if not good or not listed or len(set(listed)) < len(listed):
        raise ValueError(f"compare: {name} must be different finite numbers > 0, at least one; got {name}={value!r}")
    return tuple(sorted(map(float, listed), reverse=True))


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"compare: {name} must be true or false; got {name}={value!r}")
    return value


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "problems": _names,
    "algorithms": _algorithms,
    "budget": _whole(1, MOST_BUDGET),
    "seeds": _whole(2, MOST_SEEDS),
    "targets": _targets,
    "tune": _flag,
    "tune_seeds": _whole(1, MOST_TUNE_SEEDS),
    "first_seed": _whole(0, LAST_SEED),
}
