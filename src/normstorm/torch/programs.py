"""The Triton programs behind `kernels`. One program takes one piece of one tensor."""

import triton
import triton.language as tl


@triton.jit
def _read(table, which, at, inside, narrow: tl.constexpr):
    address = tl.load(table + which)
    if narrow:
        return tl.load(address.to(tl.pointer_type(tl.bfloat16)) + at, mask=inside, other=0.0).to(tl.float32)
    return tl.load(address.to(tl.pointer_type(tl.float32)) + at, mask=inside, other=0.0)


@triton.jit
def _write(table, which, at, inside, value, narrow: tl.constexpr):
    address = tl.load(table + which)
    if narrow:
        tl.store(address.to(tl.pointer_type(tl.bfloat16)) + at, value.to(tl.bfloat16), mask=inside)
    else:
        tl.store(address.to(tl.pointer_type(tl.float32)) + at, value, mask=inside)


@triton.jit
def _place(pieces, SIZE: tl.constexpr):
    row = pieces + 3 * tl.program_id(0)
    which = tl.load(row)
    at = tl.load(row + 1) + tl.arange(0, SIZE)
    return which, at, at < tl.load(row + 2)


@triton.jit
def blend(
    m_table, g_table, pieces, sums, keep, take, m_narrow: tl.constexpr, g_narrow: tl.constexpr, SIZE: tl.constexpr
):
    which, at, inside = _place(pieces, SIZE)
    g = _read(g_table, which, at, inside, g_narrow)
    m = take * g
    if keep != 0.0:  # an old m that is not finite must not live on
        m += keep * _read(m_table, which, at, inside, m_narrow)
    _write(m_table, which, at, inside, m, m_narrow)
    tl.store(sums + tl.program_id(0), tl.sum(m * m))


@triton.jit
def squares(m_table, pieces, sums, m_narrow: tl.constexpr, SIZE: tl.constexpr):
    which, at, inside = _place(pieces, SIZE)
    m = _read(m_table, which, at, inside, m_narrow)
    tl.store(sums + tl.program_id(0), tl.sum(m * m))


@triton.jit
def shift(x_table, u_table, pieces, shrink, length, x_narrow: tl.constexpr, u_narrow: tl.constexpr, SIZE: tl.constexpr):
    which, at, inside = _place(pieces, SIZE)
    x = _read(x_table, which, at, inside, x_narrow)
    u = _read(u_table, which, at, inside, u_narrow)
    _write(x_table, which, at, inside, shrink * x - tl.load(length) * u, x_narrow)


@triton.jit
def carry(
    x_table,
    m_table,
    g_table,
    pieces,
    shrink,
    length,
    keep,
    take,
    x_narrow: tl.constexpr,
    m_narrow: tl.constexpr,
    g_narrow: tl.constexpr,
    SIZE: tl.constexpr,
):
    which, at, inside = _place(pieces, SIZE)
    x = _read(x_table, which, at, inside, x_narrow)
    m = _read(m_table, which, at, inside, m_narrow)
    g = _read(g_table, which, at, inside, g_narrow)
    _write(x_table, which, at, inside, shrink * x - tl.load(length) * m, x_narrow)
    _write(m_table, which, at, inside, keep * m + take * g, m_narrow)
