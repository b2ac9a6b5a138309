"""Another content is another hash, and the same content is the same hash, whoever holds it."""

import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from normstorm._shared.hashing import content_hash
from normstorm.problems import registry

TABLE = np.arange(6.0).reshape(2, 3)
RECORDS = np.array([(1.0, 2.0)], [("a", float), ("b", float)])


@dataclass(frozen=True)
class Held:
    data: Any
    factor: float = 1.0


def scaled(x: float) -> float:
    return 2 * x


def different(*values: Any) -> bool:
    return len({content_hash(value) for value in values}) == len(values)


def test_hexadecimal_digits() -> None:
    found = content_hash("a", TABLE)
    assert len(found) == 64 and int(found, 16) and found == content_hash("a", TABLE.copy())


def test_values() -> None:
    assert different(1, 1.0, True, "1", b"1", None, (1,), [1], (1, ()), ((1,),), {1}, {1: 1}, ..., 1j)
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1}) != content_hash({"a": 2, "b": 1})
    assert content_hash({"u", "v", "w"}) == content_hash({"w", "v", "u"})
    assert content_hash("ab", "c") != content_hash("a", "bc") and content_hash(1, 2) != content_hash((1, 2))


def test_arrays() -> None:
    changed = TABLE.copy()
    changed[1, 2] += 1e-12
    assert different(
        TABLE, changed, TABLE.T, TABLE.ravel(), TABLE.astype(np.float32), TABLE.astype(int), TABLE.tolist()
    )
    assert content_hash(TABLE.T) == content_hash(np.ascontiguousarray(TABLE.T))
    assert different(np.zeros(3), -np.zeros(3), np.full(3, np.nan))
    assert different(np.zeros(2, np.float16), np.zeros(2, ml_dtypes.bfloat16), np.zeros(2, np.uint16))
    assert different(RECORDS, RECORDS.astype([("b", float), ("a", float)]), np.array([None, 1]), np.array([1, None]))


def test_numpy_and_jax_hold_the_same_content() -> None:
    single = TABLE.astype(np.float32)
    assert content_hash(jnp.asarray(single)) == content_hash(single) == content_hash(np.asarray(single))
    assert content_hash(np.float32(0.5)) == content_hash(np.array(0.5, np.float32)) == content_hash(jnp.float32(0.5))


def test_keys() -> None:
    one, two = jax.random.key(1), jax.random.key(2)
    assert different(one, two, jax.random.key(1, impl="rbg"), jax.random.key_data(one))
    assert content_hash(one) == content_hash(jax.random.key(1))


def test_objects_and_code() -> None:
    held = Held(TABLE)
    assert content_hash(held) == content_hash(Held(TABLE.copy()))
    assert different(held, replace(held, factor=2.0), replace(held, data=TABLE + 1), Held, scaled, lambda x: 3 * x)
    assert different(*({"factor": f, "inner": held} for f in (1.0, 2.0)))
    loop: dict[str, Any] = {}
    held = Held(loop)
    loop["held"] = held
    assert content_hash(held) != content_hash(Held({"held": None}))  # and the walk ends


def test_problems() -> None:
    names = ("quadratic", "cosh", "least-squares")
    assert different(*map(registry.get, names)) and different(*(registry.get("quadratic", dim=d) for d in (2, 3)))
    assert content_hash(registry.get("least-squares")) == content_hash(registry.get("least-squares"))


def test_processes_agree_and_do_not_need_jax() -> None:
    code = "import sys, numpy as np; from normstorm._shared.hashing import content_hash\n"
    code += "print(content_hash({'u': np.arange(6.0).reshape(2, 3)}, {'a', 'b', 'c'}), 'jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [content_hash({"u": TABLE}, {"a", "b", "c"}), "False"]
