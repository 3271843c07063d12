# SPDX-License-Identifier: Apache-2.0
"""The bound on the end of a long-running process of hopsum: switch, controller."""

from __future__ import annotations

import faulthandler
import signal
from typing import Final

END_S: Final = 15.0
"""Seconds for an end in order. Service managers kill after 20 s (contrib/systemd) or 30 s (Kubernetes)."""
_STDERR: Final = 2


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
