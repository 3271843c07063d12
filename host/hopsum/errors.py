# SPDX-License-Identifier: Apache-2.0
"""The exceptions that a caller of hopsum may handle. A message has the failure, its place, the numbers and a remedy."""

from __future__ import annotations

import sys
from typing import Final

from hopsum_base.errors import HopsumError
from hopsum_base.shown import name_ranks as name_ranks  # for messages of ours
from hopsum_base.shown import shorten

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
    """An all-reduce has no result. The generation has ended for this worker, unless the subclass says otherwise."""


class AllReduceTimeoutError(AllReduceError, TimeoutError):
    """A chunk had no result at its deadline. `missing_ranks`: the ranks for which the switch waited, if known."""

    def __init__(self, message: str, missing_ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.missing_ranks = missing_ranks


class RankLeftError(AllReduceError):
    """An all-reduce has no result, because ranks have left the job. `ranks`: the ranks that left, if known."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class ResultLostError(AllReduceError):
    """The switch no longer has a result that this worker lacks."""


class FellBehindError(ResultLostError):
    """The peers no longer keep the results that this worker lacks: it must resynchronise before it takes part again."""


class WorkersReplacedError(AllReduceError):
    """An all-reduce ended without a result on all ranks, because workers were replaced. `ranks`: the replaced ranks.

    The job continues with the newcomers, which load the state of another worker.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class GenerationEndedError(HopsumError):
    """The generation sums no more: all-reduces without a result, and later ones, end with this error.

    An all-reduce failed, this rank has no place in the job any more, the controller refused to continue the job, or the
    rounds of the slots are used up. `__cause__` is the cause, where there is an error that caused it.
    """


def why_unfinished(error: BaseException | None) -> str:
    """Return the program's fatal error in one short line, or an empty string if the program ended without a failure.

    No error, `sys.exit()` with nothing or 0, and a generator that is closed are no failures.
    """
    # GeneratorExit: Python closes a generator that is not exhausted.
    if error is None or isinstance(error, GeneratorExit):
        return ""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return ""
    name, text = type(error).__name__, " ".join(str(error).split())
    return shorten(f"{name}: {text}", _WHY_CHARACTERS_MAX) if text else name


def unhandled_error() -> BaseException | None:
    """Return the unhandled exception that ends the program, or that ended a command of an interactive one, or None."""
    # sys.last_exc is of Python 3.12; before, the exception is sys.last_value.
    found: BaseException | None = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return found
