# SPDX-License-Identifier: Apache-2.0
"""Sessions that end and come back, drivers by name, and election ids that count sessions."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum_controlplane import ControlPlaneError, WriteError
from hopsum_controlplane.devices.device import PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.drivers import DRIVERS, check_driver, open_device
from hopsum_controlplane.devices.p4runtime_session import OWNERS, Answer, ElectionId, next_id, same_owner
from hopsum_controlplane.devices.reconnecting import FIRST_PAUSE_S, LONGEST_PAUSE_S, ReconnectingDevice
from hopsum_controlplane.entries import Insert, MulticastGroup, Replica
from hopsum_controlplane.errors import NotPrimaryError, SessionLostError, SwitchStateLostError
from hopsum_ptf.fake_device import Failure, FakeDevice
from hopsum_switch.p4runtime.service import Arbitration
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode

from ..support.clock import FakeClock

OURS, OTHER = PipelineConfig(b"ours", ""), PipelineConfig(b"another", "")
BATCH = [Insert(MulticastGroup(1, (Replica(1, 0),)))]


class Switch:
    """A switch in memory with sessions that can be cut."""

    def __init__(self) -> None:
        self.memory = FakeDevice()
        self.memory.set_pipeline_config(OURS)
        self.up = True
        self.attempts = 0
        self.sessions: list[Session] = []

    def connect(self) -> Session:
        self.attempts += 1
        if not self.up:
            raise SessionLostError("no P4Runtime server answered", where="fake switch")
        self.sessions.append(Session(self))
        return self.sessions[-1]

    def cut(self) -> None:
        self.sessions[-1].cut = True

    def restart(self) -> None:
        self.cut()
        self.memory = FakeDevice()


class Session(FakeDevice):
    """One session: what stands on the switch stays when it ends."""

    def __init__(self, switch: Switch) -> None:
        super().__init__()
        self.switch = switch
        self.entities = switch.memory.entities
        self.cut = False
        self.closed = False

    def write(self, updates: object) -> None:
        self._check()
        super().write(updates)  # type: ignore[arg-type]

    def read_groups(self) -> list[MulticastGroup]:
        self._check()
        return super().read_groups()

    def cookie(self) -> int | None:
        self._check()
        return self.switch.memory.cookie()

    def set_pipeline_config(self, pipeline: PipelineConfig) -> None:
        self._check()
        self.switch.memory.set_pipeline_config(pipeline)

    def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        if self.cut:
            raise SessionLostError("the P4Runtime session ended", where=self.where)


@pytest.fixture
def switch() -> Switch:
    return Switch()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def device(switch: Switch, clock: FakeClock) -> ReconnectingDevice:
    return ReconnectingDevice(switch.connect, OURS.cookie, monotonic=clock, chance=random.Random(1))


def test_a_session_that_was_cut_before_a_call(switch: Switch, device: ReconnectingDevice) -> None:
    switch.cut()
    device.write(BATCH)
    assert device.read_groups() == [BATCH[0].entity]
    assert (device.sessions, device.where) == (2, "fake switch")
    assert switch.sessions[0].closed


@pytest.mark.parametrize("failure", [Failure.UNANSWERED, Failure.UNREACHABLE])
def test_a_batch_without_an_answer_is_not_written_again(
    switch: Switch, device: ReconnectingDevice, failure: Failure
) -> None:
    switch.sessions[0].fail(at=0, failure=failure)
    with pytest.raises(WriteError, match="no answer"):
        device.write(BATCH)
    assert switch.sessions[0].closed
    assert device.read_groups() == []
    assert device.sessions == 2


def test_a_refused_update_is_no_reason_for_a_new_session(switch: Switch, device: ReconnectingDevice) -> None:
    switch.sessions[0].fail(at=0, failure=Failure.REFUSED)
    with pytest.raises(WriteError, match="INTERNAL"):
        device.write(BATCH)
    device.write(BATCH)
    assert device.sessions == 1


def test_pauses_grow_and_differ(switch: Switch, clock: FakeClock, device: ReconnectingDevice) -> None:
    switch.cut()
    switch.up = False
    pauses: list[float] = []
    for _ in range(12):
        attempts = switch.attempts
        with pytest.raises(SessionLostError, match="no P4Runtime server answered"):
            device.cookie()
        assert switch.attempts == attempts + 1
        with pytest.raises(SessionLostError, match=r"no session .* answered; attempt \d+ in \d+\.\d s"):
            device.read_groups()
        assert switch.attempts == attempts + 1, "no attempt within the pause"
        pauses.append(device._not_before_s - clock.now_s)
        clock.now_s = device._not_before_s
    bounds = [min(FIRST_PAUSE_S * 2**number, LONGEST_PAUSE_S) for number in range(12)]
    assert all(bound / 2 <= pause <= bound for pause, bound in zip(pauses, bounds, strict=True))
    assert len(set(pauses[-5:])) == 5, "jitter"
    switch.up = True
    assert device.cookie() == OURS.cookie
    switch.cut()
    device.cookie()  # the first attempt after a session comes without a pause
    assert device.sessions == 3


def test_a_switch_that_forgot_takes_nothing_but_a_program(switch: Switch, device: ReconnectingDevice) -> None:
    device.write(BATCH)
    switch.restart()
    actions: list[Callable[[], object]] = [
        lambda: device.write(BATCH),
        device.read_groups,
        lambda: device.read_table("jobs"),
        lambda: device.read_counter("drops"),
    ]
    for action in actions:
        with pytest.raises(SwitchStateLostError, match=f"does not run the program with cookie {OURS.cookie:#018x}"):
            action()
    assert switch.memory.entities == {}
    assert ensure_pipeline(device, OURS)
    assert device.read_groups() == []
    assert device.sessions == 2


def test_somebody_pushed_another_program(switch: Switch, device: ReconnectingDevice) -> None:
    switch.cut()
    switch.memory.set_pipeline_config(OTHER)
    with pytest.raises(SwitchStateLostError):
        device.read_groups()
    device.set_pipeline_config(OTHER)
    assert device.read_groups() == []
    switch.cut()
    assert device.read_groups() == [], "what was pushed is expected from then on"


def test_a_program_that_comes_later(switch: Switch, clock: FakeClock) -> None:
    switch.memory = FakeDevice()
    device = ReconnectingDevice(switch.connect, OURS.cookie, monotonic=clock)
    with pytest.raises(SwitchStateLostError):
        device.read_groups()
    assert ensure_pipeline(device, OURS)
    assert not ensure_pipeline(device, OURS)


def test_another_primary_is_not_fought(switch: Switch, device: ReconnectingDevice, clock: FakeClock) -> None:
    def refused() -> None:
        raise NotPrimaryError("our election id is not the primary's", hint="stop the other")

    switch.sessions[0]._check = refused  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(NotPrimaryError, match="our election id is not the primary's; stop the other"):
            device.read_groups()
        clock.now_s += 2 * LONGEST_PAUSE_S
    assert (device.sessions, switch.attempts, switch.sessions[0].closed) == (1, 1, True)


def test_another_became_primary_while_there_was_no_session(
    switch: Switch, device: ReconnectingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> Session:
        raise NotPrimaryError("our election id is not the primary's")

    switch.cut()
    monkeypatch.setattr(device, "_connect", refused)
    with pytest.raises(NotPrimaryError):
        device.read_groups()
    monkeypatch.setattr(device, "_connect", switch.connect)
    with pytest.raises(NotPrimaryError, match="fake switch"):
        device.read_groups()
    assert device.sessions == 1


def test_a_first_session_that_fails(switch: Switch) -> None:
    switch.up = False
    with pytest.raises(SessionLostError, match="no P4Runtime server answered"):
        ReconnectingDevice(switch.connect, OURS.cookie)


def test_a_closed_device_stays_closed(switch: Switch, device: ReconnectingDevice) -> None:
    device.close()
    device.close()
    with pytest.raises(SessionLostError, match="closed"):
        device.read_groups()
    assert (switch.attempts, switch.sessions[0].closed) == (1, True)


def test_drivers_have_names() -> None:
    for driver in DRIVERS:
        check_driver(driver)
        with pytest.raises(SessionLostError, match=r"switch 3 at 127\.0\.0\.1:1: no (P4|BF )Runtime server answered"):
            open_device(driver, "127.0.0.1:1", 3, connect_timeout_s=0.2)
    with pytest.raises(ControlPlaneError, match="no driver 'bmw2' among native, bmv2, tofino; did you mean 'bmv2'"):
        open_device("bmw2", "127.0.0.1:1")


HIGHS, OWN = (1, 2), (0, 5, 6)


class ElectingSwitch:
    """The clients of one switch, by a number each."""

    def __init__(self) -> None:
        self.arbitration = Arbitration(0)
        self.ids: dict[int, ElectionId] = {}
        self.owners: dict[int, int] = {}

    def ask(self, client: int, election_id: ElectionId) -> Answer:
        high, low = election_id
        notices = self.arbitration.update(client, 0, high << 64 | low)
        (told,) = [notice for notice in notices if notice.client == client]
        self.ids[client] = election_id
        highest = told.election_id or 0
        return Answer(
            told.code is RpcCode.OK, told.code is RpcCode.ALREADY_EXISTS, (highest >> 64, highest % (1 << 64))
        )

    def open(self, client: int, high: int, owner: int) -> bool:
        """Return whether a session of this owner is primary when it has asked as a controller does."""
        try:
            answer = self.ask(client, (high, 0))
            following = next_id((high, 0), owner, answer)
            if following is not None:
                answer = self.ask(client, following)
        except P4RuntimeError:
            answer = Answer(False, True, (high, 0))
        self.owners[client] = owner
        if not answer.ours:
            self.close(client)
        return answer.ours

    def close(self, client: int) -> None:
        self.arbitration.disconnect(client)
        self.ids.pop(client, None)
        self.owners.pop(client, None)


@given(st.lists(st.tuples(st.sampled_from(HIGHS), st.sampled_from(OWN), st.integers(0, 3)), max_size=12))
def test_the_newer_session_of_an_owner_wins_and_nobody_elses(steps: list[tuple[int, int, int]]) -> None:
    switch = ElectingSwitch()
    highest = 0
    for client, (high, owner, closes) in enumerate(steps):
        primary = switch.arbitration.primary
        holder = None if primary is None else (switch.ids[int(str(primary))], switch.owners[int(str(primary))])
        won = switch.open(client, high, owner)
        if high < highest:
            assert not won
        elif holder is None or holder[0][0] < high or (owner and holder[1] == owner):
            assert won
        else:
            assert not won, "another controller with this id has it"
        assert (switch.arbitration.primary == client) == won
        if not won:
            assert switch.arbitration.primary == primary
        highest = max(highest, high) if won else highest
        live = list(switch.ids)
        if closes and live:
            switch.close(live[closes % len(live)])


def test_ids_as_they_are_configured_are_left_alone() -> None:
    for answer in (Answer(True, False, (0, 9)), Answer(False, True, (1, 3)), Answer(False, False, (5, 5))):
        assert next_id((0, 9), 7, answer) is None
    assert next_id((1, 0), 0, Answer(True, False, (1, 0))) is None
    assert next_id((1, 0), 7, Answer(False, False, (1, (OWNERS - 1) << 32 | 7))) is None, "there is no higher one"
    assert not same_owner((1, 0), 0)
    assert same_owner((1, 3 << 32 | 7), 7)
