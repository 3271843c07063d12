# SPDX-License-Identifier: Apache-2.0
"""Runs of datagrams in one piece are cut where the first one's header says."""

from __future__ import annotations

import pytest

from hopsum.transport.segments import split_segments
from hopsum_wire import Header, Kind

STATE = Header(kind=Kind.STATE).pack()
RESULT = Header(kind=Kind.RESULT, length=1024).pack() + bytes(1024)


@pytest.mark.parametrize(
    "datagrams",
    [[STATE], [RESULT], [STATE] * 32, [RESULT] * 5, [RESULT, RESULT, STATE], [b"short"], [bytes(32)], [RESULT[:-1]]],
)
def test_a_run_is_cut_into_its_datagrams(datagrams: list[bytes]) -> None:
    assert [bytes(view) for view in split_segments(memoryview(b"".join(datagrams)))] == datagrams
