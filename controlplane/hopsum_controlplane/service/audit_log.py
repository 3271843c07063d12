# SPDX-License-Identifier: Apache-2.0
"""An audit log: a line for every call that changes something, or takes the database, and for every one that is refused.

A line is one JSON object::

    time        UTC, ISO 8601
    action      CreateJob, DeleteJob, Backup, ..., Start, Stop and Reload of the controller itself
    job         that it is about, left out for other actions
    identity    name of the administrator's token, "anybody" where none is asked for, "unknown" with a wrong token
    certificate common name of the client's certificate, left out where none is asked for
    peer        address and port of the call, left out for the controller's own actions
    before      state of the job before, null where there was none
    after       state of the job after, null where there is none
    refused     why nothing was done, left out where it was
    refused_before  calls without an administrator's token that have no line, since there were too many
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from hopsum_controlplane.errors import ControlPlaneError

_log: Final = logging.getLogger(__name__)


class AuditLog:
    """Writes the lines to a file, which is private and only ever gets longer, and to the log. Thread-safe.

    Without a file they go to the log alone. Raises ControlPlaneError when the file cannot be opened.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._path, self._file = path, None if path is None else _opened(path)

    def reopen(self, path: Path | None) -> None:
        """Go on in the file of this name, as after a rotation. Raises ControlPlaneError. Then it goes on as before."""
        file = None if path is None else _opened(path)
        with self._lock:
            # The new file is open before the old one is closed: no line is lost in between.
            before, self._path, self._file = self._file, path, file
        if before is not None:
            os.close(before)

    def write(self, action: str, **about: Any) -> None:
        """Write a line. One that cannot be written is in the log at level error, and what was done stays done."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "action": action, **about}
        _log.info("audit: %s", _in_words(line), extra={"audit": line})
        with self._lock:
            try:
                if self._file is not None:
                    # One write of a whole line to a file opened with O_APPEND: lines of several processes do not mix.
                    os.write(self._file, (json.dumps(line, default=str) + "\n").encode())
            except OSError as error:
                _log.error("audit log %s cannot be written: %s; the line is %s", self._path, error, json.dumps(line))

    def close(self) -> None:
        """Close the file. Harmless when it is closed."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ControlPlaneError(f"audit log {path} cannot be opened: {error}", hint="see audit_log") from error


def _in_words(line: Mapping[str, Any]) -> str:
    who = " ".join(str(line[key]) for key in ("identity", "certificate", "peer") if key in line)
    what = f"{line['action']} {line['job']}" if "job" in line else line["action"]
    refused = f", refused: {line['refused']}" if "refused" in line else ""
    return f"{what} by {who}{refused}" if who else f"{what}{refused}"
