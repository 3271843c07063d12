# SPDX-License-Identifier: Apache-2.0
"""Codec `thc` on torch tensors, as hopsum.codec's `Thc` with one range per block and lanes of 8 bits.

It also has `bits=2` and `result_bits=6`. Payloads, ranges and means are the same bytes, so ranks with and
without a GPU can be in one job. Vectors stay on their device; what travels is payloads. A range is a float32 of a
tensor here, and +inf says that a block must not be summed.

    own      = codec.ranges(x)
    shared   = read_ranges(results of MAX32 over pack_ranges(own), len(own))
    payloads = codec.encode(x, own, shared, context)
    mean     = codec.decode(results, contributors, shared, elements, context)

With error feedback `hopsum.torch.device_reduction.DeviceFeedback` takes the place of `ranges`, and is committed at
the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NoReturn

import torch

from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import FRACTION_BITS, MAX_SHIFT, THC_BLOCK, BlockKeys
from hopsum.codec.hashing import ROTATION, ROUNDING, derive_key
from hopsum.codec.interface import CodecError, ReductionContext, blocks_of
from hopsum.codec.lookup_table import PAIRED_BITS, PAIRED_SUM_BITS, LookupTable
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import HUGE, PAIR_BLOCKS, PAIR_LOW_BITS, TINY, Thc
from hopsum.codec.vector_reduction import INFINITE, RANGE_LANES
from hopsum.torch.codec.torch_kernels import DeviceTable, TorchKernels, TorchReferenceKernels, load_torch_kernels
from hopsum_wire import Op
from hopsum_wire._layout import LANES_BYTES, PACKED_BYTES, PACKED_LANE_BITS
from hopsum_wire.payload import SHAPES

_UP_BYTES: Final = SHAPES[Op.LOOKUP_ADD8].up_bytes
_LANE_BITS: Final = 8


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
        """Make the codec of a job; all ranks with the same table. Triton kernels are checked against the twin.

        Args:
            table: of up to 16 values, of up to 4 with `bits=2`; as `Thc` chooses it if left out.
            bits, result_bits: as for `Thc`.
            device: where all tensors are.
            backend: "torch", "triton", or "auto": triton on CUDA devices where it is installed.

        Raises:
            CodecError: the sum of `workers` table values may overflow a lane, the table does not fit the kernels, or
                there is no such backend or device here, or it failed its check.
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
        # Compared before the first use: kernels from another version's cache would split a job's replicas.
        if self.device.type == "cuda" and self.backend != TorchReferenceKernels.name:
            plain = TorchThc(
                workers,
                table=self.table,
                bits=bits,
                result_bits=result_bits,
                device=self.device,
                backend=TorchReferenceKernels.name,
            )
            _self_check(self, plain)

    def ranges(self, x: torch.Tensor) -> torch.Tensor:
        """Return the root mean square of each block, float32[blocks]; +inf where one is not finite or too large."""
        require_tensor_vector(x, self.device)
        parts: list[torch.Tensor] = []
        self.by_rows(lambda _, rows: parts.append(self.kernels.root_mean_square(rows)), x)
        return bounded(torch.cat(parts))

    def encode(
        self, x: torch.Tensor, own: torch.Tensor, shared: torch.Tensor, context: ReductionContext
    ) -> torch.Tensor:
        """Return UPDATE payloads, uint8[chunks, up_bytes(op)], a new tensor. Waits for the device, to check the ranges.

        A chunk has one block, or two with `bits=2`.

        Args:
            x: float32[elements], contiguous and finite; only read.
            own: what `ranges` returned for it. A block whose own range exceeds the shared one is clipped to it.
            shared: float32[blocks], the maxima over the workers, finite.
            context: as for numpy codecs.

        Raises:
            CodecError: tensors of another type, shape or device, or ranges of a bucket that must be skipped.
        """
        require_tensor_vector(x, self.device)
        blocks = blocks_of(x.numel(), self.block_elements)
        require_tensor(own, torch.float32, (blocks,), self.device, "own ranges")
        self._require_shared(shared, blocks)
        require_finite_ranges(own, "own ranges")
        payloads = torch.empty((self.chunks(blocks), SHAPES[self.op].up_bytes), dtype=torch.uint8, device=self.device)
        self.encode_blocks(x, *self.scales(own, shared), context, 0, payloads)
        return payloads

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

    def decode(
        self,
        results: torch.Tensor,
        contributors: torch.Tensor,
        shared: torch.Tensor,
        elements: int,
        context: ReductionContext,
    ) -> torch.Tensor:
        """Return the mean, float32[elements], a new tensor. Waits for the device, to check the sums.

        Args:
            results: RESULT payloads, uint8[chunks, down_bytes(op)].
            contributors: int64[blocks], bitmap of the workers in each sum.
            shared: as in `encode`.
            elements: of the vector.
            context: its seed and step; ranks decode alike.

        Raises:
            CodecError: tensors of another type, shape or device, impossible contributors, or sums that the table
                cannot make.
        """
        blocks = blocks_of(elements, self.block_elements)
        down_bytes = SHAPES[self.op].down_bytes
        require_tensor(results, torch.uint8, (self.chunks(blocks), down_bytes), self.device, "results")
        require_tensor(contributors, torch.int64, (blocks,), self.device, "contributors")
        self._require_shared(shared, blocks)
        counts, factors = self.counts_and_factors(contributors, shared)
        out = torch.empty(elements, dtype=torch.float32, device=self.device)
        if bool(self.decode_blocks(results, counts, factors, context, 0, out)):
            self.refuse_sums(results, counts)
        return out

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
            counts, factors: of these blocks, as `counts_and_factors` returns them.
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

    def contribution(
        self,
        payloads: torch.Tensor,
        shared: torch.Tensor,
        elements: int,
        context: ReductionContext,
        included: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the decoded share of payloads in the sum, float32[elements], a new tensor.

        Args:
            payloads: UPDATE payloads, uint8[chunks, up_bytes(op)].
            shared: ranges of blocks, float32[blocks], as in `encode`.
            elements: of the vector.
            context: of the encoding.
            included: blocks that are in a sum, bool[blocks]; all if left out.
        """
        factors = self.contribution_factors(payloads, shared, elements, included)
        codes = self._own_codes(payloads)
        out = torch.empty(elements, dtype=torch.float32, device=self.device)

        def dequantize(rows: slice, part: torch.Tensor) -> None:
            self.kernels.thc_contribution(
                codes[rows], factors[rows], self.device_table, self.keys(context, rows.start), part
            )

        self.by_rows(dequantize, out, write=True)
        return out

    def subtract_contribution(
        self,
        payloads: torch.Tensor,
        shared: torch.Tensor,
        context: ReductionContext,
        pending: torch.Tensor,
        included: torch.Tensor | None = None,
    ) -> None:
        """Subtract from pending, float32[elements], what payloads add to the sum: in one pass."""
        require_tensor_vector(pending, self.device)
        factors = self.contribution_factors(payloads, shared, pending.numel(), included)
        self.subtract_blocks(payloads, factors, context, pending)

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

    def contribution_factors(
        self, payloads: torch.Tensor, shared: torch.Tensor, elements: int, included: torch.Tensor | None
    ) -> torch.Tensor:
        """Check what a contribution is made from, and return its factors, float32[blocks]."""
        blocks = blocks_of(elements, self.block_elements)
        require_tensor(payloads, torch.uint8, (self.chunks(blocks), SHAPES[self.op].up_bytes), self.device, "payloads")
        self._require_shared(shared, blocks)
        factors = self.factors(shared, torch.ones(blocks, dtype=torch.int32, device=self.device))
        if included is not None:
            require_tensor(included, torch.bool, (blocks,), self.device, "included blocks")
            # bool times float32: blocks that are in no sum contribute 0.
            factors *= included
        return factors

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

    def _require_shared(self, shared: torch.Tensor, blocks: int) -> None:
        require_tensor(shared, torch.float32, (blocks,), self.device, "shared ranges")
        require_finite_ranges(shared, "shared ranges")

    def _counts(self, contributors: torch.Tensor) -> torch.Tensor:
        """Return the number of workers in each sum, int32[blocks]."""
        counts = torch.zeros(contributors.shape, dtype=torch.int32, device=self.device)
        # torch has no count of bits: a pass for each worker, over one number a block.
        for worker in range(self.workers):
            counts += ((contributors >> worker) & 1).int()
        bad = (counts == 0) | ((contributors >> self.workers) != 0)
        if bool(bad.any()):
            chunk = int(bad.int().argmax())
            bitmap = int(contributors[chunk]) & (1 << 64) - 1
            raise CodecError(f"chunk {chunk}: contributors {bitmap:#x} of a job of {self.workers} workers")
        return counts

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

    def counts_and_factors(self, contributors: torch.Tensor, shared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the number of workers in each sum, int32[blocks], and what its integers are multiplied with."""
        counts = self._counts(contributors)
        return counts, self.factors(shared, counts)

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


def _self_check(codec: TorchThc, twin: TorchThc) -> None:
    """Compare a codec with the torch backend on five blocks and a bit: a wrong kernel would split a job's replicas."""
    elements = 5 * THC_BLOCK + 5
    places = torch.arange(elements, dtype=torch.float32, device=codec.device)
    x = torch.sin(places * places) * torch.exp(places * -1e-3)
    context = ReductionContext(seed=11, step=3, rank=codec.workers - 1)
    found, right = (_phases(each, x, context) for each in (codec, twin))
    for what, expected in right.items():
        if not torch.equal(found[what].view(torch.uint8), expected.view(torch.uint8)):
            raise CodecError(
                f"codec thc on {codec.device}: {what} of backend {codec.backend} differ from those of torch's own "
                "operations; use backend 'torch', and remove Triton's cache if it was made by another version"
            )


def _phases(codec: TorchThc, x: torch.Tensor, context: ReductionContext) -> dict[str, torch.Tensor]:
    """Return the results of each phase of an all-reduce in which all ranks have the same vector."""
    own = codec.ranges(x)
    shared = own * 1.5
    # One block exceeds the shared range, as if its ranges had come too late.
    shared[0] /= 4
    payloads = codec.encode(x, own, shared, context)
    results, _ = simulate_switch(codec.op, [payloads.cpu().numpy()] * codec.workers, codec.lookup)
    everybody = torch.full((len(own),), (1 << codec.workers) - 1, dtype=torch.int64, device=codec.device)
    left = x.clone()
    codec.subtract_contribution(payloads, shared, context, left)
    return {
        "ranges": own,
        "payloads": payloads,
        "contributions": codec.contribution(payloads, shared, x.numel(), context),
        "residuals": left,
        "means": codec.decode(torch.from_numpy(results).to(codec.device), everybody, shared, x.numel(), context),
    }


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


# ---- ranges as MAX32 payloads ------------------------------------------------------------------------------

_LANE_BYTES = 4


def pack_ranges(ranges: torch.Tensor) -> torch.Tensor:
    """Return the MAX32 payloads of float32 ranges, uint8[chunks, 1024]. Lanes beyond the last block are 0."""
    chunks = blocks_of(ranges.numel(), RANGE_LANES)
    lanes = torch.zeros(chunks * RANGE_LANES, dtype=torch.float32, device=ranges.device)
    # Lanes beyond the last block are 0, which no maximum is below.
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
    # A set top bit or NaN: both mean that the block must not be summed.
    finite = (bits >= 0) & (bits < INFINITE)
    return torch.where(finite, bits, INFINITE).view(torch.float32)


def _swapped(lanes: torch.Tensor) -> torch.Tensor:
    """Reverse the bytes of lanes of 32 bits, uint8[bytes]. The tensor is new."""
    return lanes.reshape(-1, _LANE_BYTES).flip(1).reshape(-1)


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


def require_tensor(
    tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device, what: str
) -> None:
    """Raise CodecError unless a tensor has this type and shape, is contiguous, and on the device."""
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise CodecError(
            f"{what}: expected {dtype}{list(shape)}, got {tensor.dtype}{list(tensor.shape)}; "
            "all phases of an all-reduce take the same number of elements"
        )
    if not tensor.is_contiguous():
        raise CodecError(f"{what}: strides {tensor.stride()}; pass a contiguous tensor")
    require_device(tensor, device, what)


def require_device(tensor: torch.Tensor, device: torch.device, what: str) -> None:
    """Raise CodecError unless a tensor is on the device."""
    if tensor.device != device:
        raise CodecError(f"{what} is on {tensor.device}, the codec on {device}; move one of them")


def require_finite_ranges(ranges: torch.Tensor, what: str) -> None:
    """Raise CodecError if a range says that its block must not be summed. Waits for the device."""
    bad = torch.isfinite(ranges).logical_not()
    count = int(bad.sum())
    if count:
        raise CodecError(
            f"{what}: {count} of {ranges.numel()} blocks are not finite, the first is block "
            f"{int(bad.int().argmax())}: skip this all-reduce on all ranks"
        )
