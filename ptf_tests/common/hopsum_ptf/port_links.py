# SPDX-License-Identifier: Apache-2.0
"""The switch's ports through ptf's data plane: one frame in, and exactly the frames that it causes out.

No code here waits for silence. After the frame, one barrier frame for every port follows through the same port. A
switch keeps the order of frames from one port to one port. So all frames that arrive on a port before its barrier are
answers to the frame. When all barriers are back, all answers have arrived.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from hopsum_controlplane.addresses import mac_to_int
from hopsum_ptf.case_places import barrier_mac, station_mac
from hopsum_ptf.frames import plain

# A machine under load may take seconds for a frame. Only a dead switch takes a minute.
_ARRIVAL_S = 60.0
# The second one for local experiments: no case uses it.
_BARRIER_ETHERTYPE = 0x88B6


class OutputFrame(NamedTuple):
    """A frame that the switch sent, and the port through which it left."""

    port: int
    frame: bytes


class LinkError(AssertionError):
    """The switch forwards nothing any more, or ports hold frames that nothing explains."""


class Links:
    """All ports of one switch, through ptf's data plane, whose earlier frames construction drops."""

    def __init__(self, dataplane: Any, ports: Collection[int]) -> None:
        self._dataplane = dataplane
        self._ports = sorted(ports)
        self._numbers = itertools.count(1)
        dataplane.flush()

    def exchange(self, port: int, frame: bytes, expected: Collection[int]) -> list[OutputFrame]:
        """Send a frame into `port` and return all frames that it causes, by port, in order of arrival on each.

        `expected` names a port once for every frame that should arrive there. Raises LinkError when the switch is dead.
        """
        self.send(port, frame)
        # The frames that are due are taken before the barriers: a queue of a socket holds a few large frames only.
        outputs = [output for output_port in sorted(expected) for output in self.receive(output_port)]
        outputs += self._barrier(port)
        return sorted(outputs, key=lambda output: output.port)

    def send(self, port: int, frame: bytes) -> None:
        """Send a frame into a port, and wait for no answer. Raises LinkError when the port does not take it whole."""
        sent = self._dataplane.send(0, port, frame)
        if sent != len(frame):
            raise LinkError(f"port {port} took {sent} of {len(frame)} bytes")

    def receive(self, port: int, wait_s: float = _ARRIVAL_S) -> list[OutputFrame]:
        """Wait for the next frame out of a port. Return it in a list, or an empty list after `wait_s` seconds."""
        found = self._dataplane.poll(device_number=0, port_number=port, timeout=wait_s)
        return [] if found.packet is None else [OutputFrame(port, bytes(found.packet))]

    def drain(self, port: int) -> int:
        """Receive and drop the frames that have left a port by now, without waiting. Return their number."""
        return sum(1 for _ in iter(lambda: self.receive(port, 0.0), []))

    def check_empty(self) -> None:
        """Raise LinkError when any port holds a frame, or one is still inside the switch."""
        for port in self._ports:
            for output in self._barrier(port):
                raise LinkError(f"port {output.port} holds an unexplained frame {output.frame.hex()}")

    def barrier_frame(self, port: int, output_port: int, number: int) -> bytes:
        """Return a barrier frame, which the switch forwards from `port` to `output_port`. `number` is in its body."""
        # The number tells a barrier from those of the exchange before, should one of them come late.
        body = number.to_bytes(8, "big") + bytes(40)
        source, destination = mac_to_int(station_mac(port)), mac_to_int(barrier_mac(output_port))
        return plain(destination, source, body, _BARRIER_ETHERTYPE)

    def _barrier(self, port: int) -> Iterator[OutputFrame]:
        number = next(self._numbers)
        barriers = {output_port: self.barrier_frame(port, output_port, number) for output_port in self._ports}
        # Through the same port as the frame: a switch keeps order from one port to one port, not between ports.
        for barrier in barriers.values():
            self.send(port, barrier)
        for output_port, barrier in barriers.items():
            while True:
                taken = self.receive(output_port)
                if not taken:
                    raise LinkError(f"no barrier frame from port {port} to port {output_port} in {_ARRIVAL_S} s")
                if taken[0].frame == barrier:
                    break
                yield taken[0]
