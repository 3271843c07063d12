# SPDX-License-Identifier: Apache-2.0
"""`memory://NAME?workers=N`: ranks that are threads of one process meet in a group, which sums as a switch does.

For tests and notebooks. A group lasts until the first rank leaves. A rank that joins later finds a new one. The value
of a rank waits until all ranks are there. Then the last rank computes the sum, and all return it.

    state      input                    next       also
    GATHERING  a rank brings a value    GATHERING  it waits
    GATHERING  the last rank does       GATHERING  the next meeting; all have the result of this one
    GATHERING  a rank leaves, or fails  BROKEN     waiting ranks have RankLeftError
    GATHERING  deadline of a rank       BROKEN     AllReduceTimeoutError with the missing ranks; others RankLeftError
    BROKEN     a rank brings a value    BROKEN     RankLeftError
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import Codec, CollectivePhase
from hopsum.codec.interface import Bytes
from hopsum.codec.simulate import simulate_phase
from hopsum.errors import AllReduceTimeoutError, RankLeftError
from hopsum.meeting import MeetingError
from hopsum.serial.serial_communicator import SerialCommunicator, Summed, require_agreement
from hopsum_base.shown import describe_differences

REFUSED_S: Final = 60.0
"""The time in which late ranks get the error of ranks that differed, less if one of these ranks joins again."""


class InProcessGroup:
    """The meeting point of the ranks of one process. A rank is in one meeting at a time.

    Thread-safe, except `refuse`.
    """

    def __init__(self, name: str, workers: int, settings: Mapping[str, str]) -> None:
        self.name = name
        self.workers = workers
        self.settings = settings
        """The texts that ranks need in common, by name."""
        self.ranks: set[int] = set()
        self.refused = ""
        """The difference between ranks that ended the group before all were there, empty if there was none."""
        self.told: set[int] = set()
        """Ranks that know it."""
        self.refused_at_s = 0.0
        self._meeting = threading.Condition()
        self._number = 0
        self._brought: dict[int, Any] = {}
        self._result: Any = None
        self._broken: str | None = None

    @property
    def broken(self) -> bool:
        """Return whether the group sums nothing more: a rank has left or failed, or settings differ."""
        return self._broken is not None

    def meet(self, rank: int, value: Any, combine: Callable[[list[Any]], Any], deadline_s: float) -> Any:
        """Wait for a value of every rank, and return the result of `combine`. All ranks get the same object.

        Args:
            rank: of the caller.
            combine: takes the values in the order of ranks. It runs once, in the thread of the last rank, with the lock
                held. What it raises, that rank raises, and the group is broken.

        Raises:
            RankLeftError: the group is broken.
            MeetingError: settings differ (`refuse`).
            AllReduceTimeoutError: not all ranks came within `deadline_s`. The group is broken then.
        """
        deadline = time.monotonic() + deadline_s
        with self._meeting:
            self._require_whole()
            number = self._number
            self._brought[rank] = value
            # The last rank sums for all, under the lock: no rank could continue before.
            if len(self._brought) == self.workers:
                self._combine(rank, combine)
            while self._number == number:
                # The number is looked at again after a time-out: the sum may have come in that moment.
                if not self._meeting.wait(deadline - time.monotonic()) and self._number == number:
                    self._give_up(rank, deadline_s)
                if self._number == number:
                    self._require_whole()
            return self._result

    def break_up(self, rank: int, why: str) -> None:
        """Break the group: waiting and later calls of `meet` raise RankLeftError.

        Args:
            why: follows "rank N" in the error. Only the first reason is kept.
        """
        with self._meeting:
            # The first reason is told: later ones are its consequences.
            self._broken = self._broken or f"rank {rank} {why}"
            self._meeting.notify_all()

    def refuse(self, rank: int, why: str) -> None:
        """Break the group because the settings of a joining rank differ: `meet` raises MeetingError with `why`."""
        self.told, self.refused_at_s = {rank, *self.ranks}, time.monotonic()
        with self._meeting:
            self.refused = self._broken = why
            self._meeting.notify_all()

    def _combine(self, rank: int, combine: Callable[[list[Any]], Any]) -> None:
        values = [self._brought[each] for each in range(self.workers)]
        try:
            self._result = combine(values)
        except BaseException as error:
            self.break_up(rank, f"could not sum: {error}")
            raise
        # A new number tells ranks that wake up that their meeting has ended, also where the next one has begun.
        self._number += 1
        self._brought = {}
        self._meeting.notify_all()

    def _give_up(self, rank: int, deadline_s: float) -> None:
        missing = tuple(each for each in range(self.workers) if each not in self._brought)
        self.break_up(rank, f"gave up after {deadline_s:g} s")
        joined = [each for each in missing if each in self.ranks]
        raise AllReduceTimeoutError(
            f"no sum in memory://{self.name} within {deadline_s:g} s: ranks {list(missing)} of {self.workers} "
            f"brought nothing, {joined or 'none'} of them joined; check that all ranks run this all-reduce",
            missing,
        )

    def _require_whole(self) -> None:
        if self.refused:
            raise MeetingError(self.refused)
        if self._broken is not None:
            raise RankLeftError(
                f"memory://{self.name}: {self._broken}, so nothing more is summed; connect all ranks again"
            )


_groups: Final[dict[str, InProcessGroup]] = {}
_groups_lock: Final = threading.Lock()


def _join(name: str, rank: int, workers: int, settings: Mapping[str, str]) -> InProcessGroup:
    """Return the group with this rank in it. Raises MeetingError."""
    settings = {"workers": str(workers), **settings}
    with _groups_lock:
        group = _groups.get(name)
        # Ranks that come after a refusal hear of it too, and not of missing ranks a minute later.
        if group is not None and group.refused and rank not in group.told:
            group.told.add(rank)
            if time.monotonic() < group.refused_at_s + REFUSED_S:
                raise MeetingError(group.refused)
        if group is None or group.broken:
            group = InProcessGroup(name, workers, settings)
        if why := describe_differences({**dict.fromkeys(group.ranks, group.settings), rank: settings}):
            why = f"memory://{name}: {why}"
            if len(group.ranks) < group.workers:
                group.refuse(rank, why)
            raise MeetingError(why)
        if rank in group.ranks:
            raise MeetingError(f"rank {rank} of memory://{name} is taken: give each thread its own rank")
        if not 0 <= rank < workers:
            raise MeetingError(f"rank {rank} of memory://{name}, which has ranks 0 to {workers - 1}")
        group.ranks.add(rank)
        _groups[name] = group
        return group


def _part(group: InProcessGroup, rank: int) -> None:
    """Remove a rank from a group. An empty group is forgotten, unless late ranks still need its error."""
    with _groups_lock:
        group.ranks.discard(rank)
        if not group.ranks and not group.refused and _groups.get(group.name) is group:
            del _groups[group.name]


class MemoryCommunicator(SerialCommunicator):
    """One rank of a group of threads. The contract is `hopsum.agent.Communicator`.

    The constructor joins the group, or makes the group if there is none or it is broken. It waits for no rank.

    Args:
        name: of the group, the same for all its ranks.
        codec: for as many workers as the group has.
        settings: texts that all ranks need in common, by name: codec, its options, seed.
        deadline_s: the longest wait for the other ranks, in each phase.

    Raises:
        MeetingError: the place is taken, there is no such rank, or workers or settings differ from those of the others.
    """

    def __init__(
        self, name: str, rank: int, *, codec: Codec, settings: Mapping[str, str], seed: int, deadline_s: float
    ) -> None:
        self._group = _join(name, rank, codec.workers, settings)
        self._deadline_s = deadline_s
        super().__init__(f"memory://{name}", rank=rank, codec=codec, seed=seed)

    def _agree(self, call: str) -> None:
        require_agreement(self._group.meet(self.rank, call, lambda calls: dict(enumerate(calls)), self._deadline_s))

    def _sum(self, phase: CollectivePhase) -> Summed:
        def add(phases: list[CollectivePhase]) -> tuple[Bytes, NDArray[np.uint64]]:
            return simulate_phase(self.codec, phases)

        results, contributors = self._group.meet(self.rank, phase, add, self._deadline_s)
        # copies, since the other ranks read the same arrays
        return Summed(results.copy(), contributors.copy(), phase.payloads.nbytes)

    def _interrupt(self) -> None:
        self._group.break_up(self.rank, "has left")

    def _leave(self, why: BaseException | None) -> None:
        self._group.break_up(self.rank, "has left" if why is None else f"failed: {why}")
        _part(self._group, self.rank)
