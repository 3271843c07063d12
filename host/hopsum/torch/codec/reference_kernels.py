# SPDX-License-Identifier: Apache-2.0
"""The torch backend: hopsum/codec/backends/reference.py in plain torch operations, on any device.

It is what the Triton kernels are compared with where numpy would be too slow, and what runs where they cannot.
Unsigned integers are two's complement here: torch multiplies int32 and int64 modulo 2^32 and 2^64, and a shift to
the right is masked. Runs of blocks bound the memory that intermediate results take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from hopsum.codec.backends.kernels import FRACTION_BITS, THC_BLOCK, BlockKeys
from hopsum.codec.hashing import LANE_FIRST, LANE_SECOND, LANE_STRIDE
from hopsum.torch.codec.kernels import POSITION, DeviceTable, as_signed

_CPU_RUN_BLOCKS: Final = 256
_DEVICE_RUN_BLOCKS: Final = 16384
_GOLDEN: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


class TorchReferenceKernels:
    """`TorchKernels` in plain torch operations: the reference of the Triton kernels."""

    name = "torch"

    def root_mean_square(self, x: torch.Tensor) -> torch.Tensor:
        """Add squares in 16 lanes over 64 rows, then halve the lanes: the order of the reference."""
        out = torch.empty(len(x), dtype=torch.float32, device=x.device)
        for run in _runs(x):
            lanes = torch.zeros((run.stop - run.start, 16), dtype=torch.float64, device=x.device)
            for row in range(0, x.shape[1], 16):
                part = x[run, row : row + 16].double()
                lanes += part * part
            for half in (8, 4, 2, 1):
                lanes = lanes[:, :half] + lanes[:, half : 2 * half]
            out[run] = (lanes[:, 0] / x.shape[1]).sqrt().float()
        return out

    def compensate(self, x: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor) -> torch.Tensor:
        """Add, then measure."""
        torch.add(x, residual, out=pending)
        return self.root_mean_square(pending)

    def thc_encode(
        self,
        x: torch.Tensor,
        scales: torch.Tensor,
        shifts: torch.Tensor,
        table: DeviceTable,
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> None:
        """Round by looking up the upper neighbour of every cell of the table's grid."""
        top = table.granularity << FRACTION_BITS
        for run in _runs(x):
            v = torch.round(x[run] * scales[run, None]).to(torch.int32) * _signs(keys, run, x)
            shift = shifts[run, None]
            most = ((top >> 1) >> shift) + 1
            q = torch.maximum(torch.minimum(_to_wire(_hadamard(v)), most), -most) << shift
            q = q.add_(top >> 1).clamp_(0, top)
            u = _fractions(keys, run, x)
            cell = table.cells[(q >> FRACTION_BITS).long()]
            width = cell & 0xFF
            codes = q + u * width + (width + POSITION - cell)
            codes = _right(codes, 28)
            out[run] = _pack(codes.to(torch.uint8))

    def thc_lookup(self, payloads: torch.Tensor, table: DeviceTable, out: torch.Tensor) -> None:
        """Fill lanes uint8[blocks, 1024] with the table's values of packed codes uint8[blocks, 512]."""
        for run in _runs(payloads):
            out[run] = table.values[_unpack(payloads[run]).long()]

    def thc_decode(
        self,
        lanes: torch.Tensor,
        counts: torch.Tensor,
        factors: torch.Tensor,
        granularity: int,
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Rotate back: H is symmetric, so only order and signs are undone."""
        beyond = torch.zeros(1, dtype=torch.int32, device=lanes.device)
        for run in _runs(lanes):
            sums, centre = lanes[run].to(torch.int32), counts[run, None] * granularity
            beyond |= (sums > centre).any().to(torch.int32)
            x = _hadamard(_from_wire(2 * sums - centre)) * _signs(keys, run, out)
            torch.mul(x.float(), factors[run, None], out=out[run])
        return beyond

    def thc_contribution(
        self, payloads: torch.Tensor, factors: torch.Tensor, table: DeviceTable, keys: BlockKeys, out: torch.Tensor
    ) -> None:
        """Look up, then decode a sum of one."""
        for run in _runs(payloads):
            lanes = torch.empty((run.stop - run.start, THC_BLOCK), dtype=torch.uint8, device=payloads.device)
            self.thc_lookup(payloads[run], table, lanes)
            ones = torch.ones(len(lanes), dtype=torch.int32, device=payloads.device)
            shifted = keys._replace(first=keys.first + run.start)
            self.thc_decode(lanes, ones, factors[run], table.granularity, shifted, out[run])

    def thc_subtract(
        self,
        payloads: torch.Tensor,
        factors: torch.Tensor,
        table: DeviceTable,
        keys: BlockKeys,
        pending: torch.Tensor,
    ) -> None:
        """Make the contribution, a run at a time, and subtract it."""
        for run in _runs(payloads):
            delivered = torch.empty_like(pending[run])
            shifted = keys._replace(first=keys.first + run.start)
            self.thc_contribution(payloads[run], factors[run], table, shifted, delivered)
            pending[run] -= delivered


def _runs(rows: torch.Tensor) -> Iterator[slice]:
    blocks = len(rows)
    step = _CPU_RUN_BLOCKS if rows.device.type == "cpu" else _DEVICE_RUN_BLOCKS
    for start in range(0, blocks, step):
        yield slice(start, min(start + step, blocks))


def _block_keys(key: int, run: slice, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the low and the high half of splitmix64(key + block), int32[blocks] each."""
    value = torch.arange(run.start, run.stop, dtype=torch.int64, device=device) + as_signed(key + _GOLDEN)
    value = (value ^ _right(value, 30, 64)) * as_signed(_FIRST)
    value = (value ^ _right(value, 27, 64)) * as_signed(_SECOND)
    value = value ^ _right(value, 31, 64)
    halves = value.view(torch.int32).reshape(-1, 2)
    return halves[:, 0], halves[:, 1]


def _lane_bits(key: int, run: slice, lanes: int, device: torch.device) -> torch.Tensor:
    """Return random bits, int32[blocks, lanes]."""
    low, high = _block_keys(key, run, device)
    bits = torch.arange(lanes, dtype=torch.int32, device=device) * as_signed(LANE_STRIDE, 32) + low[:, None]
    bits = ((bits ^ _right(bits, 16)) * as_signed(LANE_FIRST, 32)) ^ high[:, None]
    bits = (bits ^ _right(bits, 15)) * as_signed(LANE_SECOND, 32)
    return bits ^ _right(bits, 16)


def _right(value: torch.Tensor, shift: int, bits: int = 32) -> torch.Tensor:
    return (value >> shift) & ((1 << (bits - shift)) - 1)


def _signs(keys: BlockKeys, run: slice, like: torch.Tensor) -> torch.Tensor:
    """Return +1 and -1 for rows like these, int32[blocks, B]: -1 where the bit is set."""
    elements, device = like.shape[1], like.device
    shifts = torch.arange(elements // 32, dtype=torch.int32, device=device)[None, :, None]
    bits = _lane_bits(keys.rotation + keys.first, run, 32, device)[:, None, :] >> shifts
    return (1 - 2 * (bits & 1)).reshape(-1, elements)


def _fractions(keys: BlockKeys, run: slice, like: torch.Tensor) -> torch.Tensor:
    """Return 16 random bits per element of rows like these, int32[blocks, B]."""
    elements = like.shape[1]
    bits = _lane_bits(keys.rounding + keys.first, run, elements // 2, like.device)
    bits = bits.reshape(-1, max(1, elements // 512), 1, min(elements, 512) // 2)
    return torch.cat((bits & 0xFFFF, _right(bits, 16)), dim=2).reshape(-1, elements)


def _hadamard(v: torch.Tensor) -> torch.Tensor:
    """Return H v for each row of int32[blocks, B], in the natural (Sylvester) order."""
    shape = v.shape
    stride = shape[1] // 2
    while stride:
        pair = v.reshape(len(v), -1, 2, stride)
        v = torch.stack((pair[:, :, 0] + pair[:, :, 1], pair[:, :, 0] - pair[:, :, 1]), dim=2)
        stride //= 2
    return v.reshape(shape)


def _to_wire(y: torch.Tensor) -> torch.Tensor:
    return y.reshape(len(y), -1, 16).transpose(1, 2).reshape(y.shape)


def _from_wire(w: torch.Tensor) -> torch.Tensor:
    return w.reshape(len(w), 16, -1).transpose(1, 2).reshape(w.shape)


def _pack(codes: torch.Tensor) -> torch.Tensor:
    """Pack as `pack_codes` does with lanes of 8 bits: uint8[blocks, 1024] to uint8[blocks, 512]."""
    groups = codes.reshape(-1, 2, 2, 256)
    return (groups[:, :, 0] << 4 | groups[:, :, 1]).reshape(-1, THC_BLOCK // 2)


def _unpack(payloads: torch.Tensor) -> torch.Tensor:
    words = payloads.reshape(-1, 2, 1, 256)
    return torch.cat((words >> 4, words & 15), dim=2).reshape(-1, THC_BLOCK)
