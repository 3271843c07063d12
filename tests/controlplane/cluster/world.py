# SPDX-License-Identifier: Apache-2.0
"""A cluster of switches in memory, with a clock that tests turn, switches that note writes, and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from hopsum_controlplane import JobSpec, SwitchEndpoint
from hopsum_controlplane.cluster import (
    ClusterConfig,
    ClusterController,
    JobState,
    JoinRequest,
    MemberPhase,
    Pending,
    PortRule,
    StateStore,
    SwitchConfig,
)
from hopsum_controlplane.cluster.answers import state_number
from hopsum_controlplane.cluster.cluster_config import LinkConfig
from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.devices.device import Device
from hopsum_controlplane.entries import Delete, Entity, Insert, TableEntry, Update
from hopsum_controlplane.entry_plan import plan
from hopsum_controlplane.job_spec import Job
from hopsum_controlplane.tables.address import switch_address
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire import WIRE_VERSION
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.values import enum_word
from hopsum_wire.membership import membership_document

from ...support.clock import FakeClock
from ...support.jobs import spec_options

LEASE_S = 10.0
TABLE = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 20)


def switch_config(number: int = 1, networks: Mapping[int, str] | None = None, **options: Any) -> SwitchConfig:
    known = {1: "10.0.0.0/16"} if networks is None else networks
    rules = tuple(PortRule(port, IPv4Network(text)) for port, text in known.items())
    endpoint = SwitchEndpoint(f"02:00:00:00:00:{number:02x}", f"10.9.0.{number}")
    return SwitchConfig(f"s{number}", "native", f"127.0.0.1:{9558 + number}", 0, endpoint, rules, **options)


TREE_LINKS = (LinkConfig("s1", 9, "s3", 1), LinkConfig("s2", 9, "s3", 2))


def tree_configs(**options: Any) -> tuple[SwitchConfig, ...]:
    """Two leaves, with the workers of ranks 0 and 1 and of the next ones, and the spine above them."""
    return (
        switch_config(1, {1: "10.0.1.1/32", 2: "10.0.1.2/32"}, **options),
        switch_config(2, {1: "10.0.1.3/32", 2: "10.0.1.4/32"}, **options),
        switch_config(3, {}, **options),
    )


def beat_of(state: JobState, generation: int, reason: str, lost: tuple[int, ...] = ()) -> pb.HeartbeatResponse:
    """Make the answer to a heartbeat."""
    return pb.HeartbeatResponse(state=state_number(state), generation=generation, reason=reason, lost_ranks=lost)


def pending_of(missing: tuple[int, ...], state: JobState, **more: Any) -> Pending:
    """Make the answer to a member that waits."""
    return Pending(missing_ranks=missing, state=state_number(state), **more)


@dataclass
class Worker:
    """One worker of a job, in all its lives."""

    cluster: Cluster
    job: str
    token: str = field(repr=False)
    rank: int
    lives: int = 0
    joined: pb.JoinResponse | None = None
    generation: int = 0
    held: tuple[tuple[int, int], ...] = ()
    """The results that it reports of a generation that has ended."""

    @property
    def incarnation(self) -> bytes:
        return f"{self.job[:5]:5} {self.rank:4} {self.lives:5}".encode()

    def request(self, **changes: Any) -> JoinRequest:
        values: dict[str, Any] = {
            "job": self.job,
            "token": self.token,
            "rank": self.rank,
            "ip": f"10.0.1.{self.rank + 1}",
            "udp_port": 4000 + self.rank,
            "mac": None,
            "side_port": 5000 + self.rank,
            "incarnation": self.incarnation,
            "wire_version": WIRE_VERSION,
            "version": "1.0",
        }
        return JoinRequest(**{**values, **changes})

    def start_again(self) -> pb.JoinResponse:
        """Join as a worker that knows nothing any more."""
        self.lives += 1
        self.generation = 0
        return self.join()

    def join(self, **changes: Any) -> pb.JoinResponse:
        """Join, with a report where the generation that it knows has ended."""
        if self.generation and self.has_ended() and "report" not in changes:
            changes["report"] = self.report()
        self.joined = self.cluster.controller.member_requests.join(self.request(**changes))
        return self.joined

    def report(self) -> Report:
        end = self.held[-1][1] if self.held else 0
        return Report(self.generation, 0, end, self.held, 0)

    def has_ended(self) -> bool:
        found = [job for job in self.cluster.controller.jobs() if job.name == self.job]
        return not any(job.generation == self.generation and job.state == pb.JOB_STATE_RUNNING for job in found)

    def membership(self, timeout_s: float = 0.0) -> dict[str, Any] | Pending:
        found = self.cluster.controller.member_requests.await_membership(
            self.job, self.rank, self.secret, known_generation=self.generation, timeout_s=timeout_s
        )
        if isinstance(found, Pending):
            return found
        self.generation = found.generation
        return membership_document(found)

    def beat(self, **statistics: float) -> pb.HeartbeatResponse:
        return self.cluster.controller.member_requests.heartbeat(
            self.job, self.rank, self.secret, generation=self.generation, statistics=statistics
        )

    def leave(self, unfinished: str | None = None) -> None:
        self.cluster.controller.member_requests.leave(self.job, self.rank, self.secret, unfinished=unfinished)
        self.cluster.controller.member_requests.reconcile_job(self.job)

    def disconnect(self) -> None:
        self.cluster.controller.member_requests.shorten_lease(self.job, self.rank, self.secret)

    @property
    def secret(self) -> bytes:
        assert self.joined is not None
        return self.joined.secret


class Cluster:
    """Managers, one after the other, over one database and the same switches."""

    def __init__(
        self,
        folder: Path,
        switches: tuple[SwitchConfig, ...],
        devices: Mapping[str, Device],
        links: tuple[LinkConfig, ...] = (),
    ) -> None:
        self.clock = FakeClock(1_800_000_000.0)
        self.config = ClusterConfig(switches, folder / "state.sqlite", links, lease_s=LEASE_S, heartbeat_s=2.0)
        self.devices = devices
        self.open_store: Callable[[], StateStore] = lambda: StateStore(self.config.database)
        self.store: StateStore | None = None
        self.controller: ClusterController

    def start(self, **options: Any) -> ClusterController:
        """Start a manager, in the place of the one before if there is one."""
        self.stop()
        self.store = self.open_store()
        timing = {"clock": self.clock, "monotonic": self.clock}
        self.controller = ClusterController(self.config, self.store, self.devices, **{**timing, **options})
        return self.controller

    def stop(self) -> None:
        if self.store is not None:
            self.store.close()

    def make(self, name: str = "job", workers: int = 2, slots: int = 16, **options: Any) -> list[Worker]:
        """Make a job, and return its workers, who have not joined yet."""
        created = self.controller.create_job(JobSpec(name, ranks=workers, slots=slots, **spec_options(**options)))
        return [Worker(self, name, created.token, rank) for rank in range(workers)]

    def run(self, name: str = "job", workers: int = 2, slots: int = 16, **options: Any) -> list[Worker]:
        """Make a job, and return its workers, who are in its first generation."""
        crew = self.make(name, workers, slots, **options)
        enter(crew)
        return crew

    def installed_entries(self, switch: str = "s1") -> dict[tuple[object, ...], Entity]:
        device = self.devices[switch]
        assert isinstance(device, FakeDevice)
        return dict(device.entities)

    def check(self) -> None:
        """Assert that every switch has installed exactly what the database says."""
        for switch in self.config.switches:
            records = [self.controller._cache.get(view.name) for view in self.controller.jobs()]
            wanted = expected(switch, [each.parts[switch.name] for each in records if switch.name in each.parts])
            assert self.installed_entries(switch.name) == wanted


def device_of(cluster: Cluster, name: str = "s1") -> FakeDevice:
    device = cluster.devices[name]
    assert isinstance(device, FakeDevice)
    return device


def state_of(job: pb.Job) -> JobState:
    return JobState(enum_word(pb.JobState.DESCRIPTOR, job.state))


def phase_of(member: pb.Member) -> MemberPhase:
    return MemberPhase(enum_word(pb.MemberPhase.DESCRIPTOR, member.phase))


def expected(switch: SwitchConfig, jobs: Iterable[Job]) -> dict[tuple[object, ...], Entity]:
    entities = [switch_address(switch.endpoint), *(entity for job in jobs for entity in plan(job).entities)]
    return {entity.key(): entity for entity in entities}


def enter(crew: list[Worker], **changes: Any) -> None:
    for worker in crew:
        worker.join(**changes)
    for worker in crew:
        assert not isinstance(worker.membership(), Pending)


def time_passes(cluster: Cluster, seconds: float, *heard: Worker) -> None:
    """Let time pass in which only these workers are heard."""
    for _ in range(4):
        cluster.clock.sleep(seconds / 4)
        for worker in heard:
            worker.beat()
    cluster.controller.tick()


EVERYBODY = "10.0.1.0/24"
"""The network of all workers."""


class Noted(FakeDevice):
    """A switch that notes when it begins and ceases to admit a generation, in a list of all switches."""

    def __init__(self, name: str, notes: list[tuple[str, str]]) -> None:
        super().__init__()
        self.name, self.notes = name, notes

    def _apply(self, update: Update) -> str:
        entity = update.entity
        if isinstance(entity, TableEntry) and entity.table == "jobs":
            words = {Insert: "admits", Delete: "admits no more"}
            self.notes.append((self.name, words[type(update)]))
        return super()._apply(update)


def noted_tree(folder: Path) -> Cluster:
    """Return a cluster that is not started."""
    notes: list[tuple[str, str]] = []
    configs = tree_configs()
    return Cluster(folder, configs, {each.name: Noted(each.name, notes) for each in configs}, TREE_LINKS)


def device(cluster: Cluster, name: str) -> Noted:
    found = cluster.devices[name]
    assert isinstance(found, Noted)
    return found
