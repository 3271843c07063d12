# SPDX-License-Identifier: Apache-2.0
"""The interface of a codec: one all-reduce of one vector is a series of phases that a switch sums, then a mean.

    reduction = codec.start(x, context, feedback)
    while (phase := reduction.phase) is not None:       the same op and sizes on all ranks
        results, contributors = the network's sum of phase.payloads by phase.op
        reduction.on_results(results, contributors)
    reduction.mean                                            the same bytes on all ranks; None: all ranks skip

A phase may be encoded and taken in parts, with the same bytes: after `encode_in_parts` each `encode_part` makes the
next payloads, and `on_part` takes the first results before the last ones are there.

Laws, held by tests: what a vector does not deliver is in its error feedback. Decode of one contributor is its
contribution. The mean is unbiased where nothing is truncated. Lane sums never overflow. Equal arguments give
equal bytes, whatever the backend.
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
"""Names and elements of the tensors that a vector is made of, in order: for messages."""
OnNonfinite = Literal["raise", "skip"]
"""The treatment of a vector with NaN or infinity on some rank: an error, or no mean, on all ranks alike."""
ON_NONFINITE: Final = ("raise", "skip")


class CodecError(HopsumError):
    """A codec cannot be made so, or was handed what does not fit together. Nothing was changed."""


class CollectiveError(CodecError):
    """An all-reduce has no mean, on all ranks alike, by the same results. The next all-reduce can follow."""


class NonFiniteError(CollectiveError):
    """Some rank's vector has NaN or infinity. No rank has a mean. Residuals are as they were before.

    `count`: elements of this rank's vector that are not finite, 0 if it was another's. `too_large`: this rank's is
    finite, and beyond the range of the codec.
    """

    def __init__(self, message: str, count: int, *, too_large: bool = False) -> None:
        super().__init__(message)
        self.count, self.too_large = count, too_large


@dataclass(frozen=True, slots=True)
class ReductionContext:
    """The numbers from which all randomness of one all-reduce follows, on one rank.

    Rotations follow from seed and step, roundings from seed, step and rank: ranks rotate alike and round apart.
    """

    seed: int
    """Shared by the job."""
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
    """Whatever its results, no phase follows: those of the next vector may. The same on all ranks."""
    add: Callable[[Bytes], Bytes] | None = None
    """In place of the switch's operation, for a codec whose ranks add: this rank owns a run of the chunks, as many as
    every other rank. Called with all ranks' payloads of it, uint8[ranks, chunks, bytes], in the order of ranks, it
    returns the results of the run for all ranks, uint8[chunks, bytes]."""

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
        """The place of the code in memory, for the life of the process."""

    def __call__(self, *arguments: int) -> None:
        """Run it. Arrays are given by their addresses."""


@dataclass(slots=True)
class ChunkStream:
    """The codes of one vector: how many of its chunks are encoded, and of how many the sums are decoded.

    With `run`, machine code may encode and decode the next chunks in the place of the reduction that has the stream.
    """

    payloads: Bytes
    """uint8[chunks, up_bytes(op)]"""
    contributors: Bitmaps
    """[chunks], of the sums that are decoded."""
    encoded: int = 0
    """Chunks from the first on whose payloads are made."""
    taken: int = 0
    """Chunks from the first on whose sums are in the mean, and settled."""
    run: Record | None = None
    """A stream_kernels.ChunkRun. None: there is no machine code, or the reduction was aborted."""
    begun: bool = False
    """`scales` are there, so chunks may be encoded."""
    beginner: MachineCode | None = None
    """stream_kernels.begin, which fills `scales` of the sums of ranges."""
    scales: tuple[NDArray[Any], ...] = ()
    """By block, what follows from the shared ranges."""
    encoder: MachineCode | None = None
    """stream_kernels.encode, which `run` is for."""
    decoder: MachineCode | None = None
    """stream_kernels.decode. None: sums are not decoded before the last one is here."""
    kept: tuple[NDArray[Any], ...] = ()
    """The arrays to which addresses in `run` point."""


def address_of(array: NDArray[Any]) -> int:
    """Return the address of an array's first element."""
    address: int = array.__array_interface__["data"][0]
    return address


class ReductionState(Enum):
    """The state of an all-reduce."""

    RANGES = auto()
    """Ranges are to be summed (MAX32). The residual is as before, until DONE or GONE."""
    INDEX = auto()
    """The index is to be summed (OR), if there is one."""
    SUMS = auto()
    """Codes or lanes are to be summed."""
    DONE = auto()
    """There is a mean. The residual is what was not delivered."""
    SKIPPED = auto()
    """Some rank's vector is not finite."""
    GONE = auto()
    """Aborted, or not to be recovered. The residual has the whole vector."""


class Reduction(ABC):
    """One all-reduce of one vector, without I/O: the base of all codecs' all-reduces, on the host and on devices."""

    elements: int
    phase: CollectivePhase | None
    """The phase to sum next, or None when the all-reduce is over."""
    mean: Any
    """float32[elements] once it is over, the caller's, `out` if that was given; a tensor on devices.

    None before, and where there is no mean.
    """
    contributors: Bitmaps
    """[blocks], bitmap of the workers in the mean of each. It is empty before, and if it was skipped.

    A block is the elements of a chunk of the last phase, or a part of them where a lane carries several sums.
    """
    stream: ChunkStream | None = None
    """The chunks of the phase, where machine code may encode and decode them; None for most codecs."""
    _own: Words
    """Its ranges, made by `_first_phase`."""

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
        """Take a vector, see `Codec.start`, and make the first phase. Subclasses set what that needs beforehand."""
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
        # Checked by now: what has no length is refused as no vector.
        self.elements = len(x)
        try:
            self.phase = self._first_phase()
        # Nobody has this reduction, so nobody could abort it, and the feedback would stay busy.
        except BaseException:
            self._rollback()
            raise

    def _compensated(self, x: Any) -> Any:
        """Return the vector to encode: x, or x + residual. Raises CodecError for no vector of the host."""
        require_vector(x, self._out)
        return x if self._feedback is None else self._feedback.compensate(x)

    @abstractmethod
    def on_results(self, results: Bytes, contributors: Bitmaps) -> None:
        """Take the RESULT payloads of the current phase, uint8[chunks, down_bytes(op)]. Begin the next one.

        Args:
            results: the same on all ranks.
            contributors: [chunks], bitmap of the workers in each sum.

        Raises:
            CollectiveError: there is no mean, on all ranks alike. The reduction is over and the feedback free.
            CodecError: nothing to take, or results of another shape. Nothing was changed.
        """

    def preview(self) -> CollectivePhase | None:
        """Return the phase behind the first one, before that has results. None where the codec cannot.

        Machine code may begin, encode and decode that phase once the ranges are summed, before `take` has their sums.
        Its payloads have any content until then.
        """
        return None

    @property
    def left_out(self) -> CollectivePhase | None:
        """Return the phase of zeros that ranks sum though they skip, since some may have it in the stream; or None."""
        return None

    @property
    def is_begun(self) -> bool:
        """Say whether payloads of the phase can be made: its ranges are shared."""
        return True

    def encode_in_parts(self, part_chunks: int, *, compiled: bool = False) -> None:  # noqa: B027
        """Let the next phase begin with the payloads of so many chunks, where the codec can.

        Args:
            compiled: let the phase begin without any payload where there is machine code for `stream`.
        """

    def encode_part(self) -> Bytes:
        """Make the next payloads of the phase, of which some are not made. Return them, uint8[n, up_bytes(op)]."""
        raise CodecError(f"the all-reduce is in state {self.state.name}: all payloads are made")

    def on_part(  # noqa: B027
        self, first: int, results: Bytes, contributors: Bitmaps
    ) -> None:
        """Take the results of some chunks of the phase early, where the codec can; `take` gets them again, with all.

        Args:
            first: number of the first chunk: the one behind the last part. 0 again takes all parts back.

        Raises:
            CodecError: as `take`. Abort the reduction then.
        """

    @abstractmethod
    def _first_phase(self) -> CollectivePhase:
        """Return the ranges to share of the vector, which may be infinite."""

    @property
    def encoded(self) -> int:
        """Return the number of chunks of the phase whose payloads are made: all, unless they are made in parts."""
        return 0 if self.phase is None else len(self.phase.payloads)

    def abort(self) -> None:
        """Abort: there will be no result, so the whole vector goes back to the error feedback.

        What parts had delivered is added again, so it comes back rounded to float32. A vector that is not finite is
        dropped instead, as if it had been skipped.

        Raises:
            CodecError: it is over already.
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
        """Return the phase whose results are due. Raises CodecError when the all-reduce is over."""
        if self.phase is None:
            raise CodecError(f"the all-reduce is in state {self.state.name}: it takes no results")
        return self.phase

    def _skip(self) -> None:
        """End without a mean, since some rank's vector is not finite. Raise an error if that was asked for."""
        error = None
        # The error is made before the feedback gives the vector back: its message reads the vector.
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
            # Written at the very end, so that `out` may be x itself: until here x was still needed.
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
    """The codec of a job: it makes reductions. It holds parameters only, so any thread may use it."""

    name: str
    backend: str
    workers: int
    op: Op
    """The switch's operation on most of the chunks."""
    lookup: tuple[int, ...] | None
    """The table of that op that the job's switch needs, 16 integers, or None where it needs none."""
    code_group: int
    """Codes that the job's switch takes as a group, see `hopsum_wire.payload`. Without `lookup` it says nothing."""
    phases: int
    """The phases of one all-reduce, if nothing has to be repeated."""

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
            x: float32[elements], contiguous. It is only read. It must stay as it is until the reduction is over.
            context: the same seed and step on all ranks.
            feedback: adds what earlier all-reduces left behind, and is committed when this one is over.
            tensors: what messages about x may name.
            on_nonfinite: the same on all ranks. "raise": `take` raises NonFiniteError on all of them. With "skip"
                the reduction ends without a mean. Either way residuals stay as they were, and bad gradients are gone.
            out: becomes the mean, like x. It may be x itself. Only written at the end, and left as it is where there is
                no mean, unless the last results are refused, or results were taken in parts.

        Raises:
            CodecError: no float32 vector, an `out` that is not like it, or the feedback is busy or of another length.
        """


def job_tables(codec: Codec) -> dict[str, tuple[int, ...]]:
    """Return the lookup table of a job of this codec by its name (TABLE_NAMES); empty where it needs none.

    Raises:
        CodecError: no switch can sum for this codec.
    """
    require_switch(codec)
    return {} if codec.lookup is None else {TABLE_NAMES[codec.op]: codec.lookup}


def feeds_back(codec: Any) -> bool:
    """Return whether ranks keep what a sum by this codec does not deliver, and add it to the next vector."""
    # An attribute that few codecs have.
    return bool(getattr(codec, "error_feedback", True))


def require_switch(codec: Any) -> None:
    """Raise CodecError where no switch can sum for a codec, or for the codecs of a class."""
    # An attribute that codecs of other packages need not have.
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
    """Raise CodecError for a word that is no OnNonfinite."""
    if on_nonfinite not in ON_NONFINITE:
        raise CodecError(f"on_nonfinite={on_nonfinite!r}: one of {', '.join(ON_NONFINITE)}")


def require_vector(x: NDArray[Any], out: NDArray[Any] | None = None) -> None:
    """Raise CodecError unless x is float32[elements], contiguous, with elements, and `out`, if given, is like it."""
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
    """Raise CodecError unless array is uint8[rows, columns] and contiguous."""
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
    """Return the whole blocks of x as a view [blocks, columns], then any rest as a padded copy [1, columns]."""
    # Only the rest is copied: whole blocks are a view, since a gradient has tens of megabytes.
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
        CodecError: a sum of nobody, or of a worker that the job does not have.
    """
    # As a rule all chunks have the same contributors: one comparison of the array, in place of a pass for each worker.
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
    """Return in which sums a rank is, bool[chunks]."""
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
        revocable: the last commit can be given back until the next all-reduce begins. The residual from before it stays
            in memory so long.
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
            CodecError: another length, or an earlier vector is neither committed nor given back.
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
            CodecError: another length, or an earlier vector is neither committed nor given back.
        """
        self._require_like(x)
        return self.compensate_by(lambda residual, room: np.add(x, residual, out=room))

    def compensate_by(self, fill: Callable[[Floats, Floats], object]) -> Floats:
        """Begin an all-reduce of a vector that lies in pieces. Return x + residual, this object's until the commit.

        Args:
            fill: is called with the residual, which it only reads, and room for the sum, float32[elements] both.

        Raises:
            CodecError: an earlier vector is neither committed nor given back.
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
        # The vector from before the last commit, which cannot be given back any more, is room for this one.
        room, self._before = self._before, None
        return spare_array(self.residual.shape, np.float32) if room is None else room

    def commit(self, delivered: Floats | None = None) -> None:
        """End the all-reduce: the pending vector, less what was delivered, is the residual. None stands for nothing.

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
