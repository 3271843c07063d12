# SPDX-License-Identifier: Apache-2.0
"""Results of delivered all-reduces, kept for peers until everybody is proved to hold them (R2 of docs/protocol.md).

A worker is proved to hold a position by a later result of the same slot that has it among its contributors, by its DONE
about a later position, or by its LEAVE. One that is given up on needs no proof, until it is heard of again: its DONE
counts from then on. A new generation has new proofs: who has a rank may be another worker now. What is kept stays kept.

    all-reduce  input                                   next
    -           delivered                               KEPT
    -           void, or skipped (generation_change.py) DROPPED
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

from hopsum.protocol.stream import Stream
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
    named: int
    """Bitmap of the ranks among its contributors, which prove that they hold earlier results; 0 in a later generation.
    """


class ResultStore:
    """The results that one worker keeps for its peers.

    To keep an all-reduce and to drop it costs the same for any number of workers, where all say DONE.
    """

    def __init__(self, membership: Membership, stream: Stream) -> None:
        self._own, self._stream = membership, stream
        self._kept: list[_Kept] = []
        self._skipped: list[tuple[int, int]] = []
        """Void positions that are not dropped yet, first and end, in the order of the stream."""
        self._dropped_to = stream.end
        self.kept_bytes = 0
        """The bytes of all results in the store."""
        self._done: list[int] = []
        """Per rank, the position before which it said in this generation that it holds everything."""
        self._out: list[bool] = []
        """Per rank, whether it was given up on, and not heard of since."""
        self._said_to = 0
        """The least of `_done` among the ranks that are not out."""
        self.enter(membership, 0.0)

    def __len__(self) -> int:
        """The number of all-reduces in the store."""
        return len(self._kept)

    def enter(self, membership: Membership, now: float) -> None:
        """Begin a generation, in which no rank has proved anything yet, nor is late."""
        self._own, self._done = membership, [0] * membership.workers
        # M2: a rank without a worker takes the state of another worker before it takes part again.
        self._out = [rank in membership.absent for rank in range(membership.workers)]
        self._done[self._own.rank] = EVERYTHING
        self._note_said()
        self._kept = [kept._replace(delivered_at=now, named=0) for kept in self._kept]

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
        named = int(np.bitwise_or.reduce(reduce.contributors))
        kept = _Kept(reduce.first, reduce.end, reduce.op, reduce.results, reduce.contributors, now, named)
        # Tuples in the order of their first positions, which are all different.
        insort(self._kept, kept)
        self.kept_bytes += kept.results.nbytes
        self._drop()

    def skip(self, first: int, end: int) -> None:
        """Take positions that have no results to keep."""
        self._skipped.append((first, end))
        self._skipped.sort()
        self._drop()

    def note_done(self, rank: int, position: int) -> None:
        """Take a worker's word that it holds everything before a position."""
        if position > self._done[rank]:
            self._done[rank] = min(position, EVERYTHING)
            self._out[rank] = False
            self._note_said()
        self._drop()

    def unproved(self) -> list[int]:
        """The ranks that have not proved to hold the oldest all-reduce that this worker keeps for its peers."""
        if not self._kept:
            return []
        proved = self._proved(self._kept[0])
        return [rank for rank in range(self._own.workers) if not proved >> rank & 1]

    def give_up(self) -> list[int]:
        """Drop the oldest kept all-reduce unproved, and return the ranks that were not proved to hold it."""
        lacking = self.unproved()
        self.on_ranks_lost(lacking)
        return lacking

    def on_ranks_lost(self, ranks: Sequence[int]) -> None:
        """Need no proof of workers that were given up elsewhere."""
        for rank in ranks:
            self._out[rank] = True
        self._note_said()
        self._drop()

    def find(self, position: int) -> StoredResult | None:
        """Return the stored result, or None."""
        for kept in self._kept:
            if kept.first <= position < kept.end:
                at = position - kept.first
                return StoredResult(kept.op, int(kept.contributors[at]), kept.results[at].tobytes())
        return None

    def is_dropped(self, position: int) -> bool:
        """Say whether a result was kept once."""
        return position < self._dropped_to

    def _drop(self) -> None:
        while True:
            if self._skipped and self._skipped[0][0] == self._dropped_to:
                self._dropped_to = self._skipped.pop(0)[1]
            elif self._kept and self._kept[0].first == self._dropped_to and self._is_proved(self._kept[0]):
                dropped = self._kept.pop(0)
                self._dropped_to = dropped.end
                self.kept_bytes -= dropped.results.nbytes
            else:
                return

    def _note_said(self) -> None:
        # The own rank is never out.
        self._said_to = min(done for done, out in zip(self._done, self._out, strict=True) if not out)

    def _is_proved(self, kept: _Kept) -> bool:
        """Say whether all ranks are proved to hold an all-reduce, or given up."""
        if kept.end <= self._said_to:
            return True
        # Only a later round of its last slot proves anything, and there is none yet.
        if self._kept[-1].end < kept.end + self._stream.slots:
            return False
        # A straggler is in no later result at all, which costs less to see.
        named, everybody = self._said(kept), (1 << self._own.workers) - 1
        for later in self._kept[1:]:
            named |= later.named
        return named == everybody == self._proved(kept)

    def _said(self, kept: _Kept) -> int:
        """Return the bitmap of the ranks that said to hold an all-reduce, or are given up."""
        return sum(1 << rank for rank, done in enumerate(self._done) if done >= kept.end or self._out[rank])

    def _proved(self, kept: _Kept) -> int:
        """Return the bitmap of the ranks that are proved to hold an all-reduce, or given up."""
        slots = self._stream.slots
        # W1: a later result of a slot proves all earlier ones of it, so the last round of each slot is enough. What was
        # delivered later is still here, since all-reduces are dropped in the order of the stream.
        first = max(kept.first, kept.end - slots)
        found = np.zeros(kept.end - first, np.uint64)
        later = [each for each in self._kept if each.named and each.first >= kept.end and each.end > first + slots]
        if later:
            at = (np.concatenate([np.arange(each.first, each.end) for each in later]) - first) % slots
            contributors = np.concatenate([each.contributors for each in later])
            np.bitwise_or.at(found, at[at < len(found)], contributors[at < len(found)])
        return int(np.bitwise_and.reduce(found)) | self._said(kept)
