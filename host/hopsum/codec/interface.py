# SPDX-License-Identifier: Apache-2.0
"""The interface of a codec: one all-reduce of one vector is a series of phases that a switch sums, then a mean.

    reduction = codec.start(x, context, feedback)
    while (phase := reduction.phase) is not None:       the same op and sizes on all ranks
        results, contributors = the network's sum of phase.payloads by phase.op
        reduction.on_results(results, contributors)
    reduction.mean                                            the same bytes on all ranks; None: all ranks skip

A phase may be encoded and decoded in parts, with the same bytes: after `encode_in_parts` each `encode_part` makes the
next payloads, and `on_part` processes the first results before the last ones have arrived.

Laws, checked by tests: the part of a vector that is not delivered is in its error feedback. The decoded sum of one
contributor is its contribution. The mean is unbiased if nothing is truncated. Lane sums never overflow. Equal arguments
give equal bytes, with every backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Literal, NamedTuple, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from hopsum.errors import HopsumError
from hopsum_base.records import Record
from hopsum_base.spare_arrays import keep_spare_arrays, spare_array
from hopsum_wire import MAX_WORKERS, Op
from hopsum_wire.payload import SHAPES, TABLE_NAMES

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]
Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Bitmaps = NDArray[np.uint64]
"""Bitmaps of workers, rank 0 the lowest bit."""
Tensors = Sequence[tuple[str, int]]
"""Names and elements of the tensors in a vector, in order: for messages."""
OnNonfinite = Literal["raise", "skip"]
"""The treatment of a vector with NaN or infinity on some rank: an error, or no mean, on all ranks."""
ON_NONFINITE: Final = ("raise", "skip")


class CodecError(HopsumError):
    """Options or arguments of a codec are wrong or do not fit together. Nothing has changed."""


class CollectiveError(CodecError):
    """An all-reduce has no mean. All ranks raise the error for the same all-reduce.

    The communicator stays usable, except after a MismatchError through a switch. Codec `lossless` adds the vector to
    the residual before it raises.
    """


class NonFiniteError(CollectiveError):
    """Some rank's vector has NaN or infinity. No rank has a mean. Residuals have not changed.

    `count`: elements of this rank's vector that are not finite, 0 if only another rank's has such. `too_large`: this
    rank's vector is finite, and beyond the range of the codec.
    """

    def __init__(self, message: str, count: int, *, too_large: bool = False) -> None:
        super().__init__(message)
        self.count, self.too_large = count, too_large


@dataclass(frozen=True, slots=True)
class ReductionContext:
    """The seeds of all randomness of one all-reduce, on one rank.

    Rotations depend on seed and step, so they are the same on all ranks. Roundings also depend on the rank.
    """

    seed: int
    """The same on all ranks of the job."""
    step: int
    """Number of the all-reduce, the same on all ranks. A number used twice repeats its randomness."""
    rank: int
    first_block: int = 0
    """Number of the first block of a part of the vector, for a codec that takes parts (`RangeCodec.streams`)."""


class CollectivePhase(NamedTuple):
    """One phase of an all-reduce: payloads for a switch to sum over the ranks. Op and sizes are the same on all."""

    op: Op
    payloads: Bytes
    """uint8[chunks, up_bytes(op)]"""
    lanes: int
    """Lanes in use, over all chunks (bits for OR). Only the last chunk may be partly filled."""
    last: bool = False
    """Whether this is the vector's last phase for any results, so that the next vector's may follow. The same on all
    ranks."""
    add: Callable[[Bytes], Bytes] | None = None
    """The operation of a codec whose ranks add, in place of the switch's. Each rank adds an equal run of chunks: the
    argument has all ranks' payloads of the run, uint8[ranks, chunks, bytes], in the order of ranks, and the value has
    the results of the run for all ranks, uint8[chunks, bytes]."""

    def counts(self) -> NDArray[np.int64]:
        """Return the lanes in use of each chunk, int64[chunks]."""
        chunks, full = len(self.payloads), SHAPES[self.op].elements
        counts = np.full(chunks, full, np.int64)
        # Only the last chunk may be partly filled: a vector has its lanes in order.
        counts[-1] = self.lanes - (chunks - 1) * full
        return counts


class MachineCode(Protocol):
    """Compiled code that Python calls, and other compiled code by its address."""

    @property
    def address(self) -> int:
        """The address of the code, for the life of the process."""

    def __call__(self, *arguments: int) -> None:
        """Run the code. Arrays are passed by their addresses."""


@dataclass(slots=True)
class ChunkStream:
    """The codes of one vector, with the numbers of encoded and decoded chunks.

    With `run`, machine code may encode and decode the next chunks in place of the reduction that owns the stream.
    """

    payloads: Bytes
    """uint8[chunks, up_bytes(op)]"""
    contributors: Bitmaps
    """[chunks], of the decoded sums."""
    encoded: int = 0
    """The number of first chunks whose payloads are made."""
    taken: int = 0
    """The number of first chunks whose sums are in the mean and in the residual."""
    run: Record | None = None
    """A stream_kernels.ChunkRun. None: there is no machine code, or the reduction was aborted."""
    begun: bool = False
    """Whether `scales` are computed: chunks are encoded after that."""
    scale_kernel: MachineCode | None = None
    """stream_kernels.begin, which computes `scales` from the sums of ranges."""
    scales: tuple[NDArray[Any], ...] = ()
    """By block, the scales that follow from the shared ranges."""
    encoder: MachineCode | None = None
    """stream_kernels.encode, with the argument `run`."""
    decoder: MachineCode | None = None
    """stream_kernels.decode. None: sums are decoded only after the last one has arrived."""
    kept: tuple[NDArray[Any], ...] = ()
    """The arrays to which addresses in `run` point, kept alive."""


def address_of(array: NDArray[Any]) -> int:
    """Return the address of an array's first element."""
    address: int = array.__array_interface__["data"][0]
    return address


class ReductionState(Enum):
    """The state of an all-reduce."""

    RANGES = auto()
    """Ranges are being summed (MAX32). The residual does not change before DONE or GONE."""
    INDEX = auto()
    """The index, if there is one, is being summed (OR)."""
    SUMS = auto()
    """Codes or lanes are being summed."""
    DONE = auto()
    """There is a mean. The residual has the part that was not delivered."""
    SKIPPED = auto()
    """Some rank's vector is not finite."""
    GONE = auto()
    """Aborted, or the mean cannot be recovered. The residual has the whole vector."""


class Reduction(ABC):
    """One all-reduce of one vector, without I/O: the base of all codecs' all-reduces, on the host and on devices."""

    elements: int
    phase: CollectivePhase | None
    """The phase to sum next, or None when the all-reduce has ended."""
    mean: Any
    """float32[elements] at the end, owned by the caller, `out` if that was given; a tensor on devices.

    None before, and if there is no mean.
    """
    contributors: Bitmaps
    """[blocks], bitmap of the workers in the mean of each block. Empty before the end, and if skipped.

    A block has the elements of a chunk of the last phase, or a part of them if a lane carries several sums.
    """
    stream: ChunkStream | None = None
    """The chunks of the phase that machine code may encode and decode; None for most codecs."""
    _own: Words
    """The vector's ranges, made by `_first_phase`."""

    def __init__(
        self,
        x: Any,
        context: ReductionContext,
        feedback: Any = None,
        *,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "raise",
        out: Any = None,
    ) -> None:
        """Begin with a vector, see `Codec.start`, and make the first phase.

        Subclasses set the attributes of `_first_phase` before they call this.
        """
        require_on_nonfinite(on_nonfinite)
        self.context = context
        self.state = ReductionState.RANGES
        self.mean = None
        self.contributors = np.zeros(0, np.uint64)
        self._out = out
        self._feedback = feedback
        self._tensors = tensors
        self._on_nonfinite = on_nonfinite
        self._x = self._compensated(x)
        # After the check, which refuses objects without a length.
        self.elements = len(x)
        try:
            self.phase = self._first_phase()
        # The caller has no reduction to abort, so the feedback would stay busy.
        except BaseException:
            self._rollback()
            raise

    def _compensated(self, x: Any) -> Any:
        """Return the vector to encode: x, or x + residual. Raises CodecError for an invalid vector."""
        require_vector(x, self._out)
        return x if self._feedback is None else self._feedback.compensate(x)

    @abstractmethod
    def on_results(self, results: Bytes, contributors: Bitmaps) -> None:
        """Process the RESULT payloads of the current phase, uint8[chunks, down_bytes(op)]. Begin the next phase.

        Args:
            results: the same on all ranks.
            contributors: [chunks], bitmap of the workers in each sum.

        Raises:
            CollectiveError: there is no mean on any rank. The reduction has ended and the feedback is free.
            CodecError: no phase awaits results, results have another shape, or the codec cannot make such sums. Nothing
                has changed but the content of `out`. Results may be given again, or the reduction aborted.
        """

    def begin_second_phase(self) -> CollectivePhase | None:
        """Return the second phase before the first one has results, and make its `stream`; None if that cannot be.

        Machine code may begin, encode and decode this phase once the ranges are summed, before `on_results` has their
        sums. Until then the content of its payloads is undefined. It needs `encode_in_parts` with `compiled`, and
        machine code for `stream`.
        """
        return None

    @property
    def zero_phase(self) -> CollectivePhase | None:
        """Return a new phase of zeros that a skipped reduction still sums, None if there is nothing to sum.

        Another rank may have submitted the phase already (`begin_second_phase`).
        """
        return None

    @property
    def is_begun(self) -> bool:
        """Return whether payloads of the phase can be made, because its ranges are shared."""
        return True

    def encode_in_parts(self, part_chunks: int, *, compiled: bool = False) -> None:  # noqa: B027
        """Let the next phase begin with the payloads of its first chunks only, if the codec can; else do nothing.

        `encode_part` makes the other payloads.

        Args:
            part_chunks: chunks of each part. 0: one part has all.
            compiled: let the phase begin without any payload if there is machine code for `stream`.
        """

    def encode_part(self) -> Bytes:
        """Make the next payloads of the phase. Return them, uint8[n, up_bytes(op)].

        Raises:
            CodecError: all payloads are made.
        """
        raise CodecError(f"the all-reduce is in state {self.state.name}: all payloads are made")

    def on_part(  # noqa: B027
        self, first: int, results: Bytes, contributors: Bitmaps
    ) -> None:
        """Process the results of some chunks early, if the codec can; `on_results` gets them again, with all others.

        Args:
            first: number of the first chunk: the end of the previous part. 0 again discards all parts.

        Raises:
            CodecError: as `on_results`. Abort the reduction then.
        """

    @abstractmethod
    def _first_phase(self) -> CollectivePhase:
        """Return the phase of the vector's ranges, which may be infinite."""

    @property
    def encoded(self) -> int:
        """Return the number of chunks of the phase whose payloads are made: all, unless they are made in parts."""
        return 0 if self.phase is None else len(self.phase.payloads)

    def abort(self) -> None:
        """Abort without a result, and return the whole vector to the error feedback.

        Delivered parts are added to the residual again, rounded to float32. A vector that is not finite is dropped, as
        if skipped.

        Raises:
            CodecError: the reduction has ended.
        """
        if self.phase is None:
            raise CodecError(f"the all-reduce is in state {self.state.name}: there is nothing to abort")
        # A vector with NaN must not enter the residual: every later step would have it.
        if self._is_finite():
            self._commit()
        else:
            self._rollback()
        self._end(ReductionState.GONE)

    def _is_finite(self) -> bool:
        return bool(np.isfinite(self._x).all())

    def _require_phase(self) -> CollectivePhase:
        """Return the phase whose results are due. Raises CodecError if the all-reduce has ended."""
        if self.phase is None:
            raise CodecError(f"the all-reduce is in state {self.state.name}: it takes no results")
        return self.phase

    def _skip(self) -> None:
        """End without a mean, because some rank's vector is not finite. Raises an error as `on_nonfinite` says."""
        error = None
        # The error is made before the roll-back, because its message reads the vector.
        if self._on_nonfinite == "raise":
            large = not np.isfinite(self._own.view(np.float32)).all()
            error = nonfinite_error(self._on_host(), self._tensors, self.context.rank, too_large=large)
        self._rollback()
        self._end(ReductionState.SKIPPED)
        if error is not None:
            raise error

    def _on_host(self) -> Floats:
        """Return the vector in the host's memory."""
        x: Floats = self._x
        return x

    def _finish(self, mean: Any, contributors: Bitmaps) -> None:
        if self._out is not None and mean is not self._out:
            # Written at the very end, because `out` may be x itself.
            self._out[:] = mean
        self.mean, self.contributors = mean if self._out is None else self._out, contributors
        self.state, self.phase = ReductionState.DONE, None

    def _commit(self) -> None:
        if self._feedback is not None:
            self._feedback.commit()

    def _rollback(self) -> None:
        if self._feedback is not None:
            self._feedback.rollback()

    def _end(self, state: ReductionState) -> None:
        self.state, self.phase = state, None


class StartOptions(TypedDict, total=False):
    """The keyword arguments of `Codec.start`, which has their meanings and defaults."""

    tensors: Tensors
    on_nonfinite: OnNonfinite
    out: Floats | None


class Codec(Protocol):
    """The codec of a job, a factory of reductions. It has parameters only, so any thread may use it."""

    name: str
    backend: str
    workers: int
    op: Op
    """The switch's operation on most of the chunks."""
    lookup: tuple[int, ...] | None
    """The lookup table of `op` for the job's switch, or None for an op without a table."""
    code_group: int
    """Number of codes in a group of the job's switch, see `hopsum_wire.payload`. Not used without `lookup`."""
    phases: int
    """The number of phases of one all-reduce, without repetitions."""

    def start(
        self,
        x: Floats,
        context: ReductionContext,
        feedback: ErrorFeedback | None = None,
        *,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "raise",
        out: Floats | None = None,
    ) -> Reduction:
        """Begin an all-reduce.

        Args:
            x: float32[elements], contiguous. It is only read, and must not change before the end of the reduction.
            context: the same seed and step on all ranks.
            feedback: error feedback whose residual is added to x. It is committed at the end of the reduction.
            tensors: names and elements of the tensors in x, for messages.
            on_nonfinite: the same on all ranks. "raise": `on_results` raises NonFiniteError on all of them. "skip": the
                reduction ends without a mean. In both cases residuals do not change, and the vector is dropped.
            out: memory for the mean, of the type and shape of x; it may be x itself. It is written only at the end. It
                stays unchanged if there is no mean, with two exceptions: the last results are refused, or results were
                processed in parts. Then its content is undefined.

        Raises:
            CodecError: x is not a contiguous float32 vector with elements, `out` differs from it or is read-only,
                on_nonfinite is unknown, or the feedback is busy or has another length.
        """


def job_tables(codec: Codec) -> dict[str, tuple[int, ...]]:
    """Return the lookup table of a job of this codec by its name (TABLE_NAMES); empty for a codec without one.

    Raises:
        CodecError: no switch can sum for this codec.
    """
    require_switch(codec)
    return {} if codec.lookup is None else {TABLE_NAMES[codec.op]: codec.lookup}


def feeds_back(codec: Any) -> bool:
    """Return whether a codec has error feedback by default: its `error_feedback`, True if it has no such attribute."""
    # An optional attribute.
    return bool(getattr(codec, "error_feedback", True))


def require_switch(codec: Any) -> None:
    """Raise CodecError if no switch can sum for a codec, or for the codecs of a class."""
    # An optional attribute.
    if getattr(codec, "ranks_add", False):
        raise CodecError(
            f"codec {codec.name}: its ranks add up its codes, and no switch can; connect to collective://gloo with it, "
            "or sum at a switch (file://, hopsum://, hosts://) with thc, or thc:bits=2 for fewer bytes"
        )


def require_workers(workers: int) -> None:
    """Raise CodecError unless a job can have this many workers."""
    if not 1 <= workers <= MAX_WORKERS:
        raise CodecError(f"{workers} workers: a job has 1 to {MAX_WORKERS}")


def require_on_nonfinite(on_nonfinite: str) -> None:
    """Raise CodecError for a text that is no OnNonfinite."""
    if on_nonfinite not in ON_NONFINITE:
        raise CodecError(f"on_nonfinite={on_nonfinite!r}: one of {', '.join(ON_NONFINITE)}")


def require_vector(x: NDArray[Any], out: NDArray[Any] | None = None) -> None:
    """Raise CodecError unless x is contiguous float32[elements], not empty, and `out`, if given, is like x."""
    plain = x.flags.c_contiguous and x.flags.aligned
    if x.dtype != np.float32 or x.ndim != 1 or not x.size or not plain:
        raise CodecError(
            f"a codec takes a contiguous float32 vector of at least one element, not {x.dtype}{list(x.shape)}"
            f"{'' if plain else ', not contiguous or not aligned'}; flatten it first"
        )
    if out is None or out is x:
        return
    if out.dtype != np.float32 or out.shape != x.shape or not out.flags.carray:
        raise CodecError(
            f"out is {out.dtype}{list(out.shape)}, {'' if out.flags.carray else 'not contiguous or read-only, '}but x "
            f"is float32[{x.size}]"
        )


def require_rows(array: NDArray[Any], rows: int, columns: int, what: str) -> None:
    """Raise CodecError, which names the array by the text `what`, unless it is contiguous uint8[rows, columns]."""
    if array.dtype != np.uint8 or array.shape != (rows, columns):
        raise CodecError(
            f"{what}: expected uint8[{rows}, {columns}], got {array.dtype}{list(array.shape)}; "
            "all phases of an all-reduce take the same number of elements"
        )
    if not array.flags.c_contiguous:
        raise CodecError(f"{what}: rows lie {array.strides} bytes apart; pass a contiguous array")


def blocks_of(elements: int, block_elements: int) -> int:
    """Return the number of blocks of a vector. The last one may be padded."""
    return -(-elements // block_elements)


def padded_rows(x: Floats, columns: int) -> list[Floats]:
    """Return whole blocks of x as a view [blocks, columns], then a rest as a copy [1, columns] with zeros behind it."""
    # Whole blocks are a view, because a gradient has tens of megabytes.
    whole = x.size // columns
    parts = [x[: whole * columns].reshape(whole, columns)]
    if x.size % columns:
        tail = np.zeros((1, columns), np.float32)
        tail[0, : x.size % columns] = x[whole * columns :]
        parts.append(tail)
    return parts


def contributor_counts(contributors: Bitmaps, workers: int) -> Ints:
    """Return the number of workers in each sum, int32[chunks].

    Raises:
        CodecError: a sum without contributors, or with a worker that the job does not have.
    """
    # Usually all chunks have the same contributors: one comparison of the array replaces a pass for each worker.
    first = int(contributors[0]) if contributors.size else 0
    if 0 < first < 1 << workers and (contributors == contributors[0]).all():
        return np.full(contributors.shape, first.bit_count(), np.int32)
    bitmaps = contributors.astype(np.uint64)
    counts = np.zeros(bitmaps.shape, np.int32)
    for worker in range(workers):
        counts += (bitmaps >> np.uint64(worker) & np.uint64(1)).astype(np.int32)
    # Shift by workers - 1 and compare with 1: a shift by 64 is undefined, and a job may have 64 workers.
    beyond = bitmaps >> np.uint64(workers - 1) > 1
    bad = np.flatnonzero((counts == 0) | beyond)
    if bad.size:
        chunk = int(bad[0])
        raise CodecError(f"chunk {chunk}: contributors {int(bitmaps[chunk]):#x} of a job of {workers} workers")
    return counts


def includes(contributors: Bitmaps, rank: int) -> Flags:
    """Return whether a rank contributed to each sum, bool[chunks]."""
    return (contributors.astype(np.uint64) >> np.uint64(rank) & np.uint64(1)).astype(np.bool_)


NO_MEAN_HINT: Final = (
    "no rank has a mean; on_nonfinite='skip' (a GradScaler needs it) returns NaN instead of this error"
)


def nonfinite_error(
    x: Floats, tensors: Tensors, rank: int, *, too_large: bool = False, what: str = "elements"
) -> NonFiniteError:
    """Return the error that names the tensors of x that are not finite, or says that another rank's are not.

    Args:
        x: this rank's vector.
        tensors: names and elements of its tensors.
        rank: of this process.
        too_large: x is finite, and beyond the range of the codec.
        what: elements of x in words.
    """
    bad = ~np.isfinite(x)
    count, hint = int(bad.sum()), NO_MEAN_HINT
    # Finite, but above the largest range that a codec takes: squares of a block would overflow float32.
    if not count and too_large:
        return NonFiniteError(
            f"rank {rank}: the vector is finite, but too large for the codec: its largest magnitude is "
            f"{float(np.abs(x).max()):.3g}, and thc and uhc take blocks up to a root mean square of 2^120 = 1.33e36, "
            "two-shot up to that magnitude: "
            f"scale it down; {hint}",
            0,
            too_large=True,
        )
    if not count:
        return NonFiniteError(f"another rank's vector is not finite, or out of range; rank {rank}'s is: {hint}", 0)
    found, first = [], 0
    for name, elements in tensors:
        here = int(bad[first : first + elements].sum())
        if here:
            found.append(f"{name}: {here} of {elements}")
        first += elements
    where = "; ".join(found[:8]) + (f" and {len(found) - 8} more tensors" if len(found) > 8 else "")
    return NonFiniteError(
        f"rank {rank}: {count} of {x.size} {what} are NaN or infinite, the first is element {int(bad.argmax())}"
        f"{f' ({where})' if where else ''}: {hint}",
        count,
    )


# ---- error feedback -----------------------------------------------------------------------------------------


class ErrorFeedback:
    """The undelivered part of one vector's all-reduces, in the host's memory. One all-reduce at a time.

    An all-reduce is a transaction. `compensate` or `begin` begins it, `commit` keeps what was not delivered, and
    `rollback` withdraws the vector, so that the residual is as it was. The residual after a committed vector x is
    residual + x - delivered. Between all-reduces it does not change.

    Memory: a residual. While an all-reduce is in progress `compensate` has a second vector, and so has `begin` if the
    feedback is revocable. Error feedbacks share these (hopsum_base.spare_arrays), unless they are revocable.

    Args:
        elements: of the vector.
        revocable: the last commit can be rolled back until the next all-reduce begins. The residual from before it
            stays in memory so long.
    """

    def __init__(self, elements: int, *, revocable: bool = False) -> None:
        self.residual = np.zeros(elements, np.float32)
        """float32[elements]. Set it to restore a checkpoint, between all-reduces. A commit may replace the array."""
        self.pending: Floats | None = None
        """The array that becomes the residual, float32[elements]. It may be the residual itself."""
        self._revocable = revocable
        self._before: Floats | None = None
        self._spares = keep_spare_arrays()

    def begin(self, x: Floats) -> Floats:
        """Begin an all-reduce of x. Return the array to fill with residual + x - delivered, float32[elements].

        The array may be the residual itself. Read each element of the residual before you write that element. Once
        one is written, `rollback` is no longer allowed.

        Raises:
            CodecError: another length, or an earlier vector is neither committed nor rolled back.
        """
        self._require_like(x)
        self._require_idle()
        self.pending = self._room() if self._revocable else self.residual
        return self.pending

    def compensate(self, x: Floats) -> Floats:
        """Begin an all-reduce of x. Return x + residual, which is to be sent: this object's, valid until the commit.

        Args:
            x: float32[elements].

        Raises:
            CodecError: another length, or an earlier vector is neither committed nor rolled back.
        """
        self._require_like(x)
        return self.compensate_by(lambda residual, room: np.add(x, residual, out=room))

    def compensate_by(self, fill: Callable[[Floats, Floats], object]) -> Floats:
        """Begin an all-reduce of a vector that lies in pieces. Return x + residual, this object's until the commit.

        Args:
            fill: is called with the residual, which it only reads, and room for the sum, float32[elements] both.

        Raises:
            CodecError: an earlier vector is neither committed nor rolled back.
        """
        self._require_idle()
        room = self._room()
        # A vector that is not finite is found by its ranges, so that all ranks hear of it alike.
        with np.errstate(over="ignore", invalid="ignore"):
            fill(self.residual, room)
        self.pending = room
        return self.pending

    def _require_like(self, x: Floats) -> None:
        if x.shape != self.residual.shape or x.dtype != np.float32:
            require_vector(x)
            raise CodecError(f"vector of {x.size} elements for an error feedback of {self.residual.size}")

    def _require_idle(self) -> None:
        if self.pending is not None:
            raise CodecError("the vector before is neither committed nor given back; finish its all-reduce first")

    def _room(self) -> Floats:
        """Return a second vector, with any content."""
        # The vector from before the last commit, which cannot be rolled back any more, is room for this one.
        room, self._before = self._before, None
        return spare_array(self.residual.shape, np.float32) if room is None else room

    def commit(self, delivered: Floats | None = None) -> None:
        """End the all-reduce: the pending vector, less `delivered` where that is given, becomes the residual.

        Raises:
            CodecError: no all-reduce has begun.
        """
        if self.pending is None:
            raise CodecError("nothing to commit: no vector was compensated")
        if delivered is not None:
            # In place: the pending vector becomes the residual, and no third vector is needed.
            np.subtract(self.pending, delivered, out=self.pending)
        if self._revocable:
            self._before = self.residual
        self.residual, self.pending = self.pending, None

    def rollback(self, committed: slice | None = None) -> None:
        """Withdraw the vector in progress, if there is one: the residual stays as it was.

        Args:
            committed: elements of the last committed vector, to be withdrawn instead: they have the residual from
                before that all-reduce again. Without effect once another all-reduce has begun. Needs `revocable`.
        """
        if committed is not None:
            if self._before is not None:
                self.residual[committed] = self._before[committed]
            return
        self.pending = self._before = None
