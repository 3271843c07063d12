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
from hopsum_wire.payload import pack_codes, unpack_codes

CHUNK_BLOCKS: Final = 2
CODES: Final = 1 << PAIRED_BITS


def pair_table(values: tuple[int, ...]) -> tuple[int, ...]:
    """Return the switch's table of 16 integers for codes of up to 4 values; codes without a value have the last one.

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


def pair_codes(codes: NDArray[np.uint8], group: int) -> NDArray[np.uint8]:
    """Return UPDATE payloads, uint8[chunks, 512], a new array.

    Args:
        codes: uint8[2 * chunks, 1024], values 0..3, contiguous; row 2 c is the first block of chunk c.
        group: codes of a group, see `hopsum_wire.payload`.
    """
    pairs = codes.reshape(-1, CHUNK_BLOCKS, codes.shape[1])
    return pack_codes((pairs[:, 0] << np.uint8(PAIRED_BITS)) | pairs[:, 1], group=group)


def split_codes(payloads: NDArray[np.uint8], group: int) -> NDArray[np.uint8]:
    """Undo `pair_codes`: uint8[chunks, 512] to uint8[2 * chunks, 1024], a new array."""
    symbols = unpack_codes(payloads, group=group)
    return _interleaved(symbols >> np.uint8(PAIRED_BITS), symbols & np.uint8(CODES - 1))


def split_sums(lanes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the sums of both blocks of each chunk: uint8[chunks, 1024] to uint8[2 * chunks, 1024], a new array."""
    return _interleaved(lanes >> np.uint8(PAIRED_SUM_BITS), lanes & np.uint8((1 << PAIRED_SUM_BITS) - 1))


def _interleaved(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.stack((first, second), axis=1).reshape(-1, first.shape[1])
