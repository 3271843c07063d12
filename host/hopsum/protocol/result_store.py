# SPDX-License-Identifier: Apache-2.0
"""Results of delivered all-reduces, kept for peers until all are proved to hold them (R2 of docs/protocol.md).

A worker is proved to hold a position by its DONE of a later position, or by its LEAVE. A worker that was given up needs
no proof until its next DONE. A new generation has new proofs, because a rank may belong to another worker now. Kept
results stay kept.

    all-reduce  input                                   next
    -           delivered                               KEPT
    KEPT        all workers proved, it is the oldest    DROPPED
    KEPT        the others are given up, here or by     DROPPED: a FETCH of it is answered GONE
                the controller (on_ranks_lost)
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.worker_state import AllReduce, Membership, PositionResult

EVERYTHING: Final = (1 << 62) - 1
"""A position after all others."""


class _Kept(NamedTuple):
    first: int
    end: int
    op: int
    results: NDArray[np.uint8]
    contributors: NDArray[np.uint64]
    delivered_at: float


class ResultStore:
    """The results that one worker keeps for its peers."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self.kept_bytes = 0
        """The bytes of all results in the store."""

    def __len__(self) -> int:
        """The number of all-reduces in the store."""
        return len(self._kept)

    def enter(self, membership: Membership, peers: Sequence[int], now: float) -> None:
        """Begin a generation with these peers, without proofs."""
        self.held_to = 0
        """The position before which this worker itself holds all results."""
        self._done = [0] * membership.workers
        """By rank, the position before which it holds all results, by its DONEs of this generation."""
        self._done[membership.rank] = EVERYTHING
        # M2: a new worker of an absent rank loads another worker's state, and needs no earlier results.
        self._out = [rank != membership.rank and rank not in peers for rank in range(membership.workers)]
        """By rank, whether it was given up, without a DONE since."""
        self._kept = [kept._replace(delivered_at=now) for kept in self._kept]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Return the positions whose results are kept, as (first, end), in the order of the stream."""
        return [(kept.first, kept.end) for kept in self._kept]

    @property
    def oldest_delivered_at(self) -> float | None:
        """Return the time at which the oldest kept all-reduce was delivered, None for an empty store."""
        return self._kept[0].delivered_at if self._kept else None

    def keep(self, reduce: AllReduce, now: float) -> None:
        """Add a complete all-reduce. Its results are not copied, because they do not change any more."""
        # Tuples in the order of their first positions, which are all different.
        insort(self._kept, _Kept(reduce.first, reduce.end, reduce.op, reduce.results, reduce.contributors, now))
        self.kept_bytes += reduce.results.nbytes

    def note_done(self, rank: int, position: int) -> None:
        """Process a worker's DONE, its proof for all results before a position. Drop results that all have."""
        if position > self._done[rank]:
            self._done[rank] = min(position, EVERYTHING)
            self._out[rank] = False
            self._drop()

    def note_held(self, position: int) -> None:
        """Note that this worker holds all results before a position. Drop results that all have."""
        self.held_to = max(self.held_to, position)
        self._drop()

    def unproved(self) -> list[int]:
        """Return the ranks, not given up, that have not proved by DONE or LEAVE to hold the oldest kept all-reduce."""
        if not self._kept:
            return []
        end = self._kept[0].end
        return [rank for rank, done in enumerate(self._done) if done < end and not self._out[rank]]

    def give_up(self) -> list[int]:
        """Give up the ranks of `unproved`, drop the results that only they lacked, and return the ranks."""
        lacking = self.unproved()
        self.on_ranks_lost(lacking)
        return lacking

    def on_ranks_lost(self, ranks: Sequence[int]) -> None:
        """Require no proof of these ranks until their next DONE, and drop the results that only they lacked."""
        for rank in ranks:
            self._out[rank] = True
        self._drop()

    def find(self, position: int) -> PositionResult | None:
        """Return a copy of the stored result of a position, or None."""
        for kept in self._kept:
            if kept.first <= position < kept.end:
                at = position - kept.first
                return PositionResult(kept.op, int(kept.contributors[at]), kept.results[at].tobytes())
        return None

    def is_dropped(self, position: int) -> bool:
        """Say whether the result was held and is dropped now, or never existed because the position is void."""
        return position < self.held_to

    def _drop(self) -> None:
        said_to = min(done for done, out in zip(self._done, self._out, strict=True) if not out)
        # All-reduces are dropped in the order of the stream.
        while self._kept and self._kept[0].end <= min(said_to, self.held_to):
            self.kept_bytes -= self._kept.pop(0).results.nbytes
