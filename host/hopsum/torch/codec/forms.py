# SPDX-License-Identifier: Apache-2.0
"""Forms of payloads on tensors, by plain operations: paired codes and packed results.

The bytes are those of `hopsum.codec.thc` and `hopsum_wire.payload`. Every function returns a
new tensor on the argument's device.
"""

from __future__ import annotations

import torch

from hopsum.codec.lookup_table import PAIRED_BITS, PAIRED_SUM_BITS
from hopsum.codec.thc import PAIR_BLOCKS, PAIR_LOW_BITS
from hopsum_wire._layout import LANES_BYTES, PACKED_BYTES, PACKED_LANE_BITS

_PARTS = 3
_SUM_MASK = (1 << PACKED_LANE_BITS) - 1


def pair_payloads(packed: torch.Tensor) -> torch.Tensor:
    """Return uint8[chunks, 512] for packed codes 0..3, uint8[2 * chunks, 512], see `hopsum.codec.thc`."""
    return (packed[0::PAIR_BLOCKS] << PAIRED_BITS) | packed[1::PAIR_BLOCKS]


def split_payloads(payloads: torch.Tensor) -> torch.Tensor:
    """Undo `pair_payloads`: uint8[chunks, 512] to uint8[2 * chunks, 512]."""
    return _interleaved((payloads >> PAIRED_BITS) & PAIR_LOW_BITS, payloads & PAIR_LOW_BITS)


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


def _interleaved(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.stack((first, second), dim=1).flatten(0, 1)
