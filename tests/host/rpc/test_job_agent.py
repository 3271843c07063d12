# SPDX-License-Identifier: Apache-2.0
"""A job agent's way from one generation to the next with everything around it made up, and the lease of one member."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hopsum.errors import GenerationEndedError, HopsumError
from hopsum.rpc.channel import ControllerError, ControllerUnreachableError
from hopsum.rpc.job_agent import GenerationChange, JobAgent
from hopsum.rpc.lease import HEARTBEAT_GAP_S, Lease
from hopsum.rpc.member_client import Registration
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.generations import Resume, Sealed
from hopsum_wire.membership import Endpoint, JobMembership, MembershipError, RankEndpoint

WAIT_S = 60
SWITCH = Endpoint("127.0.0.1", 4800)
SEATS = tuple(RankEndpoint(rank, Endpoint("127.0.0.1", 6000 + rank), SWITCH, 7000 + rank) for rank in range(2))
FIRST = JobMembership("ddp", 70, 16, 16, 2, {}, SWITCH, SEATS)
SEALED = Sealed(70, 3, 9, ((4, 6),))


class Around:
    """Agent, member and lease at once; what happens is in `log`."""

    switch_patience_s = 9.0

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

    def enter(self, membership: JobMembership) -> None:
        self.membership = membership
        self.note("enter", membership.generation)

    def on_ranks_lost(self, generation: int, ranks: Sequence[int]) -> None:
        self.note("do without", generation, ranks)


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


@pytest.fixture
def made() -> Iterator[tuple[Around, GenerationChange]]:
    around = Around()
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


def test_the_agent_hears_without_which_ranks_its_generation_continues(made: tuple[Around, GenerationChange]) -> None:
    around, _ = made
    around.without([2])
    assert around.wait_for("do without") == ("do without", FIRST.generation, [2])


def test_one_change_after_the_other(made: tuple[Around, GenerationChange]) -> None:
    around, _ = made
    for generation in (70, 71):
        around.log.clear()
        around.told[0](f"the switch was restarted (the controller has ended generation {generation})")
        around.wait_for("beats")
        assert around.log == [
            ("seal",),
            ("join", SEALED, 5, 7.0),
            ("check", generation + 1),
            ("enter", generation + 1),
            ("beats", generation + 1),
        ]


def test_ranks_that_are_gone_are_waited_for_no_longer_than_a_switch_that_is_gone_too(
    made: tuple[Around, GenerationChange],
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
        (None, refuse("NOT_FOUND", "no job 'ddp'"), GenerationEndedError, "no job 'ddp'; rank 1 has no place"),
        (None, missing, MembershipError, "rank 1: over; job 'ddp' is not complete within 7 s: ranks 0 have not joined"),
    ],
)  # fmt: skip
def test_how_it_ends(
    made: tuple[Around, GenerationChange], join: Any, following: Any, kind: type[HopsumError], message: str
) -> None:
    around, _ = made
    around.join, around.next = join or around.join, following or around.next
    around.told[0]("over")
    with pytest.raises(kind, match=message):
        raise ended(around)
    assert ("enter", 71) not in around.log


def test_a_place_that_is_lost_is_the_end(made: tuple[Around, GenerationChange]) -> None:
    around, _ = made
    around.told[1]("rank 1 was evicted: nothing was heard of it for 15 s")
    with pytest.raises(
        GenerationEndedError, match=r"^rank 1 was evicted: nothing was heard of it for 15 s; rank 1 has no place"
    ):
        raise ended(around)
    assert ("seal",) not in around.log


def test_without_side_channels_a_generation_is_the_last(made: tuple[Around, GenerationChange]) -> None:
    around, _ = made
    around.membership = replace(FIRST, workers=tuple(replace(seat, side_port=None) for seat in SEATS))
    around.told[0]("over")
    with pytest.raises(GenerationEndedError, match="over; its workers have no side channels"):
        raise ended(around)


def test_stopped_in_the_middle_it_says_nothing_more(made: tuple[Around, GenerationChange]) -> None:
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


def lease_refuse(generation: int) -> Any:
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
        assert told.heard[-1] == (
            "over",
            f"the switch was restarted (the controller has ended generation {generation})",
        )
        assert len(told.heard) == count, "once"


def test_ranks_that_the_generation_continues_without(quick: tuple[Told, Lease]) -> None:
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


def test_news_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # The controller misses a worker by the end of this stream. A worker may be killed in the moment in which it joined.
    monkeypatch.setattr("hopsum.rpc.lease._FIRST_AGAIN_S", 3600.0)
    told, asked = Told(3600.0), threading.Event()

    def news(generation: int) -> Any:
        asked.set()
        return no_news(generation)

    told.news = news
    lease = Lease(told)  # type: ignore[arg-type]
    try:
        assert asked.wait(WAIT_S)
    finally:
        lease.stop()


def test_a_place_that_is_lost(quick: tuple[Told, Lease]) -> None:
    told, lease = quick
    told.enter(lease, 70)
    told.answer = lease_refuse
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


class Cut:
    """A worker to which nothing comes, with a clock that the test moves."""

    rank = 1
    membership = JobMembership("hosts", 70, 16, 16, 2, {}, SWITCH, SEATS)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr("hopsum.rpc.job_agent.time.monotonic", lambda: self.now_s)
        self.progress = SimpleNamespace(stalled_s=0.0, stalled_shard=0)
        self._engine = SimpleNamespace(progress=self.progress)
        self._lease = SimpleNamespace(silent_s=0.0, switch_unreachable=("", 0.0), lease_s=60.0)
        self._stalled_at_s = self._stalled_s = self._unexplained_s = 0.0

    def after(self, seconds: float, step_s: float = 1.0) -> str:
        """Look as often as the network does, and return the first reason."""
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            self.progress.stalled_s += step_s
            self._lease.silent_s += step_s if self._lease.silent_s else 0.0
            if why := JobAgent._why_cut_off(self, 30.0):  # type: ignore[arg-type]
                return why
        return ""


def test_datagrams_that_are_lost_while_the_controller_reaches_both_ends_are_no_wait_for_a_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = Cut(monkeypatch)
    assert not cut.after(25)
    assert re.search(r"^datagrams between .* are lost: .* on the host of ranks 0, 1 for 30 s", cut.after(10))


def test_a_stop_an_answer_and_a_link_that_is_down_are_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Cut(monkeypatch)
    assert not cut.after(20)
    assert not cut.after(500, step_s=500), "stopped in between"
    cut.progress.stalled_s = 0.0  # an answer
    assert not cut.after(25)
    cut._lease.switch_unreachable = ("connection refused", 3.0)
    assert not cut.after(200), "the controller's lease judges"
    cut._lease.switch_unreachable = ("", 0.0)
    assert not cut.after(25), "the network has been back for that long only"


def test_a_rank_that_hears_nobody_is_cut_off_after_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Cut(monkeypatch)
    cut._lease.silent_s = 1.0
    assert not cut.after(55)
    assert re.search(r"^127\.0\.0\.1 is cut off: .* for the lease of 60 s", cut.after(10))
