# SPDX-License-Identifier: Apache-2.0
"""Become another program that dies with its parent, optionally inside a network namespace.

`python -m hopsum_topologies.child_launcher PARENT_PID NAMESPACE_OR_- PROGRAM [ARGUMENT ...]`

A small program of its own instead of a preexec_fn, which is unsafe in a process with threads. It replaces
itself with PROGRAM, so the process id that the parent holds is PROGRAM's.
"""

from __future__ import annotations

import os
import sys

from hopsum_base.process_end import die_with_parent
from hopsum_topologies.netns import enter_namespace


def main(arguments: list[str]) -> None:
    """Replace this process by PROGRAM, in the namespace, to die with its parent. See the module for the arguments.

    Never returns. Raises SystemExit when PROGRAM cannot be run or the parent has ended, and TopologyError when there is
    no such namespace.
    """
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
