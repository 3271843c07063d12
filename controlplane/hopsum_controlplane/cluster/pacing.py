# SPDX-License-Identifier: Apache-2.0
"""When a switch's next try is due: Pace for the generations of jobs, Backoff after failures. Only clocks are here."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from hopsum_controlplane.errors import condition_reason

FREE: Final = 4
"""Short generations in a row that begin at once."""
SHORT_S: Final = 10.0
"""A generation that lasts as long is not short."""
LONGEST_S: Final = 16.0
"""The longest pause between the beginnings of two generations."""
_FIRST_TRY_S: Final = 1.0
_LAST_TRY_S: Final = 30.0
_UNREACHABLE: Final = "unreachable"


class _Begun(NamedTuple):
    at_s: float
    short_ones: int
    """The number of short ones in a row before it."""

    @property
    def next_s(self) -> float:
        """Return when the next one may begin."""
        if self.short_ones < FREE:
            return self.at_s
        return self.at_s + min(2.0 ** min(self.short_ones - FREE, 16), LONGEST_S)


class Pace:
    """The pace of the generations of one switch's jobs, by name: at once, unless the last ones were short.

    A job whose workers come and go keeps its switch busy, and uses up generations, which must not run ahead of the
    clock. After FREE short generations in a row the next one begins 1 s after the last one began, then 2 s, at most
    LONGEST_S. A generation that lasts SHORT_S ends the row. Only in memory, and not thread-safe. `monotonic` gives
    seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._begun: dict[str, _Begun] = {}

    def record_begin(self, job: str) -> None:
        """Record that a generation of a job begins now."""
        now_s, last = self._monotonic(), self._begun.get(job)
        # From when it could have begun: the pause itself does not make a generation long.
        short = last is not None and now_s < last.next_s + SHORT_S
        self._begun[job] = _Begun(now_s, last.short_ones + 1 if last is not None and short else 0)

    def is_due(self, job: str) -> bool:
        """Return whether the next generation of a job may begin now."""
        last = self._begun.get(job)
        return last is None or self._monotonic() >= last.next_s

    def condition(self, job: str) -> str:
        """Return why the next generation does not begin, an empty string if it may."""
        last = self._begun.get(job)
        if last is None or self.is_due(job):
            return ""
        return (
            f"its last {last.short_ones} generations were shorter than {SHORT_S:g} s; the next one begins in "
            f"{last.next_s - self._monotonic():.0f} s"
        )

    def keep_only(self, jobs: Collection[str]) -> None:
        """Forget all jobs but these."""
        self._begun = {job: last for job, last in self._begun.items() if job in jobs}


class _Failure(NamedTuple):
    condition: str
    kind: str
    delay_s: float
    again_s: float
    times: int


class Backoff:
    """The last failures of a switch, by part: a job's name, or None for the switch itself. `monotonic` gives seconds.

    The wait before another try is 1 s, then twice as long each time, at most 30 s. A switch that does not answer is
    asked every second: its workers wait, and the question costs little.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._failures: dict[str | None, _Failure] = {}

    def record_failure(self, error: Exception, part: str | None = None) -> float:
        """Record a failure of a part, and return the seconds until the next try."""
        last, kind = self._failures.get(part), condition_reason(error)
        # A switch that does not answer costs a packet a second; a refusal is expensive, and is asked for ever more
        # seldom.
        delay_s = _FIRST_TRY_S if last is None or kind == _UNREACHABLE else min(2 * last.delay_s, _LAST_TRY_S)
        times = 1 + (0 if last is None or last.kind != kind else last.times)
        self._failures[part] = _Failure(str(error), kind, delay_s, self._monotonic() + delay_s, times)
        return delay_s

    def should_log(self, part: str | None = None) -> bool:
        """Return whether a part's last failure is the first, second, fourth, eighth... of its kind in a row.

        `record_failure` counts, this call changes nothing. False for a part without a failure since it last succeeded.
        """
        failure = self._failures.get(part)
        # A power of two: the log of a failure that stays grows by its logarithm.
        return failure is not None and failure.times & (failure.times - 1) == 0

    def record_success(self, part: str | None = None) -> None:
        """Forget the failures of a part, if there were any."""
        self._failures.pop(part, None)

    def is_due(self, part: str | None = None) -> bool:
        """Return whether a part may be tried: it has no failure, or the pause after its last failure has passed."""
        failure = self._failures.get(part)
        return failure is None or self._monotonic() >= failure.again_s

    def condition(self, part: str | None = None) -> str:
        """Return the last failure in words, an empty string when there is none."""
        failure = self._failures.get(part)
        return "" if failure is None else failure.condition

    def kind(self, part: str | None = None) -> str:
        """Return the last failure's kind, see `condition_reason`, an empty string when there is none."""
        failure = self._failures.get(part)
        return "" if failure is None else failure.kind
