# SPDX-License-Identifier: Apache-2.0
"""The exceptions that a caller of hopsum may handle. Messages say what, where, the numbers, and what to do next."""

from __future__ import annotations

import sys
from typing import Final

from hopsum_base.errors import HopsumError
from hopsum_base.shown import name_ranks as name_ranks  # for messages of ours
from hopsum_base.shown import shortened

__all__ = [
    "AllReduceError",
    "AllReduceTimeoutError",
    "FellBehindError",
    "GenerationEndedError",
    "HopsumError",
    "RankLeftError",
    "ResultLostError",
    "WorkersReplacedError",
]

_WHY_CHARACTERS_MAX: Final = 300


class AllReduceError(HopsumError):
    """An all-reduce has no result. The generation is over for this worker, unless the subclass says otherwise."""


class AllReduceTimeoutError(AllReduceError, TimeoutError):
    """A chunk had no result at its deadline. `missing_ranks`: whom its switch waited for, if it said so."""

    def __init__(self, message: str, missing_ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.missing_ranks = missing_ranks


class RankLeftError(AllReduceError):
    """An all-reduce waits for ranks that have left the job, so it never has a result. `ranks`: theirs, if known."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class ResultLostError(AllReduceError):
    """The switch has given up a round whose result this worker lacks."""


class FellBehindError(ResultLostError):
    """This worker is further behind than its peers keep results: it must resynchronise before it takes part again."""


class WorkersReplacedError(AllReduceError):
    """An all-reduce ended without a result, on all ranks alike, since workers were replaced. `ranks`: theirs.

    The generation is not over: the job goes on with the newcomers, whose state comes from the others.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class GenerationEndedError(HopsumError):
    """The generation takes no more chunks: an all-reduce failed in it, or its rounds are used up."""


def why_unfinished(error: BaseException | None) -> str:
    """Return in one line what ended the program, or an empty string for an end that is no failure.

    No failure: no error at all, `sys.exit()` with nothing or 0, a generator that is closed.
    """
    # GeneratorExit: a generator that is not used up is closed, which is no failure.
    if error is None or isinstance(error, GeneratorExit):
        return ""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return ""
    name, text = type(error).__name__, " ".join(str(error).split())
    return shortened(f"{name}: {text}", _WHY_CHARACTERS_MAX) if text else name


def unhandled() -> BaseException | None:
    """Return the exception that nobody handled, which ends the program, or ended a command of an interactive one."""
    # sys.last_exc is of Python 3.12; before, the exception is sys.last_value.
    found: BaseException | None = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return found
