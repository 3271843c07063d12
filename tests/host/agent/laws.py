# SPDX-License-Identifier: Apache-2.0
"""The laws of an all-reduce with error feedback, as a check of what agents were given, returned and kept.

    replicas       all ranks end an all-reduce with the same bytes: mean and contributors, or the same error
    conservation   sum of x + sum of residuals before = contributors * mean + sum of residuals after,
                   element by element, in every all-reduce and over all of them

How far rounding may let the two sides be apart follows from what is computed in float32 (u = 2^-24), for one element:

    c  = x + e                  one rounding on each rank                                   |c| u
    d  = integer * factor       float32 of the integer, of the factor, of the product       3 |d| u, of those inside
    e' = c - d                  one rounding                                                |e'| u, of those inside
    m  = integer sum * factor   as d, times the number of contributors k                    3 k |m| u

Integers add without error, so nothing else is lost. |d| <= (|c| + |e'|) (1 + u), and terms in u^2 are below a
hundredth of what is there. A second sum over many all-reduces is done in float64.

Where the switch looks sums up again, a result has 15 cells for the sum, and its error is noise. Then the two sides are
compared block by block: the root mean square of the difference is below LOST times the largest root mean square that a
rank sent in the block. A contribution that is dropped or counts twice makes a difference of 1, if it is the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.agent import AllReduceResult
from hopsum.codec import Codec, CollectiveError
from hopsum_wire.payload import SHAPES

UNIT = 2.0**-24
LOST = 0.5
"""Of 3 workers with codes of 4 bits: 0.34 where all inputs are equal, 0.26 where they are independent."""
SMALLEST = 2.0**-140
"""Far above what products of float32 lose that are below the normal numbers."""


class Entry(NamedTuple):
    """What one rank had of one all-reduce; vectors are float32[elements]."""

    given: NDArray[np.float32]
    before: NDArray[np.float32]
    """Its residual."""
    after: NDArray[np.float32]
    outcome: AllReduceResult | CollectiveError


@dataclass
class Books:
    """The account of one job: `violations` says what broke a law, in words, and is empty if nothing did."""

    codec: Codec
    elements: int
    violations: list[str] = field(default_factory=list)
    allreduces: int = 0
    without_mean: int = 0
    """Of those, all ranks agreed to have none."""
    missed: int = 0
    """Chunks that somebody was not in."""
    closest: float = 0.0
    """The largest difference that was found, in parts of what rounding may do."""

    def __post_init__(self) -> None:
        self._given = np.zeros(self.elements)
        self._applied = np.zeros(self.elements)
        self._left = np.zeros(self.elements)
        self._allowed = np.zeros(self.elements)
        self._has_blocks = bool(getattr(self.codec, "block_elements", 0))
        self._looked_up_again = self._has_blocks and SHAPES[self.codec.op].down_codes

    def record(self, entries: Sequence[Entry]) -> None:
        """Take what all ranks had of the next all-reduce."""
        number, self.allreduces = self.allreduces, self.allreduces + 1
        self._check_replicas(number, [entry.outcome for entry in entries])
        self._conserve(number, entries)

    def close(self) -> None:
        """Compare all that went in with all that came out and what is left."""
        self._compare("conservation over all", self._given, self._applied + self._left, self._allowed)

    def _check_replicas(self, number: int, outcomes: list[AllReduceResult | CollectiveError]) -> None:
        odd = [rank for rank, each in enumerate(outcomes) if _bytes_of(each) != _bytes_of(outcomes[0])]
        if odd:
            self.violations.append(f"replicas: all-reduce {number} of ranks {odd} is not that of rank 0")

    def _conserve(self, number: int, entries: Sequence[Entry]) -> None:
        """Balance one all-reduce, by the mean of rank 0."""
        given, before = _sum([entry.given for entry in entries]), _sum([entry.before for entry in entries])
        after = _sum([entry.after for entry in entries])
        applied = self._applied_by(entries[0].outcome, len(entries))
        sent = [np.abs(entry.given + entry.before).astype(np.float64) for entry in entries]
        kept = [np.abs(entry.after).astype(np.float64) for entry in entries]
        allowed = UNIT * 1.01 * (3 * np.abs(applied) + 4 * (_sum(sent) + _sum(kept))) + SMALLEST
        if self._has_blocks:
            # A contribution that a sum has not is subtracted and added again: what rounds is the error of a code.
            allowed += UNIT * 4 * _sum([self._block_means(each) for each in sent])
        if self._looked_up_again:
            allowed = LOST * np.max([self._block_means(each) for each in sent], axis=0) + SMALLEST
        self._compare(f"conservation in all-reduce {number}", given + before, applied + after, allowed)
        self._given += given
        self._applied += applied
        self._left = after
        self._allowed += allowed

    def _compare(
        self, what: str, left: NDArray[np.float64], right: NDArray[np.float64], allowed: NDArray[np.float64]
    ) -> None:
        apart = self._block_means(left - right) if self._looked_up_again else np.abs(left - right)
        parts = apart / allowed
        self.closest = max(self.closest, float(parts.max()))
        wrong = np.flatnonzero(~(parts <= 1))
        if wrong.size:
            first = int(wrong[0])
            self.violations.append(
                f"{what}: {wrong.size} of {self.elements} elements, the first is {first}: "
                f"{left[first]!r} went in, {right[first]!r} is there, rounding explains {allowed[first]:.3g}"
            )

    def _block_means(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the root mean square of each element's block, float64[elements]."""
        starts = np.arange(0, x.size, self.codec.block_elements)  # type: ignore[attr-defined]
        sizes = np.diff(np.append(starts, x.size))
        return np.sqrt(np.add.reduceat(np.square(x), starts) / sizes).repeat(sizes)

    def _applied_by(self, outcome: AllReduceResult | CollectiveError, workers: int) -> NDArray[np.float64]:
        """Return contributors * mean, float64[elements]; nothing where the ranks agreed on no mean."""
        if isinstance(outcome, CollectiveError):
            self.without_mean += 1
            return np.zeros(self.elements)
        counts = np.array([int(bits).bit_count() for bits in outcome.contributors])
        self.missed += int((counts < workers).sum())
        block = getattr(self.codec, "block_elements", 0)
        if block:
            spread = counts.repeat(block)[: self.elements]
        else:  # lossless has a mean only if all chunks have the same contributors
            assert len(set(outcome.contributors.tolist())) == 1, "a vector that no sketch was found for: take another"
            spread = counts[:1]
        return spread * outcome.mean.astype(np.float64)


def _bytes_of(outcome: AllReduceResult | CollectiveError) -> tuple[bytes, bytes]:
    if isinstance(outcome, CollectiveError):
        return str(outcome).encode(), b""
    return outcome.mean.tobytes(), outcome.contributors.tobytes()


def _sum(vectors: Sequence[NDArray[np.float32]] | Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.asarray(np.sum(vectors, axis=0, dtype=np.float64))
