# SPDX-License-Identifier: Apache-2.0
"""A program's state on its way from a worker to a newcomer, without I/O: in pieces, since models are large.

A state is one byte string, for the newcomers of one generation. All workers offer equal states, though perhaps in
other bytes: so every piece has the length of the whole and its SHA-256, and a newcomer joins pieces of one digest only.

The offering worker keeps no record of newcomers' progress: STATE_ASK names a byte, and is answered by `PIECES` pieces
from there on. A state is dropped when all newcomers that wait for one have sent STATE_TAKEN for it or for a later one:
newcomers without the state of their generation ask for that of a later one (StateMovedError), which is kept for them
too.

    input to a newcomer                       next
    STATE_NONE                                the next worker is asked; after all of them a pause
    STATE_PIECE, the next bytes               kept; after the last requested one, the next ones are requested
    STATE_PIECE of another digest             all received bytes are dropped
    all bytes, digest right                   it has the state: STATE_TAKEN to everybody
    all bytes, digest wrong                   the next worker is asked, from the first byte on
    nothing for `STALLED_S`, or twice the     the next worker is asked, from the first byte that is lacking on
      longest pause between two pieces

A transfer has no time limit as a whole: only silence (`moved_at`) ends it. A newcomer sends STATE_NONE to all ranks as
more bytes arrive, so that all-reduces which wait for it do not fail at their deadline.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from hopsum.protocol.peer_messages import PIECE_BYTES_MAX, PIECE_BYTES_MIN, PeerKind, PeerMessage

PIECES: Final = 32
"""The pieces of one request: 2 MiB, which must fit the sender's queue."""
STATE_BYTES_MAX: Final = 16 << 30
"""The most bytes of a state that a newcomer takes by default."""
STALLED_S: Final = 1.0
STALLED_MAX_S: Final = 10.0
"""On a slow link two pieces may be further apart than `STALLED_S`. A request that is repeated then gets them twice."""
PAUSE_S: Final = 0.1
DATA_BYTES: Final = PIECE_BYTES_MAX - PIECE_BYTES_MIN
_PIECE: Final = struct.Struct(">Q32s")
"""Bytes of the whole state, its SHA-256, then the piece."""


class StateOffers:
    """The latest state that one worker offers to newcomers, until all of them have a state."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.state: bytes | None = None
        """None if no newcomer waits for a state."""
        self._digest = b""
        self._generation = 0
        """The generation whose newcomers the state is for."""
        self._waiting: dict[int, int] = {}
        """Ranks that may come for a state, and the generation in which each began."""
        self._taken: dict[int, int] = {}
        """The latest generation whose state a rank says that it has, by rank."""

    def offer(self, state: bytes, digest: bytes, generation: int, newcomers: Mapping[int, int]) -> None:
        """Offer a state to the newcomers of a generation, in place of an earlier one. The state is not copied.

        Args:
            digest: the state's SHA-256.
            newcomers: by rank, the generation in which the rank began; also ranks of earlier generations that have no
                state yet.
        """
        self.state, self._digest, self._generation = state, digest, generation
        self._waiting.update(newcomers)
        self._drop()

    def answer(self, message: PeerMessage, generation: int) -> list[PeerMessage]:
        """Process a STATE_ASK or STATE_TAKEN. Return the messages to its sender, stamped with `generation`.

        STATE_ASK: PIECES pieces from the byte asked for, or STATE_NONE if no state of that generation is offered.
        STATE_TAKEN: none. The state is dropped when the last newcomer has taken one.
        """
        if message.kind is PeerKind.STATE_TAKEN:
            if message.round <= generation:  # nobody can have one of a generation to come
                self._taken[message.sender] = max(message.round, self._taken.get(message.sender, 0))
            self._drop()
            return []
        state = self.state
        if state is None or message.round != self._generation:
            return [PeerMessage(PeerKind.STATE_NONE, self._rank, generation, round=message.round)]
        piece = PeerMessage(PeerKind.STATE_PIECE, self._rank, generation, round=message.round)
        whole = _PIECE.pack(len(state), self._digest)
        # Another worker's bytes may be more: what the newcomer has of these is of no use with this state.
        first = message.value if message.value <= len(state) else 0
        # A state of no bytes is one piece of none.
        end = min(first + PIECES * DATA_BYTES, max(len(state), first + 1))
        return [
            piece._replace(value=at, payload=whole + state[at : at + DATA_BYTES])
            for at in range(first, end, DATA_BYTES)
        ]

    def _drop(self) -> None:
        """Drop the state if every newcomer that was waiting has said STATE_TAKEN."""
        waiting = self._waiting.items()
        self._waiting = {rank: since for rank, since in waiting if self._taken.get(rank, 0) < since}
        if not self._waiting:
            self.state = None


class IncompleteState:
    """The bytes of one state that are here, from the first on.

    digest: the SHA-256 of all bytes, as the source says, empty for no state. total: their number, as the source says.
    """

    def __init__(self, digest: bytes, total: int) -> None:
        self.digest, self.total = digest, total
        self._bytes, self._hash = bytearray(), hashlib.sha256()

    def __len__(self) -> int:
        """Return the number of bytes that are here."""
        return len(self._bytes)

    def append(self, piece: memoryview) -> None:
        """Add a copy of the bytes that follow."""
        self._bytes += piece
        self._hash.update(piece)

    def checked(self) -> bytes | None:
        """Return a copy of the bytes if they have the digest, else None."""
        return bytes(self._bytes) if self._hash.digest() == self.digest else None


class StateFetch:
    """One newcomer's transfer of its state. `state` has the bytes once all are here.

    Args:
        start_generation: the generation in which this worker is a newcomer.
        ranks: the ranks that may have the state, at least one. They are asked in turn.
        bytes_max: the most bytes of a state. A longer one sets `too_large`.
    """

    def __init__(
        self, rank: int, start_generation: int, ranks: Sequence[int], bytes_max: int = STATE_BYTES_MAX
    ) -> None:
        self._rank, self.start_generation, self._bytes_max = rank, start_generation, bytes_max
        self._ranks = deque(ranks)
        """The ranks in the order of the requests: the first one is asked now."""
        self._ranks.rotate(-rank)
        self.too_large: tuple[int, int] | None = None
        """The rank whose state is longer than `bytes_max`, and its bytes as it says."""
        self._refused = 0
        """STATE_NONEs so far."""
        self._is_awaited = False
        """The source was asked, and has not answered all."""
        self._asked_to = 0
        """The byte behind those asked for."""
        self._stalled_s, self._since = STALLED_S, 0.0
        """The silence after which the next one is asked, and when the present silence began."""
        self.due = 0.0
        """The time at which `ask` has something to send, if nothing arrives before."""
        self.state: bytes | None = None
        """All of it, once it is here."""
        self.moved_at: float | None = None
        """The time at which more bytes were here than ever before, None before the first."""
        self._most = 0
        """The most bytes of one state that were here. Bytes that are fetched again are no progress."""
        self._incomplete = IncompleteState(b"", 0)

    def __str__(self) -> str:
        """Word the progress of the transfer."""
        if self._incomplete.digest:
            return f"{self.held} of {self.total} bytes are here"
        return "no worker has offered it yet" if self._refused else "no worker has answered"

    @property
    def held(self) -> int:
        """Return the number of bytes received so far, 0 after the end."""
        return len(self._incomplete)

    @property
    def total(self) -> int:
        """Return the number of bytes of the state, 0 while no rank has offered one and after the end."""
        return self._incomplete.total

    @property
    def source(self) -> int:
        """Return the rank that is asked now."""
        return self._ranks[0]

    def ask(self, generation: int, now: float) -> PeerMessage | None:
        """Return the request to `source` that is due now, stamped with `generation`, or None.

        If the rank asked last has been silent, `source` is the next rank from now on.
        """
        if self.state is not None or now < self.due:
            return None
        if self._is_awaited:
            self._ranks.rotate(-1)  # the one that was asked says nothing
        else:
            self._since = now
        self._is_awaited, self.due = True, now + self._stalled_s
        first = self.held
        self._asked_to = first + PIECES * DATA_BYTES
        return PeerMessage(PeerKind.STATE_ASK, self._rank, generation, round=self.start_generation, value=first)

    def on_message(self, message: PeerMessage, now: float) -> None:
        """Process a STATE_PIECE or STATE_NONE.

        Ignore one of another rank than `source`, or about another generation's state.
        """
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
        if (digest, total) != (self._incomplete.digest, self.total):
            self._incomplete = IncompleteState(digest, total)
        if message.value == self.held:
            self._incomplete.append(memoryview(message.payload)[PIECE_BYTES_MIN:])
            self._stalled_s = min(max(self._stalled_s, 2 * (now - self._since)), STALLED_MAX_S)
            self._since, self.due = now, now + self._stalled_s
            if self.held > self._most:
                self._most, self.moved_at = self.held, now
        if self.held >= total:
            self.state = self._incomplete.checked()
            self._incomplete = IncompleteState(b"", 0)
            self._ask_next(now)
        elif message.value + DATA_BYTES >= min(self._asked_to, total):
            # The source has answered all. What got lost on the way is asked for with the next pieces.
            self._is_awaited, self.due = False, now

    def _ask_next(self, at: float) -> None:
        """Ask the next one in turn, from a time on."""
        self._ranks.rotate(-1)
        self._is_awaited, self.due = False, at
