# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime driver against a server that misbehaves; sessions that end and come back; election ids."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from google.rpc import code_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from hopsum_base.p4runtime import p4runtime_pb2
from hopsum_controlplane import ControlPlaneError, WriteError
from hopsum_controlplane.devices import p4runtime_session
from hopsum_controlplane.devices.bmv2 import Bmv2Device
from hopsum_controlplane.devices.device import PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.drivers import DRIVERS, check_driver, open_device
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_controlplane.devices.p4runtime_session import (
    OWNERS,
    ArbitrationAnswer,
    ElectionId,
    has_owner,
    next_election_id,
)
from hopsum_controlplane.devices.reconnecting import FIRST_PAUSE_S, LONGEST_PAUSE_S, ReconnectingDevice
from hopsum_controlplane.entries import Insert, MulticastGroup, Replica
from hopsum_controlplane.errors import NotPrimaryError, SessionLostError, SwitchStateLostError
from hopsum_ptf.fake_device import Failure, FakeDevice
from hopsum_switch.p4runtime.service import Arbitration
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode

from ..support.clock import FakeClock

if TYPE_CHECKING:
    from tests.controlplane.conftest import Server

DEADLINE_S = 60.0
PIPELINE = PipelineConfig(b'{"program": []}', 'tables { preamble { id: 33554433 name: "t" alias: "t" } }')
BATCH = [Insert(MulticastGroup(group, (Replica(1, 0),))) for group in (1, 2, 3)]


@contextmanager
def opened(address: str, **options: object) -> Iterator[NativeDevice]:
    with NativeDevice(address, **options) as device:  # type: ignore[arg-type]
        device.set_pipeline_config(PIPELINE)
        yield device


def refuse(*codes: int) -> Callable[[object, grpc.ServicerContext], None]:
    """Answer a write with one p4.v1.Error for each update."""

    def answer(_request: object, context: grpc.ServicerContext) -> None:
        status = status_pb2.Status(code=code_pb2.UNKNOWN)
        for code in codes:
            status.details.add().Pack(p4runtime_pb2.Error(canonical_code=code, message="because" if code else ""))
        context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
        context.abort(grpc.StatusCode.UNKNOWN, "")

    return answer


def until_write_fails(device: NativeDevice) -> ControlPlaneError:
    """Write until the switch's message has arrived."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            device.write(BATCH)
        except ControlPlaneError as error:
            return error
    raise AssertionError(f"writes still succeed after {DEADLINE_S} s")


def our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "stream_recv" in thread.name or "open " in thread.name]


def test_a_write_error_names_the_updates(server: Server) -> None:
    # The fourth detail belongs to no update of the batch.
    server.write_answer = refuse(code_pb2.OK, code_pb2.ALREADY_EXISTS, code_pb2.OK, code_pb2.INTERNAL)
    with opened(server.address) as device, pytest.raises(WriteError) as error:
        device.write(BATCH)
    assert [(failure.position, failure.update) for failure in error.value.failures] == [(1, BATCH[1])]
    assert error.value.may_be_installed() == [BATCH[0].entity, BATCH[2].entity]
    assert str(error.value) == (
        f"switch 0 at {server.address}: 1 of 3 updates refused: update 1 (insert multicast group 2 of 1/0): "
        "ALREADY_EXISTS 'because'; the other updates of the batch are installed"
    )


def test_an_unanswered_write_may_be_installed(server: Server) -> None:
    release = threading.Event()
    server.write_answer = lambda _request, _context: release.wait(DEADLINE_S)
    with opened(server.address, rpc_timeout_s=0.3) as device, pytest.raises(WriteError) as error:
        device.write(BATCH)
    release.set()
    assert error.value.failures == ()
    assert error.value.may_be_installed() == [update.entity for update in BATCH]
    assert "Write of 3 updates ended without an answer: DEADLINE_EXCEEDED" in str(error.value)


def test_a_write_that_was_refused_as_a_whole_is_installed_nowhere(server: Server) -> None:
    server.write_answer = lambda _, context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "Not primary")
    with opened(server.address) as device, pytest.raises(ControlPlaneError) as error:
        device.write(BATCH)
    assert not isinstance(error.value, WriteError)
    assert "Write failed: PERMISSION_DENIED 'Not primary'; another client is primary" in str(error.value)


def test_requests_carry_device_election_and_deadline(server: Server) -> None:
    with opened(server.address, device_id=7, election_id=(2, 9), rpc_timeout_s=5.0) as device:
        device.write(BATCH)
    (request,) = server.writes
    assert (request.device_id, request.election_id.high, request.election_id.low) == (7, 2, 9)
    assert [update.type for update in request.updates] == [p4runtime_pb2.Update.INSERT] * 3
    assert server.deadlines_s[0] is not None
    assert server.deadlines_s[0] < 60


def test_a_pipeline_is_pushed_once(server: Server) -> None:
    with Bmv2Device(server.address) as device:
        assert device.read_cookie() is None
        with pytest.raises(ControlPlaneError, match="the switch runs no program; push one"):
            device.read_table("t")
        assert ensure_pipeline(device, PIPELINE)
        assert server.config.p4_device_config == PIPELINE.device_config
        assert device.read_cookie() == PIPELINE.cookie
        assert not ensure_pipeline(device, PIPELINE)
        assert device.p4info.tables["t"].id == 0x02000001
    with Bmv2Device(server.address) as again:
        assert again.p4info.tables["t"].id == 0x02000001


def test_a_cookie_depends_on_both_files() -> None:
    cookies = {
        PipelineConfig(json, p4info).cookie for json, p4info in [(b"ab", "c"), (b"a", "bc"), (b"ab", "d"), (b"ab", "c")]
    }
    assert len(cookies) == 3


def test_a_program_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    program, p4info = tmp_path / "a.json", tmp_path / "a.p4info"
    program.write_text("{}")
    with pytest.raises(ControlPlaneError, match=f"compiled program: .*{p4info}.* compile it first"):
        PipelineConfig.load(program, p4info)
    # p4c can write a binary P4Info too.
    p4info.write_bytes(b"\x0a\xff")
    with pytest.raises(ControlPlaneError, match=f"compiled program: {p4info}: .*decode.* in text format"):
        PipelineConfig.load(program, p4info)


def test_nobody_listens() -> None:
    with pytest.raises(ControlPlaneError, match=r"switch 0 at 127\.0\.0\.1:1: no P4Runtime server answered in 0\.5 s"):
        NativeDevice("127.0.0.1:1", connect_timeout_s=0.5)
    assert our_threads() == []


def test_proxies_are_not_asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    with opened(server.address) as device:
        assert device.read_cookie() == PIPELINE.cookie


def test_another_client_is_primary(server: Server) -> None:
    server.arbitration_code = code_pb2.ALREADY_EXISTS
    with pytest.raises(ControlPlaneError, match=r"our election id 1 is not the primary's"):
        NativeDevice(server.address)
    assert our_threads() == []


def test_a_silent_handshake(server: Server) -> None:
    server.answers_handshake = False
    with pytest.raises(ControlPlaneError, match=r"no answer to the P4Runtime handshake in 0\.3 s"):
        NativeDevice(server.address, connect_timeout_s=0.3)
    assert our_threads() == []


def test_mastership_that_is_lost_and_comes_back_is_not_taken(server: Server) -> None:
    with opened(server.address) as device:
        server.pushed.put((code_pb2.ALREADY_EXISTS, 5))
        assert isinstance(until_write_fails(device), NotPrimaryError), "nothing was sent"
        server.pushed.put((code_pb2.OK, 1))
        server.pushed.put(None)
        device._session._stream.receiver.join(DEADLINE_S)  # so both have arrived
        for call in (device.read_cookie, lambda: device.write(BATCH), lambda: device.set_pipeline_config(PIPELINE)):
            with pytest.raises(NotPrimaryError, match="the highest so far is 5;"):
                call()


def test_a_session_that_the_server_ends(server: Server) -> None:
    with opened(server.address) as device:
        server.pushed.put(None)
        error = until_write_fails(device)
        assert "the P4Runtime session ended: OK" in str(error)
        assert isinstance(error, SessionLostError)


def test_closing_does_not_wait_for_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p4runtime_session, "_CLOSE_S", 0.1)
    server.ends_with_client = False
    device = NativeDevice(server.address)
    device.close()
    device.close()
    assert our_threads() == []


def test_a_process_that_forgets_to_close_ends(server: Server) -> None:
    program = f"""
from hopsum_controlplane.devices.native import NativeDevice
device = NativeDevice({server.address!r})
raise RuntimeError("forgotten")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "RuntimeError: forgotten" in done.stderr


OURS, OTHER = PipelineConfig(b"ours", ""), PipelineConfig(b"another", "")
RECONNECTING_BATCH = [Insert(MulticastGroup(1, (Replica(1, 0),)))]


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
    """One session: the switch keeps its entries when the session ends."""

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

    def read_cookie(self) -> int | None:
        self._check()
        return self.switch.memory.read_cookie()

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
    device.write(RECONNECTING_BATCH)
    assert device.read_groups() == [RECONNECTING_BATCH[0].entity]
    assert (device.sessions, device.where) == (2, "fake switch")
    assert switch.sessions[0].closed


@pytest.mark.parametrize("failure", [Failure.UNANSWERED, Failure.UNREACHABLE])
def test_a_batch_without_an_answer_is_not_written_again(
    switch: Switch, device: ReconnectingDevice, failure: Failure
) -> None:
    switch.sessions[0].fail(at=0, failure=failure)
    with pytest.raises(WriteError, match="no answer"):
        device.write(RECONNECTING_BATCH)
    assert switch.sessions[0].closed
    assert device.read_groups() == []
    assert device.sessions == 2


def test_a_refused_update_is_no_reason_for_a_new_session(switch: Switch, device: ReconnectingDevice) -> None:
    switch.sessions[0].fail(at=0, failure=Failure.REFUSED)
    with pytest.raises(WriteError, match="INTERNAL"):
        device.write(RECONNECTING_BATCH)
    device.write(RECONNECTING_BATCH)
    assert device.sessions == 1


def test_pauses_grow_and_differ(switch: Switch, clock: FakeClock, device: ReconnectingDevice) -> None:
    switch.cut()
    switch.up = False
    pauses: list[float] = []
    for _ in range(12):
        attempts = switch.attempts
        with pytest.raises(SessionLostError, match="no P4Runtime server answered"):
            device.read_cookie()
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
    assert device.read_cookie() == OURS.cookie
    switch.cut()
    device.read_cookie()  # the first attempt after a session comes without a pause
    assert device.sessions == 3


def test_a_switch_that_forgot_takes_nothing_but_a_program(switch: Switch, device: ReconnectingDevice) -> None:
    device.write(RECONNECTING_BATCH)
    switch.restart()
    actions: list[Callable[[], object]] = [
        lambda: device.write(RECONNECTING_BATCH),
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

    def ask(self, client: int, election_id: ElectionId) -> ArbitrationAnswer:
        high, low = election_id
        notices = self.arbitration.update(client, 0, high << 64 | low)
        (told,) = [notice for notice in notices if notice.client == client]
        self.ids[client] = election_id
        highest = told.election_id or 0
        return ArbitrationAnswer(
            told.code is RpcCode.OK, told.code is RpcCode.ALREADY_EXISTS, (highest >> 64, highest % (1 << 64))
        )

    def open(self, client: int, high: int, owner: int) -> bool:
        """Return whether a session of this owner is primary when it has asked as a controller does."""
        try:
            answer = self.ask(client, (high, 0))
            following = next_election_id((high, 0), owner, answer)
            if following is not None:
                answer = self.ask(client, following)
        except P4RuntimeError:
            answer = ArbitrationAnswer(False, True, (high, 0))
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
    for answer in (
        ArbitrationAnswer(True, False, (0, 9)),
        ArbitrationAnswer(False, True, (1, 3)),
        ArbitrationAnswer(False, False, (5, 5)),
    ):
        assert next_election_id((0, 9), 7, answer) is None
    assert next_election_id((1, 0), 0, ArbitrationAnswer(True, False, (1, 0))) is None
    assert next_election_id((1, 0), 7, ArbitrationAnswer(False, False, (1, (OWNERS - 1) << 32 | 7))) is None, (
        "there is no higher one"
    )
    assert not has_owner((1, 0), 0)
    assert has_owner((1, 3 << 32 | 7), 7)
