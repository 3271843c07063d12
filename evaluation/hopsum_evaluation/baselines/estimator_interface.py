# SPDX-License-Identifier: Apache-2.0
"""The interface of an estimator: a vector into one message, and a message into an estimate of the vector.

A switch cannot add such messages: each worker has levels of its own, or an entropy code. Estimators are the yardstick:
what error a budget of bits buys when the receiver decodes every message by itself.

Laws, held by tests: decode needs the payload and what all ranks know (elements, context, parameters) and nothing
else. Equal arguments give equal bytes. Estimates are finite. `bits` is the payload's length up to the zero bits
that fill its last byte.

Random numbers are counter-based: they follow from key and place, in blocks of 1024, whatever the order of work.

Equidistant levels: an element at p levels above the lowest becomes floor(p + u), u uniform: the upper neighbour with
probability p - floor(p), so the expectation is p (to 2^-33 of a level: u has 32 random bits). Its variance is
(upper - p)(p - lower) <= 1/4 level squared. Arithmetic is in float64, which holds the difference of any float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.hashing import ROTATION, ROUNDING, block_keys, derive_key, lane_bits
from hopsum.codec.interface import CodecError, Doubles, Floats, ReductionContext, Words, blocks_of, require_vector

RUN: Final = 1 << 16
"""Elements that are worked on together: a multiple of 8 (whole bytes of any width) and of 1024 (whole keys)."""
LARGEST: Final = float(np.finfo(np.float32).max)


class Message(NamedTuple):
    """The message of a worker."""

    payload: bytes
    bits: int
    """The bits in use, side information included. The payload has them rounded up to whole bytes."""


class Estimate(NamedTuple):
    """The receiver's estimate after all messages."""

    mean: Floats
    """The estimate of the mean of the vectors, float32[elements]."""
    bits: int
    """The bits of all messages together."""


class Estimator(Protocol):
    """The interface of an estimator: from a vector to a message, and back. It has parameters only.

    Any thread may use it. Equal arguments give equal results.
    """

    name: str
    unbiased: bool
    """True where the expectation of decode(encode(x)) is x."""

    def encode(self, x: Floats, context: ReductionContext) -> Message:
        """Return the message of one worker.

        Args:
            x: float32[elements], contiguous and finite. It is only read.
            context: randomness of this worker in this step. Decode takes the same.

        Raises:
            CodecError: not such a vector, or one that this estimator cannot carry.
        """

    def decode(self, message: Message, elements: int, context: ReductionContext) -> Floats:
        """Return the estimate of the worker's vector, float32[elements], a new array.

        Raises:
            CodecError: the payload is not one of `elements` elements by this estimator.
        """


def estimate_mean(estimator: Estimator, vectors: Sequence[Floats], seed: int, step: int) -> Estimate:
    """Encode the vector of each rank, decode all messages, and return their mean and the bits of all messages.

    Args:
        vectors: float32[elements] per rank, all of one length.
        seed, step: of the `ReductionContext`, which has the randomness of each rank.

    Raises:
        CodecError: no vectors, vectors of several lengths, or one that the estimator cannot carry.
    """
    lengths = sorted({len(x) for x in vectors})
    if len(lengths) != 1:
        raise CodecError(f"{len(vectors)} vectors of lengths {lengths}: a mean takes vectors of one length")
    # Float64: the mean of many workers is not to add an error of its own.
    total = np.zeros(lengths[0])
    bits = 0
    for rank, x in enumerate(vectors):
        context = ReductionContext(seed, step, rank)
        message = estimator.encode(x, context)
        total += estimator.decode(message, x.size, context)
        bits += message.bits
    total /= len(vectors)
    return Estimate(total.astype(np.float32), bits)


def runs(elements: int) -> Iterator[slice]:
    """Yield the slices of RUN elements that cover a vector, in order. The last one may be shorter."""
    for start in range(0, elements, RUN):
        yield slice(start, min(start + RUN, elements))


def require_finite_vector(x: NDArray[Any]) -> None:
    """Raise CodecError unless x is contiguous float32[elements], not empty and finite.

    The message has the number of elements that are not finite.
    """
    require_vector(x)
    bad = np.flatnonzero(~np.isfinite(x))
    if bad.size:
        raise CodecError(
            f"{bad.size} of {x.size} elements are not finite, the first is element {int(bad[0])}: skip this vector"
        )


def require_payload(payload: bytes, expected: int, name: str, elements: int) -> None:
    """Raise CodecError unless the payload has `expected` bytes and `elements` is 1 or more.

    `name` is that of the estimator, for the message.
    """
    if elements < 1 or len(payload) != expected:
        raise CodecError(f"{name}: {len(payload)} bytes for {elements} elements, which take {expected}")


def finite_float32(values: Doubles) -> Floats:
    """Return values as float32. A value that rounding carried beyond the largest float32 becomes the largest one."""
    # Rounding up from the largest float32 would be infinite.
    return np.clip(values, -LARGEST, LARGEST).astype(np.float32)


# ---- random numbers ----------------------------------------------------------------------------------------

_BLOCK: Final = 1024


def rounding_key(context: ReductionContext) -> int:
    """Return the key of roundings: another one for each rank."""
    return derive_key(context.seed, context.step, ROUNDING, context.rank)


def rotation_key(context: ReductionContext) -> int:
    """Return the key of signs: the same on all ranks."""
    return derive_key(context.seed, context.step, ROTATION)


def uniforms(key: int, run: slice) -> Doubles:
    """Return one number in (0, 1) for each element of a run that starts at a multiple of 1024.

    They are odd multiples of 2^-33: the mean is exactly 1/2, and neither 0 nor 1 occurs.
    """
    # By place: any run gives the same numbers, whatever was drawn before.
    bits = lane_bits(_keys(key, run), _BLOCK).reshape(-1)[: run.stop - run.start]
    return (bits.astype(np.float64) + 0.5) * 2.0**-32


def signs(key: int, run: slice) -> Floats:
    """Return +1 or -1 for each element of a run that starts at a multiple of 1024."""
    bits = lane_bits(_keys(key, run), _BLOCK // 32).astype("<u4").view(np.uint8)
    single = np.unpackbits(bits, axis=1, bitorder="little").reshape(-1)[: run.stop - run.start]
    return np.float32(1) - 2 * single.astype(np.float32)


def _keys(key: int, run: slice) -> NDArray[np.uint64]:
    return block_keys(key, run.start // _BLOCK, blocks_of(run.stop - run.start, _BLOCK))


# ---- equidistant levels ------------------------------------------------------------------------------------

MAX_LEVELS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels low, low + step, ..., `count` of them. Step 0 where all elements are equal."""

    low: float
    step: float
    count: int

    def round(self, x: NDArray[Any], u: Doubles) -> NDArray[np.uint16]:
        """Return codes, uint16[n], of elements between the lowest and the highest level. For u see `uniforms`."""
        # All elements are equal: there is one level, and no distance to divide by.
        if not self.step:
            return np.zeros(x.shape, np.uint16)
        place = (x.astype(np.float64) - self.low) / self.step
        # floor(p + u) is p + 1 with probability p - floor(p): unbiased.
        return np.clip(np.floor(place + u), 0, self.count - 1).astype(np.uint16)

    def values(self, codes: NDArray[np.uint16]) -> Doubles:
        """Return the level of each code, float64[n]."""
        return self.low + codes.astype(np.float64) * self.step


def require_levels(levels: int) -> None:
    """Raise CodecError unless there are 2 to 65536 levels, as an estimator can have."""
    if not 2 <= levels <= MAX_LEVELS:
        raise CodecError(f"{levels} levels: an estimator has 2 to {MAX_LEVELS}")


def packed_bytes(elements: int, width: int) -> int:
    """Return the number of bytes that so many codes of `width` bits take when packed."""
    return -(-elements * width // 8)


def pack(codes: NDArray[Any], width: int) -> bytes:
    """Pack codes in `width` bits each (0 to 32), most significant bit first. Zero bits fill the last byte.

    A code of more bits loses its high bits.
    """
    kind = _holder(width)
    parts = []
    for run in runs(codes.size):
        # Through single bits: slow, and right for any width. Estimators are yardsticks of error, not of speed.
        bits = np.unpackbits(codes[run].astype(kind).view(np.uint8).reshape(-1, kind.itemsize), axis=1)
        parts.append(np.packbits(bits[:, kind.itemsize * 8 - width :]).tobytes())
    return b"".join(parts)


def unpack(data: bytes, elements: int, width: int) -> Words:
    """Return codes, uint32[elements], from their `packed_bytes` bytes: the inverse of `pack`."""
    kind = _holder(width)
    out = np.empty(elements, np.uint32)
    for run in runs(elements):
        count = run.stop - run.start
        part = np.frombuffer(data, np.uint8, packed_bytes(count, width), packed_bytes(run.start, width))
        bits = np.zeros((count, kind.itemsize * 8), np.uint8)
        bits[:, kind.itemsize * 8 - width :] = np.unpackbits(part, count=count * width).reshape(count, width)
        out[run] = np.packbits(bits, axis=1).view(kind).reshape(-1)
    return out


def pack_rounded(x: Floats, levels: Levels, key: int) -> bytes:
    """Return the codes of x, rounded with the numbers of this key, packed in the fewest bits that hold a code."""
    width = code_bits(levels.count)
    return b"".join(pack(levels.round(x[run], uniforms(key, run)), width) for run in runs(x.size))


def unpack_values(data: bytes, levels: Levels, run: slice) -> Doubles:
    """Return the values of one run, float64[n], out of the packed codes of a whole vector.

    `run` is one of `runs`.

    Raises:
        CodecError: a code beyond the highest level.
    """
    width = code_bits(levels.count)
    # Runs are multiples of 8 codes, so each begins at a whole byte.
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
    return np.dtype(next(f">u{size}" for size in (1, 2, 4) if width <= 8 * size))
