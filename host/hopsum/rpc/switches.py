# SPDX-License-Identifier: Apache-2.0
"""The calls of a switch that registers with a controller by itself."""

from __future__ import annotations

import secrets
from typing import Any, Final, NamedTuple

from hopsum.rpc.channel import Channel
from hopsum.rpc.member import INCARNATION_BYTES
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.services import SWITCH_SERVICE

REGISTER_S: Final = 30.0
"""Deadline of a registration: the controller opens a session with the switch, and gives it the program."""


class SwitchOffer(NamedTuple):
    """A switch as it offers itself."""

    name: str
    address: str
    """HOST:PORT of its P4Runtime server."""
    mac: str
    ip: str
    """The address of the service in the switch's frames."""
    service: tuple[str, int]
    """(IPv4 address, UDP port) that workers send to."""
    slots: int


class SwitchRegistration(NamedTuple):
    """The controller's answer to a switch that registers, in seconds."""

    lease_s: float
    heartbeat_s: float


class SwitchClient:
    """One switch at a controller, for one life of its process.

    Args:
        token: for switches.
    """

    def __init__(self, channel: Channel, token: str, offer: SwitchOffer) -> None:
        self._channel, self._token, self._offer = channel, token, offer
        self._incarnation = secrets.token_bytes(INCARNATION_BYTES)

    def register(self, timeout_s: float = REGISTER_S) -> SwitchRegistration:
        """Offer the switch, or renew its lease. Raises ControllerError, or ControllerUnreachableError."""
        offer = self._offer
        request = pb.RegisterSwitchRequest(
            name=offer.name,
            incarnation=self._incarnation,
            address=offer.address,
            mac=offer.mac,
            ip=offer.ip,
            service=pb.Endpoint(ip=offer.service[0], udp_port=offer.service[1]),
            slots=offer.slots,
        )
        reply = self._call("RegisterSwitch", request, timeout_s)
        return SwitchRegistration(reply.lease_s, reply.heartbeat_s)

    def deregister(self, timeout_s: float) -> tuple[str, ...]:
        """Take the offer back. Return the jobs that still have a place at the switch. Raises as `register`."""
        request = pb.DeregisterSwitchRequest(name=self._offer.name, incarnation=self._incarnation)
        return tuple(self._call("DeregisterSwitch", request, timeout_s).jobs)

    def _call(self, name: str, request: Any, timeout_s: float) -> Any:
        return self._channel.call(SWITCH_SERVICE, name, request, secret=self._token, timeout_s=timeout_s)
