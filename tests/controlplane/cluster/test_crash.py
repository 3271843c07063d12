# SPDX-License-Identifier: Apache-2.0
"""The controller dies at every write to the switch and around every commit: the next one finds the switch as its
books say, or makes it so, and the job goes on or is gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hopsum_controlplane.cluster import Pending, State, UnknownJob

from .watched import Fuse, Intents, Killed, WatchedDevice, WatchedStore
from .world import LEASE_S, Cluster, Worker, enter, switch_config


class Mortal:
    """A cluster whose controller dies when the fuse of the switch, or that of the books, has burnt down."""

    def __init__(self, folder: Path) -> None:
        self.fuses = {"switch": Fuse(), "books": Fuse()}
        self.intents = Intents()
        self.device = WatchedDevice("s1", self.intents, self.fuses["switch"])
        self.cluster = Cluster(folder, (switch_config(),), {"s1": self.device})
        path = self.cluster.config.database
        self.cluster.open_store = lambda: WatchedStore(path, self.intents, self.fuses["books"])
        self.cluster.start()
        self.other = self.cluster.run("other")
        self.crew: list[Worker] = []

    def disarm(self) -> None:
        for fuse in self.fuses.values():
            fuse.arm(None)

    def states(self) -> dict[str, State]:
        return {job.name: job.state for job in self.cluster.manager.jobs()}


def create(mortal: Mortal) -> None:
    mortal.crew = mortal.cluster.make()


def join(mortal: Mortal) -> None:
    for worker in mortal.crew:
        worker.join()


def expire(mortal: Mortal) -> None:
    mortal.cluster.clock.sleep(LEASE_S / 2)
    for worker in (*mortal.other, mortal.crew[0]):
        worker.beat()
    mortal.cluster.clock.sleep(LEASE_S / 2)
    mortal.cluster.manager.tick()


def replaced(mortal: Mortal) -> None:
    mortal.crew[1].start_again()


def leave(mortal: Mortal) -> None:
    for worker in mortal.crew:
        worker.leave()


def delete(mortal: Mortal) -> None:
    mortal.cluster.manager.delete_job("job")


def forgotten(mortal: Mortal) -> None:
    entities = mortal.device.entities
    for key, entity in list(entities.items()):
        if f"epoch={mortal.crew[0].epoch}" in str(entity):
            del entities[key]
    mortal.cluster.clock.sleep(LEASE_S / 2)
    for worker in (*mortal.other, *mortal.crew):
        worker.beat()
    mortal.cluster.clock.sleep(LEASE_S / 2)
    mortal.cluster.manager.attend("s1")


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


def die_in(scene: str, what: str, at: int, folder: Path) -> tuple[Mortal, bool]:
    """Play a scene up to the `at`-th event of a fuse; return whether it was cut short."""
    folder.mkdir()
    mortal = Mortal(folder)
    before, act = SCENES[scene]
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
    cluster, other_epoch = mortal.cluster, mortal.other[0].epoch
    cluster.start()
    assert mortal.states().get("job") in (State.FORMING, State.RUNNING, None)
    cluster.check()
    assert mortal.states()["other"] is State.RUNNING
    assert mortal.other[0].beat().epoch == other_epoch  # nothing of another job changed
    if any(worker.held for worker in mortal.crew):
        check_how_it_goes_on(mortal)
    for act in (Worker.start_again, Worker.join):
        for worker in mortal.crew:
            with suppress(UnknownJob):
                act(worker)
    found = [worker.membership() for worker in mortal.crew if "job" in mortal.states()]
    assert not any(isinstance(each, Pending) for each in found)
    cluster.check()
    for name in list(mortal.states()):
        cluster.manager.delete_job(name)
    cluster.check()
    assert mortal.device.epochs() == set()
    assert cluster.manager.switches()[0].slots_used == 0


def check_how_it_goes_on(mortal: Mortal) -> None:
    """Those that asked in vain ask again, the same, and all hear the same."""
    for worker in mortal.crew:
        worker.held = ((3 * worker.rank, 3 * worker.rank + 5),)
        before = worker.epoch
        worker.join()
        assert worker.epoch == before
    documents = []
    for worker in mortal.crew:
        worker.epoch = 0  # as one who did not get the answer
        documents.append(worker.membership())
    assert documents[0] == documents[1]
    assert isinstance(documents[0], dict)
    runs = [{"first": 0, "end": 3, "ranks": [0]}, {"first": 3, "end": 5, "ranks": [0, 1]}]
    runs.append({"first": 5, "end": 8, "ranks": [1]})
    nobody = {"start": None, "start_epoch": 0, "allreduces": None, "replaced": []}
    assert json.loads(json.dumps(documents[0]["resume"])) == {"base": 0, **nobody, "decided": runs}
    mortal.cluster.check()


@pytest.mark.parametrize("what", ["switch", "books"])
@pytest.mark.parametrize("scene", SCENES)
def test_the_next_controller_goes_on(scene: str, what: str, tmp_path: Path) -> None:
    for at in range(1000):
        mortal, died = die_in(scene, what, at, tmp_path / str(at))
        check_recovery(mortal)
        mortal.cluster.stop()
        if not died:
            break
    assert at > 0 or (scene, what) in (("create", "switch"), ("restart", "books"))


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
