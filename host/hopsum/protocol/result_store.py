# SPDX-License-Identifier: Apache-2.0
"""Results of delivered all-reduces, kept for peers until everybody is proved to hold them (R2 of docs/protocol.md).

A worker is proved to hold a position by its DONE about a later position, or by its LEAVE. One that is given up on needs
no proof, until it is heard of again: its DONE counts from then on. A new generation has new proofs: who has a rank may
be another worker now. What is kept stays kept.

    all-reduce  input                                   next
    -           delivered                               KEPT
    KEPT        everybody proved, it is the oldest      DROPPED
    KEPT        given up on the others, here or by      DROPPED: a FETCH of it is answered GONE
                the controller (on_ranks_lost)
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.worker_state import AllReduce, Membership

EVERYTHING: Final = (1 << 62) - 1
"""A position behind all others."""


class StoredResult(NamedTuple):
    """One result."""

    op: int
    contributors: int
    values: bytes


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
        """Begin a generation with these peers, of whom none has proved anything yet, nor is late."""
        self.held_to = 0
        """The position before which this worker itself is known to hold everything."""
        self._done = [0] * membership.workers
        """Per rank, the position before which it said in this generation that it holds everything."""
        self._done[membership.rank] = EVERYTHING
        # M2: a rank without a worker takes the state of another worker before it takes part again.
        self._out = [rank != membership.rank and rank not in peers for rank in range(membership.workers)]
        """Per rank, whether it was given up on, and not heard of since."""
        self._kept = [kept._replace(delivered_at=now) for kept in self._kept]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Return the positions whose results are kept, as (first, end), in the order of the stream."""
        return [(kept.first, kept.end) for kept in self._kept]

    @property
    def oldest_delivered_at(self) -> float | None:
        """Return the time at which the oldest kept all-reduce was delivered."""
        return self._kept[0].delivered_at if self._kept else None

    def keep(self, reduce: AllReduce, now: float) -> None:
        """Take a complete all-reduce. Its results are not copied, since they do not change any more."""
        # Tuples in the order of their first positions, which are all different.
        insort(self._kept, _Kept(reduce.first, reduce.end, reduce.op, reduce.results, reduce.contributors, now))
        self.kept_bytes += reduce.results.nbytes

    def note_done(self, rank: int, position: int) -> None:
        """Take a worker's word that it holds everything before a position."""
        if position > self._done[rank]:
            self._done[rank] = min(position, EVERYTHING)
            self._out[rank] = False
            self._drop()

    def note_held(self, position: int) -> None:
        """Take this worker's own word that it holds everything before a position."""
        self.held_to = max(self.held_to, position)
        self._drop()

    def unproved(self) -> list[int]:
        """Return the ranks that have not proved, by DONE or LEAVE, to hold the oldest all-reduce of this store."""
        if not self._kept:
            return []
        end = self._kept[0].end
        return [rank for rank, done in enumerate(self._done) if done < end and not self._out[rank]]

    def give_up(self) -> list[int]:
        """Drop the oldest kept all-reduce unproved, and return the ranks that were not proved to hold it."""
        lacking = self.unproved()
        self.on_ranks_lost(lacking)
        return lacking

    def on_ranks_lost(self, ranks: Sequence[int]) -> None:
        """Need no proof of workers that were given up elsewhere."""
        for rank in ranks:
            self._out[rank] = True
        self._drop()

    def find(self, position: int) -> StoredResult | None:
        """Return the stored result, or None."""
        for kept in self._kept:
            if kept.first <= position < kept.end:
                at = position - kept.first
                return StoredResult(kept.op, int(kept.contributors[at]), kept.results[at].tobytes())
        return None

    def is_dropped(self, position: int) -> bool:
        """Say whether a result that is not kept was held here once, or is nobody's: the position is void."""
        return position < self.held_to

    def _drop(self) -> None:
        said_to = min(done for done, out in zip(self._done, self._out, strict=True) if not out)
        # All-reduces are dropped in the order of the stream, whatever order they end in.
        while self._kept and self._kept[0].end <= min(said_to, self.held_to):
            self.kept_bytes -= self._kept.pop(0).results.nbytes
