# SPDX-License-Identifier: Apache-2.0
"""The end of a process of hopsum: bounded in time, and with its parent's."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
from typing import Final

END_S: Final = 15.0
"""Seconds for an end in order. Service managers kill after 20 s (contrib/systemd) or 30 s (Kubernetes)."""
_STDERR: Final = 2
# linux/prctl.h
_PR_SET_PDEATHSIG: Final = 1


def bound_end(within_s: float = END_S) -> None:
    """Bound the end of this process, which has begun. For the main thread, a signal handler included.

    From now on a second SIGTERM or SIGINT ends the process at once. An end that takes longer than `within_s` seconds
    is cut off, with the places of all threads on stderr and status 1.
    """
    # The kernel's own action needs no thread of Python, which may all be stuck.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # Covers the interpreter's exit too, where threads of executors are waited for without a limit.
    faulthandler.dump_traceback_later(within_s, exit=True, file=_STDERR)


def die_with_parent(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Ask the operating system to send this process a signal when the thread that started it ends.

    Raises SystemExit when the system refuses, or the parent is gone already: its death would never be reported.

    Args:
        parent_pid: process id of the parent, from before this process was started.
        signal_number: by default SIGKILL, which ends this process.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        raise SystemExit(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    # The parent may have ended before prctl, which reports later deaths only.
    if os.getppid() != parent_pid:
        raise SystemExit(f"parent process {parent_pid} ended before this one was started")
