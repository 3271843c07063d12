# SPDX-License-Identifier: Apache-2.0
"""The pace of a job's generations: the next one begins at once, unless the last ones were short.

A job whose workers come and go keeps its switch busy, and uses up generations, which must not run ahead of the clock.
So after FREE short generations in a row the next one begins 1 s after the last one began, then 2 s, at most LONGEST_S.
A generation that lasts SHORT_S ends the row. Only in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

FREE: Final = 4
SHORT_S: Final = 10.0
LONGEST_S: Final = 16.0


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
    """The last generations of the jobs of one switch, by name. `monotonic` gives seconds. Not thread-safe."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._begun: dict[str, _Begun] = {}

    def begun(self, job: str) -> None:
        """Note that a generation begins."""
        now_s, last = self._monotonic(), self._begun.get(job)
        short = last is not None and now_s < last.next_s + SHORT_S
        self._begun[job] = _Begun(now_s, last.short_ones + 1 if last is not None and short else 0)

    def due(self, job: str) -> bool:
        """Return whether the next generation may begin."""
        last = self._begun.get(job)
        return last is None or self._monotonic() >= last.next_s

    def condition(self, job: str) -> str:
        """Return why the next generation does not begin, an empty string if it may."""
        last = self._begun.get(job)
        if last is None or self.due(job):
            return ""
        return (
            f"its last {last.short_ones} generations were shorter than {SHORT_S:g} s; the next one begins in "
            f"{last.next_s - self._monotonic():.0f} s"
        )

    def keep_only(self, jobs: Collection[str]) -> None:
        """Forget other jobs."""
        self._begun = {job: last for job, last in self._begun.items() if job in jobs}
