# SPDX-License-Identifier: Apache-2.0
"""The database: everything comes back, errors change nothing, and a backup that another controller continues."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import shutil
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from grpc import StatusCode

from hopsum_controlplane.cluster import JobState, StateStore, older_databases
from hopsum_controlplane.cluster import lifecycle as life
from hopsum_controlplane.cluster import state_store as store_module
from hopsum_controlplane.cluster.records import BranchAssignment, JobRecord, ShardSeat
from hopsum_controlplane.cluster.state_store import StoredState
from hopsum_controlplane.errors import (
    ResourceExhaustedError,
    StoreError,
    StoreLockedError,
    UndecidedError,
    UnknownJobError,
)
from hopsum_controlplane.job_spec import WorkerEndpoint
from hopsum_controlplane.service.handlers import status_of
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire import Op
from hopsum_wire.control import control_pb2 as pb

from .older_versions import make_old
from .test_lifecycle import back, begun, forming, installing, job_of, member, over, record, report, running
from .world import LEASE_S, TABLE, Cluster, Worker, enter, state_of, switch_config


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[StateStore]:
    store = StateStore(path)
    yield store
    store.close()


def many() -> list[JobRecord]:
    lost = life.lose(running(), 1, "silence")
    odd = replace(record().spec, tables={"table": TABLE}, quorum=1, min_quorum=1, lease_s=2.5, switch="s1")
    states = [record(), forming(), installing(), running(), lost, life.delete_job(running())]
    states.append(life.join(lost, member(0, 1)))
    states.append(replace(record(), spec=odd))
    waits = back(over(life.join(running(), member(1, 1))), 0, report(7, 90, (3, 9), (12, 90), allreduces=4))
    states += [waits, life.start_generation(waits, job_of(waits, 9)), begun(waits, 9)]
    seat = ShardSeat(WorkerEndpoint(0, 2, "02:00:00:00:00:09", "10.0.2.1", 4100), 5100)
    settings = (("codec", "thc(bits=4)"), ("seed", "7"))
    states.append(life.join(record(), replace(member(0), further=(seat,), settings=settings)))
    states.append(replace(running(), retired=(b"r" * 16,), earlier_token_digest=b"e" * 32))
    return [
        replace(each, spec=replace(each.spec, name=f"job{number:02}"), job_index=number)
        for number, each in enumerate(states)
        if each is not None
    ]


def reopened(store: StateStore) -> StateStore:
    store.close()
    return StateStore(store.path)


def test_only_the_owner_reads_the_books(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    umask = os.umask(0)
    try:
        store = StateStore(path)
        store.put(record())
        modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
        assert set(modes.values()) == {0o600}, modes
        store.close()
    finally:
        os.umask(umask)
    assert caplog.text == ""
    path.chmod(0o644)
    StateStore(path).close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"database {path} had mode 0644, others could read it: it is 0600 now" in caplog.text


def test_a_copy_has_another_owner_number(store: StateStore, path: Path) -> None:
    """A switch tells controllers by it: a copy next to the first controller would depose that for good."""
    again = reopened(store)
    assert again.owner == store.owner
    assert 0 < store.owner < 1 << 32
    twin, moved = path.with_name("twin.sqlite"), path.with_name("moved.sqlite")
    backup = again.backup()
    again.close()
    shutil.copy(path, twin)
    path.rename(moved)
    owners = []
    for each in (moved, twin, moved):
        found = StateStore(each)
        owners.append(found.owner)
        found.close()
        moved.write_bytes(backup)  # in place: a backup may have the inode of the first file
    assert owners[0] == store.owner
    assert len(set(owners)) == 3


def test_everything_comes_back(store: StateStore) -> None:
    for each in many():
        store.put(each)
    again = reopened(store)
    assert again.load().records == tuple(many())
    assert again.load().last_generation == 9
    again.close()


def test_a_record_takes_the_place_of_the_one_before(store: StateStore) -> None:
    for each in (running(), life.lose(running(), 0, "silence"), record()):
        store.put(each)
        assert store.load().records == (each,)
    store.remove("job")
    assert store.load().records == ()
    assert store.load().last_generation == 7  # for ever


def test_one_at_a_time(store: StateStore, path: Path) -> None:
    with pytest.raises(
        StoreLockedError, match=r"state\.sqlite cannot be opened: database is locked; another controller"
    ):
        StateStore(path)
    store.close()
    StateStore(path).close()


def test_what_cannot_be_written_changes_nothing(store: StateStore) -> None:
    store.put(forming())
    (pages,) = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count = {pages}")
    big = replace(running(), reason="x" * 100_000)
    with pytest.raises(StoreError, match="is full; make room on the disk"):
        store.put(big)
    assert store.load().records == (forming(),)
    assert store.load().last_generation == 0
    store._database.execute(f"PRAGMA max_page_count = {pages + 1000}")
    store.put(big)
    again = reopened(store)
    assert again.load().records == (big,)
    again.close()


def test_a_disk_that_takes_nothing_is_one_line_and_is_seen_at_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A lease that ends meanwhile is tried four times a second. Calls say that they may be repeated."""
    crew = cluster.run("train")
    caplog.clear()
    cluster.store._database.execute("PRAGMA query_only = ON")
    cluster.clock.sleep(LEASE_S + 1)
    for _ in range(5):
        cluster.controller.expire()
    assert state_of(cluster.controller.job("train")) is JobState.RUNNING
    assert "cannot be written" in cluster.controller.database_condition
    with pytest.raises(StoreError) as refused:
        crew[0].start_again()
    assert status_of(refused.value) is StatusCode.RESOURCE_EXHAUSTED
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["ERROR"]
    cluster.store._database.execute("PRAGMA query_only = OFF")
    cluster.controller.expire()
    assert cluster.controller.database_condition == ""
    assert "the lease of rank" in cluster.controller.job("train").reason
    cluster.stop()


def test_the_same_place_twice_is_refused(store: StateStore) -> None:
    store.put(record())
    with pytest.raises(StoreError, match="UNIQUE"):
        store.put(replace(record(), spec=replace(record().spec, name="other")))
    assert [each.name for each in store.load().records] == ["job"]


def test_no_database(path: Path) -> None:
    path.write_bytes(b"something else altogether, and more of it " * 100)
    with pytest.raises(StoreError, match="file is not a database; put a backup in its place") as found:
        StateStore(path)
    assert not isinstance(found.value, StoreLockedError)
    assert path.read_bytes().startswith(b"something else")
    with pytest.raises(StoreError, match=r"cannot be opened: unable to open database file; make the file"):
        StateStore(path / "below" / "a file")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("$.state", '"asleep"'),
        ("$.spec", "{}"),
        ("$.spec.name", '"other"'),
        ("$.spec.ranks", '"two"'),
        ("$.job", "null"),
        ("$.job", "[1]"),
        ("$.job.ops", "[99]"),
        ("$.members[0].phase", '"nowhere"'),
        ("$.members[0].report", "{}"),
        (
            "$.members[0].report",
            '{"generation": 0, "delivered_to": 0, "submitted_to": 0, "held": [], "allreduces_begun": 0}',
        ),
        ("$.resume", "[]"),
        ("$.newcomers", '{"decided": 1}'),
    ],
)
def test_contents_that_make_no_sense(store: StateStore, key: str, value: str) -> None:
    """With the checksum of a program that means it."""
    store.put(running())
    store._database.execute("UPDATE jobs SET record = json_set(record, ?, json(?))", (key, value))
    store._database.create_function("crc32", 1, lambda text: zlib.crc32(text.encode()))
    store._database.execute("UPDATE jobs SET checksum = crc32(record)")
    with pytest.raises(StoreError, match=r"is damaged: job 'job'.*put a backup in its place") as found:
        store.load()
    assert "checksum" not in str(found.value)


def test_other_databases(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE theirs (x)")
    database.close()
    with pytest.raises(StoreError, match="another program's database"):
        StateStore(path)


def of_before(record: JobRecord) -> JobRecord:
    """Return a record whose generation began with the operations of before."""
    return record if record.job is None else replace(record, job=replace(record.job, ops=tuple(map(Op, range(1, 8)))))


def content(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return [str(database.execute("PRAGMA user_version").fetchone()), *database.iterdump()]


@pytest.mark.parametrize("version", [10, 11, 12, 13, 14, 15])
def test_older_databases_are_brought_up(store: StateStore, version: int, caplog: pytest.LogCaptureFixture) -> None:
    for each in many():
        store.put(each)
    make_old(store, version)
    store.close()
    before = content(store.path)
    caplog.set_level(logging.INFO)
    brought = StateStore(store.path)
    kept = store.path.with_name(f"state.sqlite.version-{version}")
    assert caplog.messages == [
        f"database {store.path} is brought from version {version} to 16; {kept} has it as it was, "
        "for the hopsum that wrote it"
    ]
    assert (kept.stat().st_mode & 0o777, content(kept)) == (0o600, before)
    assert brought.load() == StoredState(tuple(map(of_before, many()) if version < 14 else many()), 9)
    assert brought._database.execute("SELECT * FROM sqlite_master WHERE name = 'switches'").fetchall() == []
    brought.close()


PACKED = {"table6": [*range(16)]}
"""In a request of version 13: the table of results of 6 bits."""


def test_jobs_with_results_of_6_bits_end_by_name(store: StateStore, caplog: pytest.LogCaptureFixture) -> None:
    """No program sends such results any more. What may be on a switch is removed there."""
    left = BranchAssignment("s0", 3, running().region, running().job)
    waiting = replace(forming(), departed=(left,))
    changing = life.end_generation(running(), "a worker is gone")
    states = [record(), forming(), waiting, installing(), running(), changing, life.delete_job(running())]
    confirmed = {3: ("s1",), 5: ("s1",)}  # has all entries in INSTALLING, has none in CHANGING
    for number, each in enumerate(states):
        assert each is not None
        spec = replace(each.spec, name=f"job{number}")
        store.put(replace(each, spec=spec, job_index=number, confirmed=confirmed.get(number, ())))
    make_old(store, 13, request=PACKED)
    brought = reopened(store)
    stored = brought.load()
    assert [(each.name, each.state.value, each.confirmed) for each in stored.records] == [
        ("job2", "ending", ()),
        ("job3", "ending", ()),
        ("job4", "ending", ()),
        ("job5", "ending", ("s1",)),
        ("job6", "ending", ()),
    ]
    assert list(stored.removed) == ["job0", "job1"], "no switch has an entry of them"
    for why in (*stored.removed.values(), *(each.reason for each in stored.records)):
        assert "had 6 bits (LOOKUP_ADD6, table6)" in why
        assert "result_bits=4 in place of result_bits=6" in why
    assert [line.split(" ended")[0] for line in caplog.messages] == [f"job job{number}" for number in range(7)]
    caplog.clear()
    again = reopened(brought)
    assert again.load() == StoredState(stored.records, stored.last_generation)
    assert caplog.messages == []
    again.close()


def test_a_check_ends_no_job(store: StateStore, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store.put(record())
    make_old(store, 13, request=PACKED)
    store.close()
    before = path.read_bytes()
    StateStore.count_jobs(path)
    assert (path.read_bytes(), caplog.messages) == (before, [])
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_request_that_makes_no_sense_is_damage(store: StateStore) -> None:
    store.put(running())
    make_old(store, 13)
    store._database.execute("UPDATE jobs SET request = '[]'")
    with pytest.raises(StoreError, match=r"is damaged: job 'job': .*put a backup in its place"):
        reopened(store)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE jobs SET record = json_set(record, '$.members[1].endpoint.mac', '02:00:00:00:00:77')",
        "UPDATE jobs SET record = json_set(record, '$.token_digest', 'AAAA')",
        "UPDATE jobs SET record = json_remove(record, '$.members[1]')",
        "UPDATE jobs SET record = json_set(record, '$.retired', json('[]'))",
        "UPDATE jobs SET checksum = checksum + 1",
    ],
)
def test_a_change_that_makes_sense_is_noticed(store: StateStore, damage: str) -> None:
    store.put(replace(running(), retired=(b"r" * 16,), earlier_token_digest=b"e" * 32))
    store.load()
    store._database.execute(damage)
    with pytest.raises(StoreError, match=r"is damaged: job 'job': .*checksum .*put a backup in its place"):
        store.load()


def opened(path: Path) -> StoredState | StoreError:
    """Return what a start reads, or its error."""
    try:
        store = StateStore(path)
        try:
            return store.load()
        finally:
            store.close()
    except StoreError as error:
        return error


def test_whatever_is_cut_or_flipped_is_refused_in_one_line(store: StateStore, path: Path) -> None:
    """A file that ends early, and a bit in the schema, where Python's binding meets bytes that are no text."""
    for each in many():
        store.put(each)
    store.close()
    whole = path.read_bytes()
    unreadable = 0
    cuts = [whole[:size] for size in (0, 1, 511, 512, 4096, len(whole) - 4096, len(whole) - 1)]
    flips = [bytearray(whole) for _ in range(60)]
    rng = random.Random(7)
    for number, flip in enumerate(flips):
        flip[rng.randrange(100, 4096) if number % 2 else rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    for content in (*cuts, *flips):
        path.write_bytes(content)
        found = opened(path)
        if isinstance(found, StoreError):
            unreadable += 1
            assert "\n" not in str(found)
        else:
            assert found.records == tuple(many())
    assert unreadable >= len(cuts)


@pytest.mark.parametrize("size", [0, 1, 511])
def test_a_database_that_was_emptied_is_none(path: Path, size: int) -> None:
    path.write_bytes(bytes(size))
    with pytest.raises(StoreError, match=r"is empty; put a backup in its place .*; if no controller has ever"):
        StateStore(path)
    assert path.read_bytes() == bytes(size)


def test_a_database_whose_log_was_lost_is_none(store: StateStore, path: Path) -> None:
    """A first start ends by SIGKILL, and somebody removes the file next to the database, which has everything."""
    header = path.read_bytes()
    store.close()
    path.write_bytes(header)
    with pytest.raises(StoreError, match="is empty; put a backup in its place"):
        StateStore(path)


def test_a_first_start_that_fails_leaves_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "_SCHEMA", store_module._SCHEMA + "INSERT INTO nowhere VALUES (1);\n")
        with pytest.raises(StoreError, match="no such table: nowhere"):
            StateStore(path)
    assert list(path.parent.iterdir()) == []
    StateStore(path).close()


def test_a_check_is_what_a_start_finds_and_changes_nothing(store: StateStore, path: Path) -> None:
    store.put(running())
    with pytest.raises(StoreLockedError):
        StateStore.count_jobs(path)
    make_old(store, 10)
    store.close()
    before = path.read_bytes()
    StateStore.count_jobs(path)
    assert path.read_bytes() == before
    path.write_bytes(before[:-4096])
    with pytest.raises(StoreError, match="put a backup in its place"):
        StateStore.count_jobs(path)
    path.unlink()
    StateStore.count_jobs(path)
    assert list(path.parent.iterdir()) == []
    link = path.with_name("link.sqlite")
    link.symlink_to(path)
    StateStore.count_jobs(link)
    StateStore(link).close()
    path.unlink()
    for no_place in (path / "below" / "state.sqlite", path.parent, path.with_name("x" * 256)):
        with pytest.raises(StoreError, match="make "):
            StateStore.count_jobs(no_place)


def test_the_probe_writes(store: StateStore, path: Path) -> None:
    """An UPDATE that changes nothing is not written by SQLite, and would find no full disk."""
    log = path.with_name(path.name + "-wal")
    before = log.stat().st_size
    store.probe()
    assert log.stat().st_size > before


def test_what_cannot_be_brought_up_is_left_as_it_was(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(running())
    make_old(store, 10)
    with monkeypatch.context() as patch:
        patch.setitem(older_databases._STEPS, 10, older_databases._STEPS[10] + "INSERT INTO nowhere VALUES (1);\n")
        with pytest.raises(StoreError, match="no such table: nowhere"):
            reopened(store)
    again = StateStore(store.path)
    assert again.load().records == (of_before(running()),)
    again.close()


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_database_that_cannot_be_copied_is_not_brought_up(
    store: StateStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going back to the program before needs the copy."""
    store.put(running())
    make_old(store, 13)
    store.close()
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            StoreError,
            match=r"has version 13, and cannot be copied to .*state\.sqlite\.version-13 .*"
            r"No space left on device; make room .*nothing was changed",
        ):
            StateStore(path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    again = StateStore(path)
    assert again.load().records == (of_before(running()),)
    again.close()
    # The copy is what the program before can go back to, and then forward again.
    kept = path.with_name("state.sqlite.version-13")
    kept.replace(path)
    assert content(path)[0] == "(13,)"
    StateStore(path).close()
    assert content(kept)[0] == "(13,)"


@pytest.mark.parametrize("version", [9, 17])
def test_a_version_that_is_unknown(store: StateStore, path: Path, version: int) -> None:
    store._database.execute(f"PRAGMA user_version = {version}")
    store.close()
    with pytest.raises(StoreError, match=rf"has version {version}, this program knows 10 \.\. 16; use the hopsum that"):
        StateStore(path)


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


def test_workers_of_a_job_with_results_of_6_bits_learn_why_it_ended(cluster: Cluster, device: FakeDevice) -> None:
    crew, before = cluster.run("train"), cluster.make("young")
    plain = cluster.run("plain")
    cluster.stop()
    store = cluster.open_store()
    make_old(store, 13, request=PACKED, but="plain")
    store.close()
    cluster.start()
    for _ in range(3):
        cluster.clock.sleep(1)
        cluster.controller.tick()
    assert [each.name for each in cluster.controller.jobs()] == ["plain"]
    cluster.check()
    assert beat(cluster, plain[0]).generation == plain[0].generation
    for worker, call in ((crew[0], crew[0].beat), (before[0], before[0].join)):
        with pytest.raises(UnknownJobError, match=f"no job '{worker.job}': its results had 6 bits .*; make it again"):
            call()
    cluster.stop()


def beat(cluster: Cluster, worker: Worker) -> pb.HeartbeatResponse:
    assert worker.joined is not None
    return cluster.controller.member_requests.heartbeat(
        worker.job, worker.rank, worker.joined.secret, generation=worker.generation
    )


def test_the_jobs_of_the_backup_continue_and_the_rest_is_kept(
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
        other.controller.member_requests.locate("new", "token")
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


def test_a_controller_that_hears_no_worker_ends_no_lease(cluster: Cluster, device: FakeDevice, tmp_path: Path) -> None:
    """Workers call the controller that they know: one on a backup has the switch, and may not judge them."""
    crew, others = cluster.run("train"), cluster.run("other")
    content = cluster.controller.backup()
    before = dict(device.entities)
    other = restored(cluster, content, tmp_path / "second")
    other.start()
    beat(other, others[0])
    for _ in range(5):
        other.clock.sleep(9)
        other.controller.tick()
        for worker in others:
            beat(other, worker)
    assert device.entities == before
    assert "its controller may be another one" in other.controller.job("train").health_reason
    # The first member that is heard begins the leases of all members of its job.
    beat(other, crew[1])
    other.clock.sleep(9)
    other.controller.tick()
    assert device.entities == before
    beat(other, crew[1])
    other.clock.sleep(2)
    other.controller.tick()
    assert "the lease of rank 0 ran out" in other.controller.job("train").reason
    other.stop()
