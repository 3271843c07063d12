# SPDX-License-Identifier: Apache-2.0
"""The repair of results from peers, without I/O: requests, answers, and proofs.

A worker fetches results that the switch no longer has, answers such requests, and waits for proofs before it begins
further all-reduces: W4, W6, R1 to R3 and E3 of docs/protocol.md.

    position    input                                       next    also
    -           STALE that names it, or silence             ASKED   FETCH to one peer
    -           decided, submitted here, missing (E3)       ASKED   FETCH to one holder, `AHEAD` at a time
    ASKED       decided: `AGAIN_S` has passed               ASKED   FETCH to another holder
    ASKED       STALE again after a timeout, or silence     ASKED   FETCH to the next peer
    ASKED       GONE                                        ASKED   FETCH to a peer that has not sent GONE
    ASKED       GONE from all peers                         -       the worker is OVER: FellBehindError
    ASKED       result accepted, from switch or peer        -

After a STALE a worker fetches all missing results of the slot before the round held, at most `AHEAD` rounds.

Lost messages between peers need no timers: the open round of a slot is retransmitted (retransmit_queue.py), answered by
STALE or not at all, and fetched again. Only a worker that R2 holds back repeats PROGRESS_QUERY, and a worker without
decided results repeats FETCH, because a peer that has not begun this generation yet does not answer (R1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any, Final

from hopsum.protocol.decided_ranges import DecidedRanges
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.result_store import EVERYTHING, ResultStore
from hopsum.protocol.stream import MAX_ROUND, Stream
from hopsum.protocol.worker_state import AllReduce, Membership, PositionResult, WorkerStatistics

AHEAD: Final = 32
"""Most results that are fetched at once."""
PROGRESS_QUERY_INTERVAL_S: Final = 0.25
AGAIN_S: Final = 0.1
"""Seconds before another worker is asked for a decided result."""


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
class _Asked:
    """A position whose result was requested from peers."""

    named: int
    """Bitmap of the holders that a STALE or a generation change named, or 0."""
    turn: int
    """The index of the candidate to ask next."""
    at: float = -inf
    gone: int = 0
    """Bitmap of the workers that answered GONE."""


@dataclass(slots=True)
class _Told:
    """The last DONE, and what was delivered since the last one that went out at once."""

    position: int = 0
    reduces: int = 0
    reduced_bytes: int = 0


class LackingResults:
    """The decided results that a worker lacks, in the order of the stream (E3)."""

    def __init__(self, decided: DecidedRanges) -> None:
        self._decided = decided
        self.positions: dict[int, None] = {}
        self._requested_to = -1
        """The last of the requested positions."""
        self._again_at = 0.0

    @property
    def due_at(self) -> float:
        """Return the time at which results are requested again, infinite if none is lacking."""
        return self._again_at if self.positions else inf

    def first(self, now: float) -> list[tuple[int, int]]:
        """Return the first AHEAD results to request now, as (position, bitmap of holders). Sets `due_at`."""
        positions = list(islice(self.positions, AHEAD))
        self._again_at, self._requested_to = now + AGAIN_S, positions[-1] if positions else -1
        return [(position, self._decided.holders(position)) for position in positions]

    def mark_acked(self, position: int) -> bool:
        """Forget a result that is here. Return whether it was the last one that was requested."""
        self.positions.pop(position, None)
        return position == self._requested_to


class PeerRepair:
    """The peer side of one worker. Without a policy there are no peers."""

    def __init__(
        self, membership: Membership, stream: Stream, policy: RepairPolicy | None, statistics: WorkerStatistics
    ) -> None:
        self._stream, self.policy, self._statistics = stream, policy or _NOBODY, statistics
        self.store = ResultStore()
        self.enter(membership, DecidedRanges(()), 0.0)

    def enter(self, membership: Membership, decided: DecidedRanges, now: float) -> None:
        """Begin a generation: forget requests, pending messages, and LEAVEs. Kept results stay kept."""
        self._own, self._lacking = membership, LackingResults(decided)
        gone = {membership.rank, *membership.absent}
        everybody = range(membership.workers if self.has_peers else 0)
        self.peers = [rank for rank in everybody if rank not in gone]
        """The ranks of all other workers."""
        self.outgoing: list[tuple[int, PeerMessage]] = []
        """Pending messages, as (rank, message)."""
        self.asked: dict[int, _Asked] = {}
        """Positions whose results were requested from peers and have not arrived."""
        self._left: dict[int, int] = {}
        """By rank that sent LEAVE or was evicted, the position from which on it never sends an UPDATE: EVERYTHING where
        another worker may take its place. In the next generation the same worker may take part again."""
        self._told = _Told()
        self._query_at = self._excused_at = 0.0
        self.store.enter(membership, self.peers, now)

    @property
    def has_peers(self) -> bool:
        """Say whether the worker has a policy: one without has no peers."""
        return self.policy is not _NOBODY

    @property
    def all_left(self) -> bool:
        """Say whether all other workers have sent LEAVE, or were evicted (R3)."""
        return self._left.keys() >= set(self.peers)

    # ---- asking -------------------------------------------------------------------------------------

    def ask_named(self, positions: Iterable[int], named: int, now: float, timeout_s: float) -> None:
        """Queue a FETCH for each position to one of the workers that hold its result.

        A position that was requested less than `timeout_s` ago is not requested again. Another peer is asked if every
        named holder is gone. Nothing is queued for a position that all peers have answered with GONE.

        Args:
            named: bitmap of the ranks that a STALE or a generation change names as holders. 0: any peer.
        """
        for position in positions:
            asked = self.asked.setdefault(position, _Asked(named, self._own.rank))
            asked.named = named
            if now >= asked.at + timeout_s:
                self._ask(position, asked, now)

    def ask_about(self, late: Mapping[int, int], now: float) -> None:
        """Queue a FETCH to the next peer for each late position, the oldest AHEAD at most.

        Args:
            late: transmissions by position. Positions with fewer than `ask_after` retransmissions are left out.
        """
        silent = sorted(position for position, sent in late.items() if sent > self.policy.ask_after)
        for position in silent[:AHEAD]:
            self._ask(position, self.asked.setdefault(position, _Asked(0, self._own.rank)), now)

    def note_gone(self, position: int, rank: int, now: float) -> bool:
        """Process a GONE of a peer: ask the next candidate. Return whether all candidates have answered GONE."""
        asked = self.asked.get(position)
        if asked is None:
            return False
        asked.gone |= 1 << rank
        if not self._candidates(asked):
            return True
        self._ask(position, asked, now)
        return False

    def mark_acked(self, position: int, now: float) -> None:
        """Forget a position that has its result. After the last requested decided one, request the next ones."""
        self.asked.pop(position, None)
        if self._lacking.mark_acked(position):
            self._fetch(now)

    @property
    def lacking(self) -> list[int]:
        """Return the decided positions whose results are missing, in the order of the stream."""
        return list(self._lacking.positions)

    def want(self, positions: Iterable[int], now: float) -> None:
        """Add missing decided positions, which follow all earlier ones in the stream, and request the first (E3)."""
        self._lacking.positions.update(dict.fromkeys(positions))
        self._fetch(now)

    def _fetch(self, now: float) -> None:
        """Request the first missing results, except those that were requested a moment ago."""
        for position, holders in self._lacking.first(now):
            self.ask_named((position,), holders, now, AGAIN_S)

    def _ask(self, position: int, asked: _Asked, now: float) -> None:
        candidates = self._candidates(asked)
        if not candidates:
            return
        # Each worker begins at another peer (its own rank), so that not all ask the same one.
        rank = candidates[asked.turn % len(candidates)]
        asked.turn, asked.at = asked.turn + 1, now
        slot, round_ = self._stream.place(position)
        self._statistics.fetches += 1
        self._send(rank, PeerKind.FETCH, slot=slot, round=round_)

    def _candidates(self, asked: _Asked) -> list[int]:
        able = [rank for rank in self.peers if not asked.gone >> rank & 1]
        # W4: those that a STALE names surely hold it. The others may.
        return [rank for rank in able if asked.named >> rank & 1] or able

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

    def has_left_before(self, rank: int, position: int) -> bool:
        """Say whether a worker has left before a position, and so never sends its UPDATE."""
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
        due_at = self._lacking.due_at
        # If no proof is missing, an all-reduce in progress on this rank holds it back.
        if held_back is not None and self.store.unproved():
            due_at = min(due_at, self._query_at, self._gives_up_at(held_back.submitted_at))
        return due_at

    def handle_timer(self, late: Mapping[int, int], held_back: AllReduce | None, now: float) -> None:
        """Queue due requests to peers, and give up stragglers, whose results are no longer kept.

        `late`: transmissions by position, of positions whose timeout has passed.
        """
        self.ask_about(late, now)
        if self._lacking.due_at <= now:
            self._fetch(now)
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
