# SPDX-License-Identifier: Apache-2.0
"""The kernels of ranges, compiled by numba: root mean squares of blocks, also of the sum of two vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numba import extending
from numba.core import cgutils
from numpy.typing import NDArray

from hopsum.codec.backends.jit import f32, f64, filled, kernel, read, scratch
from hopsum.codec.backends.thc_kernels import TURNS, claim_blocks
from hopsum.codec.backends.vector_code import Builder, Context, Kind, Made, Value, array_data, ir, load, shuffle, vector
from hopsum.codec.interface import Floats
from hopsum_base.record_kernels import types

_I64, _F32 = types.int64, types.float32
_SQUARED, _DOUBLES = vector(ir.FloatType(), 16), vector(ir.DoubleType(), 16)


def _squared_sum(builder: Builder, elements: Value, value_at: Callable[[Value], Value]) -> Value:
    """Return the sum of the squares of values, float64: 16 running sums, then the upper half onto the lower."""
    total = cgutils.alloca_once_value(builder, ir.Constant(_DOUBLES, [0.0] * 16))
    zero, step = ir.Constant(ir.IntType(64), 0), ir.Constant(ir.IntType(64), 16)
    with cgutils.for_range_slice(builder, zero, elements, step) as (first, _count):
        # A square of a float32 is exact in float64. Only the order of the sums matters, and it is that of the
        # reference: 16 lanes.
        values = builder.fpext(value_at(first), _DOUBLES)
        builder.store(builder.fadd(builder.load(total), builder.fmul(values, values)), total)
    sums = builder.load(total)
    # The order of the reference: another one rounds differently, and ranges of ranks would differ.
    for half in (8, 4, 2, 1):
        low, high = (shuffle(builder, sums, sums, range(at, at + half)) for at in (0, half))
        sums = builder.fadd(low, high)
    return builder.extract_element(sums, ir.Constant(ir.IntType(32), 0))


@extending.intrinsic  # type: ignore[untyped-decorator]
def _sum_squares(_: Context, row: Kind) -> Made:
    """Return the sum of the squares of a row."""

    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return _squared_sum(builder, array.nitems, lambda first: load(builder, array.data, first, _SQUARED))

    return types.float64(row), generate


@extending.intrinsic  # type: ignore[untyped-decorator]
def _sum_squares_of_sum(_: Context, left: Kind, right: Kind) -> Made:
    """Return the sum of the squares of the sum of two rows."""

    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        data = [array_data(context, builder, signature, arguments, at) for at in range(2)]
        elements = context.make_array(signature.args[0])(context, builder, arguments[0]).nitems

        def value_at(first: Value) -> Value:
            return builder.fadd(load(builder, data[0], first, _SQUARED), load(builder, data[1], first, _SQUARED))

        return _squared_sum(builder, elements, value_at)

    return types.float64(left, right), generate


@kernel(read(_F32, 1), _I64, TURNS, _I64, filled(_F32, 1))
def root_mean_square(x: Floats, size: int, turns: NDArray[np.int64], own: int, out: Floats) -> None:
    """Fill out with the root mean square of every block of `size` elements. The last one ends with zeros."""
    last = scratch(1024, f32)
    # Threads share the call: each takes blocks until none is left, so that a slow core delays the others by one turn.
    first, end = claim_blocks(turns, own, out.shape[0])
    while first < end:
        for block in range(first, end):
            here = x[block * size : (block + 1) * size]
            if here.shape[0] < size:
                for j in range(size):
                    last[j] = here[j] if j < here.shape[0] else f32(0)
                here = last[:size]
            out[block] = f32(np.sqrt(_sum_squares(here) / f64(size)))
        first, end = claim_blocks(turns, own, out.shape[0])


@kernel(read(_F32, 1), read(_F32, 1), _I64, TURNS, _I64, filled(_F32, 1))
def root_mean_square_of_sum(x: Floats, y: Floats, size: int, turns: NDArray[np.int64], own: int, out: Floats) -> None:
    """Fill out with the root mean square of every block of x + y, as `root_mean_square` of the sum."""
    last = scratch(1024, f32)
    first, end = claim_blocks(turns, own, out.shape[0])
    while first < end:
        for block in range(first, end):
            start, stop = block * size, (block + 1) * size
            left, right = x[start:stop], y[start:stop]
            if left.shape[0] == size:
                squares = _sum_squares_of_sum(left, right)
            else:
                for j in range(size):
                    last[j] = f32(left[j] + right[j]) if j < left.shape[0] else f32(0)
                squares = _sum_squares(last[:size])
            out[block] = f32(np.sqrt(squares / f64(size)))
        first, end = claim_blocks(turns, own, out.shape[0])
