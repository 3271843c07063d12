# SPDX-License-Identifier: Apache-2.0
"""PTF platform: each port is one end of an AF_UNIX datagram socket pair that the native switch serves. No root.

`--interface PORT@PATH` names the path at which the switch's end is bound.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from hopsum_switch.ports.unix import MAX_FRAME_BYTES, PEER_SUFFIX, open_peer


class UnixDataplanePort:
    """One switch port, with the interface that ptf.dataplane asks of a port class."""

    def __init__(self, path: str, device_number: int, port_number: int, config: dict[str, Any]) -> None:
        self._path = path
        self._id = (device_number, port_number)
        self._socket: socket.socket = open_peer(path)

    def fileno(self) -> int:
        """Return the descriptor that ptf selects on."""
        return self._socket.fileno()

    def get_packet_source(self) -> UnixDataplanePort:
        """Return the object that ptf selects on for this port's frames."""
        return self

    def recv(self) -> tuple[int, int, bytes, float]:
        """Return device, port, one frame, time of arrival."""
        return (*self._id, self._socket.recv(MAX_FRAME_BYTES), time.time())

    def send(self, frame: bytes) -> int:
        """Send one frame. Wait while the switch's queue is full."""
        return self._socket.send(frame)

    def __del__(self) -> None:
        """Close the socket and remove its path: ptf only forgets its ports."""
        if hasattr(self, "_socket"):
            self._socket.close()
            os.unlink(self._path + PEER_SUFFIX)


def platform_config_update(config: dict[str, Any]) -> None:
    """Set the map of ports and the class of a port in ptf's configuration. ptf calls this for `--platform`."""
    config["port_map"] = {(device, port): path for device, port, path in config["interfaces"]}
    config["dataplane"] = {"portclass": UnixDataplanePort}
