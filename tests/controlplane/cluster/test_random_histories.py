# SPDX-License-Identifier: Apache-2.0
"""Any history of jobs, members, failures and restarts, and a controller that dies at every write and commit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
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
from hopsum_controlplane.errors import UnknownJobError
from hopsum_ptf.fake_device import Failure

from .watched import FOREIGN_GENERATION, Fuse, Intents, Killed, WatchedDevice, WatchedStore
from .world import LEASE_S, TREE_LINKS, Cluster, Worker, enter, state_of, switch_config, time_passes, tree_configs

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

    @rule(name=JOBS, workers=st.integers(1, 3), slots=st.integers(1, 24), fewest=st.none() | st.integers(1, 3))
    def create(self, name: str, workers: int, slots: int, fewest: int | None) -> None:
        with self.only(name):
            self.crews[name] = self.cluster.make(name, workers, slots, min_workers=fewest and min(fewest, workers))

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
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
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
    state.create(name="a", slots=1, workers=1, fewest=None)
    state.teardown()


class Mortal:
    """A cluster whose controller dies when the fuse of the switches, or that of the database, has burnt down.

    It has one switch, or two leaves and a spine: then a job has a worker at each leaf.
    """

    def __init__(self, folder: Path, tree: bool) -> None:
        self.fuses = {"switch": Fuse(), "database": Fuse()}
        self.intents = Intents()
        switches, links = ((switch_config(),), ()) if not tree else (tree_configs(), TREE_LINKS)
        self.devices = {each.name: WatchedDevice(each.name, self.intents, self.fuses["switch"]) for each in switches}
        self.cluster = Cluster(folder, switches, self.devices, links)
        self.workers = 3 if tree else 2
        path = self.cluster.config.database
        self.cluster.open_store = lambda: WatchedStore(path, self.intents, self.fuses["database"])
        self.cluster.start()
        self.other = self.cluster.run("other", self.workers)
        self.crew: list[Worker] = []

    def disarm(self) -> None:
        for fuse in self.fuses.values():
            fuse.arm(None)

    def states(self) -> dict[str, JobState]:
        return {job.name: state_of(job) for job in self.cluster.controller.jobs()}


def create(mortal: Mortal) -> None:
    mortal.crew = mortal.cluster.make("job", mortal.workers)


def join(mortal: Mortal) -> None:
    for worker in mortal.crew:
        worker.join()


def expire(mortal: Mortal) -> None:
    time_passes(mortal.cluster, LEASE_S, *mortal.other, *mortal.crew[:-1])


def replaced(mortal: Mortal) -> None:
    mortal.crew[-1].start_again()


def leave(mortal: Mortal) -> None:
    for worker in mortal.crew:
        worker.leave()


def delete(mortal: Mortal) -> None:
    mortal.cluster.controller.delete_job("job")


def forgotten(mortal: Mortal, switch: str = "s1") -> None:
    entities = mortal.devices[switch].entities
    for key, entity in list(entities.items()):
        if f"generation={mortal.crew[0].generation}" in str(entity):
            del entities[key]
    time_passes(mortal.cluster, LEASE_S, *mortal.other, *mortal.crew)


def forgotten_by_the_spine(mortal: Mortal) -> None:
    forgotten(mortal, "s3")


def rejoin(mortal: Mortal) -> None:
    """Let the crew report what it holds, and hear how the job continues."""
    for worker in mortal.crew:
        worker.held = ((3 * worker.rank, 3 * worker.rank + 5),)
        worker.join()
    for worker in mortal.crew:
        worker.membership()


def restart(mortal: Mortal) -> None:
    mortal.cluster.start()


SCENES: dict[str, tuple[list[Callable[[Mortal], None]], Callable[[Mortal], None]]] = {
    "create": ([], create),
    "join": ([create], join),
    "expire": ([create, lambda mortal: enter(mortal.crew)], expire),
    "replaced": ([create, lambda mortal: enter(mortal.crew)], replaced),
    "leave": ([create, lambda mortal: enter(mortal.crew)], leave),
    "delete": ([create, lambda mortal: enter(mortal.crew)], delete),
    "forgotten": ([create, lambda mortal: enter(mortal.crew)], forgotten),
    "go on": ([create, lambda mortal: enter(mortal.crew), forgotten], rejoin),
    "restart": ([create, lambda mortal: enter(mortal.crew)], restart),
}
"""What happened before, and what the controller dies in."""
TREE_SCENES = {
    **{name: SCENES[name] for name in ("join", "replaced", "leave", "delete", "go on", "restart")},
    "forgotten by the spine": ([create, lambda mortal: enter(mortal.crew)], forgotten_by_the_spine),
}


def die_in(scene: str, what: str, at: int, folder: Path, tree: bool = False) -> tuple[Mortal, bool]:
    """Play a scene up to the `at`-th event of a fuse; return whether it was cut short."""
    folder.mkdir()
    mortal = Mortal(folder, tree)
    before, act = (TREE_SCENES if tree else SCENES)[scene]
    for step in before:
        step(mortal)
    mortal.fuses[what].arm(at)
    try:
        act(mortal)
    except Killed:
        return mortal, True
    finally:
        mortal.disarm()
    return mortal, False


def check_recovery(mortal: Mortal) -> None:
    cluster, other_generation = mortal.cluster, mortal.other[0].generation
    cluster.start()
    assert mortal.states().get("job") in (JobState.FORMING, JobState.RUNNING, None)
    cluster.check()
    assert mortal.states()["other"] is JobState.RUNNING
    assert mortal.other[0].beat().generation == other_generation  # nothing of another job changed
    if any(worker.held for worker in mortal.crew):
        check_continuation(mortal)
    for act in (Worker.start_again, Worker.join):
        for worker in mortal.crew:
            with suppress(UnknownJobError):
                act(worker)
    found = [worker.membership() for worker in mortal.crew if "job" in mortal.states()]
    assert not any(isinstance(each, Pending) for each in found)
    cluster.check()
    for name in list(mortal.states()):
        cluster.controller.delete_job(name)
    cluster.check()
    assert all(device.generations() == set() for device in mortal.devices.values())
    assert {view.slots_used for view in cluster.controller.switches()} == {0}


def check_continuation(mortal: Mortal) -> None:
    """Those that asked in vain ask again, the same, and all hear the same."""
    for worker in mortal.crew:
        worker.held = ((3 * worker.rank, 3 * worker.rank + 5),)
        before = worker.generation
        worker.join()
        assert worker.generation == before
    documents = []
    for worker in mortal.crew:
        worker.generation = 0  # as one who did not get the answer
        documents.append(worker.membership())
    assert isinstance(documents[0], dict)
    told = [{**each, "switch": None} for each in documents if isinstance(each, dict)]  # which is another at each leaf
    assert all(each == told[0] for each in told)
    runs = [{"first": 0, "end": 3, "ranks": [0]}, {"first": 3, "end": 5, "ranks": [0, 1]}]
    runs.append({"first": 5, "end": 8, "ranks": [1]} if len(told) == 2 else {"first": 5, "end": 6, "ranks": [1]})
    if len(told) == 3:
        runs += [{"first": 6, "end": 8, "ranks": [1, 2]}, {"first": 8, "end": 11, "ranks": [2]}]
    nobody = {"start": None, "start_generation": 0, "allreduces": None, "replaced": []}
    assert json.loads(json.dumps(documents[0]["resume"])) == {"base": 0, **nobody, "decided": runs}
    mortal.cluster.check()


@pytest.mark.parametrize("what", ["switch", "database"])
@pytest.mark.parametrize(
    ("scene", "tree"), [*((each, False) for each in SCENES), *((each, True) for each in TREE_SCENES)]
)
def test_the_next_controller_continues(scene: str, tree: bool, what: str, tmp_path: Path) -> None:
    for at in range(1000):
        mortal, died = die_in(scene, what, at, tmp_path / str(at), tree)
        check_recovery(mortal)
        mortal.cluster.stop()
        if not died:
            break
    assert at > 0 or (scene, what) in (("create", "switch"), ("restart", "database"))


def test_a_controller_dies_while_the_next_one_starts(tmp_path: Path) -> None:
    """Twice in a row, at every place of the second death."""
    for at in range(1000):
        mortal, _ = die_in("join", "switch", 5, tmp_path / str(at))
        mortal.fuses["switch"].arm(at)
        died = False
        try:
            mortal.cluster.start()
        except Killed:
            died = True
        mortal.disarm()
        check_recovery(mortal)
        mortal.cluster.stop()
        if not died:
            break
    assert at > 10
