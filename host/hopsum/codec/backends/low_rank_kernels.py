# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of factors of low rank, compiled by numba. factor_kernels has the definition.

No instruction has a fast-math flag and no call asks for a fused multiply-add, so that every processor rounds alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numba import extending
from numba.core import cgutils
from numpy.typing import NDArray

from hopsum.codec.backends.factor_kernels import LEAST_SINE_SQUARED, FactorKernels
from hopsum.codec.backends.jit import f32, f64, filled, kernel, read, scratch
from hopsum.codec.backends.vector_code import (
    Builder,
    Context,
    Kind,
    Made,
    Value,
    array_data,
    ir,
    load,
    shuffle,
    splat,
    store,
    vector,
)
from hopsum.codec.interface import Doubles, Floats
from hopsum_base.record_kernels import types

_I64, _F32, _F64 = types.int64, types.float32, types.float64
_FLOATS, _DOUBLES = vector(ir.FloatType(), 16), vector(ir.DoubleType(), 16)
_EIGHT = vector(ir.FloatType(), 8)
"""Eight sums of this type, and what is added to them, fit the registers of AVX2."""
_RUN: Final = 512
"""Elements of a column of each factor that are used for all rows of the matrix, then the next ones."""


@extending.intrinsic  # type: ignore[untyped-decorator]
def _product(_: Context, left: Kind, right: Kind) -> Made:
    """Return the product of two rows of as many elements, a multiple of 16, float64."""

    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        data = [array_data(context, builder, signature, arguments, at) for at in range(2)]
        elements = context.make_array(signature.args[0])(context, builder, arguments[0]).nitems
        total = cgutils.alloca_once_value(builder, ir.Constant(_DOUBLES, [0.0] * 16))
        zero, step = ir.Constant(ir.IntType(64), 0), ir.Constant(ir.IntType(64), 16)
        with cgutils.for_range_slice(builder, zero, elements, step) as (first, _count):
            values = [builder.fpext(load(builder, each, first, _FLOATS), _DOUBLES) for each in data]
            builder.store(builder.fadd(builder.load(total), builder.fmul(*values)), total)
        sums = builder.load(total)
        for half in (8, 4, 2, 1):
            low, high = (shuffle(builder, sums, sums, range(at, at + half)) for at in (0, half))
            sums = builder.fadd(low, high)
        return builder.extract_element(sums, ir.Constant(ir.IntType(32), 0))

    return types.float64(left, right), generate


@kernel(read(_F32, 2), filled(_F64))
def _gram(columns: Floats, out: Doubles) -> None:
    for a in range(columns.shape[0]):
        for b in range(a + 1):
            out[a, b] = _product(columns[a], columns[b])
            out[b, a] = out[a, b]


@kernel(read(_F64, 2), filled(_F64), filled(_F64, 1), filled(_F64), filled(_I64, 1))
def _triangle(gram: Doubles, lower: Doubles, inverse: Doubles, weights: Doubles, dependent: NDArray[np.int64]) -> None:
    rank = gram.shape[0]
    for a in range(rank):
        inverse[a] = f64(1) / np.sqrt(gram[a, a]) if gram[a, a] > f64(0) else f64(0)
    # The diagonal of `lower` has the inverse pivots.
    for a in range(rank):
        for b in range(a):
            rest = gram[a, b] * inverse[a] * inverse[b]
            for k in range(b):
                rest -= lower[a, k] * lower[b, k]
            lower[a, b] = rest * lower[b, b]
        rest = f64(1)
        for k in range(a):
            rest -= lower[a, k] * lower[a, k]
        lower[a, a] = f64(0)
        if inverse[a] > f64(0) and rest > f64(LEAST_SINE_SQUARED):
            lower[a, a] = f64(1) / np.sqrt(rest)
        else:
            dependent[0] += 1
    for a in range(rank):
        for b in range(rank):
            weights[a, b] = f64(0)
        weights[a, a] = lower[a, a]
        for b in range(a):
            rest = f64(0)
            for k in range(b, a):
                rest += lower[a, k] * weights[k, b]
            weights[a, b] = -(lower[a, a] * rest)
    for a in range(rank):
        for b in range(rank):
            weights[a, b] = weights[a, b] * inverse[b]


@kernel(read(_F32, 2), read(_F64, 2), filled(_F32))
def _combine(columns: Floats, weights: Doubles, out: Floats) -> None:
    total = scratch(512, f64)
    for first in range(0, columns.shape[1], 512):
        count = min(512, columns.shape[1] - first)
        for a in range(columns.shape[0]):
            for j in range(count):
                total[j] = f64(0)
            for b in range(a + 1):
                weight, column = weights[a, b], columns[b, first : first + count]
                for j in range(count):
                    total[j] += weight * f64(column[j])
            made = out[a, first : first + count]
            for j in range(count):
                made[j] = f32(total[j])


def _rows_of(count: int) -> Any:
    """Return an intrinsic that reconstructs so many rows, from row i on, of columns first to stop, a multiple of 8."""

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def rows_of(
        _: Context, left: Kind, mean: Kind, own: Kind, rest: Kind, out: Kind, i: Kind, first: Kind, stop: Kind
    ) -> Made:
        def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
            p, q, taken, kept, made = (array_data(context, builder, signature, arguments, at) for at in range(5))
            row, start, end = arguments[5:]
            rank, rows = _shape(context, builder, signature, arguments, 0)
            columns = _shape(context, builder, signature, arguments, 1)[1]
            zeros, step = ir.Constant(_EIGHT, [0.0] * 8), ir.Constant(ir.IntType(64), 8)
            totals = [cgutils.alloca_once(builder, _EIGHT) for _ in range(2 * count)]
            with cgutils.for_range_slice(builder, start, end, step) as (j, _count):
                for each in totals:
                    builder.store(zeros, each)
                with cgutils.for_range(builder, rank) as loop:
                    at = builder.add(builder.mul(loop.index, columns), j)
                    # Loaded once for all rows: loads are what limits one row.
                    rights = [load(builder, each, at, _EIGHT) for each in (q, taken)]
                    place = builder.add(builder.mul(loop.index, rows), row)
                    for number in range(count):
                        here = builder.add(place, ir.Constant(ir.IntType(64), number))
                        factor = splat(builder, builder.load(builder.gep(p, [here])), 8)
                        for which, right in enumerate(rights):
                            total = totals[2 * number + which]
                            builder.store(builder.fadd(builder.load(total), builder.fmul(factor, right)), total)
                for number in range(count):
                    here = builder.add(row, ir.Constant(ir.IntType(64), number))
                    at = builder.add(builder.mul(here, columns), j)
                    store(builder, builder.load(totals[2 * number]), made, at)
                    left_over = builder.fsub(load(builder, kept, at, _EIGHT), builder.load(totals[2 * number + 1]))
                    store(builder, left_over, kept, at)
            return context.get_dummy_value()

        return types.void(left, mean, own, rest, out, types.int64, types.int64, types.int64), generate

    return rows_of


def _shape(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value], place: int) -> Value:
    """Return the two lengths of the array that is argument number `place` of an intrinsic."""
    array = context.make_array(signature.args[place])(context, builder, arguments[place])
    return cgutils.unpack_tuple(builder, array.shape, 2)


_four_rows, _one_row = _rows_of(4), _rows_of(1)


@kernel(read(_F32, 2), read(_F32, 2), read(_F32, 2), filled(_F32), filled(_F32))
def _reconstruct(left: Floats, mean: Floats, own: Floats, rest: Floats, out: Floats) -> None:
    rank, rows, columns = left.shape[0], out.shape[0], out.shape[1]
    # Parts of one place in all rows follow each other, so that the factors' parts stay in the first cache. Matrices
    # pass through memory once.
    for first in range(0, columns, _RUN):
        stop = min(first + _RUN, columns)
        whole = first + (stop - first) // 8 * 8
        fours = rows // 4 * 4
        for i in range(0, fours, 4):
            _four_rows(left, mean, own, rest, out, i, first, whole)
        for i in range(fours, rows):
            _one_row(left, mean, own, rest, out, i, first, whole)
        if whole < stop:
            for i in range(rows):
                for j in range(whole, stop):
                    total, taken = f32(0), f32(0)
                    for k in range(rank):
                        total += left[k, i] * mean[k, j]
                        taken += left[k, i] * own[k, j]
                    out[i, j] = total
                    rest[i, j] -= taken


class CompiledFactorKernels(FactorKernels):
    """The numba backend. Its first calls compile, which takes seconds once per machine. They hold no lock."""

    name = "numba"

    def gram(self, columns: Floats) -> Doubles:
        made = np.empty((len(columns), len(columns)))
        _gram(columns, made)
        return made

    def fill_weights(self, gram: Doubles, weights: Doubles) -> int:
        dependent = np.zeros(1, np.int64)
        _triangle(gram, np.empty_like(gram), np.empty(len(gram)), weights, dependent)
        return int(dependent[0])

    def combine(self, columns: Floats, weights: Doubles) -> Floats:
        made = np.empty_like(columns)
        _combine(columns, weights, made)
        return made

    def reconstruct(self, left: Floats, mean: Floats, own: Floats, rest: Floats, out: Floats) -> None:
        _reconstruct(left, mean, own, rest, out)
