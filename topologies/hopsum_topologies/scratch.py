# SPDX-License-Identifier: Apache-2.0
"""A folder for the files of a running network. Its name carries the process id of its owner, as namespaces' do."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "hopsum-topology"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-\w+")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder that only we can read, for the block; those of dead owners are removed first."""
    remove_stale_folders()
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}-{os.getpid()}-") as name:
        yield Path(name)


def remove_stale_folders() -> list[Path]:
    """Remove the folders whose owner is dead, as far as they are ours; return their paths."""
    stale = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}-*")):
        match = _NAME.fullmatch(path.name)
        if match and not Path(f"/proc/{match[1]}").exists() and path.lstat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
            stale.append(path)
    return stale
