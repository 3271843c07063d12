# SPDX-License-Identifier: Apache-2.0
"""The waiting time before another try: 1 s, then twice as long each time, at most 30 s.

A switch that does not answer is asked every second: its workers wait, and such a question costs
little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hopsum_controlplane.cluster.errors import condition_reason

_FIRST_S, _LONGEST_S = 1.0, 30.0
_UNREACHABLE = "unreachable"


class _Failure(NamedTuple):
    condition: str
    kind: str
    delay_s: float
    again_s: float
    times: int


class Backoff:
    """The last failures of the parts of one thing, by part. None is the whole. `monotonic` gives seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._failures: dict[str | None, _Failure] = {}

    def failed(self, error: Exception, part: str | None = None) -> float:
        """Note a failure, and return in how many seconds to try again."""
        last, kind = self._failures.get(part), condition_reason(error)
        delay_s = _FIRST_S if last is None or kind == _UNREACHABLE else min(2 * last.delay_s, _LONGEST_S)
        times = 1 + (0 if last is None or last.kind != kind else last.times)
        self._failures[part] = _Failure(str(error), kind, delay_s, self._monotonic() + delay_s, times)
        return delay_s

    def should_log(self, part: str | None = None) -> bool:
        """Return whether a failure is the first, second, fourth, eighth... of its kind in a row."""
        failure = self._failures.get(part)
        return failure is not None and failure.times & (failure.times - 1) == 0

    def succeeded(self, part: str | None = None) -> None:
        """Forget a failure, if there was one."""
        self._failures.pop(part, None)

    def due(self, part: str | None = None) -> bool:
        """Return whether it is time to try."""
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
