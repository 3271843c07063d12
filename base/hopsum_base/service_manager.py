# SPDX-License-Identifier: Apache-2.0
"""Messages to the service manager that started this process, as systemd's sd_notify(3) has them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Final

_MICROSECONDS: Final = 1_000_000


class ServiceManager:
    """The service manager that the environment names. Where none is named, or it has gone, messages are dropped."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        address = environment.get("NOTIFY_SOCKET", "")
        # systemd writes @ for the zero byte of an abstract socket's name.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_s = _watchdog_s(environment) if address else None
        """The seconds within which it expects `alive`, or None where it does not ask for that."""

    def ready(self, status: str) -> None:
        """Report that the process serves. `status` describes the service in words."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Report that the process reads its configuration again, until the next `ready`."""
        # systemd wants the time at which the reload began, to tell old messages from new ones.
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def alive(self) -> None:
        """Report that the process works. Call it more often than every `watchdog_s` seconds, if that is not None."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Report that the process has begun to end."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            try:
                channel.sendto(message.encode(), self._address)
            except OSError:
                # A manager that has gone starts nobody again.
                return


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Return the watchdog's time, None where there is none, or it is another process's."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(microseconds) / _MICROSECONDS
