# SPDX-License-Identifier: Apache-2.0
"""A long wait stands on the log, once."""

from __future__ import annotations

import pytest

from hopsum.notice import AFTER_S, WaitNotice, telling


def test_what_takes_long_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    notice = WaitNotice("rank 0", clock=lambda: now_s)
    notice.say("rank 1 to join", 60, "membership_wait_s")
    assert caplog.messages == []
    now_s += AFTER_S
    for left_s in (55, 50):
        notice.say("rank 1 to join", left_s, "membership_wait_s")
    notice.say("an answer", 40, "membership_wait_s")
    assert caplog.messages == [
        "rank 0: waiting for rank 1 to join, for 55 s more at most (membership_wait_s)",
        "rank 0: waiting for an answer, for 40 s more at most (membership_wait_s)",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}, "seen without any set-up"


def test_what_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    WaitNotice("rank 0", clock=lambda: 0.0).say("another", 1, "why", at_once=True)
    assert len(caplog.messages) == 1


def test_a_block_that_is_over_soon_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with telling("still at it", after_s=3600.0):
        pass
    assert caplog.messages == []
