# SPDX-License-Identifier: Apache-2.0
"""A worker's change from one generation of its job to the next: its report, kept results, and void positions.

Rules E2 to E4 and N4 of docs/protocol.md, whose table "Reports and decisions" has the cases of a position. A void
all-reduce still takes its positions, so that all ranks count alike. From `start` on nothing is submitted until the
program has called `resume` with the state for the newcomers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopsum.errors import WorkersReplacedError, name_ranks
from hopsum.protocol.decided_ranges import DecidedRanges
from hopsum.protocol.stream_state import StreamState
from hopsum.protocol.worker_state import AllReduce, AllReduceFailed
from hopsum_wire.datagrams import restamp_datagrams
from hopsum_wire.generations import Resume, Sealed


class JoinPoint:
    """The last position at which newcomers joined a job's stream, and whether this rank's program knows of them.

    Args:
        resume: of the generation in which this worker begins; if it has a `start`, the worker is a newcomer itself.
    """

    def __init__(self, state: StreamState, resume: Resume | None) -> None:
        self._state, self._stream = state, state.stream
        self.start = 0
        self.generation = 0
        """The newcomers' first generation, 0 without newcomers."""
        self.ranks: tuple[int, ...] = ()
        self._passed = 0
        """The largest start from which the program has continued, of this join point or an earlier one."""
        if resume is not None:
            self.on_resume(resume)
        self._is_resumed = True

    def next_start(self, resume: Resume) -> int | None:
        """Return the start of a new generation's join point. None: it has none, or it has this one."""
        return None if resume.start_generation == self.generation else resume.start

    def on_resume(self, resume: Resume) -> None:
        """Store the join point of a generation, if it has a new one."""
        start = self.next_start(resume)
        if start is not None:
            self.start, self.generation, self.ranks = start, resume.start_generation, resume.replaced
            self._is_resumed = False

    def require_resumed(self) -> None:
        """Raise WorkersReplacedError if the stream has reached `start` before the program knows of the newcomers."""
        if not self._is_resumed and self._stream.end >= self.start:
            raise self._error()

    def voids(self, first: int, end: int, decided: DecidedRanges | None) -> bool:
        """Say whether an all-reduce at first .. end - 1 has a void position."""
        if first >= self.start:
            return False
        return decided is None or not decided.covers(np.arange(first, min(end, self.start))).all()

    def void(self, handle: int) -> None:
        """End an all-reduce without a result on any rank: queue an AllReduceFailed event with WorkersReplacedError."""
        self._state.events.append(AllReduceFailed(handle, self._error()))

    def newcomers(self, generation: int) -> tuple[int, ...]:
        """Return the newcomers of a generation, empty for any other than the last known one with newcomers."""
        return self.ranks if generation == self.generation else ()

    def resume_at(self, generation: int, start: int) -> None:
        """Note that the program continues with the newcomers of a generation, which began at `start`."""
        self._is_resumed |= generation == self.generation
        self._passed = max(self._passed, start)

    def skip(self) -> bool:
        """Skip positions that the program has passed without submitting them. Return whether there were any."""
        end, to = self._stream.end, min(self._passed, self.start)
        if end >= to:
            return False
        self._stream.end = to
        return True

    def _error(self) -> WorkersReplacedError:
        have = "has a new worker" if len(self.ranks) == 1 else "have new workers"
        return WorkersReplacedError(
            f"{name_ranks(self.ranks)} {have}: this all-reduce has no result on any rank, and the job "
            f"continues with the newcomers in generation {self.generation}. Give them this program's "
            "state and continue",
            self.ranks,
        )


def sealed_report(generation: int, state: StreamState, kept: Sequence[tuple[int, int]]) -> Sealed:
    """Return a worker's report at the end of a generation. `kept` are runs of results that it keeps for peers."""
    first = min([state.delivered_to, *(first for first, _ in kept)])
    held = np.zeros(state.stream.end - first, np.int8)
    for begin, end in kept:
        held[begin - first : end - first] = 1
    for reduce in state.active:
        held[reduce.first - first : reduce.end - first] = reduce.held
    # A run begins where `held` changes from 0 to 1, and ends where it changes back.
    edges = (np.flatnonzero(np.diff(held, prepend=0, append=0)) + first).tolist()
    return Sealed(generation, state.delivered_to, state.stream.end, tuple(zip(edges[::2], edges[1::2], strict=True)))


def require_fitting(resume: Resume, join_point: JoinPoint, state: StreamState) -> DecidedRanges:
    """Return the decided ranges of a `Resume`. Raises ValueError if it does not fit the worker."""
    stream, decided = state.stream, DecidedRanges(resume.decided)
    if resume.base < 0 or resume.base % stream.slots or resume.base > state.delivered_to:
        raise ValueError(
            f"a generation with base {resume.base} for a worker of {stream.slots} slots that has delivered up to "
            f"position {state.delivered_to}: the base is a multiple of the slots, and not behind what is delivered"
        )
    start = join_point.next_start(resume)
    if start is not None and start < stream.end:
        raise ValueError(
            f"newcomers begin at position {start}, but this worker has submitted up to {stream.end}: they begin "
            "behind all that was reported"
        )
    return decided


def carry_over(state: StreamState, decided: DecidedRanges, join_point: JoinPoint, generation: int) -> None:
    """Restamp all-reduces in progress for a new generation, and discard their undecided results. End void ones.

    The stream already has the rounds of the new generation. Nothing is opened for sending.
    """
    for reduce in list(state.active):
        # E4: newcomers cannot contribute to these positions, so no sum of them can be complete.
        if join_point.voids(reduce.first, reduce.end, decided):
            state.active.remove(reduce)
            join_point.void(reduce.handle)
    for reduce in state.active:
        positions = np.arange(reduce.first, reduce.end)
        # E3: an undecided result may differ from the result that the other workers will get.
        reduce.discard(~decided.covers(positions))
        _, rounds = state.stream.places(reduce.first, len(positions))
        reduce.datagrams = restamp_datagrams(reduce.datagrams, generation=generation, rounds=rounds)
        # W2: frozen again.
        reduce.datagrams.flags.writeable = False
        reduce.addresses = ()


def missing_decided(reduce: AllReduce, decided: DecidedRanges) -> list[int]:
    """Return the decided positions of an all-reduce whose results are missing."""
    positions: NDArray[np.int64] = np.arange(reduce.first, reduce.end)[reduce.held == 0]
    found: list[int] = positions[decided.covers(positions)].tolist()
    return found
