# SPDX-License-Identifier: Apache-2.0
"""The cleanup process: it removes the network namespaces and the temporary directories of a process that was killed.

`python -m hopsum_topologies.cleanup_process OWNER_PID`, started by the owner with a pipe on stdin that no other process
holds. The end of the pipe is the end of the owner: an orderly one has removed them itself, and nothing is left to do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hopsum_topologies.netns import remove_stale_namespaces
from hopsum_topologies.tempdirs import remove_stale_directories

_PACKAGE_ROOT = Path(__file__).resolve().parents[1]
_OWNER_GONE_S = 10.0
_POLL_S = 0.02


def start_cleanup_process(owner_pid: int) -> int:
    """Start one for this process and return our end of its pipe, a descriptor to keep open until the end."""
    path = f"import sys; sys.path.insert(0, {str(_PACKAGE_ROOT)!r})"
    code = f"{path}; from hopsum_topologies.cleanup_process import main; main()"
    theirs, ours = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(owner_pid)],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    finally:
        os.close(theirs)
    child.returncode = 0  # it is meant to outlive this process: no warning about that
    return ours


def main() -> None:
    """Wait for the end of the owner, then remove its leftovers."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the owner
    sys.stdin.buffer.read()
    give_up = time.monotonic() + _OWNER_GONE_S
    while Path(f"/proc/{sys.argv[1]}").exists() and time.monotonic() < give_up:
        time.sleep(_POLL_S)
    remove_stale_namespaces()
    remove_stale_directories()


if __name__ == "__main__":
    main()
