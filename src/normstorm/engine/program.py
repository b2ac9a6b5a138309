"""What is run on what, and the fixed sizes of the program that does it."""

from __future__ import annotations

from typing import Any, NamedTuple

from normstorm.algorithms.core import Algorithm


class Words(NamedTuple):
    """What is run on what."""

    problem: Any
    algorithm: Algorithm


class Shape(NamedTuple):
    """The program's fixed sizes.

    lanes    seeds advanced together: a group
    groups   groups served one after the other by one call, to spread its overhead
    block    steps whose noise is drawn at once, or lanes times steps
    axis     where the lanes lie in every array: last for small problems (-1), first for large ones (0)
    average  whether grad F is asked at every step (mean and minimum) or only at recorded ones
    exact    whether the problem knows grad F;   valued   whether it knows F
    kernel   whether the loop over steps is one kernel of a CPU
    marks    whether that kernel also records
    drawing  whether a block of noise is drawn by one kernel of a CPU
    span     steps of one call of a kernel that draws its noise itself
    wide     whether the lanes are many, as accelerators like it
    chip     whether the loop over steps is one kernel of a GPU, for all groups of a call
    cost     sample gradients of a step after the first, if they are known and x becomes x_prev; else 0
    """

    lanes: int
    groups: int
    block: int
    axis: int
    average: bool
    exact: bool
    valued: bool
    kernel: bool
    marks: bool
    drawing: bool
    span: int
    wide: bool
    chip: bool
    cost: int

    @property
    def whole(self) -> bool:
        """Whether one kernel draws the noise and takes the steps."""
        return self.kernel and self.drawing and self.block >= self.lanes

    @property
    def turns(self) -> bool:
        """Whether steps write over the older of two x in turns."""
        return self.kernel and self.cost > 0

    @property
    def few(self) -> int:
        """Steps whose noise is drawn at once for all lanes."""
        return self.block // self.lanes
