# SPDX-License-Identifier: Apache-2.0
"""Clone sessions: where copies made by clone() go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from .multicast import PortCopy, check_replicas

MAX_SESSION_ID = 2**15 - 1


class CloneSession(NamedTuple):
    """Its copies, in order, each cut to at most `length` bytes when it leaves (0: not cut)."""

    replicas: tuple[PortCopy, ...]
    length: int


class CloneStore:
    """Sessions by id (1..32767). A program that clones for a session that does not exist makes no copy."""

    def __init__(self) -> None:
        self._sessions: dict[int, CloneSession] = {}

    def insert(self, session: int, replicas: Sequence[PortCopy], length: int = 0) -> None:
        """Add a session. Raises: AlreadyExistsError, InvalidArgumentError."""
        checked = _check(session, replicas, length)
        if session in self._sessions:
            raise AlreadyExistsError(f"clone session {session} exists; modify it")
        self._sessions[session] = checked

    def modify(self, session: int, replicas: Sequence[PortCopy], length: int = 0) -> None:
        """Replace a session. Raises: NotFoundError, InvalidArgumentError."""
        checked = _check(session, replicas, length)
        self.get(session)
        self._sessions[session] = checked

    def delete(self, session: int) -> None:
        """Remove a session. Raises: NotFoundError."""
        self.get(session)
        del self._sessions[session]

    def get(self, session: int) -> CloneSession:
        """Return a session. Raises: NotFoundError."""
        try:
            return self._sessions[session]
        except KeyError:
            raise NotFoundError(f"no clone session {session}") from None

    def find(self, session: int) -> CloneSession | None:
        """Return a session, or None."""
        return self._sessions.get(session)

    def sessions(self) -> dict[int, CloneSession]:
        """Return a copy of all sessions."""
        return dict(self._sessions)

    def reset(self) -> None:
        """Remove all sessions."""
        self._sessions.clear()


def _check(session: int, replicas: Sequence[PortCopy], length: int) -> CloneSession:
    if not 0 < session <= MAX_SESSION_ID:
        raise InvalidArgumentError(f"clone session {session} is outside 1..{MAX_SESSION_ID}")
    if length < 0:
        raise InvalidArgumentError(f"clone session {session}: length {length} is negative")
    return CloneSession(check_replicas(f"clone session {session}", replicas), length)
