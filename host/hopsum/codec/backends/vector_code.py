# SPDX-License-Identifier: Apache-2.0
"""Building blocks of vector code: functions that append LLVM instructions to a builder, for intrinsics in thc_kernels.

The code has vector types and `shufflevector`: LLVM splits or widens each operation for SSE2, AVX2, AVX-512 or NEON, so
it runs on every processor for which numba compiles. One function, `look_up`, is an instruction that LLVM has by
processor, or comparisons where it has none. No instruction has a fast-math flag, and no call
asks for a fused multiply-add, so that every processor rounds alike.

Neither numba nor llvmlite ships types: their names here tell a reader what a type checker cannot. A `Builder` is an
`llvmlite.ir.IRBuilder`, a `Value` an `llvmlite.ir.Value`, a `Kind` a type or a signature of numba or llvmlite, a
`Context` numba's typing or target context, a `Loop` a context manager around the instructions of one turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding
import llvmlite.ir
from numba.core import cgutils, config

from hopsum.codec.hashing import LANE_FIRST, LANE_SECOND

ir: Any = llvmlite.ir
Builder = Any
Value = Any
Kind = Any
Context = Any
Loop = Any
Made = tuple[Kind, Callable[[Context, Builder, Kind, Sequence[Value]], Value]]
"""What an intrinsic gives numba: its signature, and the function that appends its instructions."""

_binding: Any = llvmlite.binding

LOOK_UP_BYTES = 16
"""Bytes of a table that `look_up` takes."""


def _look_up_instruction() -> str | None:
    """Return LLVM's name of this processor's look-up of bytes in a table of 16, None where it has none."""
    architecture = str(_binding.get_default_triple()).partition("-")[0]
    if architecture in ("aarch64", "arm64"):
        return "llvm.aarch64.neon.tbl1.v16i8"
    if architecture != "x86_64":
        return None
    # NUMBA_CPU_FEATURES names a processor older than this one: LLVM then refuses instructions that it does not name.
    has_look_up = _binding.get_host_cpu_features().get("ssse3", False)
    if config.CPU_FEATURES is not None:
        has_look_up = "+ssse3" in config.CPU_FEATURES.split(",")
    return "llvm.x86.ssse3.pshuf.b.128" if has_look_up else None


_LOOK_UP = _look_up_instruction()

_INDEX = ir.IntType(32)
_OFFSET = ir.IntType(64)


def vector(element: Kind, lanes: int) -> Kind:
    """Return the type of a vector of so many lanes."""
    return ir.VectorType(element, lanes)


def array_data(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value], place: int) -> Value:
    """Return the pointer to the first element of the array that is argument number `place` of an intrinsic."""
    return context.make_array(signature.args[place])(context, builder, arguments[place]).data


def load(builder: Builder, data: Value, first: int | Value, kind: Kind) -> Value:
    """Load a vector from the elements of data at `first` and after, at any address that the elements may have."""
    place = _place(builder, data, first, kind)
    return builder.load(place, align=_align(data))


def store(builder: Builder, value: Value, data: Value, first: int | Value) -> None:
    """Store a vector to the elements of data at `first` and after."""
    builder.store(value, _place(builder, data, first, value.type), align=_align(data))


def _place(builder: Builder, data: Value, first: int | Value, kind: Kind) -> Value:
    offset = ir.Constant(_OFFSET, first) if isinstance(first, int) else first
    return builder.bitcast(builder.gep(data, [offset]), kind.as_pointer())


def _align(data: Value) -> int:
    """Return the bytes of an element: numpy aligns elements, not vectors."""
    element = data.type.pointee
    # numpy promises the alignment of an element. A larger one would fault on rows that do not begin at it.
    return {"i8": 1, "i16": 2, "i32": 4, "float": 4, "double": 8}[str(element)]


def shuffle(builder: Builder, first: Value, second: Value, lanes: Sequence[int]) -> Value:
    """Return lanes of two vectors by number. Those of the second follow those of the first."""
    return builder.shuffle_vector(first, second, ir.Constant(vector(_INDEX, len(lanes)), list(lanes)))


def splat(builder: Builder, value: Value, lanes: int) -> Value:
    """Return a vector with the same value in every lane."""
    # Insert once and shuffle: LLVM makes one broadcast of it.
    nothing = ir.Constant(vector(value.type, lanes), ir.Undefined)
    return shuffle(builder, builder.insert_element(nothing, value, ir.Constant(_INDEX, 0)), nothing, [0] * lanes)


def constant(kind: Kind, value: int) -> Value:
    """Return a constant vector with the same value in every lane."""
    return ir.Constant(kind, [value] * kind.count)


def hadamard(builder: Builder, vectors: Sequence[Value]) -> list[Value]:
    """Return the Hadamard transform across integer vectors, a power of two of them, lane by lane."""
    done = list(vectors)
    stride = len(done) // 2
    while stride:
        for low in range(len(done)):
            if not low & stride:
                a, b = done[low], done[low + stride]
                done[low], done[low + stride] = builder.add(a, b), builder.sub(a, b)
        stride //= 2
    return done


def transpose(builder: Builder, rows: Sequence[Value]) -> list[Value]:
    """Return the columns of a square matrix, n vectors of n lanes, n a power of two.

    Each step exchanges the blocks off the diagonal of all 2s x 2s blocks, s = 1, 2, 4 .. n/2.
    """
    done, size = list(rows), 1
    while size < len(done):
        lanes = range(len(done))
        low = [lane if not lane & size else len(done) + lane - size for lane in lanes]
        high = [lane + size if not lane & size else len(done) + lane for lane in lanes]
        for row in lanes:
            if not row & size:
                a, b = done[row], done[row + size]
                done[row], done[row + size] = shuffle(builder, a, b, low), shuffle(builder, a, b, high)
        size *= 2
    return done


def negate_where(builder: Builder, values: Value, bits: Value, bit: int) -> Value:
    """Return int32 values, negated in the lanes whose bit number `bit` is set in `bits`."""
    # Move the bit to the sign, and spread it: -1 where it is set, 0 elsewhere.
    left = builder.shl(bits, constant(bits.type, 31 - bit))
    negative = builder.ashr(left, constant(bits.type, 31))
    return builder.sub(builder.xor(values, negative), negative)


def look_up(builder: Builder, table: Value, indices: Value) -> Value:
    """Return the byte of a table of 16 at each index, all below 16, a multiple of 16 of them."""
    if _LOOK_UP is None:
        # 16 comparisons: slow, and right on every processor.
        found = constant(indices.type, 0)
        for place in range(LOOK_UP_BYTES):
            byte = splat(builder, builder.extract_element(table, ir.Constant(_INDEX, place)), indices.type.count)
            here = builder.icmp_unsigned("==", indices, constant(indices.type, place))
            found = builder.select(here, byte, found)
        return found
    kind = vector(ir.IntType(8), LOOK_UP_BYTES)
    instruction = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind, kind]), _LOOK_UP)
    # The instruction takes 16 indices: cut the vector, and join the results.
    starts = range(0, indices.type.count, LOOK_UP_BYTES)
    parts = [shuffle(builder, indices, indices, range(at, at + LOOK_UP_BYTES)) for at in starts]
    results = [builder.call(instruction, [table, part]) for part in parts]
    # Join neighbours until one vector is left: shufflevector takes two at a time.
    while len(results) > 1:
        lanes = range(2 * results[0].type.count)
        results = [shuffle(builder, *pair, lanes) for pair in zip(results[::2], results[1::2], strict=True)]
    return results[0]


def random_bits(builder: Builder, bits: Value, high: Value) -> Value:
    """Return the random bits of lanes, int32, as `thc_kernels.mix_bits`."""

    def folded(value: Value, shift: int) -> Value:
        return builder.xor(value, builder.lshr(value, constant(value.type, shift)))

    kind = bits.type
    bits = builder.xor(builder.mul(folded(bits, 16), constant(kind, LANE_FIRST)), high)
    return folded(builder.mul(folded(bits, 15), constant(kind, LANE_SECOND)), 16)
