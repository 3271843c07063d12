# SPDX-License-Identifier: Apache-2.0
"""Switches that register by themselves: names and processes, leases, jobs on all hosts, and a controller's restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane.cluster import (
    ClusterConfigError,
    InvalidRequestError,
    JobRequest,
    JobState,
    Pending,
    ResourceExhaustedError,
    SwitchConfig,
    UnauthenticatedError,
)
from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.cluster.switch_reconcilers import Registrable
from hopsum_controlplane.devices.device import Device
from hopsum_controlplane.errors import SessionLostError
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire.control import control_pb2 as pb

from .test_shard_jobs import join
from .world import LEASE_S, Cluster, Worker, state_of, switch_config

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
