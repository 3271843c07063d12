# SPDX-License-Identifier: Apache-2.0
"""Paired codes: a 4-bit symbol carries two 2-bit codes, and an 8-bit lane two 4-bit sums.

The switch knows nothing of pairs: the table of LOOKUP_ADD8 maps the symbol 4 a + b to 16 T[a] + T[b], so that the sum
of n symbols is 16 times the sum of the values of the a's plus that of the b's. While n g <= 15 neither half of a lane
overflows, which is the same as n * 17 g <= 255: the bound that the controller proves for any table of 8-bit lanes.

A chunk has two blocks of 1024 elements. Symbol i of the chunk carries code i of the first block in its higher bits, and
code i of the second block in its lower bits. A vector with an odd number of blocks leaves the last lower codes 0.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.base import CodecError
from hopsum.codec.table_search import PAIRED_BITS, PAIRED_SUM_BITS

CHUNK_BLOCKS: Final = 2
CODES: Final = 1 << PAIRED_BITS
LOW_BITS: Final = 0x33
"""The code of the second block in both symbols of a byte."""


def pair_table(values: tuple[int, ...]) -> tuple[int, ...]:
    """Return the switch's table of 16 integers for codes of up to 4 values. Codes without a value have the last one.

    Raises:
        CodecError: more than 4 values, or one that exceeds half a lane.
    """
    if len(values) > CODES or values[-1] >= 1 << PAIRED_SUM_BITS:
        raise CodecError(
            f"a table of {len(values)} values up to {values[-1]} for paired codes: at most {CODES} values up to "
            f"{(1 << PAIRED_SUM_BITS) - 1}"
        )
    padded = values + (values[-1],) * (CODES - len(values))
    return tuple((high << PAIRED_SUM_BITS) + low for high in padded for low in padded)


def pair_payloads(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return UPDATE payloads, uint8[chunks, 512], a new array.

    Args:
        packed: uint8[2 * chunks, 512], 4-bit codes 0..3 as `hopsum_wire.payload` packs them, in groups of any size: row
            2 c is the first block of chunk c. A byte has two codes of one block, so one shift makes room in both.
    """
    return (packed[0::CHUNK_BLOCKS] << np.uint8(PAIRED_BITS)) | packed[1::CHUNK_BLOCKS]


def split_payloads(payloads: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Undo `pair_payloads`: uint8[chunks, 512] to uint8[2 * chunks, 512], a new array."""
    low = np.uint8(LOW_BITS)
    return _interleaved((payloads >> np.uint8(PAIRED_BITS)) & low, payloads & low)


def split_sums(lanes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the sums of both blocks of each chunk: uint8[chunks, 1024] to uint8[2 * chunks, 1024], a new array."""
    return _interleaved(lanes >> np.uint8(PAIRED_SUM_BITS), lanes & np.uint8((1 << PAIRED_SUM_BITS) - 1))


def _interleaved(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.stack((first, second), axis=1).reshape(-1, first.shape[1])
