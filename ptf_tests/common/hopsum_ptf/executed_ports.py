# SPDX-License-Identifier: Apache-2.0
"""PTF platform: the switch is in ptf's own process; what it sends waits in one socket pair for each port.

`--interface PORT@anything`: nothing is opened outside this process.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from hopsum_ptf.tna_device import process_switch

_FRAME_BYTES = 65536
_BUFFER_BYTES = 1 << 22


class ExecutedPort:
    """One switch port, with the interface that ptf.dataplane asks of a port class."""

    ends: dict[int, Callable[[bytes], int]] = {}  # noqa: RUF012 (all ports of the one switch)

    def __init__(self, _: str, device_number: int, port_number: int, config: dict[str, Any]) -> None:
        self._id = (device_number, port_number)
        # ptf selects on descriptors, so a queue in memory would not do.
        self._near, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in (self._near, self._far):
            # Room for all replicas of a large multicast: `send` must not block in ptf's only sending thread.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self.ends[port_number] = self._far.send

    def fileno(self) -> int:
        """Return the descriptor that ptf selects on."""
        return self._near.fileno()

    def get_packet_source(self) -> ExecutedPort:
        """Return the object whose `recv` ptf calls for frames of this port: the port itself."""
        return self

    def recv(self) -> tuple[int, int, bytes, float]:
        """Return device, port, one frame, time of arrival."""
        return (*self._id, self._near.recv(_FRAME_BYTES), time.time())

    def send(self, frame: bytes) -> int:
        """Run a frame through the switch, and return its length. Frames that leave arrive at their ports."""
        for port, sent in process_switch().exchange(self._id[1], frame):
            self.ends[port](sent)
        return len(frame)


def platform_config_update(config: dict[str, Any]) -> None:
    """Set the map of ports and the class of a port in ptf's configuration. ptf calls this for `--platform`."""
    config["port_map"] = {(device, port): name for device, port, name in config["interfaces"]}
    config["dataplane"] = {"portclass": ExecutedPort}
