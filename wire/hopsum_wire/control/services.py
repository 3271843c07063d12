# SPDX-License-Identifier: Apache-2.0
"""The services of control.proto as values: what a method is called on the wire, takes and answers."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from hopsum_wire.control import control_pb2

MEMBERSHIP_SERVICE: Final = "MembershipService"
JOB_SERVICE: Final = "JobService"
MESSAGE_BYTES_MAX: Final = 1 << 20
"""Either way. The largest is the list of 64 jobs of 64 members."""
BEARER: Final = "Bearer "
"""The word in front of the secret, in a call's metadata `authorization`."""


class Method(NamedTuple):
    """One method, which takes one message."""

    path: str
    request: Any
    """Class of the message."""
    response: Any
    streams: bool = False
    """True for a method with many responses."""


def full_name(service: str) -> str:
    """Return a service's name with its package."""
    return str(control_pb2.DESCRIPTOR.services_by_name[service].full_name)


def methods(service: str) -> dict[str, Method]:
    """Return the methods of a service by name."""
    return {
        method.name: Method(
            f"/{full_name(service)}/{method.name}",
            # The descriptor names the messages, so the list of methods is the proto's own and cannot disagree with
            # it.
            getattr(control_pb2, method.input_type.name),
            getattr(control_pb2, method.output_type.name),
            method.server_streaming,
        )
        for method in control_pb2.DESCRIPTOR.services_by_name[service].methods
    }
