# SPDX-License-Identifier: Apache-2.0
"""Codecs that need one range per block, and their all-reduce as a state machine without I/O.

    own     = codec.ranges(x)
    shared  = read_ranges(results of MAX32 over pack_ranges(own), len(own))
    up      = codec.encode(x, own, shared, context)      payloads of codec.op, one row per chunk
    mean    = codec.decode(results, contributors, shared, elements, context)
    mine    = codec.dequantize_own(up, shared, elements, context)      what `up` added, for error feedback

    state    input                            next     also
    RANGES   take(no block infinite)          SUMS     next phase: payloads of codec.op
    RANGES   take(some block infinite)        SKIPPED  on all ranks alike; residual as before; maybe NonFiniteError
    SUMS     take                             DONE     mean; residual committed
    RANGES   abort                            GONE     residual + vector is the new residual
    SUMS     abort                            GONE     the same

Settlement: only a RESULT's contributors decide. Own bit set: only the quantisation error of that chunk stays.
Clear: the whole contribution goes back.

With error feedback the vector to encode is x + residual, which is nowhere in memory as a whole. Where a chunk is
encoded, its place in the feedback's pending array (`ErrorFeedback.begin`) becomes x + residual - contribution: the
residual that stays if the sum has the chunk. Where the sum has not, or where the all-reduce is aborted, the
contribution is decoded once more from the payload and added again, which rounds to float32. Nothing is written before
all ranges are known, so a skipped bucket leaves the residual untouched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from hopsum.codec.backends.kernels import KernelCodec
from hopsum.codec.interface import (
    Bitmaps,
    Bytes,
    ChunkStream,
    CollectivePhase,
    ErrorFeedback,
    Flags,
    Floats,
    ReductionContext,
    ReductionState,
    StartOptions,
    Words,
    includes,
    require_rows,
    require_vector,
)
from hopsum.codec.vector_reduction import (
    INFINITE,
    BlockReduction,
    SharedRanges,
    read_ranges,
    require_ranges,
)
from hopsum_base.spare_arrays import spare_array
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES

_LARGE = np.float32(2.0**100)


class RangeCodec(KernelCodec, ABC):
    """A codec with one range for each block: the base of `Fixed`, `Thc` and `Uhc`. It holds parameters only.

    The contract is `hopsum.codec.interface.Codec`. `RangeReduction` runs an all-reduce by the methods here.
    """

    name: str
    backend: str
    workers: int
    op: Op
    """The switch's operation on the chunks. Ranges always take MAX32."""
    block_elements: int
    """Elements of a block, which has a range of its own."""
    lookup: tuple[int, ...] | None
    code_group: int
    phases = 2
    streams = False
    """True where all methods take a part of a vector too, which begins at `context.first_block`."""

    def start(
        self,
        x: Floats,
        context: ReductionContext,
        feedback: ErrorFeedback | None = None,
        **options: Unpack[StartOptions],
    ) -> RangeReduction:
        """Begin an all-reduce. See `Codec.start`."""
        return RangeReduction(self, x, context, feedback, **options)

    def stream(
        self,
        x: Floats,
        own: Words,
        context: ReductionContext,
        payloads: Bytes,
        mean: Floats | None,
        kept: tuple[Floats, Floats] | None,
    ) -> ChunkStream | None:
        """Return the stream of a vector with machine code that encodes and decodes its chunks; None: there is none.

        It is not begun: see `begin`.

        Args:
            x: float32[elements], of the whole vector, as own and context are. All arrays have to live as long as the
                stream.
            payloads: uint8[chunks, up_bytes(op)], to be filled.
            mean: float32[elements], to be filled; x itself, if x is not needed once it is encoded. None: sums are not
                decoded by chunks.
            kept: the residual, and the array that becomes the residual, which may be the same. The vector to encode is
                then x + residual. None: there is no error feedback.
        """
        return None

    def begun_ranges(self, stream: ChunkStream) -> SharedRanges:
        """Return the shared ranges with which machine code has begun a stream. Only a codec with such code has this."""
        raise NotImplementedError

    def begin(self, stream: ChunkStream, own: Words, shared: SharedRanges) -> None:
        """Begin a stream: chunks may be encoded. The machine code `stream.scale_kernel` does the same."""
        stream.begun = True

    @abstractmethod
    def ranges(self, x: Floats) -> Words:
        """Return the range of each block, uint32[blocks]: bits of a non-negative float32, +inf if it is not finite."""

    def ranges_of_sum(self, x: Floats, residual: Floats) -> Words:
        """Return the ranges of x + residual, float32[elements] both, as `ranges` does. The sum is not kept."""
        return self.ranges(np.add(x, residual, out=spare_array(x.shape, np.float32)))

    @abstractmethod
    def encode(
        self, x: Floats, own: Words, shared: SharedRanges, context: ReductionContext, *, out: Bytes | None = None
    ) -> Bytes:
        """Return UPDATE payloads, uint8[blocks, up_bytes(op)]: a block is a chunk.

        Args:
            x: float32, contiguous and finite. It is only read.
            own: the result of `ranges` for x. A block whose own range exceeds the shared one (its ranges came
                too late for the quorum) is made to fit. The rest of it is quantisation error.
            shared: not skipped.
            context: `first_block` is 0 unless the codec streams. All arguments are those of the blocks of x, which are
                whole chunks.
            out: becomes the payloads where the codec streams. A new array if left out.
        """

    @abstractmethod
    def decode(
        self,
        results: Bytes,
        contributors: Bitmaps,
        shared: SharedRanges,
        elements: int,
        context: ReductionContext,
        out: Floats | None = None,
    ) -> Floats:
        """Return the mean of the contributions, float32[elements]: a new array, or `out` where that saves one.

        Args:
            results: RESULT payloads, uint8[chunks, down_bytes(op)].
            contributors: [blocks], bitmap of the workers in each sum. Sums are divided by their number.

        Raises:
            CodecError: arguments of another shape, a sum of no worker of the job, or a sum that the codec cannot make.
        """

    @abstractmethod
    def dequantize_own(
        self,
        payloads: Bytes,
        shared: SharedRanges,
        elements: int,
        context: ReductionContext,
        included: Flags | None = None,
    ) -> Floats:
        """Return the decoded share of these UPDATE payloads in the sum, float32[elements], a new array.

        Args:
            included: bool[blocks], which of them are in a sum, all by default. The others add nothing.
        """

    def subtract_dequantized(
        self, x: Floats, payloads: Bytes, shared: SharedRanges, context: ReductionContext, included: Flags | None = None
    ) -> None:
        """Subtract the share of these payloads in the sum from x, in place. Arguments: see `dequantize_own`."""
        x -= self.dequantize_own(payloads, shared, x.size, context, included)


class RangeReduction(BlockReduction):
    """One all-reduce of one vector by a codec that first agrees on a range for each block."""

    codec: RangeCodec

    def __init__(
        self,
        codec: RangeCodec,
        x: Floats,
        context: ReductionContext,
        feedback: ErrorFeedback | None = None,
        **options: Unpack[StartOptions],
    ) -> None:
        self.codec = codec
        self._shared: SharedRanges | None = None
        self._stream: ChunkStream | None = None
        """The codes, once the ranges are shared or machine code may begin. `stream` is the same if it has such code."""
        self._part_chunks = 0
        self._compiled = False
        self._kept: tuple[Floats, Floats] | None = None
        """The residual from before, and the array that becomes the residual. It may be the same."""
        self._added = 0
        """Elements of the vector that `_encode` has added in that array, also where the codec raised then."""
        super().__init__(x, context, feedback, **options)
        # Once: machine code has its address.
        self._mean = np.empty(self.elements, np.float32) if self._out is None else self._out
        # Without error feedback x is the only copy: no sum may overwrite it before the last one is here.
        self._is_overwritten = feedback is None and self._out is not None and np.may_share_memory(self._out, self._x)

    def encode_in_parts(self, part_chunks: int, *, compiled: bool = False) -> None:
        self._part_chunks = part_chunks if self.codec.streams else 0
        self._compiled = compiled and self.codec.streams

    @property
    def encoded(self) -> int:
        """Return the number of chunks of the phase whose payloads are made."""
        return super().encoded if self._stream is None else self._stream.encoded

    @property
    def is_begun(self) -> bool:
        return self.state is not ReductionState.RANGES

    def begin_second_phase(self) -> CollectivePhase | None:
        if not self._compiled or self.state is not ReductionState.RANGES:
            return None
        self._stream = self.stream = self._machine_stream(self._payloads())
        if self._stream is None:
            return None
        return CollectivePhase(self.codec.op, self._stream.payloads, self._lanes, last=True)

    def encode_part(self) -> Bytes:
        stream = self._stream
        if stream is None or self._shared is None or stream.encoded == len(stream.payloads):
            return super().encode_part()
        end = stream.encoded + self._part_chunks if self._part_chunks else len(stream.payloads)
        return self._encode(min(end, len(stream.payloads)))

    def _encode(self, end: int) -> Bytes:
        """Make the next payloads, up to chunk `end`, and subtract their contribution as if the sums had it."""
        stream, kept = self._stream, self._kept
        assert stream is not None
        assert self._shared is not None
        chunks = slice(stream.encoded, end)
        blocks, elements = self._places(chunks)
        shared = SharedRanges(self._shared.values[blocks])
        context = replace(self.context, first_block=blocks.start)
        x = self._x[elements]
        if kept is not None:
            x = np.add(x, kept[0][elements], out=kept[1][elements])
            self._added = elements.stop
        if self.codec.streams:
            made = self.codec.encode(x, self._own[blocks], shared, context, out=stream.payloads[chunks])
        else:
            # The whole vector: such a codec returns an array of its own.
            made = stream.payloads = self.codec.encode(x, self._own, shared, context)
        if kept is not None:
            self.codec.subtract_dequantized(x, made, shared, context)
        stream.encoded = end
        return made

    def on_part(self, first: int, results: Bytes, contributors: Bitmaps) -> None:
        """Take the sums of some chunks early. See `Reduction`.

        A vector that the mean overwrites, and that no error feedback keeps, is needed until the last sum is here: then
        this does nothing. The caller passes chunks that are encoded.
        """
        if self._stream is None or not self.codec.streams or self._is_overwritten:
            return
        # The network had to ask again: parts taken from sums that were replaced must be taken back.
        if first != self._stream.taken:
            self._undo_parts()
        # Machine code may have read sums before a part that was to be taken back: `on_results` reads all of them then.
        if len(results) and first == self._stream.taken:
            self._settle(slice(first, first + len(results)), results, contributors)

    def abort(self) -> None:
        self._stop_machine()
        super().abort()
        self._stream = None

    def _commit(self) -> None:
        if self._kept is not None:
            self._keep_all(*self._kept)
        super()._commit()

    def _compensated(self, x: Any) -> Any:
        require_vector(x, self._out)
        if self._feedback is not None:
            pending = self._feedback.begin(x)
            self._kept = self._feedback.residual, pending
        return x

    def _first_phase(self) -> CollectivePhase:
        return self._share(self._ranges())

    def _ranges(self) -> Words:
        if self._kept is None:
            return self.codec.ranges(self._x)
        # A vector that is not finite is found by its ranges, so that all ranks hear of it alike.
        with np.errstate(over="ignore", invalid="ignore"):
            return self.codec.ranges_of_sum(self._x, self._kept[0])

    def _on_host(self) -> Floats:
        x: Floats = self._x
        with np.errstate(over="ignore", invalid="ignore"):
            return x if self._kept is None else x + self._kept[0]

    def _is_finite(self) -> bool:
        # Codes are made of finite ranges only, which finite vectors have.
        is_encoded = self._stream is not None and self._stream.encoded > 0
        return is_encoded or bool(np.isfinite(self._on_host()).all())

    def _keep_all(self, residual: Floats, pending: Floats) -> None:
        """Set the pending array to x + residual, as if nothing were delivered."""
        stream, there = self._stream, self._added
        if stream is not None and stream.encoded:
            self._undo_parts()
            encoded, elements = self._places(slice(0, stream.encoded))
            if self._shared is None:
                self._shared = self.codec.begun_ranges(stream)
            shared = SharedRanges(self._shared.values[encoded])
            # Added again in float32: the vector comes back rounded, which `abort` says.
            pending[elements] += self.codec.dequantize_own(
                stream.payloads[encoded], shared, elements.stop, self.context
            )
            there = max(there, elements.stop)
        np.add(self._x[there:], residual[there:], out=pending[there:])

    def _on_ranges(self, results: Bytes) -> None:
        shared = read_ranges(results, self._own.size)
        if shared.skipped:
            self._stop_machine()
            self._skip()
            return
        x = self._x
        # After `skipped`: only a rank whose ranges were not in the maximum gets here with an infinite block.
        if int(self._own.max()) >= INFINITE:
            self._drop_infinite()
        self._shared = shared
        if self._stream is None or self._x is not x:
            self._stream = self._begin_codes(shared)
        elif not self._stream.begun:
            self.codec.begin(self._stream, self._own, shared)
        stream = self._stream
        if not stream.encoded and stream.run is None:
            # Nothing is sent before the first part is made.
            self.encode_part()
        self.phase = CollectivePhase(self.codec.op, stream.payloads, self._lanes, last=True)
        self.state = ReductionState.SUMS

    def _begin_codes(self, shared: SharedRanges) -> ChunkStream:
        """Return the stream of the codes, with none yet."""
        self.stream = None
        if self._compiled:
            self.stream = self._machine_stream(self._payloads())
            if self.stream is not None:
                self.codec.begin(self.stream, self._own, shared)
                return self.stream
        return ChunkStream(self._payloads(), np.zeros(self._blocks, np.uint64), begun=True)

    def _payloads(self) -> Bytes:
        """Return room for all payloads of the codes, with any content."""
        return spare_array((self._blocks, SHAPES[self.codec.op].up_bytes))

    def _machine_stream(self, payloads: Bytes) -> ChunkStream | None:
        mean = None if self._is_overwritten else self._mean
        return self.codec.stream(self._x, self._own, self.context, payloads, mean, self._kept)

    def _stop_machine(self) -> None:
        # The network may still have the stream. The vector is the feedback's or the caller's again.
        if self.stream is not None:
            self.stream.run = None
            self.stream = None

    def _on_sums(self, results: Bytes, contributors: Bitmaps) -> None:
        stream = self._stream
        assert stream is not None
        require_rows(
            results, len(stream.payloads), SHAPES[self.codec.op].down_bytes, f"results of {self.elements} elements"
        )
        require_ranges(contributors, len(results), "contributors instead of")
        # Parts have settled their chunks in the vector already: only the rest is decoded here.
        rest = slice(stream.taken, len(results))
        if rest.start < rest.stop:
            self._settle(rest, results[rest], contributors[rest])
        if self._feedback is not None:
            self._feedback.commit()
        self._stream = self.stream = None
        self._finish(self._mean, contributors)

    def _settle(self, chunks: slice, results: Bytes, contributors: Bitmaps) -> None:
        """Decode the sums of the next chunks, and leave of the vector's elements there what they do not deliver."""
        stream = self._stream
        assert self._shared is not None
        assert stream is not None
        if stream.encoded < chunks.stop:
            # The sums came before this rank's codes, with a quorum. The mean may overwrite x here.
            self._encode(chunks.stop)
        blocks, elements = self._places(chunks)
        shared = SharedRanges(self._shared.values[blocks])
        context = replace(self.context, first_block=blocks.start)
        given = (results, contributors, shared, elements.stop - elements.start, context)
        if not self.codec.streams:
            # The whole vector: such a codec may return an array of its own.
            self._mean = self.codec.decode(*given, out=self._out)
        else:
            self.codec.decode(*given, out=self._mean[elements])
        self._note_absent(chunks, contributors, back=False)
        # Last: `abort` takes back only what was noted, also after a codec that raised.
        stream.contributors[chunks] = contributors
        stream.taken = chunks.stop

    def _undo_parts(self) -> None:
        """Let the pending array be as it was before the sums of any chunk were taken."""
        if self._stream is not None and self._stream.taken:
            chunks = slice(0, self._stream.taken)
            self._note_absent(chunks, self._stream.contributors[chunks], back=True)
            self._stream.taken = 0

    def _note_absent(self, chunks: slice, contributors: Bitmaps, *, back: bool) -> None:
        """Add to the pending array this rank's contributions that the sums of chunks lack; or subtract them again."""
        if self._kept is None:
            return
        # Chunk by chunk: a quorum may have had this rank in some and not in others.
        absent = ~includes(contributors, self.context.rank)
        if not absent.any():
            return
        assert self._shared is not None
        assert self._stream is not None
        blocks, elements = self._places(chunks)
        payloads, shared = self._stream.payloads[chunks], SharedRanges(self._shared.values[blocks])
        context = replace(self.context, first_block=blocks.start)
        pending = self._kept[1][elements]
        if back:
            self.codec.subtract_dequantized(pending, payloads, shared, context, absent)
        else:
            pending += self.codec.dequantize_own(payloads, shared, pending.size, context, absent)

    def _places(self, chunks: slice) -> tuple[slice, slice]:
        """Return the blocks and the elements of some chunks."""
        size = self.codec.block_elements
        return chunks, slice(chunks.start * size, min(chunks.stop * size, self.elements))

    def _drop_infinite(self) -> None:
        """Treat own blocks that are not finite as zero: their ranges came too late to make all ranks skip."""
        # First drop infinite elements. If a block's square sum is still infinite, drop its large ones too.
        for limit in (np.float32(np.inf), _LARGE):
            if int(self._own.max()) < INFINITE:
                return
            vector = self._on_host()
            # The caller's vector may not be changed.
            self._x = self._x.copy()
            for start in range(0, self.elements, self.codec.block_elements):
                rows = slice(start, start + self.codec.block_elements)
                if not (np.abs(vector[rows]) < limit).all():
                    self._x[rows] = 0
            self._own = self._ranges()
