# SPDX-License-Identifier: Apache-2.0
"""The repair of results from peers, without I/O: answers, and proofs. result_requests.py has the requests.

A worker answers requests for results that the switch no longer has, and waits for proofs before it begins further
all-reduces: R1 to R3 of docs/protocol.md.

Lost messages between peers need no timers here, but one: a worker that R2 holds back repeats PROGRESS_QUERY.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hopsum.protocol.decided_ranges import DecidedRanges
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.result_requests import ResultRequests
from hopsum.protocol.result_store import EVERYTHING, ResultStore
from hopsum.protocol.stream import MAX_ROUND, Stream
from hopsum.protocol.worker_state import AllReduce, Membership, PositionResult, WorkerStatistics

PROGRESS_QUERY_INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class RepairPolicy:
    """The policy of repair: the delay of requests to peers, and the results that are kept for them.

    Raises:
        ValueError: a number is out of range.
    """

    ask_after: int = 3
    """Unanswered retransmissions of a chunk before peers are asked for it."""
    # In the 20 ms between two DONEs a worker delivers up to a hundred small all-reduces.
    unproved_max: int = 256
    """Most all-reduces (submissions) that may be kept or in progress while some rank is not proved to hold them."""
    unproved_bytes: int = 64 << 20
    """Bytes of unproved results above which at most `unproved_least` all-reduces may be unproved."""
    unproved_least: int = 2
    """All-reduces that may be unproved at any size, because large ones would never overlap otherwise."""
    straggler_s: float = 10.0
    """Seconds for which a submission waits for the proof of slower workers. Then these are given up."""

    def __post_init__(self) -> None:
        if min(self.ask_after, self.unproved_max, self.unproved_least) < 1 or self.straggler_s <= 0:
            raise ValueError(
                f"ask_after, unproved_max and unproved_least are at least 1, straggler_s is above 0: {self}"
            )


_NOBODY: Final = RepairPolicy(ask_after=1 << 62, unproved_max=1 << 62, unproved_least=1 << 62)
"""The policy of a worker without peers: no requests, and no wait for proofs."""


@dataclass(slots=True)
class _Told:
    """The last DONE, and what was delivered since the last one that went out at once."""

    position: int = 0
    reduces: int = 0
    reduced_bytes: int = 0


class PeerRepair:
    """The peer side of one worker. Without a policy there are no peers."""

    def __init__(
        self, membership: Membership, stream: Stream, policy: RepairPolicy | None, statistics: WorkerStatistics
    ) -> None:
        self._stream, self.policy, self._statistics = stream, policy or _NOBODY, statistics
        self.store = ResultStore()
        self.requests: Final = ResultRequests(stream, self.policy.ask_after, statistics, self._send)
        """The requests to peers."""
        self.enter(membership, DecidedRanges(()), 0.0)

    def enter(self, membership: Membership, decided: DecidedRanges, now: float) -> None:
        """Begin a generation: forget requests, pending messages, and LEAVEs. Kept results stay kept."""
        self._own = membership
        gone = {membership.rank, *membership.absent}
        everybody = range(membership.workers if self.has_peers else 0)
        self.peers = [rank for rank in everybody if rank not in gone]
        """The ranks of all other workers."""
        self.outgoing: list[tuple[int, PeerMessage]] = []
        """Pending messages, as (rank, message)."""
        self._left: dict[int, int] = {}
        """By rank that sent LEAVE or was evicted, the position from which on it never sends an UPDATE: EVERYTHING where
        another worker may take its place. In the next generation the same worker may take part again."""
        self._told = _Told()
        self._query_at = self._excused_at = 0.0
        self.store.enter(membership, self.peers, now)
        self.requests.enter(membership.rank, self.peers, decided)

    @property
    def has_peers(self) -> bool:
        """Say whether the worker has a policy: one without has no peers."""
        return self.policy is not _NOBODY

    @property
    def all_left(self) -> bool:
        """Say whether all other workers have sent LEAVE, or were evicted (R3)."""
        return self._left.keys() >= set(self.peers)

    # ---- answering ----------------------------------------------------------------------------------

    def answer(self, fetch: PeerMessage, found: PositionResult | None) -> None:
        """Queue the answer to a FETCH: FOUND with `found` or else the stored result, GONE for a dropped one.

        A result that this worker does not have yet gets no answer.

        Args:
            found: the result, if its all-reduce is in progress here.
        """
        slot, round_ = fetch.slot, fetch.round
        position = self._stream.position(slot, round_)
        # In progress here, or delivered and kept for peers (R2).
        found = found or self.store.find(position)
        if found is not None:
            self._statistics.served += 1
            result = {"op": found.op, "value": found.contributors, "payload": found.values}
            self._send(fetch.sender, PeerKind.FOUND, slot=slot, round=round_, **result)
        elif self.store.is_dropped(position):
            # GONE is final. Whoever hears nothing asks again.
            self._send(fetch.sender, PeerKind.GONE, slot=slot, round=round_)

    # ---- who holds what -----------------------------------------------------------------------------

    def on_message(self, message: PeerMessage) -> None:
        """Process a message of this generation: answer PROGRESS_QUERY, take DONE and LEAVE as proofs of results."""
        if message.kind is PeerKind.PROGRESS_QUERY:
            self._send(message.sender, PeerKind.DONE, value=self.store.held_to)
        elif message.kind is PeerKind.DONE:
            self.store.note_done(message.sender, message.value)
        elif message.kind is PeerKind.LEAVE:
            # The value is a position plus one: 0 says that another worker may take this one's place.
            if message.value:
                self._left[message.sender] = message.value - 1
            else:
                self._left.setdefault(message.sender, EVERYTHING)
            self.store.note_done(message.sender, EVERYTHING)

    def is_finished_before(self, rank: int, position: int) -> bool:
        """Say whether a worker has left for good before a position, so that nobody sends that rank's UPDATE of it.

        False for an evicted worker and for one that may be replaced.
        """
        return self._left.get(rank, EVERYTHING) <= position

    def announce(self, position: int) -> None:
        """Note that this worker holds all results before a position. Queue a DONE of it to all peers, if it is new."""
        self.store.note_held(position)
        if self.store.held_to > self._told.position:
            self._told = _Told(self.store.held_to)
            for rank in self.peers:
                self._send(rank, PeerKind.DONE, value=self._told.position)

    def on_delivered(self, reduce: AllReduce, position: int, now: float) -> None:
        """Keep a delivered all-reduce's results for peers. This worker now holds all results before `position`.

        The DONE waits for `pop_done`, unless many results have no DONE yet: then it is queued at once.
        """
        self.store.keep(reduce, now)
        self.store.note_held(position)
        told, policy = self._told, self.policy
        told.reduces, told.reduced_bytes = told.reduces + 1, told.reduced_bytes + reduce.results.nbytes
        # R2: at half of the permitted unproved results, so that peers get DONE before they hold an all-reduce back.
        if 2 * told.reduces >= policy.unproved_max or 2 * told.reduced_bytes >= policy.unproved_bytes:
            self.announce(position)

    def pop_done(self) -> PeerMessage | None:
        """Pop the delayed DONE for all peers, None if there is none. A later DONE replaces an earlier one."""
        if self.store.held_to == self._told.position:
            return None
        self._told.position = self.store.held_to
        return PeerMessage(PeerKind.DONE, self._own.rank, self._own.generation, value=self._told.position)

    def on_ranks_lost(self, ranks: Sequence[int]) -> None:
        """Process the controller's eviction of workers: keep no results for them, await no LEAVE."""
        others = [rank for rank in self.peers if rank in ranks]
        self.store.on_ranks_lost(others)
        for rank in others:
            self._left.setdefault(rank, EVERYTHING)
            self._statistics.given_up |= 1 << rank

    def leave(self, *, finished: bool) -> None:
        """Queue LEAVE to all peers: this worker needs no further result of this generation. May be repeated.

        `finished`: neither this worker nor a replacement sends a further UPDATE.
        """
        for rank in self.peers:
            self._send(rank, PeerKind.LEAVE, value=self.store.held_to + 1 if finished else 0)

    # ---- holding back, and time ---------------------------------------------------------------------

    def excuse(self, now: float) -> None:
        """Restart the timeout of stragglers: one of them is a newcomer that receives its state and makes progress."""
        self._excused_at = now

    def may_open(self, active_before: int, bytes_before: int) -> bool:
        """Say whether R2 permits one more all-reduce after those in progress, with `bytes_before` bytes of results."""
        policy, unproved = self.policy, len(self.store) + active_before
        small = unproved < policy.unproved_least or self.store.kept_bytes + bytes_before < policy.unproved_bytes
        return small and unproved < policy.unproved_max

    def timer(self, held_back: AllReduce | None) -> float:
        """Return the time at which `handle_timer` is due, infinite for never. `held_back`: the all-reduce of R2."""
        due_at = self.requests.due_at
        # If no proof is missing, an all-reduce in progress on this rank holds it back.
        if held_back is not None and self.store.unproved():
            due_at = min(due_at, self._query_at, self._gives_up_at(held_back.submitted_at))
        return due_at

    def handle_timer(self, late: Mapping[int, int], held_back: AllReduce | None, now: float) -> None:
        """Queue due requests to peers, and give up stragglers, whose results are no longer kept.

        `late`: transmissions by position, of positions whose timeout has passed.
        """
        self.requests.handle_timer(late, now)
        if held_back is None or not self.store.unproved():
            return
        # R2: a straggler holds the others back for at most `straggler_s`, except a newcomer that receives its state.
        if self._gives_up_at(held_back.submitted_at) <= now:
            for rank in self.store.give_up():
                self._statistics.given_up |= 1 << rank
        elif self._query_at <= now:
            self._query_at = now + PROGRESS_QUERY_INTERVAL_S
            for rank in self.store.unproved():
                self._send(rank, PeerKind.PROGRESS_QUERY)

    def _gives_up_at(self, submitted_at: float) -> float:
        return max(submitted_at, self.store.oldest_delivered_at or 0.0, self._excused_at) + self.policy.straggler_s

    def _send(self, rank: int, kind: PeerKind, **fields: Any) -> None:
        self.outgoing.append((rank, PeerMessage(kind, self._own.rank, self._own.generation, **fields)))


def peer_fault(message: PeerMessage, own: Membership) -> str:
    """Return the fault of a message that no peer of this worker can have sent, as one word, or an empty string."""
    # First: slots and rounds have another meaning in another generation.
    if message.generation != own.generation:
        return "generation"  # R1
    if message.sender == own.rank or message.sender >= own.workers:
        return "sender"
    placed = message.kind in (PeerKind.FETCH, PeerKind.FOUND, PeerKind.GONE)
    if placed and not (message.slot < own.slots and 1 <= message.round <= MAX_ROUND):
        return "place"
    return ""
