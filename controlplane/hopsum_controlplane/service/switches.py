# SPDX-License-Identifier: Apache-2.0
"""The service for switches that register by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from hopsum_controlplane.service.access import SwitchAuth
from hopsum_controlplane.service.gate import Gate
from hopsum_controlplane.service.handlers import Answer, Call, Lane
from hopsum_controlplane.service.messages import registration_request
from hopsum_wire.control import control_pb2 as pb

if TYPE_CHECKING:
    from hopsum_controlplane.cluster.cluster_controller import ClusterController

_CALLS_MAX: Final = 64


class Switches:
    """Answers the calls of switches, in threads of `lane`."""

    def __init__(self, controller: ClusterController, switches: SwitchAuth, gate: Gate, lane: Lane) -> None:
        self._controller, self._auth, self._gate, self._lane = controller, switches, gate, lane

    def answers(self) -> Mapping[str, Answer]:
        """Return an answer for each method."""
        answers: Mapping[str, Callable[[Any, Call], Any]] = {
            "RegisterSwitch": self._register,
            "DeregisterSwitch": self._deregister,
        }
        return {name: self._lane.answer(answer) for name, answer in answers.items()}

    @contextmanager
    def admit(self, name: str, call: Call) -> Iterator[None]:
        """Let a call with the token for switches pass for the block.

        Raises UnauthenticatedError, and TooManyClientsError, see Gate.
        """
        self._auth.require(call.token)
        with self._gate.known(call.token, _CALLS_MAX):
            yield

    def _register(self, request: Any, call: Call) -> Any:
        made = self._controller.registry.register(registration_request(request))
        return pb.RegisterSwitchResponse(lease_s=made.lease_s, heartbeat_s=made.heartbeat_s)

    def _deregister(self, request: Any, call: Call) -> Any:
        return pb.DeregisterSwitchResponse(jobs=self._controller.registry.deregister(request.name, request.incarnation))
