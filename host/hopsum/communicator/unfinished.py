# SPDX-License-Identifier: Apache-2.0
"""Tell whether a program ends before its work is done, and why, in one line."""

from __future__ import annotations

import sys
from typing import Final

_CHARACTERS_MAX: Final = 300


def why_unfinished(error: BaseException | None) -> str:
    """Return in one line what ended the program, or an empty string for an end that is no failure.

    No failure: no error at all, `sys.exit()` with nothing or 0, a generator that is closed.
    """
    if error is None or isinstance(error, GeneratorExit):
        return ""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return ""
    name, text = type(error).__name__, " ".join(str(error).split())
    return f"{name}: {text}"[:_CHARACTERS_MAX] if text else name


def unhandled() -> BaseException | None:
    """Return the exception that nobody handled, which ends the program, or ended a command of an interactive one."""
    found: BaseException | None = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return found
