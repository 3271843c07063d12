# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of factors of low rank, compiled by numba. `hopsum.codec.low_rank` is the reference.

No instruction has a fast-math flag and no call asks for a fused multiply-add, so that every processor rounds alike.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import extending as numba_extending
from numba.core import cgutils

from hopsum.codec.backends.jit import filled, kernel, read, scratch, types
from hopsum.codec.backends.vector_code import array_data, ir, load, shuffle, vector
from hopsum.codec.interface import Doubles, Floats
from hopsum.codec.low_rank import LEAST_SINE_SQUARED, FactorKernels

_numba_cgutils: Any = cgutils
_extending: Any = numba_extending
f32, f64 = np.float32, np.float64
_I64, _F32, _F64 = types.int64, types.float32, types.float64
_TAKEN, _DOUBLES = vector(ir.FloatType(), 16), vector(ir.DoubleType(), 16)
_RUN: Final = 1024
"""Elements of a row that stay in the first cache while all columns of the factors are added to them."""


@_extending.intrinsic  # type: ignore[untyped-decorator]
def _product(_: Any, left: Any, right: Any) -> Any:
    """Return the product of two rows of as many elements, a multiple of 16, float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = [array_data(context, builder, signature, arguments, at) for at in range(2)]
        elements = context.make_array(signature.args[0])(context, builder, arguments[0]).nitems
        total = _numba_cgutils.alloca_once_value(builder, ir.Constant(_DOUBLES, [0.0] * 16))
        zero, step = ir.Constant(ir.IntType(64), 0), ir.Constant(ir.IntType(64), 16)
        with _numba_cgutils.for_range_slice(builder, zero, elements, step) as (first, _count):
            values = [builder.fpext(load(builder, each, first, _TAKEN), _DOUBLES) for each in data]
            builder.store(builder.fadd(builder.load(total), builder.fmul(*values)), total)
        sums = builder.load(total)
        for half in (8, 4, 2, 1):
            low, high = (shuffle(builder, sums, sums, range(at, at + half)) for at in (0, half))
            sums = builder.fadd(low, high)
        return builder.extract_element(sums, ir.Constant(ir.IntType(32), 0))

    return types.float64(left, right), generate


@kernel(read(_F32, 2), filled(_F64))
def _gram(columns: Any, out: Any) -> None:
    for a in range(columns.shape[0]):
        for b in range(a + 1):
            out[a, b] = _product(columns[a], columns[b])
            out[b, a] = out[a, b]


@kernel(read(_F64, 2), filled(_F64), filled(_F64, 1), filled(_F64), filled(_I64, 1))
def _triangle(gram: Any, lower: Any, inverse: Any, weights: Any, dependent: Any) -> None:
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
def _combine(columns: Any, weights: Any, out: Any) -> None:
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


@kernel(read(_F32, 2), read(_F32, 2), read(_F32, 2), filled(_F32), filled(_F32))
def _reconstruct(left: Any, mean: Any, own: Any, rest: Any, out: Any) -> None:
    # A part of a row stays in the first cache, so matrices pass through memory once. Parts of one place in all rows
    # follow each other, so the factors' parts stay there too.
    total, taken = scratch(_RUN, f32), scratch(_RUN, f32)
    rank, fours = left.shape[0], left.shape[0] // 4 * 4
    for first in range(0, out.shape[1], _RUN):
        count = min(_RUN, out.shape[1] - first)
        for i in range(out.shape[0]):
            for j in range(count):
                total[j] = f32(0)
                taken[j] = f32(0)
            for k in range(0, fours, 4):
                p0, p1, p2, p3 = left[k, i], left[k + 1, i], left[k + 2, i], left[k + 3, i]
                m0, m1 = mean[k, first : first + count], mean[k + 1, first : first + count]
                m2, m3 = mean[k + 2, first : first + count], mean[k + 3, first : first + count]
                for j in range(count):
                    total[j] = (((total[j] + p0 * m0[j]) + p1 * m1[j]) + p2 * m2[j]) + p3 * m3[j]
                o0, o1 = own[k, first : first + count], own[k + 1, first : first + count]
                o2, o3 = own[k + 2, first : first + count], own[k + 3, first : first + count]
                for j in range(count):
                    taken[j] = (((taken[j] + p0 * o0[j]) + p1 * o1[j]) + p2 * o2[j]) + p3 * o3[j]
            for k in range(fours, rank):
                p0, m0, o0 = left[k, i], mean[k, first : first + count], own[k, first : first + count]
                for j in range(count):
                    total[j] += p0 * m0[j]
                    taken[j] += p0 * o0[j]
            made, kept = out[i, first : first + count], rest[i, first : first + count]
            for j in range(count):
                made[j] = total[j]
                kept[j] -= taken[j]


class CompiledFactorKernels(FactorKernels):
    """The numba backend. Its first calls compile, which takes seconds once per machine. They hold no lock."""

    name = "numba"

    def gram(self, columns: Floats) -> Doubles:
        made = np.empty((len(columns), len(columns)))
        _gram(columns, made)
        return made

    def triangle(self, gram: Doubles, weights: Doubles) -> int:
        dependent = np.zeros(1, np.int64)
        _triangle(gram, np.empty_like(gram), np.empty(len(gram)), weights, dependent)
        return int(dependent[0])

    def combine(self, columns: Floats, weights: Doubles) -> Floats:
        made = np.empty_like(columns)
        _combine(columns, weights, made)
        return made

    def reconstruct(self, left: Floats, mean: Floats, own: Floats, rest: Floats, out: Floats) -> None:
        _reconstruct(left, mean, own, rest, out)
