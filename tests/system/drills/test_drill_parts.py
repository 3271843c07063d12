# SPDX-License-Identifier: Apache-2.0
"""Checks and waits of the drills, with faults that they have to see."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from hopsum.rpc.channel import ControllerError
from hopsum_controlplane import SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.cluster import ClusterConfig, JobRequest, JobState, PortRule, SwitchConfig
from hopsum_controlplane.cluster.records import JobRecord, Member, MemberPhase
from hopsum_controlplane.cluster.state_store import StoredState
from hopsum_controlplane.entries import Delete, Entity, Insert, Modify, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.entry_plan import plan
from hopsum_controlplane.job_spec import Job
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_controlplane.tables.address import switch_address
from hopsum_ptf.fake_device import FakeDevice

from .controller_probe import edit, refusal
from .controller_write_drill import Deaths
from .crash_injection import TakeoverReport, differences
from .drill import DrillContext, DrillError
from .drill_training import DrillPlan, WorkerOrder
from .journal import Journal
from .silent_proxy import SilentProxy
from .training_job import TrainingJob

PATIENCE_S = 30.0
ENDPOINT = SwitchEndpoint("02:00:00:00:00:fe", "10.0.0.254")
SWITCH = SwitchConfig("s1", "native", "127.0.0.1:1", 0, ENDPOINT, (PortRule(1, IPv4Network("10.0.0.0/16")),))
CONFIG = ClusterConfig((SWITCH,), Path("state.sqlite"))


@pytest.fixture
def training(tmp_path: Path) -> TrainingJob:
    """A job of three workers without processes. Tests write the journals."""
    made = TrainingJob.__new__(TrainingJob)
    made.workers = 3
    made.plan = DrillPlan("hopsum://127.0.0.1:1/train", "", str(tmp_path), 3)
    return made


def write(training: TrainingJob, rank: int, kind: str, **fields: object) -> None:
    Journal(training.plan.journal(rank)).write(kind, **fields)


@pytest.mark.parametrize("text", ["rank 2: generation 7 is over: rank 1 left", "ranks 1 have not joined", "ranks 0, 1"])
def test_others_know_by_their_log_or_an_error(training: TrainingJob, text: str) -> None:
    write(training, 0, "log", text=text, logger="hopsum.agent.network_thread")
    write(training, 0, "log", text=text, logger="hopsum.rpc.change")
    write(training, 2, "failed", text=text)
    took_s = training.others_know(1, 0.0, 1e12)
    assert took_s == max(training.journal(rank)[-1]["at"] for rank in (0, 2))


def test_news_that_came_late_or_of_another_rank_is_no_news(
    training: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 2):
        write(training, rank, "log", text="rank 1 left", logger="hopsum.rpc.change")
    (entry,) = training.journal(2)
    with pytest.raises(DrillError, match=r"all other ranks knew of it after 5\.0 s, 4 s are allowed"):
        training.others_know(1, entry["at"] - 5.0, 4.0)
    assert training.since(0.0, 2, "log", words=r"\branks? (\d+, )*12\b") is None
    assert training.since(entry["at"] + 1, 2, "log") is None
    assert training.since(0.0, 2, "log", logger="hopsum.agent") is None
    assert training.since(0.0, 2, "void") is None


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        ("void", {"error": "WorkersReplacedError", "text": "ranks 1 were replaced"}, "WorkersReplacedError: ranks 1"),
        ("step", {"generation": 8, "step": 1}, "2 generations"),
    ],
)
def test_a_break_is_seen(training: TrainingJob, kind: str, fields: dict[str, object], told: str) -> None:
    for rank in range(3):
        write(training, rank, "step", generation=7, step=0)
    training.require_results(generations=1)
    write(training, 2, kind, **fields)
    with pytest.raises(DrillError, match=told):
        training.require_results(generations=1)


def test_an_order_is_taken_once(training: TrainingJob) -> None:
    assert training.plan.take_order(1) is None
    training.plan.order(1).write_text(WorkerOrder.RAISE_IN_FLIGHT)
    assert training.plan.take_order(0) is None
    assert training.plan.take_order(1) is WorkerOrder.RAISE_IN_FLIGHT
    assert training.plan.take_order(1) is None


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that sends back what it gets."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(peer: socket.socket) -> None:
        with peer:
            while data := peer.recv(1024):
                peer.sendall(data)

    def accept() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def answer(peer: socket.socket, data: bytes) -> bytes:
    peer.sendall(data)
    return peer.recv(1024)


def test_connections_die_in_silence_and_new_ones_work(echo: str) -> None:
    with closing(SilentProxy("127.0.0.1", echo)) as proxy, connected(proxy.address) as old:
        assert answer(old, b"one") == b"one"
        assert proxy.kill_connections() == 1
        old.sendall(b"two")
        with connected(proxy.address) as new:
            assert answer(new, b"three") == b"three"
            assert answer(new, b"four") == b"four"
            assert proxy.kill_connections() == 1, "those that are dead are not counted again"
        old.setblocking(False)
        with pytest.raises(BlockingIOError):  # no answer, and no end
            old.recv(1)


def running() -> JobRecord:
    """A job of two workers that runs."""
    request = JobRequest("train", 2, 16)
    members = tuple(
        Member(WorkerEndpoint(rank, 1, f"02:00:00:00:01:{rank:02x}", f"10.0.0.{rank + 1}", 4000), None, b"i", b"s")
        for rank in range(2)
    )
    waiting = JobRecord(request, b"digest", "s1", 0, SlotRange(0, 16), members=members)
    job = Job.at(waiting.spec(), ENDPOINT, 7, 0, SlotRange(0, 16), 16)
    inside = tuple(replace(member, phase=MemberPhase.IN) for member in members)
    return replace(waiting, state=JobState.RUNNING, job=job, members=inside)


@pytest.fixture
def device() -> FakeDevice:
    record, made = running(), FakeDevice()
    assert record.job is not None
    made.write([Insert(entity) for entity in (switch_address(ENDPOINT), *plan(record.job).entities)])
    return made


def entry_of(device: FakeDevice, table: str) -> TableEntry:
    return device.read_table(table)[0]


def foreign(device: FakeDevice) -> None:
    device.write([Insert(TableEntry("jobs", {"generation": 5}, "job", {}))])


def left_group(device: FakeDevice) -> None:
    device.write([Insert(MulticastGroup(9, (Replica(1, 1),)))])


def missing(device: FakeDevice) -> None:
    device.write([Delete(entry_of(device, "workers"))])


def changed(device: FakeDevice) -> None:
    entry: Entity = entry_of(device, "rewrite")
    assert isinstance(entry, TableEntry)
    device.write([Modify(replace(entry, params={**entry.params, "dst_port": 1}))])


def test_database_and_switch_agree(device: FakeDevice) -> None:
    assert differences(CONFIG, StoredState((running(),), 7), device) == []


@pytest.mark.parametrize(
    ("harm", "told"),
    [(foreign, "has jobs"), (left_group, "has multicast group 9"), (missing, "lacks workers"), (changed, "instead of")],
)
def test_every_difference_is_seen(device: FakeDevice, harm: Callable[[FakeDevice], None], told: str) -> None:
    harm(device)
    (found,) = differences(CONFIG, StoredState((running(),), 7), device)
    assert told in found


def test_an_unsettled_job_is_a_difference(device: FakeDevice) -> None:
    assert differences(CONFIG, StoredState((replace(running(), state=JobState.CHANGING),), 7), device) == [
        "job train is changing"
    ]
    assert len(differences(CONFIG, StoredState((), 7), device)) == len(device.entities) - 1


def judged(context: DrillContext, *founds: TakeoverReport | int, status: int = -signal.SIGKILL) -> Deaths:
    """Judge controllers one after the other that sent these reports."""
    testbed = type("Stage", (), {"context": context})()
    deaths = Deaths(testbed, 2, None)  # type: ignore[arg-type]
    for found in founds:
        deaths._judge([found], time.monotonic(), "join", 3, status)
    return deaths


SOUND = TakeoverReport([], [], [], {"train": 7, "victim": 9}, 0.0)


def test_controllers_that_leave_a_difference_are_seen(tmp_path: Path) -> None:
    context = DrillContext("name", "native", tmp_path)
    half = SOUND._replace(before=["lacks workers"])
    assert judged(context, SOUND, half, SOUND).half_done == 1
    for found in (SOUND._replace(after=["lacks workers[...]"]), SOUND._replace(audited=["foreign: jobs[...]"])):
        with pytest.raises(DrillError, match="after the death before join 3, switch and database differ"):
            judged(context, found)
    with pytest.raises(DrillError, match="the job that trains has generation 8 instead of 7"):
        judged(context, SOUND, SOUND._replace(generations={"train": 8}))
    with pytest.raises(DrillError, match="the job that trains has generation 0"):
        judged(context, SOUND._replace(generations={}))
    with pytest.raises(DrillError, match="did not take over: exit status 1"):
        judged(context, 5, status=1)
    with pytest.raises(DrillError, match="ended with status 1 in join"):
        judged(context, SOUND, status=1)


def test_a_refusal_needs_the_right_words() -> None:
    def refuse() -> None:
        raise ControllerError("the database is full", "INTERNAL")

    assert refusal(refuse, "full") == "the database is full"
    with pytest.raises(DrillError, match="but not for 'primary'"):
        refusal(refuse, "primary")
    with pytest.raises(DrillError, match="not refused"):
        refusal(lambda: None, "full")


def test_a_configuration_without_the_text_is_not_edited(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("one two")
    edit(path, tmp_path / "b.toml", ("one", "1"), ("two", "2"))
    assert (tmp_path / "b.toml").read_text() == "1 2"
    with pytest.raises(DrillError, match="has no 'three'"):
        edit(path, path, ("three", "3"))
    assert path.read_text() == "one two"
