"""What a user's file may look like; the tests of the command load it by its path."""

import jax.numpy as jnp
import numpy as np

from normstorm import Constants
from normstorm.problems.user import from_loss


def squares(x, row):
    return 0.5 * jnp.sum((x - row) ** 2)


def misshapen(x, row):
    return jnp.sum(x - row[:2])


START = np.ones(3)
ROWS = np.random.default_rng(0).uniform(-0.5, 0.5, (40, 3))
# ||grad f - grad F|| = ||row - mean|| <= sqrt 3, F >= 0 and F(x1) <= (3/2)^2 * 3/2.
KNOWN = Constants(L0=1, L1=0, sigma0=3**0.5, sigma1=0, gap=3.375, grad_norm=2.6, noise="almost-sure")
NAME = "squares <&> mine"

problem = from_loss(squares, ROWS, start=START, constants=KNOWN, infimum=0.0, name=NAME)
without_constants = from_loss(squares, ROWS, start=START)


def raises():
    return from_loss(misshapen, ROWS, start=START, constants=KNOWN)
