# SPDX-License-Identifier: Apache-2.0
"""Temporary folders of running processes. Their names carry the process id of the owner, as namespaces' do.

`hopsum-WHAT-PID-x`, where temporary files are. The maker of a folder first removes those of dead owners, since a killed
owner could not do it itself.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = re.compile(r"hopsum-[a-z0-9]+-(\d+)-\w+")


@contextmanager
def temporary_directory(what: str = "topology") -> Iterator[Path]:
    """Make a folder for the block that only this user can read. `what` names its purpose, in small letters."""
    with make_temporary_directory(what) as name:
        yield Path(name)


def make_temporary_directory(what: str, inside: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """Make a folder that only we can read, to be removed by its `cleanup`.

    `inside` is a folder that the caller removes. Then the name is short, since it needs no owner.
    """
    if inside is not None:
        return tempfile.TemporaryDirectory(prefix=f"hopsum-{what}-", dir=inside)
    remove_stale_directories()
    return tempfile.TemporaryDirectory(prefix=f"hopsum-{what}-{os.getpid()}-")


def remove_stale_directories() -> list[Path]:
    """Remove this user's folders whose owner is dead. Return their paths."""
    stale = []
    for path in sorted(Path(tempfile.gettempdir()).glob("hopsum-*")):
        # The process id of an owner may be in use again. Then the folder stays until that process ends.
        match = _NAME.fullmatch(path.name)
        if match and not Path(f"/proc/{match[1]}").exists() and _is_own_folder(path):
            shutil.rmtree(path, ignore_errors=True)
            stale.append(path)
    return stale


def _is_own_folder(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid() and path.is_dir() and not path.is_symlink()
    # Another process has removed the folder in the meantime.
    except FileNotFoundError:
        return False
