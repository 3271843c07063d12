# SPDX-License-Identifier: Apache-2.0
"""The interface of a torch backend of codec thc, and a table as its kernels take it.

The definition, to the byte, is that of hopsum/codec/backends/kernels.py. All tensors are contiguous and on one
device. Rows are blocks of 1024 elements. A method fills its argument's own memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import torch

from hopsum.codec.backends.kernels import BlockKeys
from hopsum.codec.interface import CodecError

MAX_ENTRIES: Final = 16
MAX_GRANULARITY: Final = 127
"""The largest granularity of a table: widths, codes and values have fields of a 32-bit word."""
CELLS: Final = MAX_GRANULARITY + 2
"""Cells of a table's grid: cell i is [i, i + 1). From the table's end on they stand for the end."""
FLOAT_LIMIT: Final = 14.0
"""Largest g/(2t) for which the rotation may add in float32, to the byte.

Let n be the 2-norm of v, at most 2^16 g/(2t) + 16. After k stages it is 2^(k/2) n, which bounds every value: up to
stage 8 all are below 2^24, and exact. Let P and Q be the two values of stage 9 that make a y = P + Q or P - Q. If both
are within 2^24, y is exact or beyond 2^24. If |P| is not, Q^2 <= 2^9 n^2 - 2^48 < (2^24 - 2^22)^2, so |y| is above
2^22. Either way y is right, or beyond the table's end (g 2^15 < 2^22) on the right side, where it is clamped.
"""
POSITION: Final = 0x3F800000
"""Bits of the float32 1: a position on the table's scale, 16 bits after the point, is added to them."""


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """A table on a device."""

    granularity: int
    exact_float: bool
    """True where rotated values of an encoding are exact in float32."""
    values: torch.Tensor
    """uint8[16]"""
    doubled: torch.Tensor
    """float32[16]: twice the values"""
    cells: torch.Tensor
    """int32[129], by cell, modulo 2^32: POSITION + upper 2^16 + width - (code of upper) 2^28

    Upper is the table's value above the cell, width its distance to the one below. For a position q in the cell and
    random bits u, POSITION + q + (u + 1) width - cell = (code of upper) 2^28 + (q + u width - upper 2^16), whose
    highest 4 bits are the code: that of upper, less one if the bracket is negative.
    """

    @classmethod
    def of(cls, values: tuple[int, ...], bound: float, device: torch.device) -> DeviceTable:
        """Copy a table to a device.

        Args:
            values: T[0..], rising from 0 to g; codes that there are not stand for the last value.
            bound: t

        Raises:
            CodecError: too many values, or too large ones.
        """
        granularity = values[-1]
        if len(values) > MAX_ENTRIES or granularity > MAX_GRANULARITY:
            raise CodecError(
                f"a table of {len(values)} values up to {granularity}: codec thc on torch tensors takes at most "
                f"{MAX_ENTRIES} values up to {MAX_GRANULARITY}"
            )
        padded = values + (granularity,) * (MAX_ENTRIES - len(values))
        words = [
            POSITION + (upper << 16) + upper - lower - (code << 28)
            for code, (lower, upper) in enumerate(pairwise(values), start=1)
            for _ in range(lower, upper)
        ]
        end = POSITION + (granularity << 16) - (len(values) - 1 << 28)
        words += [end] * (CELLS - len(words))
        return cls(
            granularity,
            granularity / (2 * bound) <= FLOAT_LIMIT,
            torch.tensor(padded, dtype=torch.uint8, device=device),
            torch.tensor(padded, dtype=torch.float32, device=device) * 2,
            torch.tensor([as_signed(word, 32) for word in words], dtype=torch.int32, device=device),
        )


def as_signed(value: int, bits: int = 64) -> int:
    """Return the integer of `bits` bits, two's complement, that is equal to value modulo 2^bits."""
    value &= (1 << bits) - 1
    return value - (value >> (bits - 1) << bits)


class TorchKernels(Protocol):
    """A backend."""

    name: str

    def root_mean_square(self, x: torch.Tensor) -> torch.Tensor:
        """Return the root mean square of each row of float32[blocks, 1024], float32[blocks]."""

    def compensate(self, x: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor) -> torch.Tensor:
        """Fill pending with x + residual, float32[blocks, 1024] all. Return its root mean squares."""

    def thc_encode(
        self,
        x: torch.Tensor,
        scales: torch.Tensor,
        shifts: torch.Tensor,
        table: DeviceTable,
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> None:
        """Fill packed codes uint8[blocks, 512] from float32[blocks, 1024].

        Args:
            scales: float32[blocks], what elements are multiplied with before they are rotated.
            shifts: int32[blocks], k in 0..23: rotated values are multiplied with 2^k.
        """

    def thc_decode(
        self,
        lanes: torch.Tensor,
        counts: torch.Tensor,
        factors: torch.Tensor,
        granularity: int,
        keys: BlockKeys,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Fill float32[blocks, 1024] from lane sums uint8[blocks, 1024] of counts[block] (int32) workers.

        Returns:
            int32[1], 0 if all sums are within counts * granularity.
        """

    def thc_contribution(
        self, payloads: torch.Tensor, factors: torch.Tensor, table: DeviceTable, keys: BlockKeys, out: torch.Tensor
    ) -> None:
        """Fill float32[blocks, 1024] with what packed codes uint8[blocks, 512] add to a sum."""

    def thc_subtract(
        self,
        payloads: torch.Tensor,
        factors: torch.Tensor,
        table: DeviceTable,
        keys: BlockKeys,
        pending: torch.Tensor,
    ) -> None:
        """Subtract the contribution from pending, float32[blocks, 1024]."""


def load_torch_kernels(backend: str, device: torch.device) -> TorchKernels:
    """Return a backend by name: "torch", "triton", or "auto", which is triton on CUDA where it is installed.

    Raises:
        CodecError: unknown backend, or triton that is not installed, or not for this device.
    """
    from hopsum.torch.codec.launch import TritonKernels, triton_is_usable  # here: both modules import this one
    from hopsum.torch.codec.reference_kernels import TorchReferenceKernels

    if backend not in ("auto", "torch", "triton"):
        raise CodecError(f"torch backend {backend!r}: one of auto, torch, triton")
    if backend == "auto":
        backend = "triton" if device.type == "cuda" and triton_is_usable(device) else "torch"
    if backend == "triton" and not triton_is_usable(device):
        raise CodecError(
            f"backend 'triton' on device {device}: it needs the package triton, and a CUDA device or "
            "TRITON_INTERPRET=1 in the environment; use backend 'torch'"
        )
    return TritonKernels() if backend == "triton" else TorchReferenceKernels()
