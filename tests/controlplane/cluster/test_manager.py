# SPDX-License-Identifier: Apache-2.0
"""What workers and operators see of a cluster, in ordinary life and in trouble."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from hopsum.membership import parse_membership
from hopsum.wire import WIRE_VERSION
from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster import (
    Beat,
    ClusterConfigError,
    InvalidRequest,
    JoinRequest,
    NoRoom,
    NotAdmitted,
    Pending,
    Phase,
    State,
    SwitchTrouble,
    UnknownJob,
)
from hopsum_controlplane.entries import Delete, Insert, Modify, MulticastGroup, Replica, TableEntry
from hopsum_controlplane.tables import admit
from hopsum_controlplane.testing import Failure, FakeDevice

from .conftest import MakeCluster
from .world import LEASE_S, TABLE, Cluster, enter, switch_config


def device_of(cluster: Cluster, name: str = "s1") -> FakeDevice:
    device = cluster.devices[name]
    assert isinstance(device, FakeDevice)
    return device


def test_a_job_from_beginning_to_end(cluster: Cluster) -> None:
    first, second = cluster.make(table=TABLE, quorum=1)
    joined = first.join()
    assert (joined.rank, joined.lease_s, joined.heartbeat_s) == (0, LEASE_S, 2.0)
    assert first.membership() == Pending((1,), State.FORMING)
    assert first.beat() == Beat(State.FORMING, 0, "")
    second.join()
    document = first.membership()
    assert isinstance(document, dict)
    assert second.membership() == document
    found = parse_membership(json.dumps(document))
    assert (found.job, found.slots, found.quorum, found.table) == ("job", 16, 1, TABLE)
    assert [(each.endpoint.address, each.side_port) for each in found.workers] == [
        (("10.0.1.1", 4000), 5000),
        (("10.0.1.2", 4001), 5001),
    ]
    cluster.check()
    assert first.beat(retransmits=3.0) == Beat(State.RUNNING, found.epoch, "")
    view = cluster.manager.job("job")
    assert (view.state, view.epoch, view.missing_ranks) == (State.RUNNING, found.epoch, ())
    assert view.members[0].statistics == {"retransmits": 3.0}
    assert set(view.counters.values()) == {0}
    first.leave()
    cluster.check()
    assert first.beat() == Beat(State.RUNNING, found.epoch, "")
    second.leave()
    assert cluster.manager.job("job").state is State.FORMING
    assert cluster.manager.job("job").members == ()
    cluster.check()
    cluster.manager.delete_job("job")
    assert cluster.manager.jobs() == []
    assert cluster.manager.switches()[0].slots_used == 0
    for call in (first.beat, first.membership, first.leave, first.join):
        with pytest.raises(UnknownJob, match="no job 'job'"):
            call()
    with pytest.raises(UnknownJob):
        cluster.manager.delete_job("job")


def test_silence_ends_the_epoch(cluster: Cluster) -> None:
    first, second = crew = cluster.run()
    old = first.epoch
    cluster.clock.sleep(LEASE_S - 1)
    first.beat()
    cluster.manager.tick()
    assert cluster.manager.job("job").members[1].lease_left_s == 1
    cluster.clock.sleep(1)
    cluster.manager.tick()
    reason = "the lease of rank 1 ran out: nothing was heard of it for 10 s"
    assert first.beat() == Beat(State.FORMING, 0, reason)
    assert second.beat() == Beat(State.FORMING, 0, "rank 1 of job 'job' was given up: not heard of for 10 s")
    with pytest.raises(NotAdmitted, match="given up: not heard of for 10 s; join again"):
        second.membership()
    assert first.membership() == Pending((0, 1), State.FORMING)
    cluster.check()
    enter(crew)
    assert first.epoch > old
    assert first.beat() == Beat(State.RUNNING, first.epoch, "")
    cluster.check()


def test_a_worker_that_was_started_again(cluster: Cluster) -> None:
    first, second = cluster.run()
    old_secret, old_request = second.secret, second.request()
    second.start_again()
    beat = first.beat()
    assert beat.epoch == 0
    assert "rank 1 was started again, at 10.0.1.2:4001" in beat.reason
    with pytest.raises(NotAdmitted, match="this one's; join again"):
        cluster.manager.heartbeat("job", 1, old_secret)
    with pytest.raises(NotAdmitted, match="taken its rank over"):
        cluster.manager.join(old_request)
    assert second.membership() == Pending((0,), State.FORMING)
    first.join()
    assert isinstance(first.membership(), dict)
    cluster.check()


def test_a_join_that_is_repeated_has_the_same_answer(cluster: Cluster) -> None:
    first, second = cluster.make()
    once = first.join()
    assert first.join() == once
    assert first.join(rank=None) == once
    second.join()
    epoch = cluster.manager.job("job").epoch
    assert first.join() == once
    assert cluster.manager.job("job").epoch == epoch != 0
    cluster.start()
    assert first.join() == once


def test_ranks_are_given_in_order(cluster: Cluster) -> None:
    crew = cluster.make(workers=3)
    assert [worker.join(rank=None).rank for worker in crew] == [0, 1, 2]
    late = replace(crew[0].request(rank=None), incarnation=bytes(16), udp_port=9)
    with pytest.raises(NoRoom, match="all 3 ranks of job 'job' are taken; say which rank this worker replaces"):
        cluster.manager.join(late)


def test_an_observer_looks_and_is_not_waited_for(cluster: Cluster) -> None:
    crew = cluster.make(observers=1)
    observer = replace(crew[0], rank=64)
    observer.join()
    assert observer.membership() == Pending((0, 1), State.FORMING)
    enter(crew)
    assert isinstance(observer.membership(), dict)
    cluster.check()
    assert [each.phase for each in cluster.manager.job("job").members] == [Phase.IN] * 3
    cluster.clock.sleep(LEASE_S / 2)
    for worker in crew:
        worker.beat()
    cluster.clock.sleep(LEASE_S / 2)
    cluster.manager.tick()
    assert cluster.manager.job("job").state is State.RUNNING
    assert cluster.manager.job("job").members[2].phase is Phase.LOST


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"wire_version": WIRE_VERSION + 1}, InvalidRequest, "install the same hopsum"),
        ({"rank": 2}, InvalidRequest, r"no rank 2; its workers are 0 \.\. 1"),
        ({"rank": -1}, InvalidRequest, "rank -1"),
        ({"ip": "10.0.0.256"}, InvalidRequest, "not the IPv4 address of a host"),
        (
            {"ip": "192.0.2.1"},
            InvalidRequest,
            r"192\.0\.2\.1 is of no network of switch 's1', .* 10\.0\.0\.0/16 at port 1",
        ),
        ({"mac": "x"}, InvalidRequest, "not the MAC address"),
        ({"udp_port": 0}, InvalidRequest, "UDP port 0"),
        ({"side_port": 65536}, InvalidRequest, "side port 65536"),
        ({"incarnation": b"short"}, InvalidRequest, "an incarnation of 5 bytes; it has 16"),
        ({"version": "v" * 65}, InvalidRequest, "a version of 65 characters"),
        ({"token": "wrong"}, NotAdmitted, "wrong token for job 'job'"),
        ({"job": "other"}, UnknownJob, "no job 'other'"),
        ({"ip": "10.0.1.2", "udp_port": 4001}, InvalidRequest, r"rank 1 is at 10\.0\.1\.2:4001 already"),
    ],
)
def test_joins_that_are_refused(
    cluster: Cluster, changes: dict[str, object], error: type[ControlPlaneError], message: str
) -> None:
    first, second = cluster.make()
    second.join()
    before = cluster.manager.jobs()
    with pytest.raises(error, match=message):
        first.join(**changes)
    now = cluster.manager.job("job")
    assert now.joins_refused == (error is InvalidRequest)  # who has no token leaves no trace
    told = {"joins_refused": now.joins_refused, "last_refusal": now.last_refusal}
    assert cluster.manager.jobs() == [replace(view, **told) for view in before]


def test_where_a_worker_stands(make_cluster: MakeCluster) -> None:
    config = switch_config(1, {3: "10.0.0.0/16", 300: "10.0.1.2/32"}, send_to=("127.0.0.1", 47500))
    cluster = make_cluster(config)
    first, second = crew = cluster.make()
    assert cluster.manager.locate("job", first.token).send_to == ("127.0.0.1", 47500)
    with pytest.raises(NotAdmitted):
        cluster.manager.locate("job", second.token[1:])
    first.join(mac="02:00:00:00:07:07")
    second.join()
    rewrites = [entry for entry in device_of(cluster).read_table("rewrite") if entry.match["worker"] == 1]
    assert rewrites[0].params["dst_mac"] == 0x02_00_00_01_01_2C  # the address of port 300's peers
    assert [member.port for member in cluster.manager.job("job").members] == [3, 300]
    document = crew[0].membership()
    assert isinstance(document, dict)
    assert document["workers"][1]["send_to"] == {"ip": "127.0.0.1", "udp_port": 47500}
    cluster.config = replace(cluster.config, switches=(replace(config, driver="bmv2"),))
    cluster.start()
    with pytest.raises(InvalidRequest, match="no MAC address, which a bmv2 switch needs"):
        second.start_again()


def test_statistics_are_checked(cluster: Cluster) -> None:
    first, _ = cluster.run()
    for odd in ({"a b": 1.0}, {"a": float("nan")}, {f"n{number}": 0.0 for number in range(65)}):
        with pytest.raises(InvalidRequest):
            first.beat(**odd)


def test_waiting_ends_with_the_epoch(cluster: Cluster) -> None:
    first, second = cluster.make()
    first.join()
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(first.membership(timeout_s=30.0)))
    thread.start()
    second.join()
    thread.join(20.0)
    assert isinstance(found[0], dict)


def test_waiting_ends_with_the_job(cluster: Cluster) -> None:
    first, _ = cluster.make()
    first.join()
    refused: list[str] = []

    def wait() -> None:
        with pytest.raises(UnknownJob) as error:
            first.membership(timeout_s=30.0)
        refused.append(str(error.value))

    thread = threading.Thread(target=wait)
    thread.start()
    cluster.manager.delete_job("job")
    thread.join(20.0)
    assert len(refused) == 1


def test_a_restarted_controller_adopts(cluster: Cluster) -> None:
    crew = cluster.run()
    cluster.run("other", workers=3)
    device_of(cluster).counters["job_events"] = {0: 5}
    before, standing = cluster.manager.jobs(), cluster.standing()
    cluster.clock.sleep(1000)
    cluster.start()
    assert [(job.name, job.state, job.epoch) for job in cluster.manager.jobs()] == [
        (job.name, State.RUNNING, job.epoch) for job in before
    ]
    assert cluster.standing() == standing
    cluster.manager.tick()  # silence of the controller is not silence of its members
    assert crew[0].beat() == Beat(State.RUNNING, crew[0].epoch, "")
    assert cluster.manager.job("job").counters["added"] == 5


def test_a_restarted_switch_gets_new_epochs(cluster: Cluster) -> None:
    crew, forming = cluster.run(), cluster.make("forming")
    forming[0].join()
    old = crew[0].epoch
    device_of(cluster).entities.clear()
    cluster.clock.sleep(cluster.config.audit_s - 1)
    for worker in (*crew, forming[0]):
        worker.beat()
    cluster.manager.tick()
    assert crew[0].beat().epoch == old  # nobody has looked yet
    cluster.clock.sleep(1)
    cluster.manager.tick()
    beat = crew[0].beat()
    assert beat.epoch == 0
    assert "switch s1 lost entries: job 'job'" in beat.reason
    assert forming[0].beat() == Beat(State.FORMING, 0, "")
    enter(crew)
    assert crew[0].epoch > old
    cluster.check()


@pytest.mark.parametrize("restart", [False, True])
def test_what_others_change_is_put_right(cluster: Cluster, restart: bool) -> None:
    crew, other = cluster.run(), cluster.run("other")
    device = device_of(cluster)
    device.write([Insert(MulticastGroup(9, (Replica(1, 1),))), Insert(TableEntry("jobs", {"epoch": 5}, "job", {}))])
    if restart:
        cluster.start(remove_existing=True)
    else:
        cluster.clock.sleep(LEASE_S - 1)
        for worker in (*crew, *other):
            worker.beat()
        cluster.clock.sleep(1)
        cluster.manager.tick()
        view = cluster.manager.switches()[0]
        assert (view.audits, view.put_right) == (1, 2)
        assert [line.split(":")[0] for line in view.findings] == ["foreign", "foreign"]
    cluster.check()
    assert {job.state for job in cluster.manager.jobs()} == {State.RUNNING}


def test_one_job_loses_an_entry(cluster: Cluster) -> None:
    crew, other = cluster.run(), cluster.run("other")
    device = device_of(cluster)
    worker = next(entry for entry in device.read_table(admit.WORKERS) if entry.match["epoch"] == crew[0].epoch)
    rewrite = next(entry for entry in device.read_table("rewrite") if entry.match["epoch"] == other[0].epoch)
    device.write([Delete(worker), Modify(replace(rewrite, params={**rewrite.params, "dst_port": 1}))])
    cluster.clock.sleep(LEASE_S - 1)
    for each in (*crew, *other):
        each.beat()
    cluster.clock.sleep(1)
    cluster.manager.tick()
    assert cluster.manager.job("job").state is State.FORMING
    assert other[0].beat() == Beat(State.RUNNING, other[0].epoch, "")
    cluster.check()


def test_a_switch_of_somebody_else_is_left_alone(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    device = device_of(cluster)
    cluster.stop()
    theirs = TableEntry("jobs", {"epoch": 5}, "job", {})
    device.write([Insert(theirs)])
    cluster.start()
    view = cluster.manager.switches()[0]
    assert (view.reachable, "1 entries of another controller stand here" in view.trouble) == (False, True)
    with pytest.raises(NoRoom, match=r"s1: .*entries of another controller"):
        cluster.make()
    device.write([Delete(theirs)])
    cluster.clock.sleep(1)
    cluster.manager.tick()
    assert cluster.manager.switches()[0].trouble == ""
    cluster.run()


def test_a_switch_that_refuses_is_asked_again(cluster: Cluster) -> None:
    crew, device = cluster.make(), device_of(cluster)
    device.write([Insert(MulticastGroup(1, (Replica(9, 9),)))])  # in the way of the first job
    crew[0].join()
    crew[1].join()
    pending = crew[0].membership()
    assert isinstance(pending, Pending)
    assert (pending.missing_ranks, pending.state) == ((), State.FORMING)
    assert "ALREADY_EXISTS" in pending.trouble
    other = cluster.run("other")  # the switch is not in trouble, only the job
    cluster.clock.sleep(1)
    cluster.manager.tick()  # removes what was in the way first
    assert isinstance(crew[0].membership(), dict)
    assert other[0].beat().reason == ""
    cluster.check()
    assert cluster.manager.job("job").trouble == ""


@pytest.mark.parametrize("failure", [Failure.UNANSWERED, Failure.UNREACHABLE])
def test_a_switch_that_does_not_answer(cluster: Cluster, failure: Failure) -> None:
    crew, device = cluster.make(), device_of(cluster)
    device.fail(at=device.updates + 2, failure=failure)
    crew[0].join()
    crew[1].join()  # is not refused: its job waits
    pending = crew[0].membership()
    assert isinstance(pending, Pending)
    assert pending.trouble != ""
    for _ in range(3):
        cluster.clock.sleep(1.0)
        cluster.manager.tick()
    device.repair()
    cluster.clock.sleep(4.0)
    for worker in crew:
        worker.beat()
    cluster.manager.tick()
    assert isinstance(crew[0].membership(), dict)
    cluster.check()


def test_deleting_waits_for_the_switch(cluster: Cluster) -> None:
    crew, device = cluster.run(), device_of(cluster)
    device.fail(at=device.updates, failure=Failure.UNREACHABLE)
    with pytest.raises(
        SwitchTrouble, match=r"job 'job' is ending, and 16 slots of switch 's1' stay taken: .*goes on trying"
    ):
        cluster.manager.delete_job("job")
    assert crew[0].beat() == Beat(State.ENDING, 0, "the job was deleted")
    with pytest.raises(SwitchTrouble):
        cluster.manager.delete_job("job")
    device.repair()
    cluster.manager.delete_job("job")
    assert cluster.manager.jobs() == []
    cluster.check()


def test_a_full_disk_changes_nothing(cluster: Cluster) -> None:
    crew = cluster.run()
    assert cluster.store is not None
    database = cluster.store._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ControlPlaneError, match="is full; make room on the disk"):
        [cluster.make(f"job{number}", slots=1) for number in range(63)]
    before = cluster.manager.jobs()
    assert len(before) < 64
    cluster.clock.sleep(LEASE_S)
    crew[0].beat()
    cluster.manager.tick()
    database.execute(f"PRAGMA max_page_count = {pages + 1000}")
    cluster.manager.tick()
    assert [job.name for job in cluster.manager.jobs()] == [job.name for job in before]
    cluster.clock.sleep(30.0)
    cluster.manager.tick()
    assert cluster.manager.job("job").state is State.FORMING
    cluster.check()


def test_a_device_is_missing(cluster: Cluster) -> None:
    cluster.devices = {}
    with pytest.raises(ClusterConfigError, match="no device for switch 's1'"):
        cluster.start()


def test_a_switch_that_starts_later(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    device, up = device_of(cluster), False

    def open_it() -> FakeDevice:
        if not up:
            raise ControlPlaneError("no P4Runtime server answered", where="127.0.0.1:9559", hint="start the switch")
        return device

    cluster.devices = {"s1": open_it}  # type: ignore[dict-item]
    cluster.start()
    view = cluster.manager.switches()[0]
    assert (view.reachable, "no P4Runtime server answered" in view.trouble) == (False, True)
    up = True
    cluster.clock.sleep(1.0)
    cluster.manager.tick()
    assert cluster.manager.switches()[0].reachable
    cluster.run()


def test_nothing_shows_a_secret(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    crew = cluster.make()
    token, request = crew[0].token, crew[0].request()
    texts = [repr(request), repr(cluster.manager.create_job), repr(cluster.manager)]
    texts += [repr(worker.join()) for worker in crew]
    wrong = (replace(request, token=token + "x"), replace(request, udp_port=9), replace(request, version=token * 9))
    for odd in wrong:
        with pytest.raises(ControlPlaneError) as error:
            cluster.manager.join(odd)
        texts += [repr(error.value), str(error.value), str(error.value.__cause__)]
    second = cluster.manager.join(replace(crew[1].request(), incarnation=b"i" * 16))
    with pytest.raises(NotAdmitted) as refused:
        cluster.manager.heartbeat("job", 0, second.secret)
    records = cluster.manager._ledger.records()
    texts += [repr(refused.value), repr(records), repr(cluster.manager.jobs()), repr(cluster.manager.switches())]
    texts.append(caplog.text)
    cluster.stop()
    for file in cluster.config.database.parent.iterdir():
        texts.append(file.read_bytes().decode("latin-1"))
    assert any("installing -> running" in text for text in texts)
    for secret in (token, *(repr(each.secret)[2:-1] for each in crew), crew[0].secret.decode("latin-1")):
        assert not any(secret in text for text in texts)
    assert not any(JoinRequest.__name__ in text and "incarnation" in text for text in texts)
