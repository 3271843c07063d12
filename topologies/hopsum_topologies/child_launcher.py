# SPDX-License-Identifier: Apache-2.0
"""Become another program that dies with its parent, optionally inside a network namespace.

`python -m hopsum_topologies.child_launcher PARENT_PID NAMESPACE_OR_- PROGRAM [ARGUMENT ...]`

A small program of its own instead of a preexec_fn, which is unsafe in a process with threads. It replaces
itself with PROGRAM, so the process id that the parent holds is PROGRAM's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from hopsum_topologies.netns import enter_namespace

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends.

    Raises SystemExit when the parent is gone already: its death would never be reported.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise SystemExit(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    # The parent may have ended before prctl, which reports later deaths only.
    if os.getppid() != parent_pid:
        raise SystemExit(f"parent process {parent_pid} ended before this one was started")


def main(arguments: list[str]) -> None:
    """Apply the two settings and replace this process."""
    parent_pid, namespace, *command = arguments
    die_with_parent(int(parent_pid))
    if namespace != "-":
        enter_namespace(namespace)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise SystemExit(f"cannot run {command[0]}: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
