# SPDX-License-Identifier: Apache-2.0
"""Multicast groups and clone sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import AlreadyExistsError, InvalidArgumentError, NotFoundError

# mcast_grp has 16 bits, and 0 means no group.
MAX_GROUP_ID = 2**16 - 1
MAX_INSTANCE = 2**16 - 1


class PortCopy(NamedTuple):
    """One copy of a multicast packet: its egress port and the number the egress control sees with it."""

    port: int
    instance: int


class MulticastStore:
    """Groups by id (1..65535). Copies are made in the order in which a group lists its replicas."""

    def __init__(self) -> None:
        self._groups: dict[int, tuple[PortCopy, ...]] = {}
        self.version = 0  # grows with every change

    def insert(self, group: int, replicas: Sequence[PortCopy]) -> None:
        """Add a group. Raises: AlreadyExistsError, InvalidArgumentError."""
        checked = _check_group(group, replicas)
        if group in self._groups:
            raise AlreadyExistsError(f"multicast group {group} exists; modify it")
        self._groups[group] = checked
        self.version += 1

    def modify(self, group: int, replicas: Sequence[PortCopy]) -> None:
        """Replace all replicas of a group. Raises: NotFoundError, InvalidArgumentError."""
        checked = _check_group(group, replicas)
        self.get(group)
        self._groups[group] = checked
        self.version += 1

    def delete(self, group: int) -> None:
        """Remove a group. Raises: NotFoundError."""
        self.get(group)
        del self._groups[group]
        self.version += 1

    def get(self, group: int) -> tuple[PortCopy, ...]:
        """Return the replicas of a group. Raises: NotFoundError."""
        try:
            return self._groups[group]
        except KeyError:
            raise NotFoundError(f"no multicast group {group}") from None

    def groups(self) -> dict[int, tuple[PortCopy, ...]]:
        """Return a copy of all groups."""
        return dict(self._groups)

    def replicas(self, group: int) -> tuple[PortCopy, ...]:
        """Return the replicas for a packet: none for an unknown group, which drops it."""
        return self._groups.get(group, ())

    def reset(self) -> None:
        """Remove all groups."""
        self._groups.clear()
        self.version += 1


def _check_group(group: int, replicas: Sequence[PortCopy]) -> tuple[PortCopy, ...]:
    if not 0 < group <= MAX_GROUP_ID:
        raise InvalidArgumentError(f"multicast group {group} is outside 1..{MAX_GROUP_ID}")
    return check_replicas(f"multicast group {group}", replicas)


def check_replicas(owner: str, replicas: Sequence[PortCopy]) -> tuple[PortCopy, ...]:
    """Return replicas that can be used. Errors name `owner`. Raises: InvalidArgumentError."""
    for replica in replicas:
        if not 0 <= replica.instance <= MAX_INSTANCE or replica.port < 0:
            raise InvalidArgumentError(f"{owner}: {replica} is out of range")
    if len(set(replicas)) != len(replicas):
        raise InvalidArgumentError(f"{owner} lists a replica twice")
    return tuple(replicas)


# Clone sessions: where copies made by clone() go.

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
        checked = _check_session(session, replicas, length)
        if session in self._sessions:
            raise AlreadyExistsError(f"clone session {session} exists; modify it")
        self._sessions[session] = checked

    def modify(self, session: int, replicas: Sequence[PortCopy], length: int = 0) -> None:
        """Replace a session. Raises: NotFoundError, InvalidArgumentError."""
        checked = _check_session(session, replicas, length)
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


def _check_session(session: int, replicas: Sequence[PortCopy], length: int) -> CloneSession:
    if not 0 < session <= MAX_SESSION_ID:
        raise InvalidArgumentError(f"clone session {session} is outside 1..{MAX_SESSION_ID}")
    if length < 0:
        raise InvalidArgumentError(f"clone session {session}: length {length} is negative")
    return CloneSession(check_replicas(f"clone session {session}", replicas), length)
