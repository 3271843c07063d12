# SPDX-License-Identifier: Apache-2.0
"""Temporary folders of running processes, `hopsum-WHAT-PID-x`.

A killed owner leaves its folder. The next process that makes a folder removes it. The owner holds a lock on a file in
the folder, which the kernel releases however the owner ends. A process id alone would not do: it may be in use again,
or belong to another container.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_OWNER = "owner.lock"


class OwnedFolder(tempfile.TemporaryDirectory[str]):
    """A new temporary folder that only this user can read, removed by `cleanup`, or at the end of a `with` block.

    The `with` statement gives its path. To make a folder removes those of dead owners (`remove_orphaned_folders`).
    `what` names its purpose, in small letters.
    """

    def __init__(self, what: str) -> None:
        remove_orphaned_folders()
        super().__init__(prefix=f"hopsum-{what}-{os.getpid()}-")
        # Locked before it has its name: no other process finds a folder whose owner seems dead.
        new = Path(self.name) / "owner.new"
        self._owner = new.open("w")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        new.rename(new.with_name(_OWNER))

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.name)

    def __enter__(self) -> Path:  # type: ignore[override]
        return self.path

    def cleanup(self) -> None:
        """Remove the folder. Harmless when that is done."""
        super().cleanup()
        self._owner.close()


def folders_in_use(what: str) -> list[Path]:
    """Return this user's folders of the purpose `what` whose owners run, sorted."""
    found = []
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"hopsum-{what}-*")):
        # A folder of another user, or one that goes at this moment, is none of ours.
        with suppress(OSError):
            if stat.S_ISDIR((status := folder.lstat()).st_mode) and status.st_uid == os.geteuid():
                with (folder / _OWNER).open("r+") as owner:
                    try:
                        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        found.append(folder)
    return found


def remove_orphaned_folders() -> None:
    """Remove this user's folders whose owners are dead: they have tokens, databases and logs."""
    for folder in Path(tempfile.gettempdir()).glob("hopsum-*"):
        # Whatever fails leaves the folder: its owner lives (BlockingIOError), or another process removes it too.
        with suppress(OSError):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                with (folder / _OWNER).open("r+") as owner:
                    fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
