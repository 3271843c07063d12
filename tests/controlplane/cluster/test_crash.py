# SPDX-License-Identifier: Apache-2.0
"""The controller dies at every write to the switch and around every commit: the next one finds the switch as its
database says, or makes it so, and the job goes on or is gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hopsum_controlplane.cluster import JobState, Pending, UnknownJobError

from .watched import Fuse, Intents, Killed, WatchedDevice, WatchedStore
from .world import LEASE_S, TREE_LINKS, Cluster, Worker, enter, state_of, switch_config, tree_configs

pytestmark = pytest.mark.system


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
    mortal.cluster.clock.sleep(LEASE_S / 2)
    for worker in (*mortal.other, *mortal.crew[:-1]):
        worker.beat()
    mortal.cluster.clock.sleep(LEASE_S / 2)
    mortal.cluster.controller.tick()


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
    mortal.cluster.clock.sleep(LEASE_S / 2)
    for worker in (*mortal.other, *mortal.crew):
        worker.beat()
    mortal.cluster.clock.sleep(LEASE_S / 2)
    mortal.cluster.controller.tick()


def forgotten_by_the_spine(mortal: Mortal) -> None:
    forgotten(mortal, "s3")


def go_on(mortal: Mortal) -> None:
    """Let the crew report what it holds, and hear how it goes on."""
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
    "go on": ([create, lambda mortal: enter(mortal.crew), forgotten], go_on),
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
        check_how_it_goes_on(mortal)
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


def check_how_it_goes_on(mortal: Mortal) -> None:
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
@pytest.mark.parametrize("scene", SCENES)
def test_the_next_controller_goes_on(scene: str, what: str, tmp_path: Path) -> None:
    for at in range(1000):
        mortal, died = die_in(scene, what, at, tmp_path / str(at))
        check_recovery(mortal)
        mortal.cluster.stop()
        if not died:
            break
    assert at > 0 or (scene, what) in (("create", "switch"), ("restart", "database"))


@pytest.mark.parametrize("what", ["switch", "database"])
@pytest.mark.parametrize("scene", TREE_SCENES)
def test_the_next_controller_goes_on_with_a_tree(scene: str, what: str, tmp_path: Path) -> None:
    for at in range(1000):
        mortal, died = die_in(scene, what, at, tmp_path / str(at), tree=True)
        check_recovery(mortal)
        mortal.cluster.stop()
        if not died:
            break
    assert at > 0 or (scene, what) == ("restart", "database")


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
