# SPDX-License-Identifier: Apache-2.0
"""Removes the network namespaces and the scratch folders of a process that was killed.

`python -m hopsum_topologies.janitor OWNER_PID`, started by the owner with a pipe on stdin that nobody else holds. The
end of the pipe is the end of the owner: an orderly one has removed them itself, and nothing is left to do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hopsum_topologies.netns import remove_stale_namespaces
from hopsum_topologies.scratch import remove_stale_folders

_PACKAGE_ROOT = Path(__file__).resolve().parents[1]
_OWNER_GONE_S = 10.0
_POLL_S = 0.02


def start_janitor(owner_pid: int) -> int:
    """Start one for this process and return our end of its pipe, a descriptor to keep open until the end."""
    code = f"import sys; sys.path.insert(0, {str(_PACKAGE_ROOT)!r}); from hopsum_topologies.janitor import main; main()"
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
    child.returncode = 0  # it outlives us, which is what it is for: no warning about that
    return ours


def main() -> None:
    """Wait for the end of the owner, then remove what it left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the owner
    sys.stdin.buffer.read()
    give_up = time.monotonic() + _OWNER_GONE_S
    while Path(f"/proc/{sys.argv[1]}").exists() and time.monotonic() < give_up:
        time.sleep(_POLL_S)
    remove_stale_namespaces()
    remove_stale_folders()


if __name__ == "__main__":
    main()
