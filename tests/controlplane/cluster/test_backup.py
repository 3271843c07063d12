# SPDX-License-Identifier: Apache-2.0
"""A backup that another controller goes on with: its jobs are adopted, others are kept until somebody decides."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from hopsum_controlplane.cluster import (
    JobState,
    ResourceExhaustedError,
    StateStore,
    StoreError,
    UndecidedError,
    UnknownJobError,
)
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire.control import control_pb2 as pb

from .world import Cluster, Worker, enter, state_of, switch_config


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def cluster(tmp_path: Path, device: FakeDevice) -> Cluster:
    (tmp_path / "first").mkdir()
    made = Cluster(tmp_path / "first", (switch_config(),), {"s1": device})
    made.start()
    return made


def restored(cluster: Cluster, content: bytes, folder: Path) -> Cluster:
    """Another controller's cluster over the same switch, whose database is a backup."""
    cluster.stop()
    folder.mkdir()
    other = Cluster(folder, (switch_config(),), cluster.devices)
    other.clock = cluster.clock
    other.config.database.write_bytes(content)
    return other


def beat(cluster: Cluster, worker: Worker) -> pb.HeartbeatResponse:
    assert worker.joined is not None
    return cluster.controller.heartbeat(worker.job, worker.rank, worker.joined.secret, generation=worker.generation)


def test_what_the_backup_has_goes_on_and_the_rest_is_kept(
    cluster: Cluster, device: FakeDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = cluster.run("known")
    content = cluster.controller.backup()
    late = cluster.run("late")
    before = dict(device.entities)

    other = restored(cluster, content, tmp_path / "second")
    other.start()
    assert [job.name for job in other.controller.jobs()] == ["known"]
    assert beat(other, known[0]).generation == known[0].generation
    assert device.entities == before
    assert f"the database does not have generation {late[0].generation}: slots 16-31" in caplog.text

    (switch,) = other.controller.switches()
    assert (switch.condition_reason, switch.slots_used) == ("undecided", 32)
    assert f"generation {late[0].generation}: slots 16-31, job index 1, workers at 10.0." in switch.condition
    for _ in range(3):  # audits leave it alone
        other.clock.sleep(11)
        for worker in known:
            beat(other, worker)
        other.controller.tick()
    assert device.entities == before

    with pytest.raises(UndecidedError, match="sums continue; the operator decides"):
        beat(other, late[0])
    created = other.run("new")
    assert other.controller.job("new").slot_base == 32
    assert created[0].generation > late[0].generation
    other.controller.delete_job("new")
    with pytest.raises(UnknownJobError, match="the job was deleted"):
        other.controller.locate("new", "token")
    other.stop()


def test_a_job_that_began_another_generation_since_waits_for_the_decision(
    cluster: Cluster, device: FakeDevice, tmp_path: Path
) -> None:
    crew = cluster.run("train")
    content = cluster.controller.backup()
    crew[0].start_again()
    enter(crew)
    before = dict(device.entities)

    other = restored(cluster, content, tmp_path / "second")
    other.start()
    for _ in range(2):
        assert device.entities == before, "the newer generation is as it was"
        with pytest.raises(UndecidedError):
            beat(other, crew[1])
        other.clock.sleep(11)
        other.controller.tick()
    with pytest.raises(ResourceExhaustedError):
        other.make("large", slots=2048)

    asked: list[tuple[str, Sequence[str]]] = []

    def decide(name: str, what: Sequence[str]) -> bool:
        asked.append((name, what))
        return True

    other.start(may_remove=decide)
    ((name, what),) = asked
    assert name == "s1"
    assert what[0].startswith(f"generation {crew[0].generation}: slots 0-15")
    assert any(line.startswith("jobs[") for line in what)
    assert state_of(other.controller.job("train")) is JobState.FORMING
    assert beat(other, crew[1]).generation == 0
    for worker in crew:
        worker.cluster = other
        worker.start_again()
    enter(crew)
    other.check()
    other.stop()


def test_a_decision_against_it_removes_nothing(cluster: Cluster, device: FakeDevice, tmp_path: Path) -> None:
    content = cluster.controller.backup()
    cluster.run("late")
    before = dict(device.entities)
    other = restored(cluster, content, tmp_path / "second")
    other.start(may_remove=lambda name, what: False)
    other.clock.sleep(30)
    other.controller.tick()
    assert device.entities == before
    device.entities.clear()  # the switch loses all
    other.clock.sleep(30)
    other.controller.tick()
    assert other.controller.switches()[0].slots_used == 0
    other.stop()


def test_a_backup_is_a_database_of_its_own(cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    cluster.run("train")
    path = tmp_path / "copy.sqlite"
    path.touch(0o600)
    path.write_bytes(cluster.controller.backup())
    store = StateStore(path)
    assert store.load() == cluster.store.load()
    store.close()
    assert [each.name for each in tmp_path.glob("copy*")] == ["copy.sqlite"]
    path.write_bytes(path.read_bytes()[:4096])
    with pytest.raises(StoreError):
        StateStore(path)
    cluster.stop()
