# SPDX-License-Identifier: Apache-2.0
"""Jobs that move between switches, and switches that register by themselves, with leases and restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane.cluster import JobRequest, JobState, Pending, SwitchConfig
from hopsum_controlplane.cluster import lifecycle as life
from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.cluster.records import JobRecord
from hopsum_controlplane.cluster.switch_reconcilers import Registrable
from hopsum_controlplane.devices.device import Capabilities, Device
from hopsum_controlplane.errors import (
    ClusterConfigError,
    ControlPlaneError,
    InvalidRequestError,
    ResourceExhaustedError,
    SessionLostError,
    UnauthenticatedError,
    UnknownJobError,
)
from hopsum_ptf.fake_device import Failure, FakeDevice
from hopsum_wire.control import control_pb2 as pb

from .test_shard_jobs import join, run, three  # noqa: F401
from .world import LEASE_S, TREE_LINKS, Cluster, Worker, device_of, expected, state_of, switch_config, tree_configs


def standing(cluster: Cluster, name: str) -> bool:
    """Return whether entries of a job stand on a switch, beside the switch's own address."""
    return len(device_of(cluster, name).entities) > 1


def record(cluster: Cluster, name: str = "train") -> JobRecord:
    return cluster.controller._cache.get(name)


def go_on(crew: list[Worker], shards: int) -> None:
    """Join again with a report of the generation that is over, and hear of the next one."""
    for worker in crew:
        further = tuple(Report(worker.generation, 0, 0, ()) for _ in range(1, shards))
        join(worker, shards, report=Report(worker.generation, 0, 0, (), 0, further_shards=further))
    for worker in crew:
        assert not isinstance(worker.membership(), Pending)


def cleared(cluster: Cluster) -> None:
    """Assert that on every switch stands what the database says, also where jobs have left something."""
    records = [cluster.controller._cache.get(view.name) for view in cluster.controller.jobs()]
    for switch in cluster.config.switches:
        jobs = [each.parts[switch.name] for each in records if switch.name in each.parts]
        assert not any(each.leftover(switch.name) for each in records)
        assert device_of(cluster, switch.name).entities == expected(switch, jobs)


@pytest.mark.parametrize(("away", "shard"), [("s1", 0), ("s3", 1)])
def test_a_shard_moves_and_the_workers_go_on(three: Cluster, away: str, shard: int) -> None:  # noqa: F811
    crew = run(three, 2, shard_switches=("s1", "s3"))
    before = record(three).generation
    moved = three.controller.mover.move("train", away, "s2")
    assert (moved.from_switch, moved.to_switch, moved.slots) == (away, "s2", 16)
    assert "it moves from switch" in crew[0].beat().reason
    assert record(three).switches[shard] == "s2"
    three.controller.tick()
    go_on(crew, 2)
    now = record(three)
    assert (now.state, now.departed) == (JobState.RUNNING, ())
    assert now.generation > before
    assert not standing(three, away)
    cleared(three)
    located = three.controller.locate("train", crew[0].token)
    assert (located.send_to, *located.further)[shard].ip == "10.9.0.2"


def test_without_a_name_it_goes_where_most_room_is(three: Cluster) -> None:  # noqa: F811
    three.run("train", 2, 16, switch="s1")
    assert three.controller.mover.move("train").to_switch == "s3", "s2 has few slots"


def test_nobody_waits_for_a_switch_that_is_dead(three: Cluster) -> None:  # noqa: F811
    """Its slots stay the job's, and its entries are removed when it answers again; the job has long gone on."""
    crew = run(three, 2, shard_switches=("s1", "s3"))
    dead = device_of(three, "s1")
    dead.fail(at=dead.updates, failure=Failure.UNREACHABLE)
    three.controller.mover.move("train", "s1", "s2")
    three.controller.tick()
    go_on(crew, 2)
    assert (record(three).state, [left.switch for left in record(three).departed]) == (JobState.RUNNING, ["s1"])
    assert {view.name: view.slots_used for view in three.controller.switches()}["s1"] == 16
    with pytest.raises(InvalidRequestError, match="has slots on switch 's1' already"):
        three.controller.mover.move("train", "s2", "s1")
    dead.repair()
    three.clock.sleep(5)
    three.controller.reconcile("s1")
    assert record(three).departed == ()
    cleared(three)


def test_a_controller_that_starts_again_clears_what_was_left(three: Cluster) -> None:  # noqa: F811
    crew = run(three, 2, shard_switches=("s1", "s3"))
    three.controller.mover.move("train", "s3", "s2")
    assert [left.switch for left in record(three).departed] == ["s3"]
    assert standing(three, "s3")
    three.start()
    three.controller.tick()
    go_on(crew, 2)
    assert record(three).departed == ()
    cleared(three)


@pytest.mark.parametrize("away", ["s1", "s3"])
def test_a_job_that_forms_moves_with_its_waiting_workers(three: Cluster, away: str) -> None:  # noqa: F811
    crew = three.make("train", 2, 16, shards=2, shard_switches=("s1", "s3"))
    join(crew[0], 2)
    three.controller.mover.move("train", away, "s2")
    assert (record(three).state, record(three).departed) == (JobState.FORMING, ())
    join(crew[1], 2)
    for worker in crew:
        assert not isinstance(worker.membership(), Pending)
    cleared(three)


def test_a_job_that_is_deleted_waits_for_the_switch_that_it_has_left(three: Cluster) -> None:  # noqa: F811
    run(three, 2, shard_switches=("s1", "s3"))
    before = record(three)
    to = before.branches[0]
    now = life.move(before, "s1", replace(to, switch="s2", job=None), {}, "it moves")
    assert now is not None
    assert (now.state, now.confirmed, now.next_switches) == (JobState.CHANGING, ("s2",), ("s3",))
    forming = life.on_removed(now, "s3")
    assert forming is not None
    assert forming.state is JobState.FORMING
    ending = life.delete_job(forming)
    assert ending is not None
    assert (ending.state, ending.job, ending.next_switches) == (JobState.ENDING, None, ())
    three.controller._store.put(ending)
    assert three.controller._store.load().records == (ending,)
    assert life.on_cleared(ending, "s1") is None
    both = life.delete_job(now)
    assert both is not None
    assert life.on_cleared(both, "s1") is not None, "s3 is still to be cleared"
    alone = life.on_removed(both, "s3")
    assert alone is not None
    assert life.on_cleared(alone, "s1") is None
    with pytest.raises(ControlPlaneError, match="cannot move from s3 to s1"):
        life.move(ending, "s3", replace(to, switch="s1"), {}, "no")


def test_moves_that_cannot_be_are_refused_and_change_nothing(three: Cluster) -> None:  # noqa: F811
    run(three, 2, shard_switches=("s1", "s3"))
    before = record(three)
    three.make("full", 2, 60, switch="s2")
    cases: list[tuple[tuple[str | None, str | None], type[Exception], str]] = [
        ((None, "s2"), InvalidRequestError, "has 2 shards; say which leaves: s1, s3"),
        (("s2", None), InvalidRequestError, "is not on switch 's2'; it is on s1, s3"),
        (("s1", "s3"), InvalidRequestError, "has slots on switch 's3' already"),
        (("s1", "s9"), InvalidRequestError, "no switch 's9'; there are s1, s2, s3"),
        (("s1", "s2"), ResourceExhaustedError, "s2: the largest free range has 4 of 64 slots"),
        (("s1", None), ResourceExhaustedError, "s2: the largest free range has 4 of 64 slots"),
    ]
    for (away, to), kind, told in cases:
        with pytest.raises(kind, match=told):
            three.controller.mover.move("train", away, to)
    with pytest.raises(UnknownJobError, match="no job 'other'"):
        three.controller.mover.move("other")
    assert record(three) == before


def test_a_switch_that_lacks_a_workers_network_is_refused(tmp_path: Path) -> None:
    configs = (switch_config(1), switch_config(2, {1: "10.7.0.0/16"}))
    cluster = Cluster(tmp_path, configs, {config.name: FakeDevice() for config in configs})
    cluster.start()
    cluster.run("train", 2, 16, switch="s1")
    with pytest.raises(InvalidRequestError, match=r"10\.0\.1\.1 is of no network of switch 's2'"):
        cluster.controller.mover.move("train", to="s2")
    assert record(cluster).state is JobState.RUNNING


def test_a_switch_of_another_kind_is_refused(tmp_path: Path) -> None:
    configs = (switch_config(1), switch_config(2))
    devices = {"s1": FakeDevice(), "s2": FakeDevice(capabilities=Capabilities("small", max_window=8))}
    cluster = Cluster(tmp_path, configs, devices)
    cluster.start()
    cluster.run("train", 2, 16, switch="s1")
    with pytest.raises(InvalidRequestError, match=r"at most any packets, and switch 's2' .* at most 8 packets"):
        cluster.controller.mover.move("train", to="s2")


def test_a_job_over_a_tree_is_refused(tmp_path: Path) -> None:
    configs = tree_configs()
    cluster = Cluster(tmp_path, configs, {config.name: FakeDevice() for config in configs}, TREE_LINKS)
    cluster.start()
    cluster.make("train", 4, 16, tree=True)
    with pytest.raises(InvalidRequestError, match="is over a tree of switches"):
        cluster.controller.mover.move("train", "s1")


def lose(hosts: Hosts, host: int, *also_heard: int) -> None:
    """Let a host's switch die, and its lease run out; others go on to register."""
    dead = hosts.devices[hosts.offer(host).address]
    dead.fail(at=dead.updates, failure=Failure.UNREACHABLE)
    for _ in range(2):
        hosts.cluster.clock.sleep(LEASE_S * 0.6)
        for heard in also_heard:
            hosts.cluster.controller.registry.register(hosts.offer(heard))
        for view in hosts.cluster.controller.jobs():
            for member in view.members:
                hosts.cluster.controller._renew(record(hosts.cluster, view.name), member.rank)
        for switch in hosts.names():
            hosts.cluster.controller.reconcile(switch)


def test_the_shard_of_a_lost_host_moves_by_itself(hosts: Hosts, caplog: Any) -> None:
    crew = hosts.run()
    lose(hosts, 1, 2)
    hosts.cluster.controller.tick()
    hosts.cluster.controller.tick()
    assert record(hosts.cluster).state is JobState.RUNNING, "there is no other host"
    assert caplog.text.count("job train stays on switch host1, which is lost: job 'train' is on host1, host2") == 1
    hosts.start(3)
    hosts.cluster.controller.tick()
    assert "it moves from switch host1 to switch host3: that one is lost" in crew[0].beat().reason
    go_on(crew, 2)
    hosts.cluster.controller.tick()
    assert record(hosts.cluster).switches == ("host3", "host2")
    assert hosts.names() == ["s1", "host2", "host3"], "nothing is at host1 any more"


def test_a_job_on_a_lost_host_can_be_deleted(hosts: Hosts) -> None:
    hosts.run()
    lose(hosts, 1, 2)
    with pytest.raises(ControlPlaneError, match="is ending"):
        hosts.cluster.controller.delete_job("train")
    hosts.cluster.controller.tick()
    assert hosts.cluster.controller.jobs() == []
    assert hosts.names() == ["s1", "host2"]


GONE = "it has deregistered, or was silent"


class Hosts:
    """Hosts with a switch each, which answer at the addresses where they were started last."""

    def __init__(self, folder: Path) -> None:
        self.devices: dict[str, FakeDevice] = {}
        self.cluster = Cluster(folder, (switch_config(1),), {"s1": FakeDevice()})
        self.start_controller()

    def start_controller(self) -> None:
        self.cluster.start(registered=Registrable(self._source, None))

    def _source(self, switch: SwitchConfig) -> Callable[[], Device]:
        def connect() -> Device:
            if switch.address not in self.devices:
                raise SessionLostError("no P4Runtime server answered", where=switch.address)
            return self.devices[switch.address]

        return connect

    def offer(self, host: int, life: int = 0, **changes: Any) -> pb.RegisterSwitchRequest:
        """Return the offer of a host's switch, in one of the lives of its process."""
        values: dict[str, Any] = {
            "name": f"host{host}",
            "incarnation": bytes([host, life]) * 8,
            "address": f"10.0.0.{host}:{9000 + life}",
            "mac": f"02:00:00:00:01:{host:02x}",
            "ip": f"10.0.0.{host}",
            "service": pb.Endpoint(ip=f"10.0.0.{host}", udp_port=5000 + life),
            "slots": 64,
        }
        return pb.RegisterSwitchRequest(**{**values, **changes})

    def start(self, host: int, life: int = 0, **changes: Any) -> FakeDevice:
        """Start a host's switch, and let it register."""
        offer = self.offer(host, life, **changes)
        device = self.devices[offer.address] = FakeDevice()
        self.cluster.controller.registry.register(offer)
        return device

    def names(self) -> list[str]:
        return [switch.name for switch in self.cluster.controller.switches()]

    def run(self, name: str = "train", hosts: int = 2) -> list[Worker]:
        crew = self.cluster.make(name, 2, 16, hosts=True)
        for worker in crew:
            join(worker, hosts)
        for worker in crew:
            assert not isinstance(worker.membership(), Pending)
        return crew


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    found = Hosts(tmp_path)
    for host in (1, 2):
        found.start(host)
    return found


def test_a_job_on_hosts_has_a_shard_on_each_that_registered(hosts: Hosts) -> None:
    assert hosts.names() == ["s1", "host1", "host2"]
    hosts.run()
    job = hosts.cluster.controller.job("train")
    assert ([*job.switches], job.shards, state_of(job)) == (["host1", "host2"], 2, JobState.RUNNING)
    assert all(each.entities for each in hosts.devices.values())
    views = {view.name: view for view in hosts.cluster.controller.switches()}
    assert (views["s1"].registered, views["s1"].HasField("lease_left_s")) == (False, False)
    assert (views["host2"].registered, views["host2"].lease_left_s) == (True, LEASE_S)


def test_other_jobs_stay_on_the_configured_switches(hosts: Hosts) -> None:
    hosts.cluster.make("plain", 2, 16)
    assert hosts.cluster.controller.job("plain").switches == ["s1"]
    hosts.cluster.make("named", 2, 16, switch="host2")
    assert hosts.cluster.controller.job("named").switches == ["host2"]
    with pytest.raises(InvalidRequestError, match="2 shards, and 1 of 1 switches reach"):
        hosts.cluster.make("two", 2, 16, shards=2)


def test_one_host_alone_has_the_whole_job(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    with pytest.raises(InvalidRequestError, match="no host's switch has registered; run `hopsum worker-switch`"):
        hosts.cluster.make(hosts=True)
    hosts.start(1)
    hosts.cluster.make(hosts=True)
    job = hosts.cluster.controller.job("job")
    assert ([*job.switches], job.shards) == (["host1"], 1)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"shards": 2}, "shards on all hosts, and a number or names"),
        ({"switch": "s1"}, "shards on all hosts, and a number or names"),
        ({"tree": True}, "shards on all hosts, and a number or names"),
        ({"observers": 1}, "1 observers of shards on all hosts"),
    ],
)
def test_hosts_and_something_else_is_refused(hosts: Hosts, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        hosts.cluster.make(hosts=True, **changes)


def test_a_host_without_room_is_named_with_its_slots(hosts: Hosts) -> None:
    hosts.start(3, slots=8)
    with pytest.raises(ResourceExhaustedError, match="host3: the largest free range has 8 of 8 slots"):
        hosts.cluster.make(slots=16, hosts=True)


def test_the_same_process_may_ask_again(hosts: Hosts) -> None:
    hosts.cluster.clock.sleep(LEASE_S - 1)
    registration = hosts.cluster.controller.registry.register(hosts.offer(1))
    assert (registration.lease_s, registration.heartbeat_s) == (LEASE_S, 2.0)
    assert hosts.cluster.controller.registry.lease_left_s("host1") == LEASE_S
    with pytest.raises(InvalidRequestError, match=r"is at 10\.0\.0\.1:9000, and now at 10\.0\.0\.1:9001"):
        hosts.cluster.controller.registry.register(hosts.offer(1, address="10.0.0.1:9001"))


def test_a_name_of_another_host_is_refused_until_its_lease_is_over(hosts: Hosts) -> None:
    hosts.run()
    elsewhere = hosts.offer(5, name="host1")
    hosts.devices[elsewhere.address] = FakeDevice()
    with pytest.raises(InvalidRequestError, match=r"'host1' is registered from 10\.0\.0\.1, and this is 10\.0\.0\.5"):
        hosts.cluster.controller.registry.register(elsewhere)
    with pytest.raises(InvalidRequestError, match="the controller's configuration has a switch 's1'"):
        hosts.cluster.controller.registry.register(hosts.offer(5, name="s1"))
    hosts.cluster.clock.sleep(LEASE_S + 1)
    hosts.cluster.controller.registry.register(elsewhere)
    assert hosts.cluster.controller.registry.is_live("host1")


def test_a_process_that_starts_again_takes_its_name_over(hosts: Hosts) -> None:
    crew = hosts.run()
    before = hosts.cluster.controller.job("train").generation
    hosts.start(1, life=1)
    hosts.cluster.controller.tick()
    assert state_of(hosts.cluster.controller.job("train")) is JobState.FORMING, "its switch is empty"
    for worker in crew:
        join(worker, 2, report=Report(before, 0, 0, (), 0, further_shards=(Report(before, 0, 0, ()),)))
    for worker in crew:
        assert not isinstance(worker.membership(), Pending)
    assert hosts.cluster.controller.job("train").generation > before
    with pytest.raises(UnauthenticatedError, match=r"'host1' was started again, at 10\.0\.0\.1:9001"):
        hosts.cluster.controller.registry.register(hosts.offer(1))


def test_fewer_slots_than_its_jobs_have_are_refused(hosts: Hosts) -> None:
    hosts.run()
    with pytest.raises(InvalidRequestError, match="comes back with 8 slots, and its jobs have slots up to 16"):
        hosts.start(1, life=1, slots=8)
    assert state_of(hosts.cluster.controller.job("train")) is JobState.RUNNING


def test_an_address_that_does_not_answer_is_refused_and_nothing_is_kept(hosts: Hosts) -> None:
    with pytest.raises(InvalidRequestError, match=r"does not reach its P4Runtime server at 10\.0\.0\.9:9000: no"):
        hosts.cluster.controller.registry.register(hosts.offer(9))
    assert hosts.names() == ["s1", "host1", "host2"]
    hosts.start(9)
    assert hosts.names() == ["s1", "host1", "host2", "host9"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "a b"}, "switch name 'a b'; a name has 1 .. 64 letters"),
        ({"incarnation": b"short"}, "an incarnation of 5 bytes"),
        ({"address": "10.0.0.9"}, "address '10.0.0.9'; it is HOST:PORT"),
        ({"address": "10.0.0.9:70000"}, "address '10.0.0.9:70000'"),
        ({"service": pb.Endpoint(ip="10.0.0.9")}, "port 0; ports are 1 .. 65535"),
        ({"service": pb.Endpoint(ip="nowhere", udp_port=5000)}, "nowhere"),
        ({"mac": "02:00"}, "02:00"),
        ({"ip": "10.0.0"}, "10.0.0"),
        ({"slots": 0}, "0 slots; a switch has 1 .. 2048"),
        ({"slots": 4096}, "4096 slots; a switch has 1 .. 2048"),
        ({"mac": "02:00:00:00:01:01", "ip": "10.0.0.1"}, "several switches with one endpoint"),
    ],
)
def test_a_malformed_offer_changes_nothing(hosts: Hosts, changes: dict[str, Any], told: str) -> None:
    offer = hosts.offer(9, **changes)
    hosts.devices[offer.address] = FakeDevice()
    with pytest.raises(InvalidRequestError) as raised:
        hosts.cluster.controller.registry.register(offer)
    assert told in str(raised.value)
    assert hosts.names() == ["s1", "host1", "host2"]


def test_a_switch_that_deregisters_is_forgotten_when_its_last_job_has_gone(hosts: Hosts) -> None:
    hosts.run()
    registry = hosts.cluster.controller.registry
    assert registry.deregister("host1", b"another process") == (), "only its own process says that"
    assert registry.deregister("host1", hosts.offer(1).incarnation) == ("train",)
    assert registry.deregister("host1", hosts.offer(1).incarnation) == ("train",)
    assert state_of(hosts.cluster.controller.job("train")) is JobState.RUNNING
    with pytest.raises(ResourceExhaustedError, match=f"host1: {GONE}"):
        hosts.cluster.make("next", 2, 16, shards=2, shard_switches=("host1", "host2"))
    hosts.cluster.make("next", 2, 16, hosts=True)
    assert hosts.cluster.controller.job("next").switches == ["host2"]
    hosts.cluster.controller.delete_job("train")
    hosts.cluster.controller.tick()
    assert hosts.names() == ["s1", "host2"]
    hosts.start(1, life=1)
    assert hosts.names() == ["s1", "host2", "host1"]


def test_a_silent_switch_loses_its_lease_and_a_standstill_of_the_controller_excuses_it(hosts: Hosts) -> None:
    hosts.cluster.clock.sleep(LEASE_S / 2)
    hosts.cluster.controller.registry.register(hosts.offer(2))
    hosts.cluster.clock.sleep(LEASE_S)
    hosts.cluster.controller.excuse(LEASE_S / 2)
    hosts.cluster.controller.expire()
    assert hosts.names() == ["s1", "host2"], "host1 was silent for longer than its lease and the standstill"


def test_a_controller_that_starts_again_drives_them_at_once(hosts: Hosts) -> None:
    crew = hosts.run()
    hosts.start_controller()
    assert hosts.names() == ["s1", "host1", "host2"]
    job = hosts.cluster.controller.job("train")
    assert (state_of(job), [*job.switches]) == (JobState.RUNNING, ["host1", "host2"])
    assert crew[0].beat().reason == ""
    assert hosts.cluster.controller.registry.lease_left_s("host1") == LEASE_S
    with pytest.raises(ClusterConfigError, match="no device for switch 'host1'"):
        hosts.cluster.start()


def test_a_controller_with_an_empty_database_takes_them_as_its_own(hosts: Hosts, tmp_path: Path) -> None:
    hosts.run()
    hosts.cluster.stop()
    (tmp_path / "state.sqlite").unlink()
    hosts.start_controller()
    assert hosts.names() == ["s1"]
    for host in (1, 2):
        hosts.cluster.controller.registry.register(hosts.offer(host))
    assert hosts.names() == ["s1", "host1", "host2"]
    hosts.run()
    assert [view.condition for view in hosts.cluster.controller.switches()][1:] == ["", ""]


def test_many_hosts_are_refused_with_the_number(hosts: Hosts) -> None:
    for host in range(3, 66):
        hosts.start(host)
    with pytest.raises(InvalidRequestError, match=r"65 shards; a job has 1 \.\. 64"):
        hosts.cluster.controller.create_job(JobRequest("job", 2, 16, hosts=True))
