"""Options of the compiler are asked for only where it knows them."""

import jax
import numpy as np
import pytest

from normstorm._shared import jax_internals


def test_an_option_that_xla_does_not_know_is_left_out():
    assert not jax_internals._known("xla_no_such_option", 1)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="options of a CPU's compiler are not asked for on a GPU")
@pytest.mark.parametrize("asked", [(True, False), (False, True), (True, True), (False, False, True)])
def test_what_is_asked_compiles_and_changes_no_number_but_by_rounding(asked):
    def sums(x):
        return (x * x + 1).sum(axis=1)

    options, x = jax_internals.compiler_options(*asked), np.sin(np.arange(4096.0)).reshape(64, 64)
    assert len(options) <= sum(asked)
    np.testing.assert_allclose(jax.jit(sums, compiler_options=options)(x), jax.jit(sums)(x), rtol=1e-6)


def test_nothing_is_asked_that_is_not_wanted():
    assert jax_internals.compiler_options(wide=False) == {}


def test_a_gpu_is_asked_for_nothing(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert jax_internals.compiler_options(wide=True, quick=True, whole=True) == {}
