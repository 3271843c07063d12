# SPDX-License-Identifier: Apache-2.0
"""Quantised vectors of the two-shot all-reduce: what endpoints do without a switch.

Every worker quantises its vector and sends each worker that worker's part of it (all-to-all, the first shot). Each
worker adds up the parts that it got, quantises their mean, and sends it to all (all-gather, the second shot). ZeRO++'s
gradients (Wang et al., "ZeRO++", arXiv 2306.10209) and torchft's quantised all-reduce are of this kind.

A vector is cut into blocks of BLOCK elements. A block has one scale, its largest magnitude over the largest code, and
codes of 4 or 8 bits, rounded to the nearest: error feedback keeps what rounding leaves. On the wire a block is its
scale as float32, then its codes. Two codes of 4 bits share a byte.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.interface import CodecError

BLOCK: Final = 512
"""Elements that share a scale."""
BITS: Final = (4, 8)
"""Bits of a code."""
_SCALE_BYTES: Final = 4
_HALF: Final = BLOCK // 2


def block_bytes(bits: int) -> int:
    """Count the bytes of a block on the wire. Raises CodecError for bits that are not in BITS."""
    if bits not in BITS:
        raise CodecError(f"two-shot with codes of {bits} bits: {' or '.join(map(str, BITS))}")
    return _SCALE_BYTES + BLOCK * bits // 8


def quantise(x: NDArray[np.float32], bits: int) -> NDArray[np.uint8]:
    """Quantise a vector into blocks as they travel, uint8[blocks, block_bytes(bits)], a new array.

    Args:
        x: float32[blocks * BLOCK], finite.
    """
    rows = x.reshape(-1, BLOCK)
    most = (1 << bits - 1) - 1
    # np.abs turns the -0 of a block of zeros into +0: equal blocks are equal bytes.
    scales = np.abs(np.maximum(rows.max(axis=1), -rows.min(axis=1))) / np.float32(most)
    # A block whose scale is subnormal is sent as zeros: its inverse would be infinite.
    per_scale = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > np.finfo(np.float32).tiny)
    scaled = rows * per_scale[:, None]
    # To the nearest, not at random: error feedback carries the rest, and ranks need no shared randomness.
    codes = np.rint(scaled, out=scaled).astype(np.int8)
    made = np.empty((len(rows), block_bytes(bits)), np.uint8)
    made[:, :_SCALE_BYTES] = scales.astype("<f4").view(np.uint8).reshape(-1, _SCALE_BYTES)
    if bits == BITS[0]:
        made[:, _SCALE_BYTES:] = (codes[:, :_HALF].view(np.uint8) << 4) | (codes[:, _HALF:].view(np.uint8) & 15)
    else:
        made[:, _SCALE_BYTES:] = codes.view(np.uint8)
    return made


def dequantise(blocks: NDArray[np.uint8], bits: int) -> NDArray[np.float32]:
    """Decode `quantise`'s blocks, uint8[blocks, block_bytes(bits)], into a vector, float32[blocks * BLOCK], new."""
    scales = np.ascontiguousarray(blocks[:, :_SCALE_BYTES]).view("<f4")
    codes = blocks[:, _SCALE_BYTES:].view(np.int8)
    rows = np.empty((len(blocks), BLOCK), np.float32)
    if bits == BITS[0]:
        # Codes are signed: an arithmetic shift to the right fills the upper half with the sign.
        np.multiply(codes >> 4, scales, out=rows[:, :_HALF])
        np.multiply((codes << 4) >> 4, scales, out=rows[:, _HALF:])
    else:
        np.multiply(codes, scales, out=rows)
    return rows.reshape(-1)


def padded(x: NDArray[np.float32], workers: int = 1) -> NDArray[np.float32]:
    """Copy x, filled up with zeros to an equal number of whole blocks for each worker."""
    each = -(-x.size // (BLOCK * workers))
    made = np.zeros(each * workers * BLOCK, np.float32)
    made[: x.size] = x
    return made
