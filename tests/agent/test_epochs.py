# SPDX-License-Identifier: Apache-2.0
"""What an agent knows of the epochs of its job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.agent.epochs import Epochs
from hopsum_wire.epochs import Resume
from hopsum_wire.membership import Endpoint, JobMembership, MembershipError, RankEndpoint

SWITCH = Endpoint("127.0.0.1", 4800)
SEATS = tuple(RankEndpoint(rank, Endpoint("127.0.0.1", 6000 + rank), SWITCH) for rank in range(3))
FIRST = JobMembership("ddp", 70, 16, 16, 3, None, SWITCH, SEATS)


def later(epoch: int, start: int | None = None, start_epoch: int = 0, ranks: tuple[int, ...] = ()) -> JobMembership:
    numbers = None if start is None else start // 2
    return replace(FIRST, epoch=epoch, resume=Resume(0, start, start_epoch, numbers, ranks, ()))


def enter(epochs: Epochs, membership: JobMembership) -> None:
    assert membership.resume is not None
    epochs.enter(membership, membership.resume)


def test_nobody_is_new_in_the_first_epoch() -> None:
    epochs = Epochs(FIRST, 0)
    assert (epochs.is_newcomer, epochs.allreduces, epochs.replaced) == (False, 0, None)
    enter(epochs, later(71))
    assert epochs.answer() is None


def test_a_newcomer_begins_where_the_job_agreed() -> None:
    epochs = Epochs(later(71, 40, 71, (1, 2)), 2)
    assert (epochs.is_newcomer, epochs.allreduces, epochs.start_epoch) == (True, 20, 71)
    assert epochs.replaced is None, "it has nobody to tell anything"
    enter(epochs, later(72, 40, 71, (1, 2)))
    assert epochs.replaced is None, "it was there"


@pytest.mark.parametrize("membership", [later(71), later(72, 40, 71, (1,)), later(71, 40, 71, (2,))])
def test_who_is_new_must_be_meant(membership: JobMembership) -> None:
    with pytest.raises(MembershipError, match="but rank 1 is new here: connect again"):
        Epochs(membership, 1)


def test_replaced_ranks_until_the_program_answers() -> None:
    epochs = Epochs(FIRST, 0)
    enter(epochs, later(71, 40, 71, (1,)))
    enter(epochs, later(72, 40, 71, (1,)))
    assert epochs.replaced is not None
    assert (epochs.replaced.ranks, epochs.replaced.start_epoch) == ((1,), 71)
    enter(epochs, later(73, 60, 73, (2,)))
    assert epochs.answer(only=71) is None, "these are others"
    answer = epochs.answer(only=73)
    assert answer is not None
    message, replaced = answer
    assert replaced.newcomers == {1: 71, 2: 73}
    assert (message.start_epoch, message.start, message.allreduces) == (73, 60, 30)
    assert "ranks 1, 2 of job 'ddp' were replaced" in str(message.error)
    assert epochs.answer() is None


def test_who_missed_the_epoch_of_newcomers_meets_them_later() -> None:
    """It ended before this worker was told of it, and `start` was carried over."""
    epochs = Epochs(FIRST, 0)
    enter(epochs, later(72, 40, 71, (1,)))
    assert epochs.replaced is not None
