# SPDX-License-Identifier: Apache-2.0
"""Files of secrets, which nobody but the user of a process may read. Needs no gRPC."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_OF_ROOT: Final = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO


def read_private(path: Path, what: str, error: type[Exception]) -> bytes:
    """Return the content of a file that nobody but this process's user can read.

    A file of root may also be readable for its group, as secrets are that Kubernetes mounts or systemd hands over.
    Raises `error` when the file cannot be read, or others can read it. `what` is the file in words.
    """
    try:
        with open(path, "rb") as file:
            # The mode of the open file, not of the path, which may be another file by then.
            status = os.fstat(file.fileno())
            content = file.read()
    except OSError as refusal:
        raise error(f"{what} {path} cannot be read: {refusal}") from refusal
    # Kubernetes and systemd mount secrets as root's, readable for the group of the service.
    of_root = status.st_uid == 0 and os.geteuid() != 0
    if status.st_mode & (_OTHERS_OF_ROOT if of_root else _OTHERS):
        raise error(
            f"{what} {path} has mode {stat.S_IMODE(status.st_mode):04o}: others can read it; "
            f"chmod 600 {path}, and make a new one: this one may be known"
        )
    return content
