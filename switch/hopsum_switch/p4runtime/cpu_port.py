# SPDX-License-Identifier: Apache-2.0
"""The CPU port: frames that the program sends there become packet-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopsum_switch.ports.base import PortCounters


class CpuPort:
    """A port whose other side is the controller. Packet-outs enter through the data plane's `inject`."""

    def __init__(self, deliver: Callable[[bytes], str | None]) -> None:
        """Give frames to `deliver`, which returns None, or the reason why it dropped the frame."""
        self.counters = PortCounters()
        self._deliver = deliver

    def fileno(self) -> int | None:
        """Return None: there is nothing to select on."""
        return None

    def receive(self) -> list[bytes]:
        """Return nothing: packet-outs do not wait here."""
        return []

    def send(self, frame: bytes) -> None:
        """Hand one frame to the controller."""
        reason = self._deliver(frame)
        if reason is None:
            self.counters.count_sent(frame)
        else:
            self.counters.dropped[reason] += 1

    def close(self) -> None:
        """Do nothing."""

    def describe(self) -> dict[str, Any]:
        """Return the kind."""
        return {"kind": "cpu"}
