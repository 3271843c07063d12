# SPDX-License-Identifier: Apache-2.0
"""The audit lines of the log: one for every call that changes something, or takes the database, and for refused ones.

With `--log json` a line has these keys in its object `audit`::

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

import logging
from collections.abc import Mapping
from typing import Any, Final

_log: Final = logging.getLogger(__name__)


def write_audit_line(action: str, **about: Any) -> None:
    """Log one audit line, at level info. `about` has the module's keys but `action`, and may have others."""
    line = {"action": action, **about}
    _log.info("audit: %s", _in_words(line), extra={"audit": line})


def _in_words(line: Mapping[str, Any]) -> str:
    who = " ".join(str(line[key]) for key in ("identity", "certificate", "peer") if key in line)
    what = f"{line['action']} {line['job']}" if "job" in line else line["action"]
    refused = f", refused: {line['refused']}" if "refused" in line else ""
    return f"{what} by {who}{refused}" if who else f"{what}{refused}"
