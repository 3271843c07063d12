# SPDX-License-Identifier: Apache-2.0
"""The claims of the report, and the one function that gives the verdict on each.

    samples                  the whole interval satisfies the relation    verdict
    fewer than LEAST         -                                            not run
    some not finite          -                                            not reproduced
    LEAST or more            yes                                          reproduced
    LEAST or more            no                                           not reproduced; UNDECIDED if part of it does

A sample is the figure of one seed. The interval is that of `interval`. All of it must satisfy the relation, so that a
run too small to tell is a claim not reproduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite
from typing import Final

from hopsum_evaluation.interval import LEAST, Interval, interval

UNDECIDED: Final = "too few samples to tell"


class Relation(StrEnum):
    """Relation that a measured value must have to the published one."""

    AT_MOST = "at most"
    AT_LEAST = "at least"
    WITHIN = "within"


class Basis(StrEnum):
    """Origin of the published value."""

    PUBLISHED = "published"
    RECALLED = "recalled, not verified"
    THEORY = "formula"
    OWN = "own"


class Verdict(StrEnum):
    """Result of a run for a claim."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Claim:
    """A published figure, and the condition under which a run reproduces it."""

    name: str
    text: str
    """The quantity, in words."""
    source: str
    """Paper and place, as far as they are known."""
    basis: Basis
    published: float
    relation: Relation
    margin: float = 0.0
    """Most that the measured value may differ where the relation is WITHIN, in the quantity's unit."""

    @property
    def condition(self) -> str:
        """Relation and published value, in words."""
        reach = f" ± {self.margin:.4g}" if self.relation is Relation.WITHIN else ""
        return f"{self.relation} {self.published:.4g}{reach}"

    @property
    def allowed(self) -> tuple[float, float]:
        """Least and greatest value that satisfies the condition."""
        if self.relation is Relation.WITHIN:
            return self.published - self.margin, self.published + self.margin
        return (-inf, self.published) if self.relation is Relation.AT_MOST else (self.published, inf)


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim with its samples and verdict.

    ours: interval of the samples, None where there is none.
    reason: the cause of a missing interval, or of a verdict that says little. Empty where there is neither.
    """

    claim: Claim
    samples: tuple[float, ...]
    ours: Interval | None
    verdict: Verdict
    reason: str = ""


def judge(claim: Claim, samples: Sequence[float], reason: str = "") -> JudgedClaim:
    """Give the verdict on a claim, by the table at the top of this module.

    Args:
        claim: the published figure.
        samples: measured figures, one per seed.
        reason: the cause of samples that are missing or not finite. Empty: a usual one is named.
    """
    found = tuple(float(each) for each in samples)
    if len(found) < LEAST:
        return JudgedClaim(claim, found, None, Verdict.NOT_RUN, reason or "too few seeds for an interval")
    if not all(isfinite(each) for each in found):
        return JudgedClaim(claim, found, None, Verdict.NOT_REPRODUCED, reason or "a sample is not finite")
    ours = interval(found)
    least, most = claim.allowed
    if least <= ours.low and ours.high <= most:
        return JudgedClaim(claim, found, ours, Verdict.REPRODUCED)
    # The interval is in part allowed: more seeds could decide either way.
    undecided = ours.low <= most and ours.high >= least
    return JudgedClaim(claim, found, ours, Verdict.NOT_REPRODUCED, UNDECIDED if undecided else "")
