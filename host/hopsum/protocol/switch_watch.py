# SPDX-License-Identifier: Apache-2.0
"""The watch over a worker's switch: whether its answers, or their absence, end the worker's generation.

Rules A1 to A5 (absence.py) and P1 to P4 (deadline_prober.py, round_report.py), and the deadline of the oldest
all-reduce. Each input but a failed send returns the error by which the generation ends, or None. The worker applies it.
"""

from __future__ import annotations

from hopsum.errors import AllReduceError, name_ranks
from hopsum.protocol.absence import Absences
from hopsum.protocol.deadline_prober import DeadlineProber
from hopsum.protocol.failures import (
    address_gone,
    duplicate_rank,
    finished_early,
    held_back,
    long_ones_lost,
    never_answered,
    no_answer,
    not_caught_up,
    switch_gone,
    unsent_remedy,
)
from hopsum.protocol.retransmit_queue import RetransmitQueue
from hopsum.protocol.stream_state import StreamState
from hopsum.protocol.worker_state import AllReduce, IgnoredPackets, Membership, Timing, WorkerStatistics
from hopsum_wire import Header


class SwitchWatch:
    """The watch of one worker. `enter` comes before any other call.

    Args:
        state: the worker's all-reduces, with its stream and its repair.
        statistics: has the number of PROBEs.
        ignored: what came in place of results. Errors quote it.
    """

    def __init__(
        self, state: StreamState, timing: Timing, statistics: WorkerStatistics, ignored: IgnoredPackets
    ) -> None:
        self._state, self._timing, self._statistics, self._ignored = state, timing, statistics, ignored
        self.absences = Absences(timing)
        """The times in which the switch was unreachable."""

    def enter(self, own: Membership, queue: RetransmitQueue) -> None:
        """Begin a generation: forget ignored packets, absences and the switch's last STATE.

        They do not explain a wait in this one.
        """
        self._ignored.seen.clear()
        self.absences.begin()
        self._own, self._queue = own, queue
        self.prober = DeadlineProber(own, self._timing, self._state.stream, queue)

    # ---- inputs -------------------------------------------------------------------------------------

    def on_state(self, header: Header, position: int, now: float) -> AllReduceError | None:
        """Process a STATE to this worker (P2: it settles no sum)."""
        self.prober.on_header(header)
        return self.duplicate_rank_error(header, position) or self._error_of_leavers() or self._error_of_long_ones(now)

    def duplicate_rank_error(self, told: Header, position: int) -> AllReduceError | None:
        """Return the error if another process sends as this rank: the switch has a later round than this one sent."""
        # W1: a round is sent only when all earlier ones of its slot are held. So delay is no explanation.
        named = told.contributors >> self._own.rank & 1
        # An open position that was sent has no result yet.
        is_duplicate = named and told.held > told.round and self._queue.sent(position)
        return duplicate_rank(self._own, told) if is_duplicate else None

    def on_unreachable(self, now: float) -> AllReduceError | None:
        """Process a 'port unreachable' answer (A1, A2)."""
        self._ignored.note("'port unreachable'")
        refused = self.absences.refused
        return switch_gone(self._own, refused.answers, refused.lasted_s) if refused.note(now) else None

    def on_failed_send(self, errno_name: str) -> None:
        """Process a send that failed with an errno: a lost datagram."""
        self._ignored.note(f"{errno_name} of this host, which sent nothing{unsent_remedy(errno_name)}")

    def on_address_gone(self, ip: str, now: float) -> AllReduceError | None:
        """Process a check that did not find `ip`, this worker's address, on the host (A5)."""
        self._ignored.note(f"looks that did not find {ip}, this rank's address, on this host")
        address = self.absences.address
        return address_gone(self._own, ip, address.lasted_s) if address.note(now) else None

    def on_timer(self, now: float) -> AllReduceError | None:
        """Return the error of the oldest all-reduce if its wait must end now. All others fail with the same error.

        At least one is in progress.
        """
        oldest = self._state.active[0]
        if oldest.deadline_at <= now:
            return self._late_error(oldest, now)
        waited_s, probes = now - oldest.submitted_at, self._statistics.probes
        # An all-reduce without payloads waits for an earlier sum, and not for the switch.
        if oldest.ready and self.absences.is_unknown(waited_s, probes):
            return never_answered(self._own, probes, waited_s)
        return None

    # ---- for logs -----------------------------------------------------------------------------------

    def missing_text(self) -> str:
        """Return a text of the awaited results and missing ranks, as far as known; empty if nothing is in progress."""
        active = self._state.active
        if not active:
            return ""
        if self.prober.oldest is not None:
            missing = sum(reduce.missing for reduce in active)
            chunks = "1 chunk" if missing == 1 else f"{missing} chunks"
            return f"the result of {chunks} from {self._own.switch}: {self.prober.report}"
        wanted, behind = self._behind
        if wanted:
            return f"{len(wanted)} results that were decided before this generation, from the peers that hold them"
        return f"{name_ranks(behind)} to hold an earlier all-reduce" if behind else "results"

    def left_s(self, now: float) -> float:
        """Return the seconds to the deadline of the oldest all-reduce in progress, or 0 without one."""
        active = self._state.active
        return max(0.0, active[0].deadline_at - now) if active else 0.0

    # ---- rules --------------------------------------------------------------------------------------

    def _error_of_leavers(self) -> AllReduceError | None:
        """Return the error if the oldest open sum waits for workers that have left the job (P4)."""
        oldest = self._queue.oldest
        if oldest is None:
            return None
        awaited, repair = self.prober.report.awaited_ranks, self._state.repair
        left = tuple(rank for rank in awaited if repair.is_finished_before(rank, oldest))
        return finished_early(self._own, self._state.stream.place(oldest), left) if left else None

    def _error_of_long_ones(self, now: float) -> AllReduceError | None:
        """Return the error if the switch answers PROBEs, but UPDATEs or RESULTs were lost for too long (A3)."""
        oldest, report, lost = self._queue.oldest, self.prober.report, self.absences.long_ones
        kind = report.lost_kind
        if oldest is None or kind is None:
            lost.end()
            return None
        if not lost.note(now, oldest):
            return None
        # Open positions belong to the oldest all-reduce in progress, or to a later one.
        reduce = self._state.active[0]
        if report.other_op(reduce.op):
            # Worker and switch have different operations: this is the cause, and not a datagram's length.
            return self._late_error(reduce, now)
        place, sent = self._state.stream.place(oldest), self._queue.sent(oldest)
        return long_ones_lost(self._own, place, kind, sent, lost.lasted_s)

    @property
    def _behind(self) -> tuple[list[int], list[int]]:
        """The decided positions without a result, and the ranks that have not confirmed an earlier all-reduce."""
        return self._state.repair.requests.lacking, self._state.repair.store.unproved()

    def _late_error(self, reduce: AllReduce, now: float) -> AllReduceError:
        """Return the error of an all-reduce past its deadline."""
        own, waited_s, oldest = self._own, now - reduce.submitted_at, self._queue.oldest
        if oldest is not None:
            # The error has the packets that came in place of the result, and the switch's answer about the sum.
            place, told = self._state.stream.place(oldest), (self._ignored, self.prober.report)
            return no_answer(own, reduce, place, self._queue.sent(oldest), waited_s, told)
        wanted, behind = self._behind
        if wanted:
            return not_caught_up(own, self._state.stream.place(wanted[0]), len(wanted), waited_s)
        return held_back(own, waited_s, behind)
