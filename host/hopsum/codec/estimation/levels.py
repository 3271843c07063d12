# SPDX-License-Identifier: Apache-2.0
"""Equidistant levels: rounding to a neighbour without bias, and codes of fixed width in bytes.

An element at p levels above the lowest becomes floor(p + u), u uniform: the upper neighbour with probability
p - floor(p), so the expectation is p (to 2^-33 of a level: u has 32 random bits). Its variance is
(upper - p)(p - lower) <= 1/4 level squared. Arithmetic is in float64, which holds the difference of any float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.estimation.base import RUN, runs
from hopsum.codec.estimation.rng import uniforms
from hopsum.codec.interface import CodecError

MAX_LEVELS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels low, low + step, ..., `count` of them. Step 0 where all elements are equal."""

    low: float
    step: float
    count: int

    def round(self, x: NDArray[Any], u: NDArray[np.float64]) -> NDArray[np.uint16]:
        """Return codes, uint16[n], of elements between the lowest and the highest level. For u see `rng.uniforms`."""
        if not self.step:
            return np.zeros(x.shape, np.uint16)
        place = (x.astype(np.float64) - self.low) / self.step
        return np.clip(np.floor(place + u), 0, self.count - 1).astype(np.uint16)

    def values(self, codes: NDArray[np.uint16]) -> NDArray[np.float64]:
        """Return the values of codes."""
        return self.low + codes.astype(np.float64) * self.step


def require_levels(levels: int) -> None:
    """Raise CodecError unless an estimator can have this many levels."""
    if not 2 <= levels <= MAX_LEVELS:
        raise CodecError(f"{levels} levels: an estimator has 2 to {MAX_LEVELS}")


def packed_bytes(elements: int, width: int) -> int:
    """Return the bytes of so many codes."""
    return -(-elements * width // 8)


def pack(codes: NDArray[Any], width: int) -> bytes:
    """Return codes of `width` bits each (0 to 32), most significant bit first. Zero bits fill the last byte."""
    kind = _holder(width)
    parts = []
    for run in runs(codes.size):
        bits = np.unpackbits(codes[run].astype(kind).view(np.uint8).reshape(-1, kind.itemsize), axis=1)
        parts.append(np.packbits(bits[:, kind.itemsize * 8 - width :]).tobytes())
    return b"".join(parts)


def unpack(data: bytes, elements: int, width: int) -> NDArray[np.uint32]:
    """Return codes, uint32[elements], from `packed_bytes` bytes."""
    kind = _holder(width)
    out = np.empty(elements, np.uint32)
    for run in runs(elements):
        count = run.stop - run.start
        part = np.frombuffer(data, np.uint8, packed_bytes(count, width), packed_bytes(run.start, width))
        bits = np.zeros((count, kind.itemsize * 8), np.uint8)
        bits[:, kind.itemsize * 8 - width :] = np.unpackbits(part, count=count * width).reshape(count, width)
        out[run] = np.packbits(bits, axis=1).view(kind).reshape(-1)
    return out


def pack_rounded(x: NDArray[np.float32], levels: Levels, key: int) -> bytes:
    """Return the codes of x, rounded with the numbers of this key, packed in the fewest bits that hold a code."""
    width = code_bits(levels.count)
    return b"".join(pack(levels.round(x[run], uniforms(key, run)), width) for run in runs(x.size))


def unpack_values(data: bytes, levels: Levels, run: slice) -> NDArray[np.float64]:
    """Return the values of one run out of packed codes.

    Raises:
        CodecError: a code beyond the highest level.
    """
    width = code_bits(levels.count)
    first = run.start * width // 8
    codes = unpack(data[first : first + packed_bytes(RUN, width)], run.stop - run.start, width)
    if codes.max() >= levels.count:
        raise CodecError(f"code {int(codes.max())} of {levels.count} levels in elements {run.start} to {run.stop - 1}")
    return levels.values(codes.astype(np.uint16))


def code_bits(levels: int) -> int:
    """Return ceil(log2(levels)): the width of a code."""
    return (levels - 1).bit_length()


def _holder(width: int) -> np.dtype[Any]:
    """Return the smallest unsigned type, most significant byte first, that holds so many bits."""
    return np.dtype(">u1" if width <= 8 else ">u2" if width <= 16 else ">u4")
