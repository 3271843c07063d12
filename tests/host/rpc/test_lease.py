# SPDX-License-Identifier: Apache-2.0
"""The lease of one member, at a controller that says what the test wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from hopsum.rpc.channel import ControllerError, ControllerUnreachableError
from hopsum.rpc.lease import HEARTBEAT_GAP_S, Lease
from hopsum.rpc.member_client import Registration
from hopsum_wire.control import control_pb2 as pb

WAIT_S = 60


def no_news(generation: int) -> Any:
    raise ControllerError("no such method", "UNIMPLEMENTED")


class Told:
    """A member without a controller, and who hears of the generation's end. `answer` makes each reply."""

    def __init__(self, heartbeat_s: float) -> None:
        self.registration = Registration(1, 60.0, heartbeat_s, "00")
        self.changed = threading.Condition()
        self.generations: list[int] = []
        self.beat_at: list[float] = []
        self.heard: list[tuple[str, str]] = []
        self.left = 0
        self.unfinished: list[str] = []
        self.news: Callable[[int], Any] = no_news
        self.answer: Callable[[int], Any] = lambda generation: pb.HeartbeatResponse(
            state=pb.JOB_STATE_RUNNING, generation=generation
        )

    def heartbeat(self, generation: int, statistics: Mapping[str, float], timeout_s: float) -> Any:
        with self.changed:
            self.generations.append(generation)
            self.beat_at.append(time.monotonic())
            self.changed.notify_all()
            return self.answer(generation)

    def leave(self, wait_s: float, *, unfinished: str = "") -> None:
        self.left += 1
        self.unfinished.append(unfinished)

    def attend(self, generation: int) -> Any:
        return self.news(generation)

    def note(self, what: str) -> Callable[[str], None]:
        def hear(reason: str) -> None:
            with self.changed:
                self.heard.append((what, reason))
                self.changed.notify_all()

        return hear

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), (self.generations, self.heard)

    def enter(self, lease: Lease, generation: int) -> None:
        lease.enter(generation, dict, self.note("over"), self.note("lost"))


@pytest.fixture
def quick() -> Iterator[tuple[Told, Lease]]:
    told = Told(0.02)
    lease = Lease(told)  # type: ignore[arg-type]
    yield told, lease
    lease.stop()


def refuse(generation: int) -> Any:
    raise ControllerError("evicted: not heard of for 15 s", "UNAUTHENTICATED")


def test_generations_end_one_after_the_other(quick: tuple[Told, Lease]) -> None:
    told, lease = quick
    running = told.answer
    for count, generation in enumerate((70, 71), start=1):
        told.answer = running
        told.enter(lease, generation)
        told.wait(lambda named=generation: told.generations[-1] == named)  # type: ignore[misc]
        told.answer = lambda _: pb.HeartbeatResponse(state=pb.JOB_STATE_CHANGING, reason="the switch was restarted")
        told.wait(lambda: told.generations[-1] == 0)
        assert told.heard[-1] == ("over", f"the controller has ended generation {generation}: the switch was restarted")
        assert len(told.heard) == count, "once"


def test_ranks_that_the_generation_goes_on_without(quick: tuple[Told, Lease]) -> None:
    told, lease = quick
    without: list[Sequence[int]] = []
    lease.enter(70, dict, told.note("over"), told.note("lost"), without.append)
    told.answer = lambda _: pb.HeartbeatResponse(state=pb.JOB_STATE_RUNNING, generation=69, lost_ranks=[5])
    told.wait(lambda: bool(told.heard))  # of another generation: not ours
    told.answer = lambda generation: pb.HeartbeatResponse(
        state=pb.JOB_STATE_RUNNING, generation=generation, lost_ranks=[2, 0]
    )
    lease.enter(71, dict, told.note("over"), told.note("lost"), without.append)
    told.wait(lambda: told.generations.count(71) > 2)
    assert {tuple(ranks) for ranks in without} == {(2, 0)}


def test_a_place_that_is_lost(quick: tuple[Told, Lease]) -> None:
    told, lease = quick
    told.enter(lease, 70)
    told.answer = refuse
    told.wait(lambda: bool(told.heard))
    assert told.heard == [("lost", "evicted: not heard of for 15 s")]
    told.enter(lease, 71)
    assert told.heard[1:] == told.heard[:1], "at once"
    lease.stop()
    assert told.left == 0


def test_a_heartbeat_in_a_hurry() -> None:
    told = Told(3600.0)
    lease = Lease(told)  # type: ignore[arg-type]
    try:
        told.enter(lease, 70)
        told.wait(lambda: len(told.generations) == 1)
        began = time.monotonic()
        told.answer = lambda _: pb.HeartbeatResponse(state=pb.JOB_STATE_CHANGING, reason="entries were lost")
        while not told.heard:
            lease.heartbeat_now()
            with told.changed:
                told.changed.wait(0.02)
            assert time.monotonic() < began + WAIT_S
        assert len(told.generations) == 2
        assert told.beat_at[1] - told.beat_at[0] > HEARTBEAT_GAP_S / 2, "at most one in HEARTBEAT_GAP_S"
    finally:
        lease.stop()
    assert told.left == 1


def test_who_abandons_leaves_at_once_and_says_why(quick: tuple[Told, Lease]) -> None:
    told, lease = quick
    told.enter(lease, 70)
    tries: list[str] = []

    def leave(wait_s: float, *, unfinished: str = "") -> None:
        with told.changed:
            tries.append(unfinished)
            told.changed.notify_all()
            if len(tries) < 3:
                raise ControllerUnreachableError("no answer", "UNAVAILABLE")

    told.leave = leave  # type: ignore[method-assign]
    lease.abandon("RuntimeError: CUDA out of memory")
    lease.abandon("GenerationEndedError: a consequence")
    told.wait(lambda: len(tries) == 3)
    lease.stop()
    assert tries == ["RuntimeError: CUDA out of memory"] * 3, "until there is an answer, then never again"
    assert told.heard == []


def test_a_fork_leaves_nothing_and_stops_nothing(quick: tuple[Told, Lease], monkeypatch: pytest.MonkeyPatch) -> None:
    told, lease = quick
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        lease.stop()
    beats = len(told.generations)
    told.wait(lambda: len(told.generations) > beats)
    assert told.left == 0
