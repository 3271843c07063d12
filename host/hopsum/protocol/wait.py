# SPDX-License-Identifier: Apache-2.0
"""The wait of a worker: what it lacks, in words for a log, and as the error of an all-reduce past its deadline."""

from __future__ import annotations

from dataclasses import dataclass

from hopsum.errors import AllReduceError
from hopsum.protocol.deadline_prober import DeadlineProber, name_ranks
from hopsum.protocol.failures import held_back, no_answer, not_caught_up
from hopsum.protocol.repair import PeerRepair
from hopsum.protocol.result_fetcher import ResultFetcher
from hopsum.protocol.retransmit_queue import RetransmitQueue
from hopsum.protocol.stream_state import StreamState
from hopsum.protocol.worker_state import AllReduce, IgnoredPackets, Membership


@dataclass(frozen=True, slots=True)
class Wait:
    """The parts of a worker that know what it waits for, in one generation. It changes none of them."""

    own: Membership
    state: StreamState
    queue: RetransmitQueue
    prober: DeadlineProber
    fetcher: ResultFetcher | None
    repair: PeerRepair | None
    ignored: IgnoredPackets

    def text(self) -> str:
        """Return in words what is awaited and from which ranks, as far as known."""
        if (oldest := self.queue.oldest) is not None:
            missing = sum(reduce.missing for reduce in self.state.active)
            chunks = "1 chunk" if missing == 1 else f"{missing} chunks"
            finding = self.prober.finding(self.state.stream.place(oldest))
            return f"the result of {chunks} from {self.own.switch}: {finding}"
        if wanted := self._wanted:
            return f"{len(wanted)} results that were decided before this generation, from the peers that hold them"
        behind = self._unproved
        return f"{name_ranks(behind)} to hold an earlier all-reduce" if behind else "results"

    def error(self, reduce: AllReduce, now: float) -> AllReduceError:
        """Return the error of an all-reduce past its deadline."""
        waited_s, oldest, place = now - reduce.submitted_at, self.queue.oldest, self.state.stream.place
        if oldest is not None:
            asked = (self.ignored, self.prober)
            return no_answer(self.own, reduce, place(oldest), self.queue.sent(oldest), waited_s, asked)
        if wanted := self._wanted:
            return not_caught_up(self.own, place(wanted[0]), len(wanted), waited_s)
        return held_back(self.own, waited_s, self._unproved)

    @property
    def _wanted(self) -> list[int]:
        """Positions that a generation change decided and that lack here."""
        return [] if self.fetcher is None else self.fetcher.lacking

    @property
    def _unproved(self) -> list[int]:
        """Ranks that did not say to hold an earlier all-reduce."""
        return [] if self.repair is None else self.repair.store.unproved()
