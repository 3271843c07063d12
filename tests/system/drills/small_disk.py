# SPDX-License-Identifier: Apache-2.0
"""A small tmpfs in a mount namespace of its own, for a disk that is soon full."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_DISK_BYTES: Final = 8 << 20
_CLONE_NEWNS: Final = 0x20000


def tmpfs_unavailable() -> str:
    """Return the reason why this machine can not mount a small disk, an empty string if it can."""
    if os.geteuid() != 0:
        return "a tmpfs needs root"
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "hopsum", "/mnt"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "the `unshare` command (util-linux) is not on PATH"
    return "" if done.returncode == 0 else f"no tmpfs can be mounted: {done.stderr.strip()}"


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a tmpfs on `folder` for the block, seen by this thread and the processes that it starts. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare: " + os.strerror(ctypes.get_errno()))
    for words in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "hopsum", os.fspath(folder)]):
        done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(done.returncode, f"mount {words}: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", os.fspath(folder)], capture_output=True, check=False)
