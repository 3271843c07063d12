# SPDX-License-Identifier: Apache-2.0
"""P4Runtime client arbitration for one device and the default role: the choice of the primary client. No I/O.

A client is a live stream. Its election id is a 128-bit number, or None: below every number and never primary.
`highest` is the greatest id that any primary has had. It never decreases while the server runs.

  event                       condition                               effect
  ----------------------------------------------------------------------------------------------------------
  first update of a client    other device                            refuse NOT_FOUND
  later update of a client    other device than before                refuse FAILED_PRECONDITION
  any update                  role named or configured                refuse INVALID_ARGUMENT
                              id in use by another live client        refuse INVALID_ARGUMENT
                              id >= highest                           is primary, notify all clients, it last
                              id < highest or None, was primary       no client is primary, notify all clients
                              id < highest or None, was not           notify this client only
  disconnect                  was primary                             no client is primary, notify all other clients
                              was not                                 nothing
  refused                                                             the caller ends the stream: disconnect

  notification                OK to the primary, ALREADY_EXISTS to the others while there is a primary, else
                              NOT_FOUND, with `highest` (None before the first primary)
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode

MAX_ELECTION_ID = (1 << 128) - 1


class Notice(NamedTuple):
    """The notification of one client: a status code and the highest election id so far."""

    client: Hashable
    code: RpcCode
    election_id: int | None


class Arbitration:
    """The state machine above. The owner serialises the calls, and delivers notices in the order returned."""

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._election_ids: dict[Hashable, int | None] = {}  # of live clients, in order of arrival
        self._primary: Hashable | None = None
        self._highest: int | None = None

    @property
    def primary(self) -> Hashable | None:
        """Return the primary client, or None."""
        return self._primary

    def update(
        self, client: Hashable, device_id: int, election_id: int | None, role: str | None = None
    ) -> list[Notice]:
        """Handle one arbitration message and return the notifications of clients.

        `role` is None for the default role, else a description of the requested role.
        Raises P4RuntimeError: end this client's stream with its code, then call `disconnect`.
        """
        self._check(client, device_id, election_id, role)
        self._election_ids[client] = election_id
        if election_id is not None and (self._highest is None or election_id >= self._highest):
            self._primary, self._highest = client, election_id
            return self._tell_all()
        if self._primary == client:
            self._primary = None
            return self._tell_all()
        return [self._notice(client)]

    def disconnect(self, client: Hashable) -> list[Notice]:
        """Forget a client whose stream has ended and return the notifications of clients."""
        self._election_ids.pop(client, None)
        if self._primary != client:
            return []
        self._primary = None
        return self._tell_all()

    def check_writer(self, election_id: int | None) -> None:
        """Raise P4RuntimeError (PERMISSION_DENIED) unless `election_id` is the primary's."""
        if self._primary is None:
            raise P4RuntimeError(
                RpcCode.PERMISSION_DENIED,
                "no client is primary: open a StreamChannel and send a"
                f" MasterArbitrationUpdate with an election id >= {self._highest or 0}",
            )
        held = self._election_ids[self._primary]
        if election_id != held:
            raise P4RuntimeError(
                RpcCode.PERMISSION_DENIED, f"election id {election_id} is not the primary's, which is {held}"
            )

    def _check(self, client: Hashable, device_id: int, election_id: int | None, role: str | None) -> None:
        known = client in self._election_ids
        if device_id != self._device_id:
            raise P4RuntimeError(
                RpcCode.FAILED_PRECONDITION if known else RpcCode.NOT_FOUND,
                f"device id {device_id} is not served here: this is device {self._device_id}",
            )
        if role is not None:
            raise P4RuntimeError(
                RpcCode.INVALID_ARGUMENT, f"role {role} is not supported: leave the role unset, for full access"
            )
        if election_id is not None and not 0 <= election_id <= MAX_ELECTION_ID:
            raise P4RuntimeError(RpcCode.INVALID_ARGUMENT, f"election id {election_id} does not fit 128 bits")
        if election_id is not None and any(
            other != client and held == election_id for other, held in self._election_ids.items()
        ):
            raise P4RuntimeError(
                RpcCode.INVALID_ARGUMENT,
                f"election id {election_id} is in use by another client: use a unique one",
            )

    def _tell_all(self) -> list[Notice]:
        others = [client for client in self._election_ids if client != self._primary]
        return [self._notice(client) for client in (*others, *([self._primary] if self._primary is not None else ()))]

    def _notice(self, client: Hashable) -> Notice:
        backup = RpcCode.NOT_FOUND if self._primary is None else RpcCode.ALREADY_EXISTS
        code = RpcCode.OK if client == self._primary else backup
        return Notice(client, code, self._highest)
