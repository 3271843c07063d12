# SPDX-License-Identifier: Apache-2.0
"""The rounds of a generation: they do not wrap (rule N4), so a generation ends before they run out."""

from __future__ import annotations

from hopsum_controlplane.cluster.records import JobRecord, JobState, Member, MemberPhase

ROUNDS = 1 << 32
ROUNDS_MOST = ROUNDS // 4 * 3
"""Rounds of a slot that a generation uses: the rest is for what happens until it has ended."""


def rounds_used_up(record: JobRecord, member: Member, position: float) -> str:
    """Return why a generation is to end before its rounds, which do not wrap (N4), run out. Empty while they last."""
    rounds = position / (record.window or record.region.size)
    if record.state is not JobState.RUNNING or member.phase is not MemberPhase.IN or rounds <= ROUNDS_MOST:
        return ""
    return (
        f"rank {member.rank} has used {rounds:.0f} of the {ROUNDS} rounds that a slot has in a generation: "
        "they begin anew in another"
    )
