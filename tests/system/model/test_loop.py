# SPDX-License-Identifier: Apache-2.0
"""Searches of the loop model: deciding at the front port breaks, and deciding on return, as p4/tna does, does not.

Traces are the shortest ones. Numbers of states are those of this model, so that a change of the model is seen.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from .loop import Loop, search

TWO = (((1, 1),), ((1, 1),))
"""Two workers, one round."""
AGAIN = (((1, 1), (1, 1)), ((1, 1), (1, 3)))
"""A duplicate, and a newer round of the same copy."""
NEXT = (((1, 1), (2, 1)), ((1, 1), (2, 1)))
"""Two workers in two generations."""
ALONE = (((1, 1), (1, 1)),)
"""One worker that sends its packet twice."""
RETURN = Loop(TWO, decide_on_return=True)


def test_deciding_at_the_front_port_breaks_when_packets_enter_the_queue_in_another_order() -> None:
    """Worker 0 opens the round, worker 1 completes it, and worker 1's packet is queued first."""
    found = search(Loop(TWO))
    assert found.trace == "a0 a1 s1 e i e i e i e i"
    assert found.wrong.startswith("sum: RESULT of ")
    assert found.wrong.endswith("in 4 of 4 rows")


def test_deciding_at_the_front_port_breaks_when_the_queue_drops_a_packet() -> None:
    """One port cannot swap packets: the drop alone is enough."""
    assert search(Loop(ALONE, quorum=1)).wrong == ""
    found = search(Loop(ALONE, quorum=1, drops=1))
    assert found.trace == "a0 s0! a0 s0 e i e i e i e i"
    assert found.wrong.startswith("sum: RESULT of ")


@pytest.mark.parametrize(
    ("loop", "states"),
    [
        (RETURN, 103),
        (replace(RETURN, drops=1), 121),
        (replace(RETURN, sends=AGAIN, drops=1), 8_157),
        (replace(RETURN, sends=AGAIN, quorum=1, drops=1), 37_720),
        (replace(RETURN, sends=NEXT, changes=1, drops=1), 6_862),
    ],
)
def test_deciding_on_return_is_right(loop: Loop, states: int) -> None:
    """Whatever the order of queueing, and whichever undecided packet is dropped."""
    found = search(loop)
    assert found.wrong == "", found.trace
    assert found.states == states


def test_deciding_on_return_needs_the_tables_again() -> None:
    """Rule S1: an admitted packet waits, its generation ends, and the packet must not change the next one's copy."""
    found = search(replace(RETURN, sends=NEXT, changes=1, lookup_on_return=False))
    assert found.trace == "a0 s0 e g i"
    assert found.wrong.startswith("S1: ")


def test_deciding_on_return_needs_a_queue_that_keeps_decided_packets() -> None:
    """A decided packet that is dropped stays a wrong sum."""
    found = search(replace(RETURN, drops=1, drop_decided=True))
    assert "i!" in found.trace
    assert found.wrong.startswith("sum: RESULT of ")
