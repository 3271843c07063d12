# SPDX-License-Identifier: Apache-2.0
"""Codec `two-shot`: a quantised all-reduce that needs no switch. Its ranks add codes, which no switch can add.

Every rank quantises its vector (`backends.kernels`) and sends every rank that rank's part of it (all-to-all, the first
shot). The rank that owns a part adds its n versions, quantises their mean, and sends the mean to all (all-gather, the
second shot). ZeRO++'s gradients (Wang et al., arXiv 2306.10209) and torchft's quantised all-reduce are of this kind. A
link carries 2 (n - 1)/n (b + 1/16) bits of an element in each direction, for codes of b bits.

The error feedback of a rank keeps what its own codes do not deliver, and n times what the codes of its part's mean do
not: the rank's share in the next mean is one n-th. So residuals have all that is not delivered, as with other codecs.

    state    input                    next     also
    SUMS     take(no scale is NaN)    DONE     mean; residual committed
    SUMS     take(some scale is NaN)  SKIPPED  on all ranks alike; residual as before; maybe NonFiniteError
    SUMS     abort                    GONE     residual + vector is the new residual
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import TWO_SHOT_BLOCK, TWO_SHOT_SCALE_BYTES, KernelCodec, Kernels
from hopsum.codec.interface import (
    Bitmaps,
    Bytes,
    CodecError,
    CollectivePhase,
    ErrorFeedback,
    Floats,
    Reduction,
    ReductionContext,
    ReductionState,
    StartOptions,
    Words,
    blocks_of,
    require_rows,
    require_workers,
)
from hopsum_wire import LANE_GROUP_CODES, Op


class TwoShot(KernelCodec):
    """Codec `two-shot`: codes of a few bits, which the ranks add up themselves. Contexts are not used but for the rank.

    Args:
        workers: of the job, 1 to 64.
        bits: bits of a code, 4 or 8. With m the largest code, a residual's largest magnitude stays below
            (n + 1) / (2 m - 2) of the vectors': with 2 bits, where m is 1, it would grow without bound.
        kernels: of a backend; "auto" on one thread if left out.

    Raises:
        CodecError: a number of workers that no job has, or of bits that no code has.
    """

    name = "two-shot"
    ranks_add = True
    # The operation and the table of a switch, which no switch is asked for.
    op = Op.ADD32
    lookup: tuple[int, ...] | None = None
    code_group = LANE_GROUP_CODES
    phases = 1

    def __init__(self, workers: int, *, bits: int = 4, kernels: Kernels | None = None) -> None:
        require_workers(workers)
        if type(bits) is not int or bits not in (4, 8):
            raise CodecError(f"two-shot with codes of {bits} bits: 4 or 8")
        self.workers, self.bits = workers, bits
        self.use_kernels(kernels or load_kernels("auto"))

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of TWO_SHOT_BLOCK elements on the wire."""
        return TWO_SHOT_SCALE_BYTES + TWO_SHOT_BLOCK * self.bits // 8

    def part_blocks(self, elements: int) -> int:
        """Return the number of blocks that each rank owns of a vector. The last rank's may be padding."""
        return blocks_of(elements, TWO_SHOT_BLOCK * self.workers)

    def start(
        self,
        x: Floats,
        context: ReductionContext,
        feedback: ErrorFeedback | None = None,
        **options: Unpack[StartOptions],
    ) -> TwoShotReduction:
        """Begin an all-reduce. See `Codec.start`."""
        return TwoShotReduction(self, x, context, feedback, **options)


class TwoShotReduction(Reduction):
    """One all-reduce of one vector by codec `two-shot`: one phase, which the ranks sum in place of a switch."""

    def __init__(self, codec: TwoShot, *given: Any, **options: Unpack[StartOptions]) -> None:
        self.codec = codec
        self._rest = np.zeros(0, np.float32)
        """Error of the mean of this rank's part, float32[elements of the part], once it is added up."""
        super().__init__(*given, **options)
        self.state = ReductionState.SUMS

    def _first_phase(self) -> CollectivePhase:
        codec = self.codec
        # Equal parts, since an all-to-all takes no others: whole blocks, zeros beyond the last element.
        payloads = np.empty((codec.workers * codec.part_blocks(self.elements), codec.block_bytes), np.uint8)
        codec.kernels.two_shot_encode(self._x, codec.bits, payloads)
        # The error of a vector that is skipped says whether this rank's was finite and too large.
        self._own = _scales(payloads)
        return CollectivePhase(codec.op, payloads, self.elements, last=True, add=self._add)

    def _add(self, shares: Bytes) -> Bytes:
        """Return the mean of the ranks' versions of this rank's part, uint8[blocks, bytes]. See `CollectivePhase`."""
        kernels, bits = self.codec.kernels, self.codec.bits
        self._rest = np.zeros(shares.shape[1] * TWO_SHOT_BLOCK, np.float32)
        # One rank adds a part for all, so all end with the same bytes.
        for share in shares:
            kernels.two_shot_add(share, bits, np.float32(1 / self.codec.workers), self._rest)
        made = np.empty(shares.shape[1:], np.uint8)
        kernels.two_shot_encode(self._rest, bits, made)
        kernels.two_shot_add(made, bits, np.float32(-1), self._rest)
        return made

    def on_results(self, results: Bytes, contributors: Bitmaps) -> None:
        phase, codec = self._require_phase(), self.codec
        blocks, block_bytes = phase.payloads.shape
        require_rows(results, blocks, block_bytes, f"results of {self.elements} elements")
        # A rank whose block is not finite sends NaN as its scale, and the mean of the block then has NaN for all ranks.
        if np.isnan(_scales(results).view(np.float32)).any():
            self._skip()
            return
        if self._feedback is not None:
            codec.kernels.two_shot_add(phase.payloads, codec.bits, np.float32(-1), self._x)
            first = self.context.rank * self._rest.size
            part = self._x[first : first + self._rest.size]
            # n times: the rank's next vector is one of n that the next mean is made of.
            part += self._rest[: part.size] * np.float32(codec.workers)
        mean = np.empty(self.elements, np.float32) if self._out is None else self._out
        mean[:] = 0
        codec.kernels.two_shot_add(results, codec.bits, np.float32(1), mean)
        self._commit()
        self._finish(mean, contributors[: blocks_of(self.elements, TWO_SHOT_BLOCK)])


def _scales(blocks: Bytes) -> Words:
    """Return the bits of the scales of blocks, uint32[blocks], a new array."""
    return np.ascontiguousarray(blocks[:, :TWO_SHOT_SCALE_BYTES]).view("<u4").reshape(-1).astype(np.uint32)
