# SPDX-License-Identifier: Apache-2.0
"""Multicast groups and clone sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from ..errors import AlreadyExistsError, InvalidArgumentError, NotFoundError

# mcast_grp has 16 bits, and 0 means no group.
MAX_GROUP_ID = 2**16 - 1
MAX_INSTANCE = 2**16 - 1
# bmv2 keeps a session in 15 bits of 16: the highest bit says that there is one.
MAX_SESSION_ID = 2**15 - 1


class PortCopy(NamedTuple):
    """One copy of a multicast or cloned packet: its egress port and its instance number, which egress sees."""

    port: int
    instance: int


class CloneSession(NamedTuple):
    """A clone session: its copies, in order, each cut to at most `length` bytes when it leaves (0: not cut)."""

    replicas: tuple[PortCopy, ...]
    length: int


_Copies = TypeVar("_Copies")


class _CopyStore(Generic[_Copies]):
    """Values by number, 1..`most`. `kind` names one of them in errors."""

    kind: str
    most: int

    def __init__(self) -> None:
        self._values: dict[int, _Copies] = {}
        # Grows with every change: the native back end copies the groups only then.
        self.version = 0

    def delete(self, number: int) -> None:
        """Remove the group or session with this number. Raises: NotFoundError."""
        self.get(number)
        del self._values[number]
        self.version += 1

    def get(self, number: int) -> _Copies:
        """Return the group or session with this number. Raises: NotFoundError."""
        try:
            return self._values[number]
        except KeyError:
            raise NotFoundError(f"no {self.kind} {number}") from None

    def all_by_number(self) -> dict[int, _Copies]:
        """Return all multicast groups, or all clone sessions, in a new dictionary by their number."""
        return dict(self._values)

    def _check(self, number: int, replicas: Sequence[PortCopy]) -> tuple[PortCopy, ...]:
        if not 0 < number <= self.most:
            raise InvalidArgumentError(f"{self.kind} {number} is outside 1..{self.most}")
        for replica in replicas:
            if not 0 <= replica.instance <= MAX_INSTANCE or replica.port < 0:
                raise InvalidArgumentError(f"{self.kind} {number}: {replica} is out of range")
        # In P4Runtime port and instance together name a replica of a group.
        if len(set(replicas)) != len(replicas):
            raise InvalidArgumentError(f"{self.kind} {number} lists a replica twice")
        return tuple(replicas)

    def _put(self, number: int, value: _Copies, *, new: bool) -> None:
        if not new:
            self.get(number)
        elif number in self._values:
            raise AlreadyExistsError(f"{self.kind} {number} exists; modify it")
        # After all checks: a refused write changes nothing.
        self._values[number] = value
        self.version += 1


class MulticastStore(_CopyStore[tuple[PortCopy, ...]]):
    """Groups by id (1..65535). Copies are made in the order in which a group lists its replicas."""

    kind, most = "multicast group", MAX_GROUP_ID

    def insert(self, group: int, replicas: Sequence[PortCopy]) -> None:
        """Add a group. Raises: AlreadyExistsError, InvalidArgumentError (id, port or instance, or a replica twice)."""
        self._put(group, self._check(group, replicas), new=True)

    def modify(self, group: int, replicas: Sequence[PortCopy]) -> None:
        """Replace all replicas of a group. Raises: NotFoundError, InvalidArgumentError."""
        self._put(group, self._check(group, replicas), new=False)

    def replicas(self, group: int) -> tuple[PortCopy, ...]:
        """Return the replicas for a packet: none for an unknown group, which drops it."""
        return self._values.get(group, ())


class CloneStore(_CopyStore[CloneSession]):
    """Sessions by id (1..32767). A program that clones for a session that does not exist makes no copy."""

    kind, most = "clone session", MAX_SESSION_ID

    def insert(self, session: int, replicas: Sequence[PortCopy], length: int = 0) -> None:
        """Add a session. Raises: AlreadyExistsError, InvalidArgumentError (as for groups, or a negative length)."""
        self._put(session, self._session(session, replicas, length), new=True)

    def modify(self, session: int, replicas: Sequence[PortCopy], length: int = 0) -> None:
        """Replace a session, its length too. Raises: NotFoundError, InvalidArgumentError."""
        self._put(session, self._session(session, replicas, length), new=False)

    def find(self, session: int) -> CloneSession | None:
        """Return the session with this id, or None if there is none."""
        return self._values.get(session)

    def _session(self, session: int, replicas: Sequence[PortCopy], length: int) -> CloneSession:
        if length < 0:
            raise InvalidArgumentError(f"clone session {session}: length {length} is negative")
        return CloneSession(self._check(session, replicas), length)
