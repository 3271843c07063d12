# SPDX-License-Identifier: Apache-2.0
"""Ranges as MAX32 payloads, on tensors: see hopsum/codec/ranges.py."""

from __future__ import annotations

import torch

from hopsum.codec.interface import CodecError, blocks_of
from hopsum.codec.vector_reduction import INFINITE, RANGE_LANES

_LANE_BYTES = 4


def pack_ranges(ranges: torch.Tensor) -> torch.Tensor:
    """Return the MAX32 payloads of float32 ranges, uint8[chunks, 1024]. Lanes beyond the last block are 0."""
    chunks = blocks_of(ranges.numel(), RANGE_LANES)
    lanes = torch.zeros(chunks * RANGE_LANES, dtype=torch.float32, device=ranges.device)
    lanes[: ranges.numel()] = ranges
    return _swapped(lanes.view(torch.uint8)).reshape(chunks, -1)


def read_ranges(results: torch.Tensor, blocks: int) -> torch.Tensor:
    """Read the ranges of `blocks` blocks, float32[blocks], from MAX32 RESULT payloads, uint8[chunks, 1024].

    Raises:
        CodecError: another number of chunks than these blocks have.
    """
    shape = (blocks_of(blocks, RANGE_LANES), RANGE_LANES * _LANE_BYTES)
    if results.dtype != torch.uint8 or tuple(results.shape) != shape:
        raise CodecError(
            f"ranges of {blocks} blocks: expected uint8{list(shape)}, got {results.dtype}{list(results.shape)}"
        )
    bits = _swapped(results).view(torch.int32)[:blocks]
    finite = (bits >= 0) & (bits < INFINITE)
    return torch.where(finite, bits, INFINITE).view(torch.float32)


def _swapped(lanes: torch.Tensor) -> torch.Tensor:
    """Reverse the bytes of lanes of 32 bits, uint8[bytes]. The tensor is new."""
    return lanes.reshape(-1, _LANE_BYTES).flip(1).reshape(-1)
