# SPDX-License-Identifier: Apache-2.0
"""Results of delivered all-reduces, kept for peers until everybody is proved to hold them.

Rules
    R2  An all-reduce is dropped when it is delivered and every other worker is proved to hold it. A worker is proved
        to hold a position by
          - a later result of the same slot that has it among its contributors: it sends a round only when it holds
            all before (W1), or
          - its DONE about a later position, or its LEAVE.
        All-reduces are dropped in the order of the stream. Void and skipped ones (generation_change.py) are as if
        dropped.
    A worker that is given up on needs no proof, until it is heard of again: its DONE counts from then on.
    R2, E1  A new generation has new proofs: who has a rank may be another worker now. What is kept stays kept, since
            positions go on.

    all-reduce  input                                   next
    -           delivered                               KEPT
    -           void, or skipped                        DROPPED
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

_EVERYTHING: Final = (1 << 62) - 1
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
    """The results that one worker keeps for its peers.

    An all-reduce with all workers in all its results, as most are, costs the same for any number of workers.
    """

    def __init__(self, membership: Membership, stream: Stream) -> None:
        self._own, self._stream = membership, stream
        self._kept: list[_Kept] = []
        self._skipped: list[tuple[int, int]] = []
        """Void positions that are not dropped yet, first and end, in the order of the stream."""
        self._dropped_to = stream.end
        self.kept_bytes = 0
        """The bytes of all results in the store."""
        self._everybody = np.uint64((1 << membership.workers) - 1)
        self._complete = np.empty(membership.slots, np.int64)
        """Per slot, the latest position with the contributions of all ranks in this generation, or -1 for none."""
        self._latest = np.empty((membership.slots, membership.workers), np.int64)
        """Per slot and rank, the latest position with its contribution in this generation, or -1 for none; without the
        all-reduces that `_complete` has."""
        self._newest = 0
        """The end of the last all-reduce of this generation that is in one of both."""
        # Lists: a DONE changes one number, for which numpy takes ten times as long.
        self._done: list[int] = []
        """Per rank, the position before which it said in this generation that it holds everything."""
        self._out: list[bool] = []
        """Per rank, whether it was given up on, and not heard of since."""
        self._said_to = 0
        """The least of `_done` among the ranks that are not out."""
        self.enter(0.0)

    def __len__(self) -> int:
        """The number of all-reduces in the store."""
        return len(self._kept)

    def enter(self, now: float) -> None:
        """Begin a generation, in which no rank has proved anything yet, nor is late."""
        self._complete[:], self._latest[:], self._newest = -1, -1, 0
        self._done, self._out = [0] * self._own.workers, [False] * self._own.workers
        self._done[self._own.rank] = _EVERYTHING
        self._note_said()
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
        kept = _Kept(reduce.first, reduce.end, reduce.op, reduce.results, reduce.contributors, now)
        insort(self._kept, kept, key=lambda each: each.first)
        self.kept_bytes += kept.results.nbytes
        self._newest = max(self._newest, kept.end)
        if (kept.contributors == self._everybody).all():
            # The last round of each slot: no slot is there twice, and it proves at least what those before it prove.
            positions = np.arange(max(kept.first, kept.end - self._stream.slots), kept.end)
            slots = positions % self._stream.slots
            self._complete[slots] = np.maximum(self._complete[slots], positions)
        else:
            self._note_contributors(kept)
        self._drop()

    def skip(self, first: int, end: int) -> None:
        """Take positions that have no results to keep."""
        self._skipped.append((first, end))
        self._skipped.sort()
        self._drop()

    def note_done(self, rank: int, position: int) -> None:
        """Take a worker's word that it holds everything before a position."""
        if position > self._done[rank]:
            self._done[rank] = min(position, _EVERYTHING)
            self._out[rank] = False
            self._note_said()
        self._drop()

    def note_left(self, rank: int) -> None:
        """Take a worker's word that it needs nothing more."""
        self.note_done(rank, _EVERYTHING)

    def unproved(self) -> list[int]:
        """The ranks that have not proved to hold the oldest all-reduce that this worker keeps for its peers."""
        return np.flatnonzero(~self._proved(self._kept[0])).tolist() if self._kept else []

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

    def _note_contributors(self, kept: _Kept) -> None:
        """Note who contributed to an all-reduce whose results do not all have all workers."""
        slots, ranks = self._stream.slots, np.arange(self._own.workers, dtype=np.uint64)
        # Round by round: no slot is there twice, and the memory for it does not grow with the all-reduce.
        for first in range(kept.first, kept.end, slots):
            positions = np.arange(first, min(first + slots, kept.end))
            contributors = kept.contributors[positions - kept.first, None]
            inside = (contributors >> ranks & np.uint64(1)).astype(np.bool_)
            at = positions % slots
            self._latest[at] = np.maximum(self._latest[at], np.where(inside, positions[:, None], -1))

    def _note_said(self) -> None:
        # The own rank is never out.
        self._said_to = min(done for done, out in zip(self._done, self._out, strict=True) if not out)

    def _is_proved(self, kept: _Kept) -> bool:
        """Say whether all ranks are proved to hold an all-reduce, or given up."""
        if kept.end <= self._said_to:
            return True
        # Only a later round of its last slot proves anything, and none has been noted yet.
        if kept.end + self._stream.slots > self._newest:
            return False
        return bool(self._proved(kept).all())

    def _proved(self, kept: _Kept) -> NDArray[np.bool_]:
        """Return, per rank, whether it is proved to hold an all-reduce, or given up."""
        # W1: a later result of a slot proves all earlier ones of it, so the last round of each slot is enough.
        first = max(kept.first, kept.end - self._own.slots)  # the last round of each slot stands for those before
        positions = np.arange(first, kept.end)
        slots = positions % self._stream.slots
        latest = np.maximum(self._latest[slots], self._complete[slots, None])
        later = np.logical_and.reduce(latest > positions[:, None])
        said: NDArray[np.bool_] = np.array(self._done) >= kept.end
        proved: NDArray[np.bool_] = later | said | self._out
        return proved
