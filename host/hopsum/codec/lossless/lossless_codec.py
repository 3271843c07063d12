# SPDX-License-Identifier: Apache-2.0
"""The codec `lossless`: its options, and one of its all-reduces as a state machine without I/O.

    phase 1, MAX32   the largest magnitude of each run of 1024 elements; one more lane: how many are not zero
    phase 2, OR      the index of the elements whose integer rint(x 2^s) is not zero
    phase 3, ADD32   the cells of the sketches, then the packed members (sketch_plan.py), as big-endian integers

    state    input                                   next     also
    RANGES   take(some run infinite)                 SKIPPED  on all ranks alike, residual as before; maybe an error
    RANGES   take(nobody has a non-zero element)     DONE     the mean is 0
    RANGES   take(otherwise)                         INDEX
    INDEX    take(no member)                         DONE     the mean is 0
    INDEX    take(members)                           SUMS
    SUMS     take(sums that agree)                   DONE     the mean; residual committed
    SUMS     take(sums that do not, the last time)   GONE     CollectiveError; residual + vector is the new residual
    SUMS     take(sums that do not, before)          SUMS     the same phase once more
    any of the first three: abort                    GONE     residual + vector is the new residual

Sums agree if all chunks have the same contributors, since every element lies in three of them, and if all cells are 0
once all members are taken from them. Without any sketch each chunk stands for itself, whichever its contributors.

What this rank does not send stays in its residual: elements that the index result lacks (it came without this rank),
and runs whose own magnitude is above the shared one (so did the ranges). These are not in its index either.
"""

from __future__ import annotations

from sys import byteorder
from typing import Final, Unpack

import numpy as np

from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import KernelCodec, Kernels
from hopsum.codec.fixed import fixed_exponents
from hopsum.codec.hashing import INDEX, SKETCH, derive_key
from hopsum.codec.interface import (
    Bitmaps,
    Bytes,
    CodecError,
    CollectiveError,
    CollectivePhase,
    ErrorFeedback,
    Floats,
    Ints,
    Reduction,
    ReductionContext,
    ReductionState,
    StartOptions,
    blocks_of,
    contributor_counts,
    includes,
    require_rows,
    require_workers,
)
from hopsum.codec.lossless.sketch_kernels import RANGE_BLOCK, Bloom, SketchKernels
from hopsum.codec.lossless.sketch_plan import (
    CHUNK_BITS,
    GAMMA,
    ParallelKernels,
    SketchPlan,
    choose_index,
    expected_union,
    index_bits,
    make_plan,
    require_gamma,
    require_kind,
)
from hopsum.codec.vector_reduction import (
    INFINITE,
    pack_ranges,
    read_ranges,
    require_ranges,
)
from hopsum_wire import LANE_GROUP_CODES, Op
from hopsum_wire.payload import SHAPES

_REPEATS: Final = 3


class Lossless(KernelCodec):
    """Codec `lossless`: exact sums of sparse vectors, by an index and by sketches. Any thread may use it.

    The contract is `hopsum.codec.interface.Codec`.
    """

    name = "lossless"
    op = Op.ADD32
    lookup: tuple[int, ...] | None = None
    code_group = LANE_GROUP_CODES
    phases = 3

    def __init__(
        self,
        workers: int,
        *,
        gamma: float = GAMMA,
        index: str = "auto",
        repeats: int = _REPEATS,
        kernels: Kernels | None = None,
    ) -> None:
        """Make the codec of a job. All ranks give the same options.

        Args:
            workers: of the job.
            gamma: cells of the sketch per non-zero element of the union. With 0 there is no sketch, and the union is
                packed.
            index: "bitmap", "bloom", or "auto": a filter where it is expected to save an eighth of the bytes.
            repeats: how often the sums are asked for, the first time included, while their contributors differ from
                chunk to chunk, or the sums contradict each other.
            kernels: of a backend, on as many threads as it has; "auto" on one if left out.

        Raises:
            CodecError: options out of range.
        """
        require_workers(workers)
        require_gamma(gamma)
        require_kind(index)
        if repeats < 1:
            raise CodecError(f"{repeats} repeats of the sums: at least 1, the first time")
        self.workers = workers
        self.facts = f", gamma {gamma}, index {index}, {repeats} repeats"
        """Options that ranks need to have in common, in words."""
        self.use_kernels(kernels or load_kernels("auto"))
        self.gamma, self.index, self.repeats = gamma, index, repeats

    def use_kernels(self, kernels: Kernels) -> None:
        super().use_kernels(kernels)
        self.work = ParallelKernels(_sketch_kernels(kernels.name), kernels.threads)

    def start(
        self,
        x: Floats,
        context: ReductionContext,
        feedback: ErrorFeedback | None = None,
        **options: Unpack[StartOptions],
    ) -> LosslessReduction:
        """Begin an all-reduce. See `Codec.start`."""
        return LosslessReduction(self, x, context, feedback, **options)


def _sketch_kernels(backend: str) -> SketchKernels:
    if backend == "numpy":
        return SketchKernels()
    from hopsum.codec.lossless.sketch_numba import NumbaSketch  # here: numba takes a second to import

    return NumbaSketch()


# ---- one all-reduce ----------------------------------------------------------------------------------------

_LANES = SHAPES[Op.ADD32].elements


class LosslessReduction(Reduction):
    """One all-reduce of one vector by codec `lossless`, in three phases: ranges, index, sums."""

    def __init__(
        self,
        codec: Lossless,
        x: Floats,
        context: ReductionContext,
        feedback: ErrorFeedback | None = None,
        **options: Unpack[StartOptions],
    ) -> None:
        self.plan: SketchPlan | None = None
        """The contents of the sums' lanes, or None before the index is known."""
        self.members = np.zeros(0, np.uint32)
        """Elements of the index, ascending. It is empty before the index is known."""
        self._codec = codec
        self._work = codec.work
        self._repeats_left = codec.repeats
        super().__init__(x, context, feedback, **options)

    def on_results(self, results: Bytes, contributors: Bitmaps) -> None:
        """Process the results of the phase. See `Reduction`. Sums that do not agree leave the phase to be repeated."""
        payloads = self._require_phase().payloads
        require_rows(results, len(payloads), payloads.shape[1], self.state.name.lower())
        require_ranges(contributors, len(results), "contributors instead of")
        if self.state is ReductionState.RANGES:
            self._on_ranges(results, contributors)
        elif self.state is ReductionState.INDEX:
            self._on_index(results, contributors)
        else:
            self._on_sums(results, contributors)

    def _first_phase(self) -> CollectivePhase:
        peaks, nonzero = self._work.scan(self._x)
        self._own = np.minimum(peaks, np.uint32(INFINITE))
        # One lane more: the largest number of non-zero elements decides about the index, on all ranks alike.
        lanes = np.append(self._own, np.uint32(min(nonzero, INFINITE - 1)))
        return CollectivePhase(Op.MAX32, pack_ranges(lanes), lanes.size)

    def _on_ranges(self, results: Bytes, contributors: Bitmaps) -> None:
        shared = read_ranges(results, self._own.size + 1)
        if shared.skipped:
            self._skip()
            return
        self._drop_infinite()
        ranges, nonzero = shared.values[:-1], int(shared.values.view(np.uint32)[-1])
        self._exponents = fixed_exponents(ranges, self._codec.workers)
        self._scales = np.ldexp(np.float32(1), self._exponents).astype(np.float32)
        # A run beyond the shared range (its ranges came too late) is not sent, and stays in the residual.
        self._scales[self._own > ranges.view(np.uint32)] = 0
        if not nonzero:
            self._finish_empty(contributors)
            return
        self._bloom = self._choose_index(min(nonzero, self.elements))
        self.phase = CollectivePhase(Op.OR, self._index_payloads(), index_bits(self.elements, self._bloom))
        self.state = ReductionState.INDEX

    def _choose_index(self, nonzero: int) -> Bloom | None:
        codec = self._codec
        # Only shared numbers enter here: every rank must choose the same index.
        union = expected_union(self.elements, nonzero, codec.workers)
        key = derive_key(self.context.seed, self.context.step, INDEX)
        return choose_index(codec.index, self.elements, union, codec.gamma or 1.0, key)

    def _index_payloads(self) -> Bytes:
        chunks = blocks_of(index_bits(self.elements, self._bloom), CHUNK_BITS)
        payloads = np.zeros((chunks, SHAPES[Op.OR].up_bytes), np.uint8)
        bits = self._work.mark(self._x, self._scales)
        if self._bloom is None:
            payloads.reshape(-1)[: bits.size] = bits
        else:
            self._work.kernels.bloom_add(self._work.select(bits), self._bloom, payloads.reshape(-1))
        return payloads

    def _on_index(self, results: Bytes, contributors: Bitmaps) -> None:
        bits = results.reshape(-1)
        if self._bloom is None:
            bits = bits[: blocks_of(self.elements, 8)]
        else:
            bits = self._work.query(self.elements, self._bloom, bits)
        members = self._work.select(bits)
        if not members.size:
            self._finish_empty(contributors)
            return
        # The padding of the last chunk is 0 on all ranks: a set bit there is no worker's.
        if int(members[-1]) >= self.elements:
            raise CodecError(f"index: bit {int(members[-1])} is set of a vector of {self.elements} elements")
        self.members = members
        key = derive_key(self.context.seed, self.context.step, SKETCH)
        self.plan = make_plan(self._work.kernels, self.members, self._codec.gamma, key, self._work.threads)
        # Anew each time: to keep them takes 4 bytes a member for the whole all-reduce.
        values = self._work.quantise(self._x, self._scales, self.members)
        payloads = np.zeros((blocks_of(self.plan.lanes, _LANES), _LANES), np.uint32)
        self._work.add(values, self.members, self.plan, payloads.reshape(-1)[: self.plan.lanes])
        # Lanes are big-endian on the wire.
        if byteorder == "little":
            payloads.byteswap(inplace=True)
        self.phase = CollectivePhase(Op.ADD32, payloads.view(np.uint8), self.plan.lanes)
        self.state = ReductionState.SUMS

    def _on_sums(self, results: Bytes, contributors: Bitmaps) -> None:
        assert self.plan is not None
        counts = contributor_counts(contributors, self._codec.workers)
        # An element lies in three chunks: with different contributors its cells do not belong together.
        if self.plan.cells and (contributors != contributors[0]).any():
            self._repeat(f"{np.unique(contributors).size} different sets of contributors in {len(results)} chunks")
            return
        lanes = results.reshape(-1).view(">u4")[: self.plan.lanes].astype(np.uint32)
        # `solve` takes the members from the cells, and finds whether anything is left.
        sums = self._work.solve(lanes, self.members, self.plan)
        if sums is None:
            self._repeat(f"{np.count_nonzero(lanes[: self.plan.cells])} cells are left with no element to explain them")
            return
        if self._feedback is not None:
            self._feedback.commit(self._delivered(contributors))
        self._finish(self._mean(sums, counts), contributors)

    def _repeat(self, found: str) -> None:
        """Keep the phase, to be summed again; raise CollectiveError after the last try. `found` names the fault."""
        # The same payloads once more: the network may have lost a late worker's part only this time.
        self._repeats_left -= 1
        if self._repeats_left:
            return
        self._commit()
        self._end(ReductionState.GONE)
        raise CollectiveError(
            f"no lossless sum in {self._codec.repeats} tries, the last had {found}: no rank has a mean, and each "
            "keeps its vector in its error feedback; wait longer for late workers, or use codec fixed"
        )

    def _mean(self, sums: Ints, counts: Ints) -> Floats:
        mean = np.zeros(self.elements, np.float32)
        # As a rule one: without sketches chunks may differ in their contributors.
        for count in np.unique(counts):
            divisors = np.ldexp(np.float64(count), self._exponents)
            here = slice(None) if (counts == count).all() else (counts == count).repeat(_LANES)[: sums.size]
            self._work.spread(sums[here], self.members[here], divisors, mean)
        return mean

    def _delivered(self, contributors: Bitmaps) -> Floats | None:
        included = includes(contributors, self.context.rank)
        if not included.any():
            return None
        values = self._work.quantise(self._x, self._scales, self.members)  # again: to keep them takes memory
        if not included.all():
            values = np.where(included.repeat(_LANES)[: values.size], values, np.int32(0))
        delivered = np.zeros(self.elements, np.float32)
        self._work.spread(values, self.members, np.ldexp(1.0, self._exponents), delivered)
        return delivered

    def _drop_infinite(self) -> None:
        """Forget own runs that are not finite: their ranges came too late to make all ranks skip."""
        if self._feedback is None:
            return
        # The residual alone: what this gradient adds is not finite.
        for run in np.flatnonzero(self._own >= INFINITE):
            rows = slice(int(run) * RANGE_BLOCK, (int(run) + 1) * RANGE_BLOCK)
            self._x[rows] = self._feedback.residual[rows]

    def _finish_empty(self, contributors: Bitmaps) -> None:
        """Nobody in the results has anything to send."""
        self._commit()
        self._finish(np.zeros(self.elements, np.float32), contributors)
