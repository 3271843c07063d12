# SPDX-License-Identifier: Apache-2.0
"""The claims of the report, and the one function that gives the verdict on each.

    samples                  the whole interval satisfies the relation    verdict
    fewer than two           -                                            not run
    some not finite          -                                            not reproduced
    two or more              yes                                          reproduced
    two or more              no                                           not reproduced; UNDECIDED if part of it does

A sample is the figure of one seed. The interval is that of `interval`. All of it must satisfy the relation, so that a
run too small to tell is a claim not reproduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite
from typing import Final

from hopsum_evaluation.report.interval import Interval, interval

UNDECIDED: Final = "too few samples to tell"


class Relation(StrEnum):
    """What ours has to be, beside the published value."""

    AT_MOST = "at most"
    AT_LEAST = "at least"
    WITHIN = "within"


class Basis(StrEnum):
    """How the published value is known."""

    PUBLISHED = "published"
    RECALLED = "recalled, not verified in the paper's text"
    THEORY = "a formula"
    OWN = "claimed by this project"


class Verdict(StrEnum):
    """What a run says about a claim."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure that somebody published."""

    name: str
    text: str
    """The words for what is claimed of which quantity."""
    source: str
    """Paper and place, as far as they are known."""
    basis: Basis
    published: float
    relation: Relation
    margin: float = 0.0
    """The most that ours may differ where the relation is WITHIN, in the quantity's unit."""

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
class Judged:
    """A claim with ours beside it. `ours` is None where no interval exists. `reason`: why, or why it tells little."""

    claim: Claim
    samples: tuple[float, ...]
    ours: Interval | None
    verdict: Verdict
    reason: str = ""


def judge(claim: Claim, samples: Sequence[float], reason: str = "") -> Judged:
    """Return the verdict that the samples of a run allow.

    Args:
        claim: what is published.
        samples: ours, one per seed.
        reason: why there are none, or one is not finite.
    """
    found = tuple(float(each) for each in samples)
    if len(found) < 2:
        return Judged(claim, found, None, Verdict.NOT_RUN, reason or f"{len(found)} samples have no interval")
    if not all(isfinite(each) for each in found):
        return Judged(claim, found, None, Verdict.NOT_REPRODUCED, reason or "a sample is not finite")
    ours = interval(found)
    least, most = claim.allowed
    if least <= ours.low and ours.high <= most:
        return Judged(claim, found, ours, Verdict.REPRODUCED)
    undecided = ours.low <= most and ours.high >= least
    return Judged(claim, found, ours, Verdict.NOT_REPRODUCED, UNDECIDED if undecided else "")
