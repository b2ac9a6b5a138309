"""What comes out is JSON's, and says what went in."""

import json
import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from normstorm._shared.jsonable import jsonable
from normstorm.theory import Constants, plan


class Kind(Enum):
    WIDE = "wide"


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass
class Inner:
    values: Any


@dataclass
class Outer:
    inner: Inner
    hidden: int = 1

    def to_dict(self) -> dict[str, Any]:
        return {"inner": self.inner}


CASES = [
    (None, None),
    (True, True),
    (3, 3),
    (0.1, 0.1),
    ("é", "é"),
    (math.nan, None),
    (math.inf, None),
    (-math.inf, None),
    (np.float32(0.5), 0.5),
    (np.float64("nan"), None),
    (np.longdouble("0.5"), 0.5),
    (np.longdouble("inf"), None),
    (np.int8(3), 3),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.True_, True),
    (np.str_("u"), "u"),
    (np.array(0.5), 0.5),
    (np.array([[1.0, np.nan], [np.inf, 2.0]]), [[1.0, None], [None, 2.0]]),
    (np.array([1, True, "u", None], dtype=object), [1, True, "u", None]),
    (np.zeros((0, 2)), []),
    (jnp.array([0.5, np.inf]), [0.5, None]),
    (jnp.float32(0.5), 0.5),
    (torch.tensor([0.5, math.nan]), [0.5, None]),
    ((1, [2.0, {"a": math.nan}]), [1, [2.0, {"a": None}]]),
    ({np.int64(3): 4, True: 5, None: 6, 0.5: 7}, {"3": 4, "true": 5, "null": 6, "0.5": 7}),
    ({2, 1}, [1, 2]),
    (Path("a") / "b", "a/b"),
    (Kind.WIDE, "wide"),
    (Pair(1, np.inf), [1, None]),
    (Outer(Inner(np.array([1.0, np.inf]))), {"inner": {"values": [1.0, None]}}),
]


@pytest.mark.parametrize("given, expected", CASES, ids=[f"{i}" for i in range(len(CASES))])
def test_values(given: Any, expected: Any) -> None:
    found = jsonable(given)
    assert found == expected and type(found) is type(expected)
    assert json.loads(json.dumps(found, allow_nan=False)) == expected


@pytest.mark.parametrize(
    "given", [1j, b"u", object(), Inner, [np.complex64(1)], {"a": {"b": len}}, np.datetime64("2020")]
)
def test_what_json_has_no_word_for(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^jsonable: value must be a number, text, or made of them; got one of type "):
        jsonable(given)


def test_digits() -> None:
    given = {"a": [1 / 3, np.float32(1e10), 123456789], "b": np.array([2 / 3, np.nan])}
    assert jsonable(given, 3) == {"a": [0.333, 1e10, 123456789], "b": [0.667, None]}


def test_a_plan() -> None:
    found = plan(Constants(L0=1, L1=0, sigma0=1, sigma1=0, gap=1), horizon=100)
    assert jsonable(found) == json.loads(json.dumps(found.to_dict(), allow_nan=False))
