# SPDX-License-Identifier: Apache-2.0
"""Counter-based randomness: any random bit follows from a key and a place, so that no order of work changes it.

`block_keys` gives every block 64 bits of its own (splitmix64). `lane_bits` expands them to one uint32 per lane
with two rounds of multiply and xor-shift, the second half of the key entering between the rounds. Backends
repeat these functions exactly. A multiplication here is modulo 2^32 or 2^64.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.interface import Words

_GOLDEN: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
_MASK: Final = (1 << 64) - 1
LANE_STRIDE: Final = 0x9E3779B9
LANE_FIRST: Final = 0x7FEB352D
LANE_SECOND: Final = 0x846CA68B

ROTATION: Final = 1
ROUNDING: Final = 2
DITHER: Final = 3
SKETCH: Final = 4
INDEX: Final = 5


def derive_key(*parts: int) -> int:
    """Return a 64-bit key that follows from all parts and their order. Parts are taken modulo 2^64."""
    # The number of parts enters, so that (0,) and (0, 0) have different keys.
    key = len(parts)
    for part in parts:
        # The finaliser splitmix64 of Steele, Lea and Flood (OOPSLA 2014).
        key = (key ^ part) + _GOLDEN & _MASK
        key = (key ^ key >> 30) * _FIRST & _MASK
        key = (key ^ key >> 27) * _SECOND & _MASK
        key ^= key >> 31
    return key


def block_keys(key: int, first_block: int, blocks: int) -> NDArray[np.uint64]:
    """Return the keys of consecutive blocks, uint64[blocks]: splitmix64(key + block)."""
    return mix_keys(key, np.arange(first_block, first_block + blocks, dtype=np.uint64))


def mix_keys(key: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64(key + number) of each number, a new array."""
    # numpy's uint64 wraps, which is the modulo that splitmix64 asks for.
    value = numbers + np.uint64((key + _GOLDEN) & _MASK)
    value = (value ^ value >> np.uint64(30)) * np.uint64(_FIRST)
    value = (value ^ value >> np.uint64(27)) * np.uint64(_SECOND)
    return np.asarray(value ^ value >> np.uint64(31))


def lane_bits(keys: NDArray[np.uint64], lanes: int) -> Words:
    """Return 32 random bits for each lane of each block, uint32[blocks, lanes], that follow from the blocks' keys."""
    low = keys.astype(np.uint32)[:, None]
    high = (keys >> np.uint64(32)).astype(np.uint32)[:, None]
    bits = (np.arange(lanes, dtype=np.uint32) * np.uint32(LANE_STRIDE))[None, :] + low
    bits = ((bits ^ bits >> np.uint32(16)) * np.uint32(LANE_FIRST)) ^ high
    bits = (bits ^ bits >> np.uint32(15)) * np.uint32(LANE_SECOND)
    return np.asarray(bits ^ bits >> np.uint32(16))
