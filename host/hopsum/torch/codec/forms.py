# SPDX-License-Identifier: Apache-2.0
"""Forms of payloads on tensors, by plain operations: paired codes, digits and packed results.

The bytes are those of `hopsum.codec.pairs`, `hopsum.codec.digits` and `hopsum_wire.payload`. Every function returns a
new tensor on the argument's device.
"""

from __future__ import annotations

import torch

from hopsum.codec.pairs import CHUNK_BLOCKS, LOW_BITS
from hopsum.codec.table_search import PAIRED_BITS, PAIRED_SUM_BITS
from hopsum_wire._layout import LANES_BYTES, PACKED_BYTES, PACKED_LANE_BITS

_PARTS = 3
_SHIFTS = (24, 16, 8, 0)
"""The shifts of the bytes of a lane of 32 bits, as they travel."""
_SUM_MASK = (1 << PACKED_LANE_BITS) - 1


def pair_payloads(packed: torch.Tensor) -> torch.Tensor:
    """Return uint8[chunks, 512] for packed codes 0..3, uint8[2 * chunks, 512], see `hopsum.codec.pairs`."""
    return (packed[0::CHUNK_BLOCKS] << PAIRED_BITS) | packed[1::CHUNK_BLOCKS]


def split_payloads(payloads: torch.Tensor) -> torch.Tensor:
    """Undo `pair_payloads`: uint8[chunks, 512] to uint8[2 * chunks, 512]."""
    return _interleaved((payloads >> PAIRED_BITS) & LOW_BITS, payloads & LOW_BITS)


def split_sums(lanes: torch.Tensor) -> torch.Tensor:
    """Return the sums of both blocks of each chunk: uint8[chunks, 1024] to uint8[2 * chunks, 1024]."""
    return _interleaved(lanes >> PAIRED_SUM_BITS, lanes & ((1 << PAIRED_SUM_BITS) - 1))


def unpack_sums(packed: torch.Tensor) -> torch.Tensor:
    """Return the sums of packed results: uint8[chunks, 768] to uint8[chunks, 1024]."""
    sums = torch.empty((len(packed), LANES_BYTES), dtype=torch.uint8, device=packed.device)
    torch.bitwise_and(packed, _SUM_MASK, out=sums[:, :PACKED_BYTES])
    top_bits = 8 - PACKED_LANE_BITS
    tops = [part >> PACKED_LANE_BITS << top_bits * place for place, part in enumerate(packed.chunk(_PARTS, dim=1))]
    sums[:, PACKED_BYTES:] = tops[0] | tops[1] | tops[2]
    return sums


def pack_digits(values: torch.Tensor, digits: int, radix: int) -> torch.Tensor:
    """Return uint8[chunks, 1024] for values below the radix, uint8[chunks * digits, 256], see `hopsum.codec.digits`."""
    of_chunks = values.reshape(-1, digits, values.shape[1]).long()
    lanes = of_chunks[:, -1]
    for digit in range(digits - 2, -1, -1):
        lanes = lanes * radix + of_chunks[:, digit]
    parts = [(lanes >> shift & 0xFF).to(torch.uint8) for shift in _SHIFTS]
    return torch.stack(parts, dim=2).flatten(1)


def split_digits(payloads: torch.Tensor, digits: int, radix: int) -> torch.Tensor:
    """Undo `pack_digits`, for sums too: uint8[chunks, 1024] to uint8[chunks * digits, 256]."""
    high, upper, lower, low = payloads.reshape(len(payloads), -1, len(_SHIFTS)).long().unbind(2)
    lanes = (high << _SHIFTS[0]) + (upper << _SHIFTS[1]) + (lower << _SHIFTS[2]) + low
    found = []
    for _ in range(digits - 1):
        found.append(lanes % radix)
        lanes = lanes // radix
    found.append(lanes.clamp(max=255))
    return torch.stack(found, dim=1).flatten(0, 1).to(torch.uint8)


def _interleaved(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.stack((first, second), dim=1).flatten(0, 1)
