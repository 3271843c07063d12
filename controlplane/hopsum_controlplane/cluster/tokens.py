# SPDX-License-Identifier: Apache-2.0
"""Secrets: a job's token, which its creator or the controller draws, and the secret that each member has of it.

The database keeps digests only. A member's secret is a function of the token and of what the member drew itself, so a
join that is repeated has the same answer although it is not stored.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final, Protocol

from hopsum_controlplane.errors import InvalidRequestError

INCARNATION_BYTES = 16
_DRAWN: Final = re.compile(r"[A-Za-z0-9_-]{32,256}")
_TOKEN_BYTES = 32


class RandomSource(Protocol):
    """A source of random tokens, such as the module `secrets`."""

    def token_urlsafe(self, nbytes: int | None = None) -> str:
        """Return `nbytes` random bytes, or a default number of them, as text that fits a URL."""


def new_token(random: RandomSource) -> str:
    """Return a new token of 256 random bits, as text that fits a header."""
    return random.token_urlsafe(_TOKEN_BYTES)


def check_token(token: str) -> str:
    """Return a token that a caller drew, empty for none. Raises InvalidRequestError for one that could be guessed."""
    if token and not _DRAWN.fullmatch(token):
        raise InvalidRequestError(
            f"a job's token has 32 to 256 letters, digits, - and _, not {len(token)} characters",
            hint="let the controller draw it",
        )
    return token


def digest(secret: str | bytes) -> bytes:
    """Return the SHA-256 of a token or a secret, 32 bytes: what is kept of it."""
    return hashlib.sha256(secret.encode() if isinstance(secret, str) else secret).digest()


def matches(secret: str | bytes, kept: bytes) -> bool:
    """Return whether a token or secret is the one whose digest was kept.

    The comparison takes the same time for any other token.
    """
    # Digests are compared in constant time: the time of an answer does not help to guess a token.
    return hmac.compare_digest(digest(secret), kept)


def member_secret(token: str, job: str, rank: int, incarnation: bytes) -> bytes:
    """Return the secret, 32 bytes, of a member: the same for the same incarnation of the same rank."""
    # No part can hold a zero byte but the incarnation, which has a fixed length: no two members share an input.
    what = b"\0".join((b"hopsum member", job.encode(), str(rank).encode(), incarnation))
    return hmac.digest(token.encode(), what, "sha256")
