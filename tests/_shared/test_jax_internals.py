"""Options of the compiler are asked for only where it knows them."""

import jax
import pytest

from normstorm._shared import jax_internals


def test_an_option_that_xla_does_not_know_is_left_out():
    assert not jax_internals._known("xla_no_such_option", 1)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="options of a CPU's compiler are not asked for on a GPU")
def test_what_is_asked_compiles_and_changes_no_number():
    def square(x):
        return x * x + 1

    options = jax_internals.compiler_options(quick=True)
    assert jax.jit(square, compiler_options=options)(3.0) == jax.jit(square)(3.0) == 10
    assert jax_internals.compiler_options(quick=False) == {}


def test_a_gpu_is_asked_for_nothing(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert jax_internals.compiler_options(quick=True) == {}
