# SPDX-License-Identifier: Apache-2.0
"""Secrets: a job's token, which its creator is told once, and the secret that each member has of it.

The database keeps digests only. A member's secret is a function of the token and of what the member drew itself, so a
join that is repeated has the same answer although it is not stored.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Protocol

INCARNATION_BYTES = 16
_TOKEN_BYTES = 32


class RandomSource(Protocol):
    """A source of random tokens, such as the module `secrets`."""

    def token_urlsafe(self, nbytes: int | None = None) -> str:
        """Return `nbytes` random bytes as text."""


def new_token(random: RandomSource) -> str:
    """Return a new token of 256 random bits, as text that fits a header."""
    return random.token_urlsafe(_TOKEN_BYTES)


def digest(secret: str | bytes) -> bytes:
    """Return the SHA-256 of a token or a secret, 32 bytes: what is kept of it."""
    return hashlib.sha256(secret.encode() if isinstance(secret, str) else secret).digest()


def matches(secret: str | bytes, kept: bytes) -> bool:
    """Return whether a token or secret is the one whose digest was kept.

    The time that it takes does not tell how near.
    """
    # Digests are compared in constant time: the time of an answer does not help to guess a token.
    return hmac.compare_digest(digest(secret), kept)


def member_secret(token: str, job: str, rank: int, incarnation: bytes) -> bytes:
    """Return the secret, 32 bytes, of a member: the same for the same incarnation of the same rank."""
    # No part can hold a zero byte but the incarnation, which has a fixed length: no two members share an input.
    what = b"\0".join((b"hopsum member", job.encode(), str(rank).encode(), incarnation))
    return hmac.digest(token.encode(), what, "sha256")
