# SPDX-License-Identifier: Apache-2.0
"""Proof of membership on a connection between two workers, without I/O: dialler and listener both know the key.

HELLO, REPLY, then any number of messages, each with its length before and its MAC after it: the REPLY proves the
listener, and the first MAC proves the dialler. docs/protocol.md, "Side channels", has the bytes. Bytes recorded on
another connection, in another generation, between other ranks or in the other direction are useless, and no message can
be left out, repeated or moved: the connection ends there.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from hopsum.protocol.peer_messages import PEER_VERSION, PeerMessageError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 16
MAC_BYTES: Final = 16
"""The bytes of a message's authentication code."""
_HELLO: Final = struct.Struct(f">4sB3xHHI{NONCE_BYTES}s")
"""magic, version, the dialler's rank, the listener's, generation, random bytes."""
_MAGIC: Final = b"hops"
HELLO_BYTES: Final = _HELLO.size
REPLY_BYTES: Final = NONCE_BYTES + KEY_BYTES


@dataclass(frozen=True, slots=True)
class GenerationKey:
    """The secret that the members of one generation share. Raises ValueError for a key that has not `KEY_BYTES`."""

    generation: int
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a side channel's key has {KEY_BYTES} bytes, not {len(self.key)}")

    def derive(self, use: bytes, hello: bytes, nonce: bytes) -> bytes:
        """Return `KEY_BYTES` bytes that only members of the generation can compute, for one use on one connection.

        Args:
            use: a short name of the use.
            hello: the connection's HELLO.
            nonce: the random bytes of its REPLY.
        """
        # `person` separates the uses of the key: no MAC of one use is a MAC of another.
        return blake2b(hello + nonce, key=self.key, person=b"hopsum " + use, digest_size=KEY_BYTES).digest()


class Seal:
    """Makes the MACs of one connection's messages, or checks them, in their order. Each call counts one message."""

    def __init__(self, session_key: bytes) -> None:
        self._key = session_key
        self._number = 0

    def mac(self, message: bytes | memoryview) -> bytes:
        """Return the MAC of the next message, and count the message."""
        # The number makes a message that is left out, repeated or moved fail its check.
        hashed = blake2b(self._number.to_bytes(8, "big"), key=self._key, digest_size=MAC_BYTES)
        hashed.update(message)
        self._number += 1
        return hashed.digest()

    def check(self, message: bytes | memoryview, mac: bytes | memoryview) -> None:
        """Count the next message. Raise PeerMessageError, "forged", unless it has this MAC."""
        # compare_digest: the time of the comparison tells nothing about the right MAC.
        if not hmac.compare_digest(self.mac(message), mac):
            raise PeerMessageError("forged", f"message {self._number - 1} of a connection has another MAC")


def make_hello(rank: int, peer: int, key: GenerationKey) -> bytes:
    """Return a new HELLO of HELLO_BYTES, from the dialling worker to a peer. Random bytes make each one different."""
    return _HELLO.pack(_MAGIC, PEER_VERSION, rank, peer, key.generation, secrets.token_bytes(NONCE_BYTES))


def check_hello(hello: bytes, rank: int, key: GenerationKey) -> int:
    """Return the rank that a HELLO to `rank` claims as its sender. Nothing is proved yet.

    Args:
        hello: HELLO_BYTES bytes.

    Raises:
        PeerMessageError: no HELLO, or to another rank ("hello"), or of another generation ("generation").
    """
    magic, version, peer, to, generation, _ = _HELLO.unpack(hello)
    if (magic, version, to) != (_MAGIC, PEER_VERSION, rank):
        raise PeerMessageError("hello", f"{hello[:8]!r} is no HELLO to rank {rank}")
    if generation != key.generation:
        raise PeerMessageError("generation", f"HELLO of generation {generation} in generation {key.generation}")
    return int(peer)


def make_reply(hello: bytes, key: GenerationKey) -> tuple[bytes, Seal]:
    """Return the REPLY to a HELLO, which proves the listener, and the seal that checks the dialler's messages."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + key.derive(b"listener", hello, nonce), Seal(key.derive(b"session", hello, nonce))


def check_reply(reply: bytes, hello: bytes, key: GenerationKey) -> Seal:
    """Check the REPLY to a HELLO, and return the seal for the dialler's messages.

    Raises PeerMessageError, "forged", if the listener does not know the key.
    """
    nonce, proof = reply[:NONCE_BYTES], reply[NONCE_BYTES:]
    if not hmac.compare_digest(key.derive(b"listener", hello, nonce), proof):
        raise PeerMessageError("forged", "who listens there does not know the generation's key")
    return Seal(key.derive(b"session", hello, nonce))
