# SPDX-License-Identifier: Apache-2.0
"""The requests for results of peers, without I/O: W4, W6 and E3 of docs/protocol.md.

    position    input                                       next    also
    -           STALE that names it, or silence             ASKED   FETCH to one peer
    -           decided, submitted here, missing (E3)       ASKED   FETCH to one holder, `AHEAD` at a time
    ASKED       decided: `AGAIN_S` has passed               ASKED   FETCH to another holder
    ASKED       STALE again after a timeout, or silence     ASKED   FETCH to the next peer
    ASKED       GONE                                        ASKED   FETCH to a peer that has not sent GONE
    ASKED       GONE from all peers                         -       the worker is OVER: FellBehindError
    ASKED       result accepted, from switch or peer        -

After a STALE a worker fetches all missing results of the slot before the round held, at most `AHEAD` rounds.

Lost messages need no timers: the open round of a slot is retransmitted (retransmit_queue.py), answered by STALE or not
at all, and fetched again. Only a worker without decided results repeats FETCH, because a peer that has not begun this
generation yet does not answer (R1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Final

from hopsum.protocol.decided_ranges import DecidedRanges
from hopsum.protocol.peer_messages import PeerKind
from hopsum.protocol.stream import Stream
from hopsum.protocol.worker_state import WorkerStatistics

AHEAD: Final = 32
"""Most results that are fetched at once."""
AGAIN_S: Final = 0.1
"""Seconds before another worker is asked for a decided result."""


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


class ResultRequests:
    """The requests of one worker. `enter` comes before any other call.

    Args:
        ask_after: as in `RepairPolicy`.
        statistics: counts FETCHes.
        send: queues a message of a kind to a rank, with fields of `PeerMessage`.
    """

    def __init__(self, stream: Stream, ask_after: int, statistics: WorkerStatistics, send: Callable[..., None]) -> None:
        self._stream, self._ask_after, self._statistics, self._send = stream, ask_after, statistics, send

    def enter(self, own_rank: int, peers: Sequence[int], decided: DecidedRanges) -> None:
        """Begin a generation with these peers: forget all requests."""
        self._own_rank, self._peers, self._lacking = own_rank, peers, LackingResults(decided)
        self.asked: dict[int, _Asked] = {}
        """Positions whose results were requested from peers and have not arrived."""

    def ask_named(self, positions: Iterable[int], named: int, now: float, timeout_s: float) -> None:
        """Queue a FETCH for each position to one of the workers that hold its result.

        A position that was requested less than `timeout_s` ago is not requested again. Another peer is asked if every
        named holder is gone. Nothing is queued for a position that all peers have answered with GONE.

        Args:
            named: bitmap of the ranks that a STALE or a generation change names as holders. 0: any peer.
        """
        for position in positions:
            asked = self.asked.setdefault(position, _Asked(named, self._own_rank))
            asked.named = named
            if now >= asked.at + timeout_s:
                self._ask(position, asked, now)

    def ask_about(self, late: Mapping[int, int], now: float) -> None:
        """Queue a FETCH to the next peer for each late position, the oldest AHEAD at most.

        Args:
            late: transmissions by position. Positions with fewer than `ask_after` retransmissions are left out.
        """
        silent = sorted(position for position, sent in late.items() if sent > self._ask_after)
        for position in silent[:AHEAD]:
            self._ask(position, self.asked.setdefault(position, _Asked(0, self._own_rank)), now)

    def note_gone(self, position: int, rank: int, now: float) -> bool:
        """Process a GONE of a peer: ask the next candidate. Return whether all candidates have answered GONE."""
        asked = self.asked.get(position)
        if asked is None:
            return False
        asked.gone |= 1 << rank
        return not self._ask(position, asked, now)

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

    def _ask(self, position: int, asked: _Asked, now: float) -> bool:
        """Queue a FETCH to the next candidate. Return whether there is one: not all peers have answered GONE."""
        able = [rank for rank in self._peers if not asked.gone >> rank & 1]
        # W4: those that a STALE names surely hold it. The others may.
        candidates = [rank for rank in able if asked.named >> rank & 1] or able
        if not candidates:
            return False
        # Each worker begins at another peer (its own rank), so that not all ask the same one.
        rank = candidates[asked.turn % len(candidates)]
        asked.turn, asked.at = asked.turn + 1, now
        slot, round_ = self._stream.place(position)
        self._statistics.fetches += 1
        self._send(rank, PeerKind.FETCH, slot=slot, round=round_)
        return True

    # ---- time ---------------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """Return the time at which decided results are requested again, infinite for never."""
        return self._lacking.due_at

    def handle_timer(self, late: Mapping[int, int], now: float) -> None:
        """Queue due requests. `late`: transmissions by position, of positions whose timeout has passed."""
        self.ask_about(late, now)
        if self.due_at <= now:
            self._fetch(now)
