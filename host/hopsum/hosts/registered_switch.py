# SPDX-License-Identifier: Apache-2.0
"""An embedded switch beside a worker that keeps itself registered with a controller elsewhere.

state       event                          next        also
STARTING    the switch serves              OFFERING
OFFERING    registered                     REGISTERED  it is said once
OFFERING    no answer                      OFFERING    again after a pause; it is said once
REGISTERED  a heartbeat's time has passed  REGISTERED  registers again: a controller that forgot it has it again
REGISTERED  no answer                      OFFERING
any         refused                        over        ControllerError
any         the switch's process ended     over        ChildError
any         stop                           over        deregisters, and tells which jobs were there
"""

from __future__ import annotations

import hashlib
import random
import secrets
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from hopsum.hosts.children import ChildError, Children, start_switch
from hopsum.rpc.channel import CALL_S, Channel, ControllerAddress, ControllerError, ControllerUnreachableError
from hopsum.rpc.member_client import INCARNATION_BYTES
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.services import SWITCH_SERVICE

REGISTER_S: Final = 30.0
"""Deadline of a registration: the controller opens a session with the switch, and gives it the program."""
AGAIN_S: Final = 2.0
"""Pause after a registration without an answer, cut by up to half at random."""
_LOOK_S: Final = 0.5
_BUSY: Final = "RESOURCE_EXHAUSTED"
_Call = Callable[[str, Any, float], Any]
"""A call of the controller: its method, the request, and the deadline in seconds."""


class SwitchPlace(NamedTuple):
    """The place where a switch serves: an address of this host, and its ports, 0 for any free ones."""

    ip: str
    p4runtime_port: int = 0
    udp_port: int = 0


def run_worker_switch(
    controller: ControllerAddress,
    token: str,
    name: str,
    place: SwitchPlace,
    slots: int,
    *,
    stop: threading.Event,
    say: Callable[[str], None],
) -> None:
    """Run a switch that registers with a controller, until `stop` is set.

    Args:
        token: for switches.
        slots: that the controller may use.
        say: takes lines for who started it.

    Raises:
        ChildError: the switch did not start, or ended.
        ControllerError: the controller refused it.
        TlsError: a file of the controller's address cannot be read.
    """
    with Channel(controller) as channel:
        children = Children()
        try:
            ip, grpc, udp_port = start_switch(
                children, place.ip, place.ip, p4runtime_port=place.p4runtime_port, udp_port=place.udp_port
            )
            say(f"switch {name}: P4Runtime at {grpc}, workers at {ip}:{udp_port}")
            offer = pb.RegisterSwitchRequest(
                name=name,
                incarnation=secrets.token_bytes(INCARNATION_BYTES),
                address=grpc,
                mac=mac_for(name),
                ip=ip,
                service=pb.Endpoint(ip=ip, udp_port=udp_port),
                slots=slots,
            )

            def call(method: str, request: Any, timeout_s: float) -> Any:
                return channel.call(SWITCH_SERVICE, method, request, secret=token, timeout_s=timeout_s)

            _stay_registered(call, offer, controller.target, children, stop, say)
            _deregister(call, offer, say)
        finally:
            children.close()


def mac_for(name: str) -> str:
    """Return a locally administered MAC address for the service of a switch, which no other host sees."""
    # The same name gives the same MAC after a restart, so workers need not learn another one.
    return "02:" + hashlib.sha256(name.encode()).digest()[:5].hex(":")


def _stay_registered(
    call: _Call, offer: Any, target: str, children: Children, stop: threading.Event, say: Callable[[str], None]
) -> None:
    """Register, and again at every heartbeat, until `stop`. Raises ControllerError where the controller refuses."""
    registered = silent = False
    while not stop.is_set():
        try:
            pause_s, lost = call("RegisterSwitch", offer, REGISTER_S).heartbeat_s, ""
        except ControllerError as error:
            if not isinstance(error, ControllerUnreachableError) and error.code != _BUSY:
                raise
            # Jitter: the switches of a rack that comes back do not register in step.
            pause_s, lost = AGAIN_S * random.uniform(0.5, 1.0), str(error)
        if lost and not silent:
            say(f"not registered: {lost}; trying again")
        elif not lost and (silent or not registered):
            say(f"registered with {target} as {offer.name}")
        registered, silent = registered or not lost, bool(lost)
        _wait(pause_s, children, stop)


def _wait(pause_s: float, children: Children, stop: threading.Event) -> None:
    """Wait for some time, or for `stop`. Raises ChildError when the switch's process ends."""
    # Short looks: a switch that died should not stay registered for a whole heartbeat.
    while pause_s > 0 and not stop.wait(min(pause_s, _LOOK_S)):
        if why := children.ended():
            raise ChildError(why)
        pause_s -= _LOOK_S


def _deregister(call: _Call, offer: Any, say: Callable[[str], None]) -> None:
    try:
        request = pb.DeregisterSwitchRequest(name=offer.name, incarnation=offer.incarnation)
        jobs = call("DeregisterSwitch", request, CALL_S).jobs
    except ControllerError as error:
        say(f"not deregistered, its lease will run out: {error}")
        return
    say("deregistered")
    if jobs:
        say(f"jobs that have a shard here wait until this switch is started again: {', '.join(jobs)}")
