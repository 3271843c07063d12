# SPDX-License-Identifier: Apache-2.0
"""The books on disk: everything comes back, one reader at a time, and errors that change nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hopsum_controlplane.cluster import Store, StoreError
from hopsum_controlplane.cluster import lifecycle as life
from hopsum_controlplane.cluster.records import JobRecord

from .test_lifecycle import forming, installing, member, record, running
from .world import TABLE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "books.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


def many() -> list[JobRecord]:
    lost = life.lose(running(), 1, "silence")
    odd = replace(record(observers=3).request, table=TABLE, quorum=1, min_quorum=1, lease_s=2.5, switch="s1")
    states = [record(), forming(), installing(), running(), lost, life.end(running()), life.join(lost, member(0, 1))]
    states.append(replace(record(), request=odd))
    return [
        replace(each, request=replace(each.request, name=f"job{number}"), job_index=number)
        for number, each in enumerate(states)
        if each is not None
    ]


def reopened(store: Store) -> Store:
    store.close()
    return Store(store.path)


def test_everything_comes_back(store: Store) -> None:
    for each in many():
        store.put(each)
    again = reopened(store)
    assert again.load().records == tuple(many())
    assert again.load().last_epoch == 7
    again.close()


def test_a_record_takes_the_place_of_the_one_before(store: Store) -> None:
    for each in (running(), life.lose(running(), 0, "silence"), record()):
        store.put(each)
        assert store.load().records == (each,)
    store.remove("job")
    assert store.load().records == ()
    assert store.load().last_epoch == 7  # for ever


def test_one_at_a_time(store: Store, path: Path) -> None:
    with pytest.raises(StoreError, match=r"books\.sqlite cannot be opened: database is locked; another controller"):
        Store(path)
    store.close()
    Store(path).close()


def test_what_cannot_be_written_changes_nothing(store: Store) -> None:
    store.put(forming())
    (pages,) = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count = {pages}")
    big = replace(running(), reason="x" * 100_000)
    with pytest.raises(StoreError, match="is full; make room on the disk"):
        store.put(big)
    assert store.load().records == (forming(),)
    assert store.load().last_epoch == 0
    store._database.execute(f"PRAGMA max_page_count = {pages + 1000}")
    store.put(big)
    again = reopened(store)
    assert again.load().records == (big,)
    again.close()


def test_the_same_place_twice_is_refused(store: Store) -> None:
    store.put(record())
    with pytest.raises(StoreError, match="UNIQUE"):
        store.put(replace(record(), request=replace(record().request, name="other")))
    assert [each.name for each in store.load().records] == ["job"]


def test_no_database(path: Path) -> None:
    path.write_bytes(b"something else altogether, and more of it " * 100)
    with pytest.raises(StoreError, match="file is not a database; put a copy back"):
        Store(path)
    assert path.read_bytes().startswith(b"something else")
    with pytest.raises(StoreError, match=r"cannot be opened: unable to open database file; make the file"):
        Store(path / "below" / "a file")


def test_a_damaged_page(store: Store, path: Path) -> None:
    for number in range(40):
        store.put(replace(running(), request=replace(record().request, name=f"job{number}"), job_index=number))
    store.close()
    whole = bytearray(path.read_bytes())
    for page in range(1, len(whole) // 4096):
        whole[page * 4096 : page * 4096 + 64] = b"\xaa" * 64
    path.write_bytes(whole)
    with pytest.raises(StoreError, match="put a copy back"):
        Store(path)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE jobs SET state = 'asleep'",
        "UPDATE jobs SET request = '{}'",
        "UPDATE jobs SET request = 'no JSON'",
        "UPDATE jobs SET job = NULL",
        "UPDATE jobs SET job = '[1]'",
        "UPDATE members SET phase = 'nowhere'",
        "UPDATE members SET report = '{}'",
        "UPDATE members SET report = '{\"epoch\": 0, \"delivered_to\": 0, \"submitted_to\": 0, \"held\": [], "
        "\"allreduces_begun\": 0}'",
        "UPDATE jobs SET resume = '[]'",
        "UPDATE jobs SET newcomers = '{\"decided\": 1}'",
    ],
)
def test_contents_that_make_no_sense(store: Store, damage: str) -> None:
    store.put(running())
    store._database.execute(damage)
    with pytest.raises(StoreError, match=r"is damaged: job 'job'.*put a copy back"):
        store.load()


def test_other_databases(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE theirs (x)")
    database.close()
    with pytest.raises(StoreError, match="another program's database"):
        Store(path)


def test_a_newer_version(store: Store, path: Path) -> None:
    store._database.execute("PRAGMA user_version = 3")
    store.close()
    with pytest.raises(StoreError, match=r"has version 3, this program knows 1 \.\. 2; use the hopsum that wrote it"):
        Store(path)
