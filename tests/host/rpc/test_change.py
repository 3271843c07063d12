# SPDX-License-Identifier: Apache-2.0
"""From one generation to the next, with everything around it made up: what is told, and how it can end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hopsum.errors import GenerationEndedError, HopsumError
from hopsum.rpc.change import GenerationChange
from hopsum.rpc.channel import ControllerError, ControllerUnreachableError
from hopsum_wire.generations import Resume, Sealed
from hopsum_wire.membership import Endpoint, JobMembership, MembershipError, RankEndpoint

WAIT_S = 60
SWITCH = Endpoint("127.0.0.1", 4800)
SEATS = tuple(RankEndpoint(rank, Endpoint("127.0.0.1", 6000 + rank), SWITCH, 7000 + rank) for rank in range(2))
FIRST = JobMembership("ddp", 70, 16, 16, 2, None, SWITCH, SEATS)
SEALED = Sealed(70, 3, 9, ((4, 6),))


class Around:
    """Agent, member and lease at once; what happens stands in `log`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.log: list[tuple[Any, ...]] = []
        self.replacement_waits_s: list[float] = []
        self.membership = FIRST
        self.join: Callable[[], None] = lambda: None
        self.next: Callable[[int], JobMembership] = lambda known: replace(
            FIRST, generation=known + 1, resume=Resume(0, None, 0, None, (), ())
        )
        self.told: tuple[Callable[[str], None], ...] = ()
        self.without: Callable[[Sequence[int]], None] = lambda ranks: None

    def note(self, *what: Any) -> None:
        with self.changed:
            self.log.append(what)
            self.changed.notify_all()

    def wait_for(self, kind: str) -> tuple[Any, ...]:
        with self.changed:
            assert self.changed.wait_for(lambda: any(each[0] == kind for each in self.log), WAIT_S), self.log
            return next(each for each in self.log if each[0] == kind)

    def seal(self) -> tuple[Sealed, int]:
        self.note("seal")
        return SEALED, 5

    def end(self, error: HopsumError) -> None:
        self.note("end", error)

    def join_again(self, sealed: Sealed, begun: int, wait_s: float) -> None:
        self.note("join", sealed, begun, wait_s)
        self.join()


class Lessee:
    """The same names mean other things to a lease."""

    def __init__(self, around: Around) -> None:
        self._around = around

    def enter(self, generation: int, statistics: Any, on_over: Any, on_lost: Any, on_without: Any) -> None:
        self._around.told, self._around.without = (on_over, on_lost), on_without
        self._around.note("beats", generation)


class Asking:
    """And to a member."""

    def __init__(self, around: Around) -> None:
        self.join_again = around.join_again
        self._around = around

    def membership(self, wait_s: float, *, known_generation: int, replacement_wait_s: float) -> JobMembership:
        assert wait_s == 7.0
        self._around.replacement_waits_s.append(replacement_wait_s)
        return self._around.next(known_generation)


class Entering(Around):
    switch_patience_s = 9.0

    def enter(self, membership: JobMembership) -> None:
        self.membership = membership
        self.note("enter", membership.generation)

    def on_ranks_lost(self, generation: int, ranks: Sequence[int]) -> None:
        self.note("do without", generation, ranks)


@pytest.fixture
def made() -> Iterator[tuple[Entering, GenerationChange]]:
    around = Entering()
    change = GenerationChange(
        1,
        around,
        Asking(around),  # type: ignore[arg-type]
        Lessee(around),  # type: ignore[arg-type]
        statistics=dict,
        check=lambda membership: around.note("check", membership.generation),
        wait_s=7.0,
        replacement_wait_s=3.0,
    )
    change.enter()
    yield around, change
    change.stop()
    change.join()


def ended(around: Around) -> HopsumError:
    error: HopsumError = around.wait_for("end")[1]
    return error


def test_the_agent_hears_whom_its_generation_goes_on_without(made: tuple[Entering, GenerationChange]) -> None:
    around, _ = made
    around.without([2])
    assert around.wait_for("do without") == ("do without", FIRST.generation, [2])


def test_one_change_after_the_other(made: tuple[Entering, GenerationChange]) -> None:
    around, _ = made
    for generation in (70, 71):
        around.log.clear()
        around.told[0](f"the controller has ended generation {generation}: the switch was restarted")
        around.wait_for("beats")
        assert around.log == [
            ("seal",),
            ("join", SEALED, 5, 7.0),
            ("check", generation + 1),
            ("enter", generation + 1),
            ("beats", generation + 1),
        ]


def test_ranks_that_are_gone_are_waited_for_no_longer_than_a_switch_that_is_gone_too(
    made: tuple[Entering, GenerationChange],
) -> None:
    around, _ = made
    for around.switch_patience_s in (9.0, 0.25):
        around.log.clear()
        around.told[0]("rank 0 left unfinished")
        around.wait_for("beats")
    assert around.replacement_waits_s == [3.0, 0.25]


def refuse(code: str, text: str) -> Callable[..., Any]:
    kind = ControllerUnreachableError if code == "UNAVAILABLE" else ControllerError

    def raised(*_: Any) -> Any:
        raise kind(text, code)

    return raised


def missing(known: int) -> JobMembership:
    raise MembershipError("job 'ddp' is not complete within 7 s: ranks 0 have not joined")


@pytest.mark.parametrize(
    ("join", "following", "kind", "message"),
    [
        (refuse("UNAUTHENTICATED", "rank 1 was evicted"), None, GenerationEndedError, "rank 1 .*was evicted"),
        (refuse("UNAVAILABLE", "no answer"), None, MembershipError, "Nothing was heard of a next generation"),
        (None, refuse("NOT_FOUND", "no job 'ddp'"), GenerationEndedError, "rank 1 has no place .*: no job 'ddp'"),
        (None, missing, MembershipError, "rank 1: over; job 'ddp' is not complete within 7 s: ranks 0 have not joined"),
    ],
)  # fmt: skip
def test_how_it_ends(
    made: tuple[Entering, GenerationChange], join: Any, following: Any, kind: type[HopsumError], message: str
) -> None:
    around, _ = made
    around.join, around.next = join or around.join, following or around.next
    around.told[0]("over")
    with pytest.raises(kind, match=message):
        raise ended(around)
    assert ("enter", 71) not in around.log


def test_a_place_that_is_lost_is_the_end(made: tuple[Entering, GenerationChange]) -> None:
    around, _ = made
    around.told[1]("rank 1 was evicted: nothing was heard of it for 15 s")
    with pytest.raises(
        GenerationEndedError, match="rank 1 has no place in the job any more: rank 1 was evicted: nothing was"
    ):
        raise ended(around)
    assert ("seal",) not in around.log


def test_without_side_channels_a_generation_is_the_last(made: tuple[Entering, GenerationChange]) -> None:
    around, _ = made
    around.membership = replace(FIRST, workers=tuple(replace(seat, side_port=None) for seat in SEATS))
    around.told[0]("over")
    with pytest.raises(GenerationEndedError, match="over; its workers have no side channels"):
        raise ended(around)


def test_stopped_in_the_middle_it_says_nothing_more(made: tuple[Entering, GenerationChange]) -> None:
    around, change = made
    waiting, gone = threading.Event(), threading.Event()

    def wait(known: int) -> JobMembership:
        waiting.set()
        assert gone.wait(WAIT_S)
        raise ValueError("Cannot invoke RPC on closed channel!")

    around.next = wait
    around.told[0]("over")
    assert waiting.wait(WAIT_S)
    change.stop()
    gone.set()
    change.join()
    around.told[0]("over again")
    assert [each[0] for each in around.log] == ["beats", "seal", "join"]
