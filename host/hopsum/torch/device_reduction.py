# SPDX-License-Identifier: Apache-2.0
"""One all-reduce of a tensor by `TorchThc`, as a state machine without I/O but that of the bus.

The states and the bytes are those of `hopsum.codec.range_codec.RangeReduction`. A vector of n elements in blocks of
1024, with codes of b bits and results of r bits, waits for the device three times and moves across the bus:

    phase    to the host                  to the device                                    the host waits for
    RANGES   4 n/1024, ranges; 8          nothing                                          ranges
    SUMS     b n/8, codes                 4 n/1024, shared ranges                          codes
    DONE     4, a flag; 8                 r n/8, results; 8 n/1024 + 64 s, contributors    mean and residual

8 are the squares of the sample that statistics look at, with an error feedback (`hopsum.agent.vector`). s is the number
of sets of contributors, as a rule one. Rounding without a dither needs only their numbers, 4 n/1024.

A large vector is encoded and decoded in pieces, so that a piece is copied while the next one is worked on. When the
last wait has ended, nothing of the all-reduce is queued any more: any stream may use mean and residual.

The residual changes only where all sums are possible: the subtraction is multiplied with a flag on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from hopsum.agent.vector import RUN_ELEMENTS, RUNS, sample_place
from hopsum.codec.interface import (
    Bitmaps,
    Bytes,
    Codec,
    CodecError,
    CollectivePhase,
    Floats,
    OnNonfinite,
    ReductionContext,
    ReductionState,
    Tensors,
    includes,
    require_rows,
)
from hopsum.codec.vector_reduction import (
    INFINITE,
    BlockReduction,
    read_ranges,
    require_finite,
    require_ranges,
)
from hopsum.torch.codec.torch_kernels import DeviceContributors
from hopsum.torch.codec.torch_thc import TorchThc, mark_huge_ranges, require_device, require_tensor_vector
from hopsum.torch.streams import Mark, Staging, streams_of
from hopsum_wire.payload import SHAPES

PIECE_ELEMENTS: Final = 1 << 23
"""The elements of a piece: 4 MiB of codes of 4 bits, 8 MiB of whole sums. With these a DDP bucket of 25 MiB took 4.0 ms
on an H200, 4.9 ms in pieces of half the size; larger pieces were as fast."""
_LARGE: Final = 2.0**100


class DeviceFeedback:
    """The undelivered part of one vector's all-reduces, on the device of the vector. One all-reduce at a time.

    The methods are those of `hopsum.codec.ErrorFeedback`, and the last commit can be rolled back. `compensate` measures
    the ranges in the same pass over the vector:

        own = feedback.compensate(codec, x)                                      x + residual, and its ranges
        codec.encode_blocks(feedback.pending, *codec.scales(own, shared), context, 0, payloads)
        codec.subtract_blocks(payloads, factors, context, feedback.pending)
        feedback.commit()                                                        what is left is the residual

    Every operation on a residual is queued in the device's stream of kernels, by whatever thread: that is their order.
    Memory: 8 bytes for each element on the device, the residual and the one before it, which is the next vector's room.

    Args:
        elements: of the vector.
        device: where the vector and the residual are.
    """

    def __init__(self, elements: int, device: torch.device | str = "cpu") -> None:
        self._streams = streams_of(torch.empty(0, device=device).device)
        # Made in the stream that uses it, so that torch's allocator needs no record of another one.
        with self.queue():
            self.residual = torch.zeros(elements, dtype=torch.float32, device=device)
            """float32[elements]. Set it to restore a checkpoint, between all-reduces."""
            self._spare = torch.empty_like(self.residual)
        self._streams.wait()  # so that callers may use the residual in a stream of their own
        self._pending: torch.Tensor | None = None
        self._before: torch.Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Return where the residual is."""
        return self._streams.device

    @property
    def pending(self) -> torch.Tensor:
        """Return the compensated vector, float32[elements], which is to be encoded; this object's.

        Raises:
            CodecError: no vector was compensated.
        """
        if self._pending is None:
            raise CodecError("nothing to encode or commit: no vector was compensated")
        return self._pending

    def queue(self) -> Any:
        """Return a context in which operations on the residual keep their order."""
        return self._streams.on_kernels()

    def compensate(self, codec: TorchThc, x: torch.Tensor) -> torch.Tensor:
        """Begin an all-reduce of x, float32[elements]. Return the ranges of x + residual, float32[blocks].

        Raises:
            CodecError: another length or device, or an earlier vector is neither committed nor rolled back.
        """
        require_tensor_vector(x, codec.device)
        require_device(self.residual, codec.device, "the error feedback")
        if x.shape != self.residual.shape:
            raise CodecError(f"vector of {x.numel()} elements for an error feedback of {self.residual.numel()}")
        if self._pending is not None:
            raise CodecError("the vector before is neither committed nor given back; finish its all-reduce first")
        self._before = None
        whole, rest = divmod(x.numel(), codec.block_elements)
        rows = [
            each[: whole * codec.block_elements].view(whole, codec.block_elements)
            for each in (x, self.residual, self._spare)
        ]
        # One pass adds and measures: the vector crosses the device's memory once less.
        parts = [codec.kernels.compensate(*rows)]
        if rest:
            torch.add(x[-rest:], self.residual[-rest:], out=self._spare[-rest:])
            parts.append(codec.ranges(self._spare[-rest:]))
        # Only now: a failure before leaves the feedback as it was.
        self._pending = self._spare
        return mark_huge_ranges(torch.cat(parts))

    def compensate_by(self, fill: Callable[[torch.Tensor, torch.Tensor], object]) -> torch.Tensor:
        """Begin an all-reduce of a vector that lies in pieces. Return x + residual. See `hopsum.codec.ErrorFeedback`.

        `fill` queues its operations in the stream of kernels (`queue`). Raises CodecError if an earlier vector is
        neither committed nor rolled back.
        """
        if self._pending is not None:
            raise CodecError("the vector before is neither committed nor given back; finish its all-reduce first")
        self._before = None
        fill(self.residual, self._spare)
        self._pending = self._spare
        return self._spare

    def commit(self, delivered: None = None) -> None:
        """End the all-reduce: the rest of the compensated vector is the residual. Raises CodecError without one."""
        before = self.residual
        self.residual = self.pending
        self._spare, self._before, self._pending = before, before, None

    def rollback(self, committed: slice | None = None) -> None:
        """Withdraw the vector in progress, or elements of the last committed one. See `hopsum.codec.ErrorFeedback`."""
        if committed is None:
            self._pending = None
        elif self._before is not None:
            with self.queue():
                self.residual[committed] = self._before[committed]


class _Piece(NamedTuple):
    """A run of blocks of a vector."""

    blocks: slice
    elements: slice


class DeviceReduction(BlockReduction):
    """One all-reduce of one tensor, whose mean is a tensor on the same device.

    Phases are whole: the bus is faster than the network, and each part would be one more wait for the device.

    Args:
        codec: for the tensor's device.
        staging: of the same device.
        x: float32[elements]; only read.
        feedback: on the same device.
        out: float32[elements], becomes the mean; may be x.
        ready: mark behind what makes x.
        piece_elements: that are worked on while others are copied; whole blocks of them are.
    """

    def __init__(
        self,
        codec: TorchThc,
        staging: Staging,
        x: torch.Tensor,
        context: ReductionContext,
        feedback: DeviceFeedback | None,
        *,
        out: torch.Tensor,
        ready: Mark = None,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "raise",
        piece_elements: int = PIECE_ELEMENTS,
    ) -> None:
        self.squares: list[torch.Tensor] = []
        """Sums of squares of the sample, float64[1] each: of the compensated vector, then of its residual. Empty
        without feedback."""
        self.codec, self._staging, self._ready = codec, staging, ready
        self._piece_elements = piece_elements
        super().__init__(x, context, feedback, tensors=tensors, on_nonfinite=on_nonfinite, out=out)

    def abort(self) -> None:
        super().abort()
        self._staging.wait()  # the caller may use x and out again

    def _compensated(self, x: torch.Tensor) -> torch.Tensor:
        """Return x itself: `_first_phase` adds the residual and measures the ranges in one pass."""
        return x

    def _is_finite(self) -> bool:
        with self._staging.on_kernels():
            return bool(torch.isfinite(self._x).all())

    def _on_host(self) -> Floats:
        with self._staging.on_kernels():
            x: Floats = self._x.cpu().numpy()
        return x

    # ---- ranges ---------------------------------------------------------------------------------------

    def _first_phase(self) -> CollectivePhase:
        with self._staging.on_kernels(self._ready):
            if self._feedback is None:
                self._ranges = self.codec.ranges(self._x)
            else:
                self._ranges = self._feedback.compensate(self.codec, self._x)
                self._x = self._feedback.pending
                self._take_sample(self._x)
            own = self._staging.read(self._ranges)
        self._staging.wait()
        # Read after the wait: before it the copy may be under way.
        return self._share(own.numpy().view(np.uint32))

    def _on_ranges(self, results: Bytes) -> None:
        shared = read_ranges(results, self._blocks)
        if shared.skipped:
            self._skip()
            return
        # Only this rank: its ranges came too late to make all ranks skip.
        if int(self._own.max()) >= INFINITE:
            self._drop_infinite()
            require_finite(self._own)
        payloads = self._encode(shared.values)
        self.phase = CollectivePhase(self.codec.op, payloads, self._lanes, last=True)
        self.state = ReductionState.SUMS

    def _encode(self, shared: Floats) -> Bytes:
        """Return the codes on the host. The device keeps ranges and codes for the end."""
        codec, staging = self.codec, self._staging
        rows = (self._blocks, SHAPES[codec.op].up_bytes)
        codes = staging.streams.host_buffer(rows, torch.uint8)
        # Copied while the kernels of the step run. Kernels queued from here on see it.
        self._shared = staging.load(shared)
        with staging.on_kernels():
            scales, shifts = codec.scales(self._ranges, self._shared)
            self._payloads = torch.empty(rows, dtype=torch.uint8, device=codec.device)
            for blocks, elements in self._pieces():
                made = self._payloads[blocks]
                codec.encode_blocks(self._x[elements], scales[blocks], shifts[blocks], self.context, blocks.start, made)
                # The codes of this piece cross the bus while the next piece is encoded.
                staging.fetch(made, codes[blocks])
        # The host needs the codes: they go to the network from its memory.
        staging.wait()
        return codes.numpy()

    def _drop_infinite(self) -> None:
        """Treat own blocks that are not finite as zero: their ranges came too late to make all ranks skip."""
        for limit in (float("inf"), _LARGE):
            with self._staging.on_kernels():
                self._x = self._x if self._feedback is not None else self._x.clone()
                bad = (~(self._x.abs() < limit)).nonzero().flatten() // self.codec.block_elements
                for block in sorted(set(bad.tolist())):
                    rows = slice(block * self.codec.block_elements, (block + 1) * self.codec.block_elements)
                    self._x[rows] = 0 if self._feedback is None else self._feedback.residual[rows]
                self._ranges = self.codec.ranges(self._x)
                own = self._staging.read(self._ranges)
            self._staging.wait()
            self._own = own.numpy().view(np.uint32)
            if int(self._own.max()) < INFINITE:
                return

    # ---- sums -----------------------------------------------------------------------------------------

    def _on_sums(self, results: Bytes, contributors: Bitmaps) -> None:
        codec, staging = self.codec, self._staging
        require_rows(results, self._blocks, SHAPES[codec.op].down_bytes, f"results of {self.elements}")
        require_ranges(contributors, self._blocks, "contributors instead of")
        packed = codec.pack_contributors(contributors)
        with staging.on_kernels():
            taken = codec.contributors(staging.load(packed), self._blocks)
            beyond = self._decode(results, taken)
            if self._feedback is not None:
                self._subtract_delivered(contributors, beyond)
                # Results that were refused may be given again: the sample of the refused ones is not counted.
                del self.squares[1:]
                self._take_sample(self._x)
            # In the order of the kernels: it is there when the mean is.
            flag = staging.read(beyond)
        staging.wait()
        # The one look at the sums, after the last wait.
        if int(flag):
            self._refuse_sums(results, taken)
        if self._feedback is not None:
            self._feedback.commit()
        self._finish(self._out, contributors)

    def _decode(self, results: Bytes, contributors: DeviceContributors) -> torch.Tensor:
        """Fill the mean. Return int32[1], not 0 where a sum is impossible."""
        codec, beyond = self.codec, []
        factors = codec.factors(self._shared, contributors.counts)
        for blocks, elements in self._pieces():
            # Results of the next piece cross the bus while this one is decoded.
            loaded = self._staging.load(results[blocks])
            given = (loaded, contributors.part(blocks), factors[blocks], self.context, blocks.start)
            beyond.append(codec.decode_blocks(*given, self._out[elements]))
        return torch.stack(beyond).amax(dim=0)

    def _subtract_delivered(self, contributors: Bitmaps, beyond: torch.Tensor) -> None:
        """Leave of the compensated vector, which is the feedback's, what was not delivered."""
        codec, absent = self.codec, ~includes(contributors, self.context.rank)
        alone = torch.ones(self._blocks, dtype=torch.int32, device=codec.device)
        # The flag is on the device. Multiplied with it, nothing is subtracted where the sums are impossible.
        factors = codec.factors(self._shared, alone) * (beyond == 0)
        codec.subtract_blocks(self._payloads, factors, self.context, self._x)
        if absent.any():
            # Added again, not left out: on the host all is subtracted before anybody knows, and rounded alike.
            codec.subtract_blocks(self._payloads, -factors * self._staging.load(absent), self.context, self._x)

    def _refuse_sums(self, results: Bytes, contributors: DeviceContributors) -> None:
        """Raise CodecError: nothing is changed but the memory of the mean."""
        with self._staging.on_kernels():
            self.codec.refuse_sums(self._staging.load(results), contributors.counts)

    # ---- both -----------------------------------------------------------------------------------------

    def _pieces(self) -> Iterator[_Piece]:
        """Yield the vector's pieces, of whole blocks but for the last one."""
        columns = self.codec.block_elements
        size = max(1, self._piece_elements // columns)
        for first in range(0, self._blocks, size):
            blocks = slice(first, min(first + size, self._blocks))
            yield _Piece(blocks, slice(first * columns, min(blocks.stop * columns, self.elements)))

    def _take_sample(self, vector: torch.Tensor) -> None:
        """Queue, after the kernels, the sum of squares of a sample of the vector, and append it to `squares`."""
        if self.elements > RUNS * RUN_ELEMENTS:
            # As `hopsum.agent.vector.sample`, so that statistics of both kinds of vectors are alike.
            part = self.elements // RUNS
            vector = vector[: RUNS * part].view(RUNS, part)[:, sample_place(self.elements, self.context.step)]
        self.squares.append(self._staging.read(vector.double().square().sum()))


# ---- a tensor as a communicator is handed it ---------------------------------------------------------------


class DeviceVector:
    """A tensor on its device. The contract is `hopsum.agent.vector.Vector`.

    Made in the thread, and with the current stream, in which x was made: what that stream has queued until then is
    waited for on the device.

    Args:
        x: contiguous float32[elements]. Do not change it before the future is done.
        codec: for its device, with the bytes of the communicator's codec.
        staging: of its device.
        feedback: on its device, as for `Communicator.submit`.
        out: becomes the mean, contiguous float32[elements]; may be x itself.

    Raises:
        CodecError: x, out or feedback do not fit.
    """

    def __init__(
        self,
        x: torch.Tensor,
        codec: TorchThc,
        staging: Staging,
        feedback: DeviceFeedback | None = None,
        *,
        out: torch.Tensor,
    ) -> None:
        # Both must be like the codec's vectors, and stay alive until the codec's streams are done with them.
        for tensor in (x, out):
            require_tensor_vector(tensor, codec.device)
        kept = x.numel() if feedback is None else feedback.residual.numel()
        if not x.numel() == out.numel() == kept:
            raise CodecError(
                f"vector of {x.numel()} elements with an out of {out.numel()}, an error feedback of {kept}"
            )
        self.elements = x.numel()
        self.feedback = feedback
        self._x, self._out = x.detach(), out.detach()
        self._codec, self._staging = codec, staging
        self._reduction: DeviceReduction | None = None
        # Behind what the program's stream has queued: the codec must not read x before it is made.
        self._ready = staging.streams.mark()
        for tensor in (x, out):
            staging.streams.adopt(tensor)

    def start(
        self, codec: Codec, context: ReductionContext, *, tensors: Tensors, on_nonfinite: OnNonfinite
    ) -> DeviceReduction:
        """Begin the all-reduce, by the codec of the device in place of `codec`. See `hopsum.agent.vector.Vector`."""
        self._reduction = DeviceReduction(
            self._codec,
            self._staging,
            self._x,
            context,
            self.feedback,
            out=self._out,
            ready=self._ready,
            tensors=tensors,
            on_nonfinite=on_nonfinite,
        )
        return self._reduction

    def rollback(self) -> None:
        """Add the vector to the error feedback without `start`, and wait for it. One that is not finite is dropped."""
        with self._staging.on_kernels(self._ready):
            if self.feedback is not None:
                self.feedback.rollback()
                self.feedback.compensate(self._codec, self._x)
                finite = bool(torch.isfinite(self.feedback.pending).all())
                self.feedback.commit() if finite else self.feedback.rollback()
        self._staging.wait()  # the caller may use x again

    def squares(self) -> tuple[float, float]:
        """Return the summed squares of the sample, of the residual and of the vector with the earlier residual.

        Both are 0 before the end, and without error feedback.
        """
        if self._reduction is None or len(self._reduction.squares) < 2:
            return 0.0, 0.0
        before, after = self._reduction.squares
        return float(after), float(before)

    def all_nan(self) -> torch.Tensor:
        """Return a vector of NaN, which takes the memory of one element."""
        return torch.full((1,), torch.nan, dtype=torch.float32, device=self._codec.device).expand(self.elements)
