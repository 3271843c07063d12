# SPDX-License-Identifier: Apache-2.0
"""Databases of versions 10 to 15: their jobs as records of this version.

Up to version 15 a record had a `request`, with a field for each lookup table, and a generation had a specification of
its own. Up to version 14 the database had a column for each field. Version 10 is that of the first program that was
given away. `state_store` copies a database before it comes here.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from hopsum_controlplane.cluster.records import JobRecord, JobState
from hopsum_controlplane.job_spec import ALL_OPS
from hopsum_wire.payload import TABLE_NAMES

FIRST_VERSION: Final = 10
LAST_OF_COLUMNS: Final = 14
WHY_ENDED: Final = (
    "its results had 6 bits (LOOKUP_ADD6, table6), which no switch program has any more: its codec needs result_bits=4 "
    "in place of result_bits=6"
)
# What brings a database of a version to the next one.
_STEPS: Final = {
    10: """
ALTER TABLE books ADD COLUMN probes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
DROP TABLE IF EXISTS owner;
CREATE TABLE owner (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), number INTEGER NOT NULL, file TEXT NOT NULL);
""",
    # Switches that registered by themselves. With a job on one, the controller starts only where the configuration
    # has that switch.
    11: "DROP TABLE switches;\n",
    12: "ALTER TABLE jobs ADD COLUMN absent TEXT NOT NULL DEFAULT '[]';\n",
}
_PACKED: Final = "table6"
"""The lookup table of jobs whose results had 6 bits, in a request of version 13 and earlier."""
_TABLES: Final = ("earlier_tokens", "retired", "members", "jobs")
"""The tables of jobs in version 14, those that refer to `jobs` first. Version 15 has the last one alone."""
_JSON_OF_JOB: Final = ("request", "job", "resume", "newcomers", "branches", "confirmed", "departed", "absent")
_JSON_OF_MEMBER: Final = ("report", "settings", "further")
_OPS: Final = frozenset(map(int, ALL_OPS))


@dataclass(frozen=True)
class OlderJobs:
    """The jobs of an older database.

    records: in the order of their names, those that end with the old version among them.
    removed: names of jobs that ended and are gone, since no switch has an entry of them.
    ended: names of all jobs that end.
    """

    records: tuple[JobRecord, ...]
    removed: tuple[str, ...]
    ended: tuple[str, ...]


def extract_older_jobs(database: sqlite3.Connection, version: int) -> OlderJobs:
    """Read the jobs of a database of FIRST_VERSION .. 15, and drop their tables. The caller has begun a transaction.

    Raises sqlite3.Error, and ValueError naming the job that makes no sense.
    """
    take = _job if version <= LAST_OF_COLUMNS else _job_of_15
    for older in range(version, LAST_OF_COLUMNS):
        for statement in _STEPS.get(older, "").split(";\n"):
            database.execute(statement)
    records, removed, ended = [], [], []
    for name in _column(database, "SELECT name FROM jobs ORDER BY name"):
        try:
            values = take(database, name)
            if version < LAST_OF_COLUMNS and values["request"].get(_PACKED) is not None:
                ended.append(name)
                # No switch has an entry of it.
                if values["state"] == JobState.FORMING.value and not values["departed"]:
                    removed.append(name)
                    continue
                # As `lifecycle.delete_job` does.
                if values["state"] not in (JobState.CHANGING.value, JobState.ENDING.value):
                    values["confirmed"] = []
                values |= {"state": JobState.ENDING.value, "reason": WHY_ENDED}
            records.append(msgspec.convert(_with_spec(values), JobRecord))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"job {name!r}: {error!r:.200}") from error
    for table in _TABLES:
        database.execute(f"DROP TABLE IF EXISTS {table}")
    return OlderJobs(tuple(records), tuple(removed), tuple(ended))


def _job(database: sqlite3.Connection, name: str) -> dict[str, Any]:
    """Return the values of a JobRecord, by field, and others that it lacks."""
    (values,) = _rows(database, "SELECT * FROM jobs WHERE name = ?", name)
    _parse(values, _JSON_OF_JOB)
    values["region"] = (values["slot_base"], values["slots"])
    values["members"] = [
        _member(each) for each in _rows(database, "SELECT * FROM members WHERE name = ? ORDER BY rank", name)
    ]
    values["retired"] = _column(database, "SELECT incarnation FROM retired WHERE name = ? ORDER BY position", name)
    earlier = _column(database, "SELECT token_digest FROM earlier_tokens WHERE name = ?", name)
    values["earlier_token_digest"] = earlier[0] if earlier else b""
    return values


def _job_of_15(database: sqlite3.Connection, name: str) -> dict[str, Any]:
    ((text, checksum),) = database.execute("SELECT record, checksum FROM jobs WHERE name = ?", (name,)).fetchall()
    if (found := zlib.crc32(text.encode())) != checksum:
        raise ValueError(f"its checksum is {found:08x}, and {checksum:08x} when it was written")
    values: dict[str, Any] = json.loads(text)
    return values


def _with_spec(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a record of version 14 or 15 with its request and its generation as of this version."""
    request = values["request"]
    spec = values["spec"] = {**request, "ranks": request["workers"], "workers": (), "tables": _tables(request)}
    for part in (values, *values["branches"], *values["departed"]):
        if (job := part["job"]) is not None:
            own = {**spec, **job["spec"], "ranks": spec["ranks"], "tables": _tables(job["spec"])}
            # The default of `side_key` is a new random one, which no worker of the stored generation would have. The
            # database may name operations that no program has any more.
            ops = [op for op in job.get("ops", ALL_OPS) if op in _OPS]
            part["job"] = {"side_key": "", **job, "ops": ops, "spec": own}
    return values


def _tables(asked: dict[str, Any]) -> dict[str, Any]:
    return {name: asked[name] for name in TABLE_NAMES.values() if asked.get(name) is not None}


def _member(values: dict[str, Any]) -> dict[str, Any]:
    _parse(values, _JSON_OF_MEMBER)
    values["endpoint"] = {key: values[key] for key in ("rank", "port", "mac", "ip", "udp_port")}
    values["joined_generation"], values["notified_generation"] = values["entered"], values["told"]
    values["settings"] = list(values["settings"].items())
    values["further"] = [(each["endpoint"], each["side_port"]) for each in values["further"]]
    return values


def _parse(values: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        values[key] = None if values[key] is None else json.loads(values[key])


def _rows(database: sqlite3.Connection, query: str, *values: str) -> list[dict[str, Any]]:
    cursor = database.execute(query, values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _column(database: sqlite3.Connection, query: str, *values: str) -> list[Any]:
    return [value for (value,) in database.execute(query, values).fetchall()]
