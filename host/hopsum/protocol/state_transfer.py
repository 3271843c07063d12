# SPDX-License-Identifier: Apache-2.0
"""A program's state on its way from a worker to a newcomer, without I/O: in pieces, since models are large.

A state is one byte string, for the newcomers of one generation. Workers that offer one offer equal states, though
perhaps in other bytes: so every piece says how long the whole is, and its SHA-256, and a newcomer puts together pieces
of one digest only. A state that says to be longer than the newcomer's maximum is not taken at all.

The worker that offers keeps nothing for those that ask: each STATE_ASK names its byte. No more than `PIECES_AHEAD`
pieces are asked for and not here yet, so that is what the sender's queue may hold. An offer is dropped when all that
wait for it have said STATE_TAKEN, or when there are `OFFERS_MAX` later ones. Newcomers that have not got the state of
their generation may ask for that of a later one: it waits for them too.

    newcomer    input                                     next
    ASKING      STATE_NONE                                ASKING   the next worker in turn, after all of them a pause
    ASKING      STATE_PIECE, the next bytes               TAKING   a further piece is asked for
    TAKING      STATE_PIECE, the next bytes               TAKING   the same
    TAKING      STATE_PIECE of another digest             TAKING   all that is here is forgotten
    TAKING      all bytes, digest right                   DONE     STATE_TAKEN to everybody
    TAKING      all bytes, digest wrong                   ASKING   the next worker in turn
    any         nothing for `STALLED_S`                   ASKING   the next worker in turn, from where it stands
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from hopsum.protocol.peer_messages import PIECE_BYTES_MAX, PIECE_BYTES_MIN, PeerKind, PeerMessage

PIECES_AHEAD: Final = 8
OFFERS_MAX: Final = 2
STATE_BYTES_MAX: Final = 16 << 30
"""The most bytes of a state that a newcomer takes, unless it is told otherwise."""
STALLED_S: Final = 1.0
PAUSE_S: Final = 0.1
DATA_BYTES: Final = PIECE_BYTES_MAX - PIECE_BYTES_MIN
_PIECE: Final = struct.Struct(">Q32s")
"""Bytes of the whole state, its SHA-256, then the piece."""


class _Offer(NamedTuple):
    state: bytes
    digest: bytes
    waiting: dict[int, int]
    """Ranks that may come for it, and the generation in which each began."""


class StateOffers:
    """The states that one worker offers to newcomers."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._offers: dict[int, _Offer] = {}
        self._taken: dict[int, int] = {}
        """The latest generation whose state a rank says that it has, by rank."""

    def __len__(self) -> int:
        """The number of states that are offered."""
        return len(self._offers)

    def offer(self, state: bytes, digest: bytes, generation: int, newcomers: Mapping[int, int]) -> None:
        """Have a state ready for the newcomers of a generation. It is kept, not copied.

        Args:
            digest: its SHA-256.
            newcomers: by rank, the generation in which it began, those of earlier generations without a state among
                them.
        """
        waiting = dict(newcomers)
        for older in self._offers.values():
            waiting = {**older.waiting, **waiting}
        self._offers[generation] = _Offer(state, digest, waiting)
        for old in sorted(self._offers)[:-OFFERS_MAX]:
            del self._offers[old]
        if generation in self._offers:
            self._drop(generation)

    def answer(self, message: PeerMessage, generation: int) -> PeerMessage | None:
        """Take a STATE_ASK or STATE_TAKEN. Return what is to be said in `generation` to its sender, if anything."""
        if message.kind is PeerKind.STATE_TAKEN:
            if message.round <= generation:  # nobody can have one of a generation to come
                self._taken[message.sender] = max(message.round, self._taken.get(message.sender, 0))
            for each in list(self._offers):
                self._drop(each)
            return None
        offer, at = self._offers.get(message.round), message.value
        if offer is None or at > len(offer.state):
            return PeerMessage(PeerKind.STATE_NONE, self._rank, generation, round=message.round)
        payload = _PIECE.pack(len(offer.state), offer.digest) + offer.state[at : at + DATA_BYTES]
        return PeerMessage(PeerKind.STATE_PIECE, self._rank, generation, round=message.round, value=at, payload=payload)

    def _drop(self, generation: int) -> None:
        waiting = self._offers[generation].waiting
        if all(self._taken.get(rank, 0) >= since for rank, since in waiting.items()):
            del self._offers[generation]


class StateFetch:
    """One newcomer's way to its state.

    Args:
        start_generation: in which this worker is a newcomer.
        ranks: who may have the state, at least one. They are asked in turn.
        bytes_max: of a state. A longer one is refused (`too_large`).
    """

    def __init__(
        self, rank: int, start_generation: int, ranks: Sequence[int], bytes_max: int = STATE_BYTES_MAX
    ) -> None:
        self._rank, self.start_generation, self._ranks = rank, start_generation, list(ranks)
        self._bytes_max = bytes_max
        self.too_large: tuple[int, int] | None = None
        """The rank whose state is longer than `bytes_max`, and its bytes as it says."""
        self._turn = rank % len(self._ranks)
        self._digest = b""
        self._buffer = bytearray()
        self._hash = hashlib.sha256()
        """The hash of what is in the buffer."""
        self._total = 0
        self._asked_to = 0
        self._refused = 0
        """STATE_NONEs so far."""
        self._asking = False
        """The source was asked and has not refused. Else a pause goes on until `due`."""
        self.due = 0.0
        """The time at which `asks` has something to send, if nothing arrives before."""
        self.state: bytes | None = None
        """All of it, once it is here."""

    def __str__(self) -> str:
        """Word the progress of the transfer."""
        if self._digest:
            return f"{len(self._buffer)} of {self._total} bytes are here"
        return "no worker has offered it yet" if self._refused else "no worker has answered"

    @property
    def source(self) -> int:
        """Return the rank that is asked now."""
        return self._ranks[self._turn % len(self._ranks)]

    def asks(self, generation: int, now: float) -> list[tuple[int, PeerMessage]]:
        """Return the requests that are due now in `generation`, as (rank, message)."""
        if self.state is not None:
            return []
        if now >= self.due:
            self._turn += self._asking  # the one that was asked says nothing
            self._asking, self._asked_to, self.due = True, len(self._buffer), now + STALLED_S
        if not self._asking:
            return []
        most = len(self._buffer) + (PIECES_AHEAD if self._digest else 1) * DATA_BYTES
        asks = []
        while self._asked_to < most and (not self._digest or self._asked_to < self._total):
            ask = PeerMessage(
                PeerKind.STATE_ASK, self._rank, generation, round=self.start_generation, value=self._asked_to
            )
            asks.append((self.source, ask))
            self._asked_to += DATA_BYTES
        return asks

    def take(self, message: PeerMessage, now: float) -> None:
        """Take a STATE_PIECE or STATE_NONE. What is of no use is ignored."""
        if message.round != self.start_generation or message.sender != self.source or self.state is not None:
            return
        if message.kind is PeerKind.STATE_NONE:
            self._refused += 1
            self._ask_next(now + PAUSE_S if self._refused % len(self._ranks) == 0 else now)
            return
        total, digest = _PIECE.unpack_from(message.payload)
        if total > self._bytes_max:
            self.too_large = message.sender, total
            return
        if digest != self._digest:
            self._forget()
            self._digest, self._total, self._asked_to = digest, total, DATA_BYTES if message.value == 0 else 0
        if message.value == len(self._buffer) and total == self._total:
            piece = memoryview(message.payload)[PIECE_BYTES_MIN:]
            self._buffer += piece
            self._hash.update(piece)
            self.due = now + STALLED_S
        if len(self._buffer) >= self._total:
            self._finish(now)

    def _finish(self, now: float) -> None:
        if self._hash.digest() == self._digest:
            self.state = bytes(self._buffer)
        self._forget()
        self._ask_next(now)

    def _forget(self) -> None:
        """Begin with the first byte again."""
        self._digest, self._total, self._asked_to = b"", 0, 0
        self._buffer.clear()
        self._hash = hashlib.sha256()

    def _ask_next(self, at: float) -> None:
        """Ask the next one in turn, from a time on."""
        self._turn += 1
        self._asking, self.due = False, at
