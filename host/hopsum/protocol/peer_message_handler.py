# SPDX-License-Identifier: Apache-2.0
"""The handler of messages from peers, by the worker's phase.

message              RUN                                 SEALED, OVER
FETCH                answered: FOUND, NOTYET or GONE     the same (E2)
FOUND                accepted like a RESULT (W3)         nothing
NOTYET               nothing: it is asked for again      nothing
GONE                 another peer is asked; none left:   nothing
                     FellBehindError
DONE,                see repair.py                       the same
PROGRESS_QUERY,
LEAVE
"""

from __future__ import annotations

from hopsum.errors import FellBehindError
from hopsum.protocol.failures import fell_behind
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.repair import PeerRepair, as_result
from hopsum.protocol.reply_validation import validate_reply
from hopsum.protocol.result_acceptor import ResultAcceptor
from hopsum.protocol.result_fetcher import ResultFetcher
from hopsum.protocol.stream_state import StreamState
from hopsum.protocol.worker_state import Membership, WorkerStatistics
from hopsum_wire import WireError


class PeerMessageHandler:
    """The handler of one worker's peer messages in one generation."""

    def __init__(
        self,
        own: Membership,
        state: StreamState,
        repair: PeerRepair,
        catching_up: ResultFetcher,
        accepting: ResultAcceptor,
        statistics: WorkerStatistics,
    ) -> None:
        self._own, self._state, self._stream = own, state, state.stream
        self._repair, self._fetcher, self._acceptor = repair, catching_up, accepting
        self._statistics = statistics

    def handle(self, message: PeerMessage, now: float, *, runs: bool) -> FellBehindError | None:
        """Handle a message from a peer of this generation. Return the error that ends the generation here, or None."""
        if message.kind is PeerKind.FETCH:
            held = self._state.in_progress(self._stream.position(message.slot, message.round))
            self._repair.answer(message, held)
        elif message.kind is PeerKind.FOUND and runs:
            self._accept(message, now)
        elif message.kind is PeerKind.GONE and runs:
            position = self._stream.position(message.slot, message.round)
            if self._repair.note_gone(position, message.sender, now):
                return fell_behind(self._own, self._stream.place(position))
        else:
            self._repair.take(message)
        return None

    def _accept(self, found: PeerMessage, now: float) -> None:
        """Accept what a peer sends as if the switch had sent it (W3)."""
        header = as_result(found, self._own.rank)
        try:
            position = validate_reply(header, found.payload, self._own, self._stream)
        except WireError as refused:
            self._statistics.peers_ignored[refused.reason.name.lower()] += 1
            return
        self._acceptor.accept(header, found.payload, position, now, from_peer=True)
        self._fetcher.note(position, now)
