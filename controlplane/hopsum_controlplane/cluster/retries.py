# SPDX-License-Identifier: Apache-2.0
"""When what failed is tried again: after 1 s, then twice as long each time, at most 30 s."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hopsum_controlplane.cluster.errors import trouble_kind

_FIRST_S, _LONGEST_S = 1.0, 30.0


class _Failure(NamedTuple):
    trouble: str
    kind: str
    delay_s: float
    again_s: float


class Retries:
    """What failed last of the parts of one thing, by part; None is the whole. `monotonic` gives seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._failures: dict[str | None, _Failure] = {}

    def failed(self, error: Exception, part: str | None = None) -> float:
        """Note a failure, and return in how many seconds to try again."""
        last = self._failures.get(part)
        delay_s = _FIRST_S if last is None else min(2 * last.delay_s, _LONGEST_S)
        self._failures[part] = _Failure(str(error), trouble_kind(error), delay_s, self._monotonic() + delay_s)
        return delay_s

    def succeeded(self, part: str | None = None) -> None:
        """Forget a failure, if there was one."""
        self._failures.pop(part, None)

    def due(self, part: str | None = None) -> bool:
        """Return whether it is time to try."""
        failure = self._failures.get(part)
        return failure is None or self._monotonic() >= failure.again_s

    def trouble(self, part: str | None = None) -> str:
        """Return the last failure in words, an empty string when there is none."""
        failure = self._failures.get(part)
        return "" if failure is None else failure.trouble

    def kind(self, part: str | None = None) -> str:
        """Return the last failure's kind, see `trouble_kind`, an empty string when there is none."""
        failure = self._failures.get(part)
        return "" if failure is None else failure.kind
