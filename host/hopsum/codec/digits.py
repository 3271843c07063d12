# SPDX-License-Identifier: Apache-2.0
"""Digits: a lane of 32 bits carries several elements, as the digits of one number.

n workers send values of at most g, so that a sum is at most n g: a digit of radix B = n g + 1. ADD32 adds the numbers
d0 + d1 B + d2 B^2 + ... of the workers. No digit of the sum reaches B, so nothing is carried from digit to digit, and
k digits fit in a lane where B^k <= 2^32. The switch knows nothing of digits.

A chunk has k blocks of 256 elements. Lane j of the chunk carries element j of each block. Block i is digit i. Blocks
beyond the vector's end are digits 0.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends.kernels import DIGIT_LANE_BITS, FIXED_BLOCK
from hopsum.codec.base import CodecError

LEAST_DIGITS: Final = 4
"""The least digits of a lane. With fewer, a sum has more than the byte that kernels take."""
MOST_DIGITS: Final = DIGIT_LANE_BITS
_LANE_VALUES: Final = 1 << DIGIT_LANE_BITS


def largest_radix(digits: int) -> int:
    """Return the largest B with B^digits <= 2^32. Raises CodecError for a number of digits that no lane has."""
    if isinstance(digits, bool) or not isinstance(digits, int) or not LEAST_DIGITS <= digits <= MOST_DIGITS:
        raise CodecError(f"digits={digits!r}: a lane of {DIGIT_LANE_BITS} bits has {LEAST_DIGITS} to {MOST_DIGITS}")
    return max(radix for radix in range(2, 257) if radix**digits <= _LANE_VALUES)


def finest_granularity(workers: int, digits: int) -> int:
    """Return the largest g whose sums over so many workers are digits, so many of them in a lane.

    Raises:
        CodecError: not even sums of values 0 and 1 are.
    """
    radix = largest_radix(digits)
    if workers < radix:
        return (radix - 1) // workers
    fewer = [less for less in range(LEAST_DIGITS, digits) if workers < largest_radix(less)]
    instead = f"take digits={fewer[-1]} or fewer" if fewer else "take a codec without digits"
    raise CodecError(
        f"{workers} workers with digits={digits}: {digits} digits of a lane of {DIGIT_LANE_BITS} bits are at most "
        f"{radix - 1}, and the sum of {workers} values of 0 and 1 is up to {workers}; {instead}"
    )


def pack_digits(values: NDArray[np.uint8], digits: int, radix: int) -> NDArray[np.uint8]:
    """Return UPDATE payloads, uint8[chunks, 1024], a new array.

    Args:
        values: uint8[chunks * digits, 256], below the radix.
    """
    of_chunks = values.reshape(-1, digits, FIXED_BLOCK)
    lanes = of_chunks[:, -1].astype(np.uint32)
    for digit in range(digits - 2, -1, -1):
        lanes *= np.uint32(radix)
        lanes += of_chunks[:, digit]
    return lanes.astype(">u4").view(np.uint8)


def split_digits(payloads: NDArray[np.uint8], digits: int, radix: int) -> NDArray[np.uint8]:
    """Undo `pack_digits`, for sums too: uint8[chunks, 1024] to uint8[chunks * digits, 256], a new array.

    A lane that no sum makes leaves a last digit above the radix, at most 255.
    """
    lanes = payloads.view(">u4").astype(np.uint32)
    found = np.empty((len(lanes), digits, FIXED_BLOCK), np.uint8)
    for digit in range(digits - 1):
        above = lanes // np.uint32(radix)
        found[:, digit] = lanes - above * np.uint32(radix)
        lanes = above
    found[:, -1] = np.minimum(lanes, np.uint32(255))
    return found.reshape(-1, FIXED_BLOCK)
