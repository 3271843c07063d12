# SPDX-License-Identifier: Apache-2.0
"""The line for an exception that no code expected, in place of a traceback."""

from __future__ import annotations

import traceback
from pathlib import Path


def internal_error(error: BaseException) -> str:
    """Return one line for an exception that no code expected: its type, message and place, and where to report it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {'/'.join(Path(frames[-1].filename).parts[-3:])}:{frames[-1].lineno}" if frames else ""
    message = " ".join(str(error).split())[:300]
    return (
        f"internal error: {type(error).__name__}: {message}{place}; this is a fault of hopsum: please report this line,"
        " and what was asked for, where you have hopsum from"
    )
