# SPDX-License-Identifier: Apache-2.0
"""Codec `thc` on torch tensors, as hopsum.codec's `Thc` with one range per block and lanes of 8 bits.

It also has `bits=2` and `result_bits=6`. Payloads, ranges and means are the same bytes, so ranks with and
without a GPU can be in one job. Vectors stay on their device; what travels is payloads. A range is a float32 of a
tensor here, and +inf says that a block must not be summed.

    own = codec.ranges(x)                                shared = the largest own range of each block over the ranks
    codec.encode_blocks(x, *codec.scales(own, shared), context, 0, payloads)
    codec.decode_blocks(results, counts, codec.factors(shared, counts), context, 0, mean)

`hopsum.torch.device_reduction` runs an all-reduce by these steps, and checks results and contributors. With error
feedback its `DeviceFeedback` takes the place of `ranges`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NoReturn

import torch

from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import FRACTION_BITS, MAX_SHIFT, BlockKeys
from hopsum.codec.hashing import ROTATION, ROUNDING, derive_key
from hopsum.codec.interface import CodecError, ReductionContext, blocks_of
from hopsum.codec.lookup_table import PAIRED_BITS, PAIRED_SUM_BITS, LookupTable
from hopsum.codec.thc import HUGE, PAIR_BLOCKS, PAIR_LOW_BITS, TINY, Thc
from hopsum.torch.codec.torch_kernels import DeviceTable, TorchKernels, load_torch_kernels
from hopsum_wire import Op
from hopsum_wire._layout import LANES_BYTES, PACKED_BYTES, PACKED_LANE_BITS
from hopsum_wire.payload import SHAPES

_UP_BYTES: Final = SHAPES[Op.LOOKUP_ADD8].up_bytes


class TorchThc:
    """Codec `thc` on tensors of one device. Holds parameters only: any thread may use it.

    The job's switch needs the table `lookup`.
    """

    name = "thc"

    def __init__(
        self,
        workers: int,
        *,
        table: LookupTable | None = None,
        bits: int = 4,
        result_bits: int | None = None,
        device: torch.device | str = "cpu",
        backend: str = "auto",
    ) -> None:
        """Make the codec of a job, with the same table on all ranks.

        `hopsum.torch.device_codec` compares its bytes with those of the host's codec before a job uses it.

        Args:
            table: of up to 16 values, of up to 4 with `bits=2`; as `Thc` chooses it if left out.
            bits, result_bits: as for `Thc`.
            device: where all tensors are.
            backend: "torch", "triton", or "auto": triton on CUDA devices where it is installed.

        Raises:
            CodecError: the sum of `workers` table values may overflow a lane, the table does not fit the kernels, or
                there is no such backend or device here.
        """
        self.workers, self.bits = workers, bits
        # The host's codec checks the options and chooses the table, so that both sides of a job agree.
        twin = Thc(workers, table=table, bits=bits, result_bits=result_bits, kernels=load_kernels("numpy"))
        self.table, self.op, self.chunk_blocks = twin.table, twin.op, twin.chunk_blocks
        self.block_elements, self.lookup = twin.block_elements, twin.lookup
        self.device = _device(device)
        self.device_table = DeviceTable.of(self.table.values, self.table.bound, self.device)
        self.kernels: TorchKernels = load_torch_kernels(backend, self.device)
        self.backend = self.kernels.name

    def ranges(self, x: torch.Tensor) -> torch.Tensor:
        """Return the root mean square of each block, float32[blocks]; +inf where one is not finite or too large."""
        require_tensor_vector(x, self.device)
        parts: list[torch.Tensor] = []
        self.by_rows(lambda _, rows: parts.append(self.kernels.root_mean_square(rows)), x)
        return bounded(torch.cat(parts))

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
            first: number of the first block in its vector, a multiple of `chunk_blocks`.
            payloads: uint8[chunks, up_bytes(op)], which is filled.
        """
        codes, blocks = payloads, len(scales)
        if self.chunk_blocks > 1:
            rows = (len(payloads) * self.chunk_blocks, _UP_BYTES)
            codes = torch.empty(rows, dtype=torch.uint8, device=self.device)
            # An odd number of blocks leaves the codes of the missing one, which the payload still has a place for.
            codes[blocks:] = 0

        def encode(rows: slice, part: torch.Tensor) -> None:
            keys = self.keys(context, first + rows.start)
            self.kernels.thc_encode(part, scales[rows], shifts[rows], self.device_table, keys, codes[rows])

        self.by_rows(encode, x)
        if self.chunk_blocks > 1:
            payloads.copy_(pair_payloads(codes))

    def decode_blocks(
        self,
        results: torch.Tensor,
        counts: torch.Tensor,
        factors: torch.Tensor,
        context: ReductionContext,
        first: int,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Fill the mean of a run of blocks, without a check and without waiting for the device.

        Args:
            results: RESULT payloads of these blocks, uint8[chunks, down_bytes(op)].
            counts, factors: of these blocks, counts int32 of contributors, factors as `factors` returns them.
            first: number of the first block in its vector, a multiple of `chunk_blocks`.
            out: float32[elements] of these blocks, which is filled.

        Returns:
            int32[1], not 0 where the table cannot make one of the sums: `refuse_sums` says which.
        """
        sums, beyond = self._sums(results)[: len(counts)], []

        def decode(rows: slice, part: torch.Tensor) -> None:
            keys = self.keys(context, first + rows.start)
            given = (sums[rows], counts[rows], factors[rows], self.table.granularity, keys)
            # Collected on the device: whether sums are possible is asked once, at the end.
            beyond.append(self.kernels.thc_decode(*given, part))

        self.by_rows(decode, out, write=True)
        return beyond[0] if len(beyond) == 1 else torch.maximum(*beyond)

    def subtract_blocks(
        self, payloads: torch.Tensor, factors: torch.Tensor, context: ReductionContext, pending: torch.Tensor
    ) -> None:
        """Subtract from pending what payloads add to the sum, without a check and without waiting for the device.

        `factors` are those of one worker, float32[blocks], and 0 for blocks that are in no sum.
        """
        codes = self._own_codes(payloads)

        def subtract(rows: slice, part: torch.Tensor) -> None:
            self.kernels.thc_subtract(
                codes[rows], factors[rows], self.device_table, self.keys(context, rows.start), part
            )

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

    def chunks(self, blocks: int) -> int:
        """Return the number of chunks of so many blocks."""
        return blocks_of(blocks, self.chunk_blocks)

    def _own_codes(self, payloads: torch.Tensor) -> torch.Tensor:
        """Return the payloads of each block by itself."""
        return payloads if self.chunk_blocks == 1 else split_payloads(payloads)

    def _sums(self, results: torch.Tensor) -> torch.Tensor:
        """Return the sums of each block, uint8[blocks or more, B]."""
        if self.op == Op.LOOKUP_ADD6:
            return unpack_sums(results)
        return results if self.chunk_blocks == 1 else split_sums(results)

    def refuse_sums(self, results: torch.Tensor, counts: torch.Tensor) -> NoReturn:
        """Raise CodecError for sums that the table cannot make; arguments as for `decode_blocks`, of all blocks."""
        largest = self._sums(results)[: len(counts)].amax(dim=1).int()
        block = int((largest > counts * self.table.granularity).int().argmax())
        raise CodecError(
            f"chunk {block // self.chunk_blocks}: a lane of {int(largest[block])} from {int(counts[block])} workers, "
            f"but the table ends at {self.table.granularity}: the switch has another table than this codec"
        )

    @staticmethod
    def keys(context: ReductionContext, first: int) -> BlockKeys:
        """Return the keys of a run of blocks."""
        rotation = derive_key(context.seed, context.step, ROTATION)
        return BlockKeys(rotation, derive_key(context.seed, context.step, ROUNDING, context.rank), first)

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
        """Return the factor of rotated-back integers, float32[blocks]; 0 where the shared range is zero."""
        unit = self.table.bound / (math.sqrt(self.block_elements) * self.table.granularity)
        used = torch.where(shared < TINY, 0.0, shared.double())
        return (used * unit / counts).float()


def bounded(ranges: torch.Tensor) -> torch.Tensor:
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


# ---- paired codes and packed results -----------------------------------------------------------------------

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
    # A byte keeps the sum of its own lane in 6 bits, and 2 bits of one of the last lanes.
    top_bits = 8 - PACKED_LANE_BITS
    tops = [part >> PACKED_LANE_BITS << top_bits * place for place, part in enumerate(packed.chunk(_PARTS, dim=1))]
    sums[:, PACKED_BYTES:] = tops[0] | tops[1] | tops[2]
    return sums


def _interleaved(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.stack((first, second), dim=1).flatten(0, 1)


# ---- checks of tensors -------------------------------------------------------------------------------------


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
