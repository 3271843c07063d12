# SPDX-License-Identifier: Apache-2.0
"""A worker's way from one generation of its job to the next: what it reports, what stays, and what is void.

E2 to E4 and N4 of docs/protocol.md, whose table "Reports and decisions" says what becomes of each position. A void
all-reduce takes its positions all the same, so that all ranks count alike. From `start` on nothing is submitted until
the program has gone on: it gives the newcomers its state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopsum.errors import WorkersReplacedError, name_ranks
from hopsum.protocol.stream import DecidedRanges
from hopsum.protocol.stream_state import StreamState
from hopsum.protocol.worker_state import AllReduce, AllReduceFailed
from hopsum_wire.datagrams import restamp_datagrams
from hopsum_wire.generations import Resume, Sealed


class JoinPoint:
    """The last position at which newcomers joined a job's stream, and whether this rank's program has gone on there.

    Args:
        resume: of the generation in which this worker begins: with a `start` it is a newcomer itself.
    """

    def __init__(self, state: StreamState, resume: Resume | None) -> None:
        self._state, self._stream = state, state.stream
        self.start = 0
        self.generation = 0
        """The newcomers' first, or 0: there never were any."""
        self.ranks: tuple[int, ...] = ()
        self._passed = 0
        """The largest start at which the program has gone on, of this join point and of those before."""
        if resume is not None:
            self.on_resume(resume)
        self.gone_on = True

    def is_next(self, resume: Resume) -> bool:
        """Whether a new generation has another join point, the stream position from which its workers sum."""
        return resume.start is not None and resume.start_generation != self.generation

    def on_resume(self, resume: Resume) -> None:
        """Take the join point that a generation brings, if it brings one."""
        if resume.start is not None and self.is_next(resume):
            self.start, self.generation, self.ranks = resume.start, resume.start_generation, resume.replaced
            self.gone_on = False

    def require_gone_on(self) -> None:
        """Raise WorkersReplacedError where the stream has reached `start`. For a program that has not gone on yet."""
        if self._stream.end >= self.start:
            raise self._error()

    def voids(self, first: int, end: int, decided: DecidedRanges | None) -> bool:
        """Say whether an all-reduce at first .. end - 1 has a void position."""
        before = np.arange(first, min(end, self.start))
        return before.size > 0 and not (decided is not None and decided.covers(before).all())

    def void(self, handle: int) -> None:
        """End an all-reduce without a result on any rank: queue an AllReduceFailed event with WorkersReplacedError."""
        self._state.events.append(AllReduceFailed(handle, self._error()))

    def newcomers(self, generation: int) -> tuple[int, ...]:
        """Return the ranks that were new in a generation, as far as this worker knows."""
        return self.ranks if generation == self.generation else ()

    def resume_at(self, generation: int, start: int) -> None:
        """Take the program's word that it has gone on with the newcomers of a generation, who began at `start`."""
        self.gone_on |= generation == self.generation
        self._passed = max(self._passed, start)

    def skip(self) -> bool:
        """Leave out positions that the program went past without submitting them. Say whether there were any."""
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
    # Where `held` changes from 0 to 1 a run begins, where it changes back the run ends.
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
    if resume.start is not None and join_point.is_next(resume) and resume.start < stream.end:
        raise ValueError(
            f"newcomers begin at position {resume.start}, but this worker has submitted up to {stream.end}: they begin "
            "behind all that was reported"
        )
    return decided


def carry_over(state: StreamState, decided: DecidedRanges, join_point: JoinPoint, generation: int) -> None:
    """Bring all-reduces in progress into a new generation, which the stream numbers already. End void ones."""
    for reduce in list(state.active):
        # E4: newcomers cannot contribute to these positions, so no sum of them can be complete.
        if join_point.voids(reduce.first, reduce.end, decided):
            state.active.remove(reduce)
            join_point.void(reduce.handle)
    for reduce in state.active:
        positions = np.arange(reduce.first, reduce.end)
        # E3: a result that is held here and not decided may differ from the one that the others will get.
        reduce.discard(~decided.covers(positions))
        _, rounds = state.stream.places(reduce.first, len(positions))
        reduce.datagrams = restamp_datagrams(reduce.datagrams, generation=generation, rounds=rounds)
        # W2 holds again from here on.
        reduce.datagrams.flags.writeable = False
        reduce.addresses = ()


def lacking(reduce: AllReduce, decided: DecidedRanges) -> list[int]:
    """Return the decided positions of an all-reduce whose results are not here."""
    positions: NDArray[np.int64] = np.arange(reduce.first, reduce.end)[reduce.held == 0]
    found: list[int] = positions[decided.covers(positions)].tolist()
    return found
