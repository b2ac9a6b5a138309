"""The Triton programs behind `triton_launch`. One program takes one piece of one tensor.

Addresses come from a table, so that the compiler has to be told that they are aligned; and a piece that lies inside
its tensor goes without a mask. Without either it would read number by number.
"""

import triton
import triton.language as tl


@triton.jit
def _address(table, which, narrow: tl.constexpr):
    address = tl.load(table + which)
    if narrow:
        return tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)), 16)
    else:
        return tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def _read(start, at, size, whole: tl.constexpr):
    if whole:
        return tl.load(start + at).to(tl.float32)
    return tl.load(start + at, mask=at < size, other=0.0).to(tl.float32)


@triton.jit
def _write(start, at, size, value, whole: tl.constexpr):
    value = value.to(start.dtype.element_ty)
    if whole:
        tl.store(start + at, value)
    else:
        tl.store(start + at, value, mask=at < size)
    return value.to(tl.float32)


@triton.jit
def _blend(m_start, g_start, at, size, keep, take, whole: tl.constexpr):
    m = take * _read(g_start, at, size, whole)
    if keep != 0.0:  # an old m that is not finite must not live on
        m += keep * _read(m_start, at, size, whole)
    m = _write(m_start, at, size, m, whole)
    return tl.sum(m * m)


@triton.jit
def blend(
    m_table, g_table, pieces, sums, keep, take, m_narrow: tl.constexpr, g_narrow: tl.constexpr, SIZE: tl.constexpr
):
    row = pieces + 3 * tl.program_id(0)
    which, first, size = tl.load(row), tl.multiple_of(tl.load(row + 1), SIZE), tl.load(row + 2)
    at = first + tl.arange(0, SIZE)
    m_start, g_start = _address(m_table, which, m_narrow), _address(g_table, which, g_narrow)
    if first + SIZE <= size:
        tl.store(sums + tl.program_id(0), _blend(m_start, g_start, at, size, keep, take, True))
    else:
        tl.store(sums + tl.program_id(0), _blend(m_start, g_start, at, size, keep, take, False))


@triton.jit
def _squares(m_start, at, size, whole: tl.constexpr):
    m = _read(m_start, at, size, whole)
    return tl.sum(m * m)


@triton.jit
def squares(m_table, pieces, sums, m_narrow: tl.constexpr, SIZE: tl.constexpr):
    row = pieces + 3 * tl.program_id(0)
    which, first, size = tl.load(row), tl.multiple_of(tl.load(row + 1), SIZE), tl.load(row + 2)
    at = first + tl.arange(0, SIZE)
    m_start = _address(m_table, which, m_narrow)
    if first + SIZE <= size:
        tl.store(sums + tl.program_id(0), _squares(m_start, at, size, True))
    else:
        tl.store(sums + tl.program_id(0), _squares(m_start, at, size, False))


@triton.jit
def _shift(x_start, u_start, at, size, shrink, length, whole: tl.constexpr):
    x = _read(x_start, at, size, whole)
    u = _read(u_start, at, size, whole)
    _write(x_start, at, size, shrink * x - length * u, whole)


@triton.jit
def shift(x_table, u_table, pieces, shrink, length, x_narrow: tl.constexpr, u_narrow: tl.constexpr, SIZE: tl.constexpr):
    row = pieces + 3 * tl.program_id(0)
    which, first, size = tl.load(row), tl.multiple_of(tl.load(row + 1), SIZE), tl.load(row + 2)
    at = first + tl.arange(0, SIZE)
    x_start, u_start = _address(x_table, which, x_narrow), _address(u_table, which, u_narrow)
    if first + SIZE <= size:
        _shift(x_start, u_start, at, size, shrink, tl.load(length), True)
    else:
        _shift(x_start, u_start, at, size, shrink, tl.load(length), False)


@triton.jit
def _carry(x_start, m_start, g_start, at, size, shrink, length, keep, take, whole: tl.constexpr):
    x = _read(x_start, at, size, whole)
    m = _read(m_start, at, size, whole)
    g = _read(g_start, at, size, whole)
    _write(x_start, at, size, shrink * x - length * m, whole)
    _write(m_start, at, size, keep * m + take * g, whole)


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
    row = pieces + 3 * tl.program_id(0)
    which, first, size = tl.load(row), tl.multiple_of(tl.load(row + 1), SIZE), tl.load(row + 2)
    at = first + tl.arange(0, SIZE)
    x_start = _address(x_table, which, x_narrow)
    m_start, g_start = _address(m_table, which, m_narrow), _address(g_table, which, g_narrow)
    if first + SIZE <= size:
        _carry(x_start, m_start, g_start, at, size, shrink, tl.load(length), keep, take, True)
    else:
        _carry(x_start, m_start, g_start, at, size, shrink, tl.load(length), keep, take, False)
