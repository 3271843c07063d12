# SPDX-License-Identifier: Apache-2.0
"""Joins that were refused although the token was right: why a rank is missing that believes it has been started.

Who has no token leaves nothing here. Only in memory.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class JoinRejections:
    """The number of refused joins of a job, with reason and time of the last one; an empty string and None for none."""

    count: int = 0
    last: str = ""
    at_s: float | None = None


class RejectedJoins:
    """The refused joins of all jobs, by name. Not thread-safe."""

    def __init__(self) -> None:
        self._rejected: dict[str, JoinRejections] = {}

    def note(self, job: str, why: str, at_s: float) -> None:
        """Count a refusal at a time in seconds."""
        self._rejected[job] = JoinRejections(self.of(job).count + 1, why, at_s)

    def of(self, job: str) -> JoinRejections:
        """Return what a job has been refused."""
        return self._rejected.get(job, JoinRejections())

    def keep_only(self, jobs: Collection[str]) -> None:
        """Forget the refusals of other jobs."""
        self._rejected = {job: rejections for job, rejections in self._rejected.items() if job in jobs}
