# SPDX-License-Identifier: Apache-2.0
"""What is claimed, and the one function that says whether a run supports it.

    samples                  the whole interval satisfies the relation    verdict
    fewer than two           -                                            not run
    some not finite          -                                            not reproduced
    two or more              yes                                          reproduced
    two or more              no                                           not reproduced

A sample is the figure of one seed. The interval is that of `interval`; all of it must satisfy the relation, so that a
run too small to tell is a claim not reproduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from hopsum.cli.report.interval import Interval, interval


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
    """What is claimed of which quantity."""
    source: str
    """Paper and place, as far as they are known."""
    basis: Basis
    published: float
    relation: Relation
    margin: float = 0.0
    """Of WITHIN: by how much ours may differ, in the quantity's unit."""

    @property
    def condition(self) -> str:
        """Relation and published value, in words."""
        reach = f" ± {self.margin:.4g}" if self.relation is Relation.WITHIN else ""
        return f"{self.relation} {self.published:.4g}{reach}"


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim with ours beside it; `ours` is None where no interval exists, and `reason` says why."""

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
    verdict = Verdict.REPRODUCED if _holds(claim, ours) else Verdict.NOT_REPRODUCED
    return Judged(claim, found, ours, verdict)


def _holds(claim: Claim, ours: Interval) -> bool:
    if claim.relation is Relation.AT_MOST:
        return ours.high <= claim.published
    if claim.relation is Relation.AT_LEAST:
        return ours.low >= claim.published
    return claim.published - claim.margin <= ours.low and ours.high <= claim.published + claim.margin
