# SPDX-License-Identifier: Apache-2.0
"""Digits in numba: several elements in a lane of 32 bits, as `hopsum.codec.digits` defines them.

Numbers are divided as floats: (x + 1/2) / B is 1/(2 B) off the next integer at least, and its error is below 2^-20 for
x below 2^32, so that the integer part is that of x / B for every B up to 256. Processors divide no vectors of integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopsum.codec.backends.compiled_parts import TURNS, take
from hopsum.codec.backends.jit import filled, inner, kernel, read, types

u8, i32, u32, f64 = np.uint8, np.int32, np.uint32, np.float64
_U8, _U32, _I64 = types.uint8, types.uint32, types.int64


@inner
def swap(word: Any) -> Any:
    """Return a word with its four bytes in the other order."""
    low = u32(u32(word << u32(24)) | u32(u32(word & u32(0xFF00)) << u32(8)))
    return u32(low | u32(u32(u32(word >> u32(8)) & u32(0xFF00)) | u32(word >> u32(24))))


@kernel(read(_U8, 2), _I64, _I64, TURNS, _I64, filled(_U32))
def pack(values: Any, digits: Any, radix: Any, turns: Any, own: Any, out: Any) -> None:
    """Fill the lanes of chunks, uint32[chunks, 256], from values, uint8[chunks * digits, 256]."""
    numbers, factor = np.empty(256, u32), u32(radix)
    first, end = take(turns, own, out.shape[0])
    while first < end:
        for chunk in range(first, end):
            # Horner's scheme from the highest digit, a row of 256 lanes at a time, so that all loops are vectors.
            row = values[chunk * digits + digits - 1]
            for j in range(256):
                numbers[j] = u32(row[j])
            for digit in range(digits - 2, -1, -1):
                row = values[chunk * digits + digit]
                for j in range(256):
                    numbers[j] = u32(u32(numbers[j] * factor) + u32(row[j]))
            for j in range(256):
                out[chunk, j] = swap(numbers[j])
        first, end = take(turns, own, out.shape[0])


@kernel(read(_U32, 2), _I64, _I64, TURNS, _I64, filled(_U8))
def split(lanes: Any, digits: Any, radix: Any, turns: Any, own: Any, out: Any) -> None:
    """Fill digits, uint8[chunks * digits, 256], from the lanes of chunks, uint32[chunks, 256]."""
    rest, part, factor = np.empty(256, i32), 1.0 / f64(radix), i32(radix)
    first, end = take(turns, own, lanes.shape[0])
    while first < end:
        for chunk in range(first, end):
            # Division by multiplication in float64: exact here, since half is added and a number has 32 bits.
            row = out[chunk * digits]
            for j in range(256):
                number = swap(lanes[chunk, j])
                above = i32((f64(number) + 0.5) * part)
                row[j] = u8(u32(number - u32(u32(above) * u32(factor))))
                rest[j] = above
            for digit in range(1, digits - 1):
                row = out[chunk * digits + digit]
                for j in range(256):
                    above = i32((f64(rest[j]) + 0.5) * part)
                    row[j] = u8(i32(rest[j] - i32(above * factor)))
                    rest[j] = above
            row = out[chunk * digits + digits - 1]
            for j in range(256):
                row[j] = u8(min(rest[j], i32(255)))
        first, end = take(turns, own, lanes.shape[0])
