# SPDX-License-Identifier: Apache-2.0
"""The results of checks, and the report of several: plain values, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any


class Status(Enum):
    """The outcome of a check."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"
    """It would say nothing: something before it failed, or it may not ask."""


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One line of a report."""

    check: str
    """One or two words, the same in every report. For a job's further shards "shard N" follows."""
    status: Status
    finding: str
    """The finding, or for SKIP the reason."""
    fix: str = ""
    """The remedy: always there for FAIL, for PASS advice if any."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The numbers behind the words, fit for JSON."""


@dataclass(slots=True)
class DiagnosisReport:
    """The rows of one examination, in the order of the checks."""

    subject: str
    """The subject of the examination."""
    rows: list[CheckRow] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Return whether no check failed. Checks that were not made count as good."""
        return not any(row.status is Status.FAIL for row in self.rows)

    def __getitem__(self, check: str) -> CheckRow:
        """Return the row of a check. Raises KeyError if there is none."""
        for row in self.rows:
            if row.check == check:
                return row
        raise KeyError(check)

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON object: subject, good, and the checks in order, each with its facts."""
        checks = [
            {"check": row.check, "status": row.status.value, "finding": row.finding, "fix": row.fix, **row.facts}
            for row in self.rows
        ]
        return {"subject": self.subject, "good": self.good, "checks": checks}


def of_shard(row: CheckRow, number: int) -> CheckRow:
    """Return a copy of a row with "shard N" after the name of its check."""
    return replace(row, check=f"{row.check}, shard {number}")


def passed(check: str, finding: str, facts: Mapping[str, Any] | None = None, *, advice: str = "") -> CheckRow:
    """Return a row that passes. `advice` is its remedy, `facts` are numbers for JSON."""
    return CheckRow(check, Status.PASS, finding, advice, dict(facts or {}))


def failed(check: str, finding: str, fix: str, facts: Mapping[str, Any] | None = None) -> CheckRow:
    """Return a row that fails, with the remedy `fix`. `facts` are numbers for JSON."""
    return CheckRow(check, Status.FAIL, finding, fix, dict(facts or {}))


def skipped(check: str, reason: str, advice: str = "") -> CheckRow:
    """Return a row of a check that was not made, with the reason as its finding."""
    return CheckRow(check, Status.SKIP, reason, advice)
