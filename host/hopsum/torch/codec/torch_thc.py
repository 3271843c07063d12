# SPDX-License-Identifier: Apache-2.0
"""Codec `thc` on torch tensors, as hopsum.codec's `Thc` with one range per block and lanes of 8 bits.

Payloads, ranges and means are the same bytes, so ranks with and without a GPU can be in one job. Vectors stay on their
device; what travels is payloads. A range is a float32 of a tensor here, and +inf says that a block must not be summed.

    own = codec.ranges(x)                                shared = the largest own range of each block over the ranks
    codec.encode_blocks(x, *codec.scales(own, shared), context, 0, payloads)
    packed = codec.pack_contributors(bitmaps)            on the host: its copy on the device is `there`
    contributors = codec.contributors(there, blocks)
    codec.decode_blocks(results, contributors, codec.factors(shared, contributors.counts), context, 0, mean)

`hopsum.torch.device_reduction` runs an all-reduce by these steps, and checks results and contributors. With error
feedback its `DeviceFeedback` takes the place of `ranges`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import torch

from hopsum.codec.backends.kernels import FRACTION_BITS, MAX_SHIFT, BlockKeys, Form
from hopsum.codec.dither import SHARES
from hopsum.codec.hashing import DITHER, ROTATION, ROUNDING, derive_key
from hopsum.codec.interface import Bitmaps, CodecError, Ints, ReductionContext, contributor_counts
from hopsum.codec.thc import HUGE, TINY, Thc
from hopsum.torch.codec.torch_kernels import (
    DeviceContributors,
    DeviceDither,
    DeviceTable,
    TorchKernels,
    load_torch_kernels,
)
from hopsum_wire import LANE_GROUP_CODES


class TorchThc:
    """Codec `thc` on tensors of one device. Holds parameters only: any thread may use it.

    The job's switch needs the table `lookup`.
    """

    name = "thc"

    def __init__(self, codec: Thc, *, device: torch.device | str = "cpu", backend: str = "auto") -> None:
        """Make the form for a device of a codec of the host: table, dither and values of results are that codec's.

        `hopsum.torch.device_codec` compares the bytes of both before a job uses this one.

        Args:
            codec: with lanes of 8 bits, and codes in groups of LANE_GROUP_CODES.
            device: where all tensors are.
            backend: "torch", "triton", or "auto": triton on CUDA devices where it is installed.

        Raises:
            CodecError: the codec has no form for devices, its table does not fit the kernels, or there is no such
                backend or device here.
        """
        _require_form(codec)
        self.workers, self.bits, self.result_bits = codec.workers, codec.bits, codec.result_bits
        self.table, self.dither, self.op, self.lookup = codec.table, codec.dither, codec.op, codec.lookup
        self.block_elements = codec.block_elements
        self.device = _device(device)
        self.device_table = DeviceTable.from_values(self.table.values, self.table.bound, self.device)
        self.device_dither = None if self.dither is None else DeviceDither.from_dither(self.dither, self.device)
        requantized = self.dither is not None and self.dither.results is not None
        self.form = Form(code_bits=self.bits, requantized=requantized)
        self.kernels: TorchKernels = load_torch_kernels(backend, self.device)
        self.backend = self.kernels.name

    def ranges(self, x: torch.Tensor) -> torch.Tensor:
        """Return the root mean square of each block, float32[blocks]; +inf where one is not finite or too large.

        Raises CodecError as `require_tensor_vector` does.
        """
        require_tensor_vector(x, self.device)
        parts: list[torch.Tensor] = []
        self.by_rows(lambda _, rows: parts.append(self.kernels.root_mean_square(rows)), x)
        return mark_huge_ranges(torch.cat(parts))

    def encode_blocks(
        self,
        x: torch.Tensor,
        scales: torch.Tensor,
        shifts: torch.Tensor,
        context: ReductionContext,
        first: int,
        payloads: torch.Tensor,
    ) -> None:
        """Fill the payloads of a run of blocks, without a check and without waiting for the device.

        Args:
            x: float32[elements] of these blocks; only the last block of a vector may be shorter.
            scales, shifts: of these blocks, as `scales` returns them.
            first: number of the first block in its vector.
            payloads: uint8[blocks, up_bytes(op)], which is filled.
        """

        def encode(rows: slice, part: torch.Tensor) -> None:
            given = (self.device_table, self.form, self.keys(context, first + rows.start))
            self.kernels.thc_encode(part, scales[rows], shifts[rows], *given, payloads[rows])

        self.by_rows(encode, x)

    def pack_contributors(self, bitmaps: Bitmaps) -> Ints:
        """Return the contributors to each block, uint64[blocks], as one int32[n] to copy to the device.

        Raises:
            CodecError: a sum of nobody, or of a worker that the job does not have.
        """
        counts = contributor_counts(bitmaps, self.workers)
        if self.dither is None:
            return counts
        # As a rule all blocks have the same contributors: one comparison, in place of a sort.
        sets, rows = bitmaps[:1], np.zeros(len(bitmaps), np.int32)
        if (bitmaps != sets).any():
            sets, inverse = np.unique(bitmaps, return_inverse=True)
            rows = inverse.astype(np.int32)
        is_in = (sets[:, None] >> np.arange(self.workers, dtype=np.uint64) & np.uint64(1)).astype(np.int32)
        offsets = is_in @ self.dither.own.astype(np.int32)
        if self.dither.results is None:
            offsets += is_in.sum(axis=1, keepdims=True) * (self.dither.unit * self.dither.granularity // 2)
        # One array is one copy across the bus. Kernels take the offsets as float32, which holds them exactly.
        parts = (counts, rows, offsets.astype(np.float32).view(np.int32).reshape(-1))
        return np.concatenate(parts)

    def contributors(self, packed: torch.Tensor, blocks: int) -> DeviceContributors:
        """Return the contributors to so many blocks: views of an array of `pack_contributors`, copied to the device."""
        counts, rest = packed[:blocks], packed[blocks:]
        rows = rest[:blocks]
        return DeviceContributors(counts, rows, rest[len(rows) :].view(torch.float32).view(-1, SHARES))

    def decode_blocks(
        self,
        results: torch.Tensor,
        contributors: DeviceContributors,
        factors: torch.Tensor,
        context: ReductionContext,
        first: int,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Fill the mean of a run of blocks, without a check and without waiting for the device.

        Args:
            results: RESULT payloads of these blocks, uint8[blocks, down_bytes(op)].
            contributors, factors: of these blocks, factors as `factors` returns them.
            first: number of the first block in its vector.
            out: float32[elements] of these blocks, which is filled.

        Returns:
            int32[1], not 0 where the table cannot make one of the sums: `refuse_sums` says which.
        """
        beyond: list[torch.Tensor] = []

        def decode(rows: slice, part: torch.Tensor) -> None:
            keys, here = self.keys(context, first + rows.start), contributors.part(rows)
            # Collected on the device: whether sums are possible is asked once, at the end.
            if self.device_dither is None:
                given = (results[rows], here.counts, factors[rows], self.table.granularity, keys)
                beyond.append(self.kernels.thc_decode(*given, part))
            else:
                taken = (results[rows], here, factors[rows], self.device_dither, self.form, keys)
                beyond.append(self.kernels.dither_decode(*taken, part))

        self.by_rows(decode, out, write=True)
        return beyond[0] if len(beyond) == 1 else torch.maximum(*beyond)

    def subtract_blocks(
        self, payloads: torch.Tensor, factors: torch.Tensor, context: ReductionContext, pending: torch.Tensor
    ) -> None:
        """Subtract the share of this rank's payloads in the sum from pending, without a check and without waiting.

        `factors` are those of one worker, float32[blocks], and 0 for blocks that are in no sum.
        """

        def subtract(rows: slice, part: torch.Tensor) -> None:
            keys = self.keys(context, rows.start)
            if self.device_dither is None:
                self.kernels.thc_subtract(payloads[rows], factors[rows], self.device_table, keys, part)
            else:
                given = (payloads[rows], factors[rows], self.device_dither, context.rank, self.form, keys)
                self.kernels.dither_subtract(*given, part)

        self.by_rows(subtract, pending, write=True)

    def by_rows(self, work: Callable[[slice, torch.Tensor], None], x: torch.Tensor, *, write: bool = False) -> None:
        """Hand the blocks of x to work: whole ones as rows [blocks, B] of x itself, a rest as a padded copy.

        Args:
            work: takes numbers of blocks, and their rows.
            x: float32[elements].
            write: whether the rest is copied back.
        """
        x, block = x.detach(), self.block_elements
        # Whole blocks are a view. The last one is a padded copy, since kernels take whole blocks.
        whole, rest = divmod(x.numel(), block)
        if whole:
            work(slice(0, whole), x[: whole * block].view(whole, block))
        if rest:
            tail = _padded(x[whole * block :], block)
            work(slice(whole, whole + 1), tail)
            if write:
                x[whole * block :] = tail[0, :rest]

    def refuse_sums(self, results: torch.Tensor, counts: torch.Tensor) -> NoReturn:
        """Raise CodecError for whole sums that the table cannot make, of all blocks.

        Args:
            results: as for `decode_blocks`.
            counts: int32[blocks], of their contributors.
        """
        largest = results.amax(dim=1).int()
        block = int((largest > counts * self.table.granularity).int().argmax())
        raise CodecError(
            f"chunk {block}: a lane of {int(largest[block])} from {int(counts[block])} workers, "
            f"but the table ends at {self.table.granularity}: the switch has another table than this codec"
        )

    def keys(self, context: ReductionContext, first: int) -> BlockKeys:
        """Return the keys of a run of blocks that begins with block number `first` of its vector."""
        rotation = derive_key(context.seed, context.step, ROTATION)
        rounding = derive_key(context.seed, context.step, ROUNDING, context.rank)
        if self.dither is None:
            return BlockKeys(rotation, rounding, first)
        dither = derive_key(context.seed, context.step, DITHER)
        return BlockKeys(rotation, rounding, first, dither, int(self.dither.shifts[context.rank]))

    def scales(self, own: torch.Tensor, shared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scale of each block's elements, 0 where the shared range is zero, and shifts of blocks beyond it.

        The shift k is the least with own <= shared 2^k, in float64 as in numpy.
        """
        unit = self.table.granularity / (2 * self.table.bound) * 2.0**FRACTION_BITS / math.sqrt(self.block_elements)
        used = torch.where(shared < TINY, torch.inf, shared.double())
        # The same float64 operations as numpy's, in the same order: the scales are equal to the bit.
        part, exponent = torch.frexp(own.double() / used)
        shifts = torch.where(part == 0.5, exponent - 1, exponent).clamp(0, MAX_SHIFT).int()
        # 2^k as the bits of a float32: exact, on any device.
        used = torch.maximum(used * ((shifts + 127) << 23).view(torch.float32), own.double())
        return (unit / used).float(), shifts

    def factors(self, shared: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return the factors float32[blocks] that scale inversely rotated integers to means.

        A factor is 0 where the shared range is zero. `counts`: contributors of each block, at least 1.
        """
        # The integers are of half a level's distance, or of its `unit`-th part.
        parts = 2 if self.dither is None else self.dither.unit
        unit = 2 * self.table.bound / (math.sqrt(self.block_elements) * self.table.granularity * parts)
        used = torch.where(shared < TINY, 0.0, shared.double())
        return (used * unit / counts).float()


def mark_huge_ranges(ranges: torch.Tensor) -> torch.Tensor:
    """Return ranges with +inf for those that are not finite or too large to be summed."""
    return torch.where(ranges <= HUGE, ranges, torch.inf)


def _device(device: torch.device | str) -> torch.device:
    """Return a device with its number, as tensors have it."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise CodecError(f"device {device}: torch cannot use it ({str(error).splitlines()[0]})") from error


def _padded(rest: torch.Tensor, block_elements: int) -> torch.Tensor:
    row = torch.zeros((1, block_elements), dtype=torch.float32, device=rest.device)
    row[0, : rest.numel()] = rest
    return row


# ---- checks ------------------------------------------------------------------------------------------------


def _require_form(codec: Thc) -> None:
    """Raise CodecError unless the options are those that kernels on tensors have."""
    unlike = {
        f"lane_bits={codec.lane_bits}": codec.lane_bits != 8,
        f"code_group={codec.code_group}": codec.code_group != LANE_GROUP_CODES,
    }
    if any(unlike.values()):
        found = ", ".join(option for option, is_unlike in unlike.items() if is_unlike)
        raise CodecError(
            f"codec thc with {found} has no form for devices: it has one for lane_bits=8 and "
            f"code_group={LANE_GROUP_CODES}, with any of rounding, bits and result_bits"
        )


def require_tensor_vector(x: torch.Tensor, device: torch.device) -> None:
    """Raise CodecError unless x is float32[elements], contiguous, on the device, with at least one element."""
    if x.dtype != torch.float32 or x.ndim != 1 or not x.numel() or not x.is_contiguous():
        plain = "" if x.is_contiguous() else ", not contiguous"
        raise CodecError(
            f"a codec takes a contiguous float32 vector of at least one element, not {x.dtype}{list(x.shape)}{plain}; "
            "flatten it first"
        )
    require_device(x, device, "the vector")


def require_device(tensor: torch.Tensor, device: torch.device, what: str) -> None:
    """Raise CodecError unless a tensor is on the device."""
    if tensor.device != device:
        raise CodecError(f"{what} is on {tensor.device}, the codec on {device}; move one of them")
