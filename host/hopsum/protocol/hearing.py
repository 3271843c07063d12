# SPDX-License-Identifier: Apache-2.0
"""What a worker does with a message of a peer, by its phase.

message             RUN                                 SEALED, OVER
FETCH               answered: FOUND, NOTYET or GONE     the same (E2)
FOUND               taken like a RESULT (W3)            nothing
NOTYET              nothing: it is asked for again      nothing
GONE                another peer is asked; none left:   nothing
                    the worker is expelled
DONE, WHERE, LEAVE  see repair.py                       the same
"""

from __future__ import annotations

from hopsum.errors import FellBehindError
from hopsum.protocol.accepting import Accepting
from hopsum.protocol.catching_up import CatchingUp
from hopsum.protocol.failures import expelled
from hopsum.protocol.ledger import Ledger
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.repair import Repair, as_result
from hopsum.protocol.replies import position_of
from hopsum.protocol.worker_state import Membership, WorkerStatistics
from hopsum_wire import WireError


class Hearing:
    """The ears of one worker in one epoch."""

    def __init__(
        self,
        own: Membership,
        ledger: Ledger,
        repair: Repair,
        catching_up: CatchingUp,
        accepting: Accepting,
        statistics: WorkerStatistics,
    ) -> None:
        self._own, self._ledger, self._stream = own, ledger, ledger.stream
        self._repair, self._catching_up, self._accepting = repair, catching_up, accepting
        self._statistics = statistics

    def take(self, message: PeerMessage, now: float, *, runs: bool) -> FellBehindError | None:
        """Take a message that is a peer's of this epoch; return what ends the epoch for this worker, if it does."""
        if message.kind is PeerKind.FETCH:
            held = self._ledger.in_progress(self._stream.position(message.slot, message.round))
            self._repair.answer(message, held)
        elif message.kind is PeerKind.FOUND and runs:
            self._accept(message, now)
        elif message.kind is PeerKind.GONE and runs:
            position = self._stream.position(message.slot, message.round)
            if self._repair.note_gone(position, message.sender, now):
                return expelled(self._own, self._stream.place(position))
        else:
            self._repair.take(message)
        return None

    def _accept(self, found: PeerMessage, now: float) -> None:
        """Accept what a peer sends as if the switch had sent it (W3)."""
        header = as_result(found, self._own.rank)
        try:
            position = position_of(header, found.payload, self._own, self._stream)
        except WireError as refused:
            self._statistics.peers_ignored[refused.reason.name.lower()] += 1
            return
        self._accepting.result(header, found.payload, position, now, from_peer=True)
        self._catching_up.note(position, now)
