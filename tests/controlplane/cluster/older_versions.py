# SPDX-License-Identifier: Apache-2.0
"""A database of version 15 and before, as the programs of then wrote it.

The product reads such databases only, so tests need a writer.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any

import msgspec

from hopsum_controlplane.cluster import StateStore
from hopsum_controlplane.cluster.records import BranchAssignment, JobRecord, Member
from hopsum_controlplane.job_spec import Job, JobSpec
from hopsum_wire.payload import TABLE_NAMES

_SCHEMA = """
DROP TABLE jobs;
CREATE TABLE jobs (
    name TEXT PRIMARY KEY, request TEXT NOT NULL, token_digest BLOB NOT NULL, switch TEXT NOT NULL,
    job_index INTEGER NOT NULL, slot_base INTEGER NOT NULL, slots INTEGER NOT NULL,
    state TEXT NOT NULL, job TEXT, reason TEXT NOT NULL, resume TEXT, newcomers TEXT,
    branches TEXT NOT NULL, confirmed TEXT NOT NULL, departed TEXT NOT NULL, checksum INTEGER NOT NULL,
    absent TEXT NOT NULL DEFAULT '[]',
    UNIQUE (switch, job_index)
) STRICT;
CREATE TABLE members (
    name TEXT NOT NULL REFERENCES jobs ON DELETE CASCADE, rank INTEGER NOT NULL, port INTEGER NOT NULL,
    mac TEXT NOT NULL, ip TEXT NOT NULL, udp_port INTEGER NOT NULL, side_port INTEGER, incarnation BLOB NOT NULL,
    secret_digest BLOB NOT NULL, version TEXT NOT NULL, phase TEXT NOT NULL, entered INTEGER NOT NULL,
    told INTEGER NOT NULL, report TEXT, why TEXT NOT NULL, leaf TEXT NOT NULL, settings TEXT NOT NULL,
    further TEXT NOT NULL, PRIMARY KEY (name, rank)
) STRICT;
CREATE TABLE retired (
    name TEXT NOT NULL REFERENCES jobs ON DELETE CASCADE, position INTEGER NOT NULL, incarnation BLOB NOT NULL,
    PRIMARY KEY (name, position)
) STRICT;
CREATE TABLE earlier_tokens (
    name TEXT PRIMARY KEY REFERENCES jobs ON DELETE CASCADE, token_digest BLOB NOT NULL
) STRICT;
"""
_SWITCHES = "CREATE TABLE switches (name TEXT PRIMARY KEY, switch TEXT NOT NULL, checksum INTEGER NOT NULL) STRICT"


def make_old(store: StateStore, version: int, *, request: dict[str, Any] | None = None, but: str = "") -> None:
    """Bring a database to an older version.

    15 had requests, 14 a column for each field, 13 operation 8, 12 no absent ranks, 11 switches that registered, 10 no
    checksums.
    `request` has further keys of the requests of all jobs, and of their specifications, but of job `but`.
    """
    database, records = store._database, store.load().records
    if version == 15:
        for each in records:
            text = _json(_of_15(each))
            row = (text, zlib.crc32(text.encode()), each.name)
            database.execute("UPDATE jobs SET record = ?, checksum = ? WHERE name = ?", row)
        database.execute(f"PRAGMA user_version = {version}")
        return
    for statement in _SCHEMA.split(";\n"):
        database.execute(statement)
    for each in records:
        _insert(store, "jobs", (*_job_row(each), 0, _json(each.absent)))
        for member in each.members:
            _insert(store, "members", _member_row(each.name, member))
        for position, incarnation in enumerate(each.retired):
            _insert(store, "retired", (each.name, position, incarnation))
        if each.earlier_token_digest:
            _insert(store, "earlier_tokens", (each.name, each.earlier_token_digest))
    more = json.dumps(request or {})
    database.execute("UPDATE jobs SET request = json_patch(request, ?) WHERE name <> ?", (more, but))
    spec = "UPDATE jobs SET job = json_set(job, '$.spec', json_patch(json_extract(job, '$.spec'), ?)) WHERE name <> ?"
    database.execute(f"{spec} AND job IS NOT NULL", (more, but))
    if version < 14:
        with_all = "UPDATE jobs SET job = json_set(job, '$.ops', json('[1, 2, 3, 4, 5, 6, 7, 8]'))"
        database.execute(f"{with_all} WHERE job IS NOT NULL")
    if version < 13:
        database.execute("ALTER TABLE jobs DROP COLUMN absent")
    if version < 12:
        database.execute(_SWITCHES)
        database.execute("INSERT INTO switches VALUES ('host1', '{}', 7)")
    for table, column in (("books", "probes"), ("jobs", "checksum"), ("switches", "checksum"), ("owner", "file")):
        if version == 10:
            database.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    database.execute(f"PRAGMA user_version = {version}")


def _insert(store: StateStore, table: str, row: tuple[object, ...]) -> None:
    store._database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _json(value: Any) -> str:
    return json.dumps(msgspec.to_builtins(value))


def _tables(spec: JobSpec) -> dict[str, Any]:
    return {**dict.fromkeys(TABLE_NAMES.values()), **spec.tables}


def _request(spec: JobSpec) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(spec)
    values["workers"] = values.pop("ranks")
    return {name: each for name, each in values.items() if name not in ("tables", "leaves", "parent")} | _tables(spec)


def _job(job: Job | None) -> dict[str, Any] | None:
    if job is None:
        return None
    values: dict[str, Any] = msgspec.to_builtins(job)
    kept = ("name", "workers", "slots", "quorum", "min_quorum", "leaves", "parent")
    spec = {name: values["spec"][name] for name in kept} | _tables(job.spec)
    return {**values, "spec": {**spec, "ranks": 0 if job.spec.min_workers is None else job.spec.ranks}}


def _branches(branches: Iterable[BranchAssignment]) -> list[dict[str, Any]]:
    return [{**msgspec.to_builtins(each), "job": _job(each.job)} for each in branches]


def _of_15(record: JobRecord) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(record)
    del values["spec"]
    changed = {"job": _job(record.job), "branches": _branches(record.branches), "departed": _branches(record.departed)}
    return {**values, "request": _request(record.spec), **changed}


def _job_row(record: JobRecord) -> tuple[object, ...]:
    return (
        record.name,
        _json(_request(record.spec)),
        record.token_digest,
        record.switch,
        record.job_index,
        *record.region,
        record.state.value,
        None if record.job is None else _json(_job(record.job)),
        record.reason,
        None if record.resume is None else _json(record.resume),
        None if record.newcomers is None else _json(record.newcomers),
        _json(_branches(record.branches)),
        _json(record.confirmed),
        _json(_branches(record.departed)),
    )


def _member_row(name: str, member: Member) -> tuple[object, ...]:
    at = member.endpoint
    where = (at.rank, at.port, at.mac, at.ip, at.udp_port, member.side_port)
    report = None if member.report is None else _json(member.report)
    settings = _json(dict(member.settings))
    further = _json([each._asdict() for each in member.further])
    identity = (member.incarnation, member.secret_digest, member.version)
    phase = (member.phase.value, member.joined_generation, member.notified_generation)
    return (name, *where, *identity, *phase, report, member.why, member.leaf, settings, further)
