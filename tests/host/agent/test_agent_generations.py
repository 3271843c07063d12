# SPDX-License-Identifier: Apache-2.0
"""An agent's knowledge of the generations of its job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.agent.agent_generations import Generations
from hopsum_wire.generations import Resume
from hopsum_wire.membership import Endpoint, JobMembership, MembershipError, RankEndpoint

SWITCH = Endpoint("127.0.0.1", 4800)
SEATS = tuple(RankEndpoint(rank, Endpoint("127.0.0.1", 6000 + rank), SWITCH) for rank in range(3))
FIRST = JobMembership("ddp", 70, 16, 16, 3, {}, SWITCH, SEATS)


def later(
    generation: int, start: int | None = None, start_generation: int = 0, ranks: tuple[int, ...] = ()
) -> JobMembership:
    numbers = None if start is None else start // 2
    return replace(FIRST, generation=generation, resume=Resume(0, start, start_generation, numbers, ranks, ()))


def enter(generations: Generations, membership: JobMembership) -> None:
    assert membership.resume is not None
    generations.enter(membership, membership.resume)


def test_nobody_is_new_in_the_first_generation() -> None:
    generations = Generations(FIRST, 0)
    assert (generations.is_newcomer, generations.allreduces, generations.replaced) == (False, 0, None)
    enter(generations, later(71))
    assert generations.answer() is None


def test_a_newcomer_begins_where_the_job_agreed() -> None:
    generations = Generations(later(71, 40, 71, (1, 2)), 2)
    assert (generations.is_newcomer, generations.allreduces, generations.start_generation) == (True, 20, 71)
    assert generations.replaced is None, "it has nobody to tell anything"
    enter(generations, later(72, 40, 71, (1, 2)))
    assert generations.replaced is None, "it was there"


@pytest.mark.parametrize("membership", [later(71), later(72, 40, 71, (1,)), later(71, 40, 71, (2,))])
def test_who_is_new_must_be_meant(membership: JobMembership) -> None:
    with pytest.raises(MembershipError, match="but rank 1 is new here: connect again"):
        Generations(membership, 1)


def test_replaced_ranks_until_the_program_answers() -> None:
    generations = Generations(FIRST, 0)
    enter(generations, later(71, 40, 71, (1,)))
    enter(generations, later(72, 40, 71, (1,)))
    assert generations.replaced is not None
    assert (generations.replaced.newcomers, generations.replaced.start_generation) == ({1: 71}, 71)
    enter(generations, later(73, 60, 73, (2,)))
    assert generations.answer(only=71) is None, "these are others"
    message = generations.answer(only=73)
    assert message is not None
    assert message.newcomers == {1: 71, 2: 73}
    assert (message.start_generation, message.starts, message.allreduces) == (73, (60,), 30)
    assert "ranks 1, 2 of job 'ddp' have new workers" in str(message.error)
    assert generations.answer() is None


def test_who_missed_the_generation_of_newcomers_meets_them_later() -> None:
    """It ended before this worker was told of it, and `start` was carried over."""
    generations = Generations(FIRST, 0)
    enter(generations, later(72, 40, 71, (1,)))
    assert generations.replaced is not None
