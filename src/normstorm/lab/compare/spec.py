"""What is to be compared, as a value, as a TOML file and as flags; every refusal is one sentence."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from normstorm._shared import validate
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
        validate.refuse("compare", name, "different names, at least one", value)
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
    return lambda name, value: validate.whole("compare", name, value, least, most)


def _targets(name: str, value: Any) -> tuple[float, ...]:
    listed = value if isinstance(value, list | tuple) else [value]
    known = [validate.real(v) for v in listed]
    if not known or not all(map(validate.POSITIVE.holds, known)) or len(set(known)) < len(known):
        validate.refuse("compare", name, "different finite numbers > 0, at least one", value)
    return tuple(sorted(known, reverse=True))


def _flag(name: str, value: Any) -> bool:
    found = validate.truth(value)
    return validate.refuse("compare", name, "true or false", value) if found is None else found


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
