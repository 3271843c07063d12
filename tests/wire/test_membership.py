# SPDX-License-Identifier: Apache-2.0
"""Property test of the membership's format: `parse_membership` reads what `format_membership` writes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from hopsum_wire import CODE_GROUPS, MAX_SLOTS, MAX_WORKERS, Op
from hopsum_wire.generations import Decided, Resume
from hopsum_wire.membership import (
    Endpoint,
    JobMembership,
    RankEndpoint,
    format_membership,
    membership_document,
    parse_membership,
)

PORTS = st.integers(1, 65535)
ADDRESSES = st.ip_addresses(v=4).map(str)
ENDPOINTS = st.builds(Endpoint, ADDRESSES, PORTS)
POSITIONS = st.integers(0, 1 << 40)


@st.composite
def resumes(draw: st.DrawFn, workers: int, window: int) -> Resume:
    """A continuation as the controller decides it: `decided` is sorted and disjoint, newcomers have a start."""
    base = draw(POSITIONS) * window
    ranks = st.lists(st.integers(0, workers - 1), min_size=1, unique=True).map(tuple)
    marks = sorted(draw(st.lists(POSITIONS.map(lambda at: base + at), unique=True, max_size=6)))
    decided = tuple(Decided(first, end, draw(ranks)) for first, end in zip(marks[::2], marks[1::2], strict=False))
    if draw(st.booleans()):
        start = base + draw(POSITIONS)
        return Resume(base, start, draw(st.integers(1, 100)), draw(POSITIONS), draw(ranks), decided)
    return Resume(base, None, 0, None, (), decided)


@st.composite
def memberships(draw: st.DrawFn) -> JobMembership:
    """Any membership that a control plane can make."""
    count, slots = draw(st.integers(1, 5)), draw(st.integers(1, MAX_SLOTS))
    window = draw(st.integers(1, slots))
    side_ports = draw(st.none() | st.lists(PORTS, min_size=count, max_size=count, unique=True))
    workers = tuple(
        RankEndpoint(
            rank,
            draw(ENDPOINTS),
            draw(ENDPOINTS),
            None if side_ports is None else side_ports[rank],
            None if side_ports is None else draw(st.none() | ADDRESSES),
            draw(st.none() | st.integers(0, MAX_WORKERS - 1)),
        )
        for rank in range(count)
    )
    return JobMembership(
        job=draw(st.text(min_size=1, max_size=8)),
        generation=draw(st.integers(1, (1 << 32) - 1)),
        slots=slots,
        window=window,
        quorum=draw(st.integers(1, count)),
        table=draw(st.none() | st.tuples(*[st.integers(0, 255)] * 16)),
        table16=draw(st.none() | st.tuples(*[st.integers(0, 65535)] * 16)),
        table6=draw(st.none() | st.tuples(*[st.integers(0, 63)] * 16)),
        switch=draw(ENDPOINTS),
        workers=workers,
        resume=draw(st.none() | resumes(count, window)),
        code_group=draw(st.sampled_from(CODE_GROUPS)),
        ops=draw(st.frozensets(st.sampled_from(list(Op)), min_size=1)),
        side_key=draw(st.none() | st.binary(min_size=32, max_size=32)),
    )


@given(memberships(), st.sampled_from([None, 2]))
def test_workers_read_what_the_control_plane_writes(membership: JobMembership, indent: int | None) -> None:
    text = format_membership(membership, indent=indent)
    assert parse_membership(text) == membership
    assert json.loads(text) == json.loads(json.dumps(membership_document(membership)))


@given(memberships())
def test_what_every_switch_has_is_left_out(membership: JobMembership) -> None:
    document = membership_document(membership)
    assert ("ops" in document) == (membership.ops != frozenset(Op))
    assert ("code_group" in document) == (membership.code_group != 512)
    assert ("side_key" in document) == (membership.side_key is not None)
    assert ("resume" in document) == (membership.resume is not None)
