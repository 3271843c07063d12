# SPDX-License-Identifier: Apache-2.0
"""Bonus: 16 slots, each with the two versions of level 3, so that a worker has several chunks under way."""

from __future__ import annotations

from hopsum_labs.cases.loss import again_after_the_end, again_before_the_end, late_worker, who_does_not_exist
from hopsum_labs.cases.udp import contribute, play, set_up
from hopsum_labs.lab_switch import Testbed
from hopsum_labs.packets import total
from hopsum_labs.rule_checks import Case, expect_nothing, expect_results, vectors

SLOTS = 16


def side_by_side(switch: Testbed) -> None:
    """Check rounds that are under way in all slots and both versions at the same time."""
    set_up(switch, 2)
    copies = [(slot, version) for version in range(2) for slot in range(SLOTS)]
    rounds = {copy: vectors(2, seed=number) for number, copy in enumerate(copies)}
    for version in range(2):
        for slot in range(SLOTS):
            answers = contribute(switch, 0, rounds[slot, version][0], slot=slot, version=version)
            expect_nothing(answers, f"rank 1 has not contributed to slot {slot}")
        # Rounds end in another order than they began: a program that keeps one round for all slots fails.
        for slot in reversed(range(SLOTS)):
            answers = contribute(switch, 1, rounds[slot, version][1], slot=slot, version=version)
            expect_results(answers, range(2), total(rounds[slot, version]), f"slot {slot}, version {version}")
    for slot in range(SLOTS):
        answers = contribute(switch, 1, rounds[slot, 1][1], slot=slot, version=1)
        expect_results(answers, [1], total(rounds[slot, 1]), f"rank 1 asks again for slot {slot}, version 1")


def no_such_slot(switch: Testbed) -> None:
    """Check that packets for slots from 16 on are dropped, and all of `who_does_not_exist`.

    A register index out of range would crash bmv2.
    """
    set_up(switch, 2)
    contributions = vectors(2)
    contribute(switch, 0, contributions[0], slot=SLOTS - 1, version=1)
    for slot in (SLOTS, 31, 255):
        for rank in range(2):
            for version in range(2):
                answers = contribute(switch, rank, contributions[rank], slot=slot, version=version)
                expect_nothing(answers, f"slot {slot} does not exist")
    answers = contribute(switch, 0, contributions[0], slot=SLOTS - 1, version=1)
    expect_nothing(answers, "rank 0 sent this before, ahead of packets for slots that do not exist")
    answers = contribute(switch, 1, contributions[1], slot=SLOTS - 1, version=1)
    expect_results(answers, range(2), total(contributions), "a round beside packets for slots that do not exist")
    switch.reload()
    # A job of one, in which whatever is taken for a contribution is answered.
    set_up(switch, 1)
    for slot in (SLOTS, 31, 255):
        expect_nothing(contribute(switch, 0, contributions[0], slot=slot), f"slot {slot} does not exist")
    switch.reload()
    who_does_not_exist(switch)


def one_after_the_other(switch: Testbed) -> None:
    """Check round after round in the first, a middle and the last slot."""
    for workers in (3, 8):
        switch.reload()
        set_up(switch, workers)
        for number in range(4):
            # The first, one in the middle and the last: an index that is off by one misses an end.
            for slot in (0, 7, SLOTS - 1):
                when = f"round {number + 1} of {workers} workers in slot {slot}"
                play(switch, vectors(workers, seed=number + slot), when, slot=slot, version=number % 2)


CASES = (
    Case("one_after_the_other", "every slot works as the only one of level 3 (rule 1)", 1, one_after_the_other),
    Case("side_by_side", "rounds in different slots do not disturb each other (rule 1)", 2, side_by_side),
    Case("no_such_slot", "slots, ranks and versions that do not exist are dropped (rule 2)", 1, no_such_slot),
    Case("again_before_the_end", "what comes again is not added again (rule 1)", 1, again_before_the_end),
    Case("again_after_the_end", "who asks again after the end gets the RESULT, alone (rule 1)", 1, again_after_the_end),
    Case("late_worker", "the other version keeps the RESULT for who is late (rule 1)", 1, late_worker),
)
