"""What is to be compared, as a value, as a TOML file and as options; every refusal is one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from normstorm._shared import files, validate

ALL = "all"
PROBLEMS = ("noisy-valley", "dro-chi2", "phase-retrieval", "exp-quad")
MOST_BUDGET, MOST_SEEDS, MOST_TUNE_SEEDS, LAST_SEED = 10**9, 100_000, 10_000, 2**62


def _catalogue() -> tuple[str, ...]:
    # The command line reads the fields below before it knows whether JAX, which the catalogue imports, is needed.
    from normstorm.algorithms.catalogue import CATALOGUE, LISTENING

    return tuple(name for name in CATALOGUE if name not in LISTENING)


@dataclass(frozen=True)
class CompareRequest:
    """What is compared; `problems` are names or path/to/file.py:name. The words of a field are those of its option.

    targets      averages of the gradient norm to be reached; none: chosen from what the runs reach
    tune         search settings for every algorithm, with `tune_seeds` seeds after those of the comparison
    first_seed   the comparison has the seeds first_seed, first_seed + 1, ...
    """

    problems: Annotated[tuple[str, ...], "With commas: names, or path/to/file.py:name."] = PROBLEMS
    algorithms: Annotated[tuple[str, ...], "With commas; all if left out."] = field(default_factory=_catalogue)
    budget: Annotated[int, "Sample gradients of every run."] = 100_000
    seeds: Annotated[int, "Independent runs of every setting."] = 200
    targets: Annotated[tuple[float, ...], "With commas; chosen from the runs if left out."] = ()
    tune: Annotated[bool, "One small search for every algorithm."] = False
    tune_seeds: Annotated[int, "Runs of every setting in the search."] = 32
    first_seed: Annotated[int, "The first of the seeds."] = 0

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> CompareRequest:
        """From names to values, all of them checked; names may be written with - or _."""
        checked: dict[str, Any] = {}
        for name, value in given.items():
            key = name.replace("-", "_")
            if key not in CHECKS or key in checked:
                known = ", ".join(map(_key, CHECKS))
                raise ValueError(f"compare: keys of a spec must be among {known}, each at most once; got {name}")
            checked[key] = CHECKS[key](_key(key), value)
        return cls(**checked)

    @classmethod
    def from_file(cls, file: str, options: dict[str, Any]) -> CompareRequest:
        """What a TOML file asks for; options win."""
        given = files.toml_table("compare: spec", file)
        cls.from_dict(given)
        kept = {name: value for name, value in given.items() if name.replace("-", "_") not in options}
        return cls.from_dict(kept | options)

    def to_toml(self) -> str:
        """A file that asks for the same."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.algorithms == _catalogue():
            values["algorithms"] = ALL
        if not self.targets:
            del values["targets"]
        # TOML's strings, numbers, booleans and lists of them are written as in JSON.
        return "".join(f"{_key(name)} = {json.dumps(value)}\n" for name, value in values.items())


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
    known = _catalogue()
    if listed == (ALL,):
        return known
    for one in listed:
        if one not in known:
            raise ValueError(f"compare: {name} must be all or some of {', '.join(known)}; got {one!r}")
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
