# SPDX-License-Identifier: Apache-2.0
"""Signals of a process as values that its main thread waits for, whichever thread they come to."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterable
from typing import Any


class SignalQueue:
    """Takes signals from construction until `close`, in their order. It is for the main thread.

    A signal that the main thread blocks ends the process when another thread does not block it, as threads of
    libraries may. So nothing is blocked here: the interpreter's handler writes each signal's number to a socket.
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._read, write = socket.socketpair()
        write.setblocking(False)
        self._write: socket.socket | None = write
        self._handlers: dict[signal.Signals, Any] = {each: signal.signal(each, _nothing) for each in numbers}
        self._wakeup = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)

    def wait(self, within_s: float | None = None) -> signal.Signals | None:
        """Return the next signal, or None when none came within some seconds."""
        while select.select([self._read], (), (), within_s)[0]:
            number = signal.Signals(self._read.recv(1)[0])
            if number in self._handlers:
                return number
        return None

    def close(self) -> None:
        """Let signals do what they did before. Harmless when it is closed."""
        write, self._write = self._write, None
        if write is not None:
            signal.set_wakeup_fd(self._wakeup)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            write.close()
            self._read.close()


def _nothing(number: int, frame: object) -> None:
    """Do nothing: the number is in the socket already."""
