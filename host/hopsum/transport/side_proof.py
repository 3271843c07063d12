# SPDX-License-Identifier: Apache-2.0
"""Proof of membership on a connection between two workers, without I/O: who dials and who listens both know the key.

HELLO, REPLY, PROOF, then any number of messages, each with its length before and its MAC after it.

docs/protocol.md, "Side channels", has their bytes. Nothing that was recorded on another connection, in another
generation, between other ranks or in the other direction is of use, and no message can be left out, repeated or moved:
the connection ends there.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from hopsum.protocol.peer_messages import PeerMessageError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 16
MAC_BYTES: Final = 16
"""The bytes of a message's authentication code."""
PROOF_BYTES: Final = 32
_HELLO: Final = struct.Struct(f">4sB3xHHI{NONCE_BYTES}s")
"""magic, version, the dialler's rank, the listener's, generation, random bytes."""
_MAGIC, _VERSION = b"hops", 1
HELLO_BYTES: Final = _HELLO.size
REPLY_BYTES: Final = NONCE_BYTES + PROOF_BYTES


@dataclass(frozen=True, slots=True)
class GenerationKey:
    """The secret that the members of one generation share. Raises ValueError for a key that has not `KEY_BYTES`."""

    generation: int
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a side channel's key has {KEY_BYTES} bytes, not {len(self.key)}")


class Seal:
    """Makes the MACs of one connection's messages, or checks them, each in its turn."""

    def __init__(self, session_key: bytes) -> None:
        self._key = session_key
        self._number = 0

    def mac(self, message: bytes | memoryview) -> bytes:
        """Return the MAC of the next message."""
        # The number makes a message that is left out, repeated or moved fail its check.
        hashed = blake2b(self._number.to_bytes(8, "big"), key=self._key, digest_size=MAC_BYTES)
        hashed.update(message)
        self._number += 1
        return hashed.digest()

    def check(self, message: bytes | memoryview, mac: bytes | memoryview) -> None:
        """Raise PeerMessageError, "forged", unless the MAC is that of the next message."""
        # compare_digest: the time of the comparison tells nothing about the right MAC.
        if not hmac.compare_digest(self.mac(message), mac):
            raise PeerMessageError("forged", f"message {self._number - 1} of a connection has another MAC")


class Dialler:
    """The side that opened the connection.

    Args:
        rank, peer: its own, and that of the worker which it means to reach.
        nonce: `NONCE_BYTES` random bytes, never used before.
    """

    def __init__(self, rank: int, peer: int, key: GenerationKey, nonce: bytes) -> None:
        self._key = key.key
        self.hello = _HELLO.pack(_MAGIC, _VERSION, rank, peer, key.generation, nonce)

    def take(self, reply: bytes) -> tuple[bytes, Seal]:
        """Return the PROOF, and what seals messages. Raises PeerMessageError: REPLY is no member's."""
        nonce, proof = reply[:NONCE_BYTES], reply[NONCE_BYTES:]
        if not hmac.compare_digest(_mac(self._key, b"listener", self.hello, nonce), proof):
            raise PeerMessageError("forged", "who listens there does not know the generation's key")
        return _mac(self._key, b"dialler", self.hello, nonce), Seal(_mac(self._key, b"session", self.hello, nonce))


class Listener:
    """The side that accepted the connection.

    Args:
        rank: its own.
        nonce: as for `Dialler`.
    """

    def __init__(self, rank: int, key: GenerationKey, nonce: bytes) -> None:
        self._rank, self.key, self._nonce = rank, key, nonce
        self._hello = b""
        self.peer = -1
        """The rank that HELLO named; proved once `check` has returned."""

    def take(self, hello: bytes) -> bytes:
        """Return REPLY.

        Raises PeerMessageError: no HELLO, or to another rank ("hello"), or of another generation ("generation").
        """
        magic, version, peer, to, generation, _ = _HELLO.unpack(hello)
        if (magic, version, to) != (_MAGIC, _VERSION, self._rank):
            raise PeerMessageError("hello", f"{hello[:8]!r} is no HELLO to rank {self._rank}")
        if generation != self.key.generation:
            raise PeerMessageError(
                "generation", f"HELLO of generation {generation} in generation {self.key.generation}"
            )
        self._hello, self.peer = hello, peer
        return self._nonce + _mac(self.key.key, b"listener", hello, self._nonce)

    def check(self, proof: bytes) -> Seal:
        """Check PROOF, return the seal of the messages. Raises PeerMessageError, "forged", for no member's PROOF."""
        if not hmac.compare_digest(_mac(self.key.key, b"dialler", self._hello, self._nonce), proof):
            raise PeerMessageError("forged", f"who says to be rank {self.peer} does not know the generation's key")
        return Seal(_mac(self.key.key, b"session", self._hello, self._nonce))


def _mac(key: bytes, what: bytes, hello: bytes, nonce: bytes) -> bytes:
    # `person` separates the three uses of the key: no MAC of one use is a MAC of another.
    return blake2b(hello + nonce, key=key, person=b"hopsum " + what, digest_size=PROOF_BYTES).digest()
