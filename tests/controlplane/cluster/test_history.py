# SPDX-License-Identifier: Apache-2.0
"""Any history of jobs, members, failures and restarts, on two switches that watch (see `watched`) for slots with two
generations, generations that come twice, and entries that are not in the database; the same on a tree of three, whose
jobs are over all of them. When all is quiet the switches are as the database says; when all jobs are deleted nothing is
left.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster import JobState, Pending, SwitchConfig
from hopsum_controlplane.cluster.cluster_config import LinkConfig
from hopsum_controlplane.entries import Entity, MulticastGroup, Replica, TableEntry
from hopsum_ptf.fake_device import Failure

from .watched import FOREIGN_GENERATION, Fuse, Intents, Killed, WatchedDevice, WatchedStore
from .world import LEASE_S, TREE_LINKS, Cluster, Worker, state_of, switch_config, tree_configs

pytestmark = pytest.mark.system
MEMORY = Path("/dev/shm")
"""Where nothing waits for a disk, which has no part in this."""
NAMES = ("a", "b", "c", "d")
JOBS = st.sampled_from(NAMES)
RANKS = st.integers(0, 2)
SWITCHES = st.sampled_from(["s1", "s2", "s3"])


class Histories(RuleBasedStateMachine):
    links: tuple[LinkConfig, ...] = ()

    def switches(self) -> tuple[SwitchConfig, ...]:
        return tuple(switch_config(number, slots=40) for number in (1, 2))

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.intents, self.fuse = Intents(), Fuse()
        switches = self.switches()
        self.devices = {each.name: WatchedDevice(each.name, self.intents, self.fuse) for each in switches}
        self.cluster = Cluster(Path(self.folder.name), switches, self.devices, self.links)
        path = self.cluster.config.database
        self.cluster.open_store = lambda: WatchedStore(path, self.intents, self.fuse)
        self.crews: dict[str, list[Worker]] = {}
        self.cluster.start()

    def teardown(self) -> None:
        self.settle()
        for name in NAMES:
            if name in self.states():
                self.cluster.controller.delete_job(name)
        self.cluster.check()
        assert {view.slots_used for view in self.cluster.controller.switches()} == {0}
        assert all(device.generations() == set() for device in self.devices.values())
        self.cluster.stop()
        self.folder.cleanup()

    def states(self) -> dict[str, JobState]:
        return {job.name: state_of(job) for job in self.cluster.controller.jobs()}

    def settle(self) -> None:
        """Let everything answer, and all that is due be done."""
        self.fuse.arm(None)
        for device in self.devices.values():
            device.repair()
        for _ in range(4):
            self.cluster.clock.sleep(61.0)
            self.cluster.controller.tick()
        self.cluster.check()
        assert not set(self.states().values()) & {JobState.INSTALLING, JobState.CHANGING, JobState.ENDING}

    def running(self) -> dict[str, tuple[int, list[Entity]]]:
        """Return the generations that run, by job, each with its entries."""
        generations = {
            job.name: job.generation for job in self.cluster.controller.jobs() if state_of(job) is JobState.RUNNING
        }
        actual = [entity for device in self.devices.values() for entity in device.entities.values()]
        return {
            name: (
                generation,
                [e for e in actual if isinstance(e, TableEntry) and e.match.get("generation") == generation],
            )
            for name, generation in generations.items()
        }

    @contextmanager
    def only(self, name: str) -> Iterator[None]:
        """Check that what follows changes no other job, unless it finds that a switch has lost it."""
        before = self.running()
        with suppress(ControlPlaneError):
            yield
        after = self.running()
        for other in before.keys() - {name}:
            lost = "switch s" in self.cluster.controller.job(other).reason
            assert after.get(other) == before[other] or (lost and other not in after)

    def worker(self, name: str, rank: int) -> Worker | None:
        crew = self.crews.get(name, [])
        return crew[rank] if rank < len(crew) else None

    @rule(name=JOBS, workers=st.integers(1, 3), slots=st.integers(1, 24))
    def create(self, name: str, workers: int, slots: int) -> None:
        with self.only(name):
            self.crews[name] = self.cluster.make(name, workers, slots)

    @rule(name=JOBS, rank=RANKS, how=st.sampled_from(["join", "start_again", "leave", "beat", "membership"]))
    def member(self, name: str, rank: int, how: str) -> None:
        worker = self.worker(name, rank)
        if worker is None or (worker.joined is None and how not in ("join", "start_again")):
            return
        with self.only(name):
            getattr(worker, how)()

    @rule(name=JOBS)
    def everybody(self, name: str) -> None:
        """Let all workers of a job join, as whom they are."""
        for worker in self.crews.get(name, []):
            self.member(name, worker.rank, "join")

    @rule(name=JOBS)
    def delete(self, name: str) -> None:
        with self.only(name):
            self.cluster.controller.delete_job(name)

    @rule(seconds=st.sampled_from([0.5, 2.0, LEASE_S / 2, LEASE_S]), beating=st.sets(JOBS))
    def time_passes(self, seconds: float, beating: set[str]) -> None:
        self.cluster.clock.sleep(seconds)
        for name in beating:
            for rank in range(3):
                self.member(name, rank, "beat")
        self.cluster.controller.tick()

    @rule()
    def controller_restarts(self) -> None:
        self.cluster.start(may_remove=lambda name, what: True)

    def device(self, name: str) -> WatchedDevice:
        """Return a switch, where there are fewer than that the last one."""
        return self.devices.get(name) or self.devices[max(self.devices)]

    @rule(name=SWITCHES)
    def switch_restarts(self, name: str) -> None:
        self.device(name).forget()

    @rule(name=SWITCHES, table=st.sampled_from(["jobs", "workers"]), group=st.integers(1, 4))
    def somebody_writes(self, name: str, table: str, group: int) -> None:
        entry = TableEntry(table, {"generation": FOREIGN_GENERATION, "worker": 0}, "job", {})
        for entity in (entry, MulticastGroup(group, (Replica(9, 9),))):
            self.device(name).entities.setdefault(entity.key(), entity)

    @rule(name=SWITCHES, data=st.data())
    def somebody_removes(self, name: str, data: st.DataObject) -> None:
        entities = self.device(name).entities
        if entities:
            del entities[data.draw(st.sampled_from(sorted(entities, key=str)))]

    @rule(name=SWITCHES, at=st.integers(0, 12), failure=st.sampled_from(list(Failure)))
    def switch_will_fail(self, name: str, at: int, failure: Failure) -> None:
        self.device(name).fail(at=self.device(name).updates + at, failure=failure)

    @rule(name=SWITCHES)
    def switch_is_repaired(self, name: str) -> None:
        self.device(name).repair()

    @rule(at=st.integers(0, 40), name=JOBS, what=st.sampled_from(["everybody", "delete", "time_passes"]))
    def controller_dies(self, at: int, name: str, what: str) -> None:
        self.fuse.arm(at)
        try:
            if what == "time_passes":
                self.cluster.clock.sleep(LEASE_S)
                self.cluster.controller.tick()
            elif what == "delete":
                with suppress(ControlPlaneError):
                    self.cluster.controller.delete_job(name)
            else:
                for worker in self.crews.get(name, []):
                    with suppress(ControlPlaneError):
                        worker.join()
        except Killed:
            pass
        self.fuse.arm(None)
        self.cluster.start(may_remove=lambda name, what: True)

    @precondition(lambda self: any(self.crews.values()))
    @rule(name=JOBS)
    def quiet(self, name: str) -> None:
        """All workers of a job join while all is quiet: they have a generation, the same for all of them."""
        self.settle()
        if name not in self.states() or name not in self.crews:
            return
        generations = set()
        for how in (Worker.start_again, Worker.join):
            for worker in self.crews[name]:
                how(worker)
        for worker in self.crews[name]:
            found = worker.membership()
            assert not isinstance(found, Pending)
            generations.add(found["generation"])
        assert len(generations) == 1
        self.cluster.check()

    @invariant()
    def books_are_consistent(self) -> None:
        for job in self.cluster.controller.jobs():
            assert (job.generation == 0) is (state_of(job) is JobState.FORMING)


Histories.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
test_histories = Histories.TestCase


class TreeHistories(Histories):
    """Jobs of one or two workers are on one leaf and the spine, of three on both leaves."""

    links = TREE_LINKS

    def switches(self) -> tuple[SwitchConfig, ...]:
        return tree_configs(slots=40)


TreeHistories.TestCase.settings = Histories.TestCase.settings
test_histories_of_a_tree = TreeHistories.TestCase


def test_entries_that_could_not_be_removed_at_once_are_removed_later() -> None:
    """The session that found them ends by the failure; the next one must not take them for another controller's."""
    state = Histories()
    state.delete(name="a")
    state.somebody_writes(group=1, name="s1", table="jobs")
    state.switch_will_fail(at=0, failure=Failure.REFUSED, name="s1")
    state.time_passes(beating=set(), seconds=LEASE_S)
    state.create(name="a", slots=1, workers=1)
    state.teardown()
