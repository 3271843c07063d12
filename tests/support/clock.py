# SPDX-License-Identifier: Apache-2.0
"""A clock that a test sets."""

from __future__ import annotations


class FakeClock:
    """A callable clock whose time changes only when a test changes `now_s`."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass at once."""
        self.now_s += seconds
