# SPDX-License-Identifier: Apache-2.0
"""The database: jobs, their members, and the last generation, in one SQLite database.

- What may stand on a switch is in the database first: a record is written before the switch is.
- A record is written by one transaction, which is on disk when `put` returns (write-ahead log, synchronous=FULL).
- One process at a time has the database: the database stays locked while it is open.
- A generation is counted by the transaction that writes it, and never goes back.
- A job has a checksum: SQLite does not notice a changed bit in the middle of a value.
- A database of an older version is copied to a file beside it before it is changed.
- A copy of the file has another owner number: a switch never takes two controllers that run for one.

Tokens and secrets are not in it, only their digests. Not thread-safe.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import sqlite3
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.cluster.records import (
    BranchAssignment,
    JobRecord,
    JobState,
    Member,
    MemberPhase,
    ShardSeat,
)
from hopsum_controlplane.cluster.requests import JobRequest
from hopsum_controlplane.errors import InvalidRequestError, StoreError, StoreLockedError
from hopsum_controlplane.job_spec import ALL_OPS, Job, WorkerEndpoint
from hopsum_controlplane.membership_file import write_atomically
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_wire.generations import Resume

SCHEMA_VERSION = 14
# The four bytes "hops" in ASCII.
_APPLICATION_ID = 0x686F7073
_BUSY_S = 0.2
# SQLite's smallest page: a shorter file holds no database, and SQLite takes it for a new one.
_PAGE_BYTES_MIN = 512
_PRIVATE = 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE books (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1), last_generation INTEGER NOT NULL, probes INTEGER NOT NULL
);
INSERT INTO books VALUES (1, 0, 0);
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
CREATE TABLE owner (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), number INTEGER NOT NULL, file TEXT NOT NULL);
"""

# What brings a database of a version to the next one. Version 10 is that of the first program that was given away.
_MIGRATIONS = {
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
    # Jobs with results of 6 bits end, see `_end_packed`.
    13: "",
}
_OPS: Final = frozenset(map(int, ALL_OPS))
_PACKED: Final = "table6"
"""The lookup table of jobs whose results had 6 bits, in a request of version 13 and earlier."""
_WHY_ENDED: Final = (
    "its results had 6 bits (LOOKUP_ADD6, table6), which no switch program has any more: its codec needs result_bits=4 "
    "in place of result_bits=6"
)

_JOB_COLUMNS = (
    "name, request, token_digest, switch, job_index, slot_base, slots, state, job, reason, resume, newcomers, "
    "branches, confirmed, departed, absent"
)
_MEMBER_COLUMNS = (
    "name, rank, port, mac, ip, udp_port, side_port, incarnation, secret_digest, version, "
    # `_member_row` and `_member` keep this order.
    "phase, entered, told, report, why, leaf, settings, further"
)


@dataclass(frozen=True)
class StoredState:
    """Contents of the database.

    records: in the order of their names. last_generation: the highest one that was ever taken.
    removed: jobs that this start has removed, by name, and why.
    """

    records: tuple[JobRecord, ...]
    last_generation: int
    removed: Mapping[str, str] = field(default_factory=dict)


class StateStore:
    """The database at `path`, made when there is none. `StateStore(...)` holds the lock until `close`.

    `owner` is a number of this database file: switches tell the sessions of one controller by it.

    Raises StoreError when another process has them, the file is none of ours, newer than this program, damaged, empty
    or cannot be written.
    """

    def __init__(self, path: Path, *, trial: bool = False) -> None:
        self.path = path
        self._removed: dict[str, str] = {}
        self._found = 0
        """The jobs that a trial has read: what a start makes of them is taken back with it."""
        # A link may lead to a database that is to be made.
        is_new = not trial and _keep_private(path.resolve())
        try:
            with self._reported("opened"):
                self._database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
                self._open(is_new, trial)
        except BaseException:
            self.close()
            # A first start that failed leaves no file that the next start would take for an emptied database.
            if is_new:
                path.resolve().unlink(missing_ok=True)
            raise

    @classmethod
    def check(cls, path: Path) -> int:
        """Return how many jobs a start would find. Everything that the start would write is taken back.

        Raises the StoreError that the start would.
        """
        try:
            if path.exists():
                store = cls(path, trial=True)
                store.close()
                return store._found
            with tempfile.TemporaryDirectory(dir=path.resolve().parent) as folder:
                cls(Path(folder, path.name)).close()
                return 0
        except OSError as error:
            raise StoreError(f"{path} cannot be made: {error}", hint="make its folder, for the controller") from error

    def load(self) -> StoredState:
        """Read everything. Raises StoreError when it makes no sense."""
        with self._reported("read"):
            (last_generation,) = self._database.execute("SELECT last_generation FROM books").fetchone()
            jobs = self._database.execute("SELECT name, checksum FROM jobs ORDER BY name").fetchall()
            return StoredState(tuple(self._record(*job) for job in jobs), last_generation, self._removed)

    def put(self, record: JobRecord) -> None:
        """Write a record in the place of the one with its name, and count its generation as taken.

        Raises StoreError when that cannot be done: what was there before is there still.
        """
        with self._transaction() as database:
            # In the record's own transaction: a generation is never on a switch without being counted.
            database.execute("UPDATE books SET last_generation = max(last_generation, ?)", (record.generation,))
            names = _JOB_COLUMNS.split(", ")
            changes = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
            database.execute(
                f"INSERT INTO jobs ({_JOB_COLUMNS}, checksum) VALUES ({_marks(names)}, 0) "
                f"ON CONFLICT (name) DO UPDATE SET {changes}",
                _job_row(record),
            )
            for table in ("members", "retired", "earlier_tokens"):
                database.execute(f"DELETE FROM {table} WHERE name = ?", (record.name,))
            columns = _marks(_MEMBER_COLUMNS.split(", "))
            members = [_member_row(record.name, member) for member in record.members]
            database.executemany(f"INSERT INTO members ({_MEMBER_COLUMNS}) VALUES ({columns})", members)
            retired = [(record.name, position, incarnation) for position, incarnation in enumerate(record.retired)]
            database.executemany("INSERT INTO retired VALUES (?, ?, ?)", retired)
            if record.earlier_token_digest:
                database.execute("INSERT INTO earlier_tokens VALUES (?, ?)", (record.name, record.earlier_token_digest))
            self._seal(record.name)

    def remove(self, name: str) -> None:
        """Strike a job out. Raises StoreError when that cannot be done: it is there still."""
        with self._transaction() as database:
            database.execute("DELETE FROM jobs WHERE name = ?", (name,))

    def probe(self) -> None:
        """Write a counter. Raises StoreError when that cannot be done."""
        with self._transaction() as database:
            # Another value each time: SQLite writes nothing for an UPDATE that changes nothing, and so would notice
            # neither a full disk nor a broken one.
            database.execute("UPDATE books SET probes = probes + 1")

    def backup(self) -> bytes:
        """Return the content of a database with the same jobs. Raises StoreError when this one cannot be read."""
        in_memory = sqlite3.connect(":memory:", isolation_level=None)
        with self._reported("read"), contextlib.closing(in_memory) as copy:
            self._database.backup(copy)
            # A controller of the backup is another one, though the first may still run.
            copy.execute("DELETE FROM owner")
            return copy.serialize()

    def _keep_older(self, version: int) -> Path:
        """Copy the database, of an older version, to a file beside it, in place of an earlier such copy."""
        path = self.path.resolve()
        kept = path.with_name(f"{path.name}.version-{version}")
        try:
            # Not `backup`, which would wait for the end of this transaction.
            write_atomically(kept, self._database.serialize())
        except OSError as error:
            raise StoreError(
                f"{self.path} has version {version}, and cannot be copied to {kept} before it becomes "
                f"{SCHEMA_VERSION}: {error}",
                hint="make room and the folder writable for the controller; nothing was changed",
            ) from error
        return kept

    def close(self) -> None:
        """Give the database back. Harmless when done before."""
        with contextlib.suppress(sqlite3.Error, AttributeError):
            self._database.close()

    def _open(self, is_new: bool, trial: bool) -> None:
        if not is_new and self.path.is_file() and self.path.stat().st_size < _PAGE_BYTES_MIN:
            raise StoreError(f"{self.path} is empty", hint=_EMPTY)
        database = self._database
        # Of a second controller at the same file the first statement fails, before it could touch a switch.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA foreign_keys = ON")
        # Write-ahead log and FULL: a commit is on disk, with one sync, when it returns.
        ((journal,),) = database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        ended: list[str] = []
        kept: Path | None = None
        # The first write takes the file lock, and the exclusive mode keeps it until `close`.
        with self._transaction(keep=not trial):
            ((application,),) = database.execute("PRAGMA application_id")
            ((version,),) = database.execute("PRAGMA user_version")
            ((tables,),) = database.execute("SELECT count(*) FROM sqlite_master")
            if (application, version, tables) == (0, 0, 0):
                if not is_new:
                    raise StoreError(f"{self.path} is empty", hint=_EMPTY)
                self._create()
            elif application != _APPLICATION_ID:
                raise StoreError(f"{self.path} is another program's database", hint="choose another file")
            else:
                self._require_known(version)
                if version < SCHEMA_VERSION and not trial:
                    kept = self._keep_older(version)
                ended = self._migrate(version)
            self.owner = self._owner()
            ((told,),) = database.execute("PRAGMA quick_check(1)")
            if told != "ok":
                # SQLite's text has two lines.
                raise StoreError(f"{self.path} is damaged: {' '.join(told.split())}", hint=_DAMAGED)
            if trial:
                self._found = len(self.load().records)
        if kept is not None:
            _log.info(
                "database %s is brought from version %d to %d; %s has it as it was, for the hopsum that wrote it",
                *(self.path, version, SCHEMA_VERSION, kept),
            )
        for name in [] if trial else ended:
            _log.warning("job %s ended: %s; make it again to use it", name, _WHY_ENDED, extra={"job": name})
        if journal != "wal":
            raise StoreError(f"{self.path} cannot have a write-ahead log", hint="put it on a local file system")

    def _create(self) -> None:
        for statement in _SCHEMA.split(";\n"):
            self._database.execute(statement)
        self._database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        self._database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _owner(self) -> int:
        """Return the number of this file's owner, 1 .. 2^32 - 1. A file that was copied gets another number."""
        execute = self._database.execute
        # A copy on the same file system has another inode. A file that is renamed, or whose volume another machine
        # mounts, keeps its inode, and its controller takes the switches from the controller of before at once.
        inode = str(self.path.stat().st_ino)
        execute("DELETE FROM owner WHERE file <> ?", (inode,))
        execute("INSERT OR IGNORE INTO owner VALUES (1, ?, ?)", (1 + secrets.randbelow((1 << 32) - 1), inode))
        ((number,),) = execute("SELECT number FROM owner")
        return int(number)

    def _require_known(self, version: int) -> None:
        # An older program must not write a newer database: it would lose columns that it does not know.
        if not min(_MIGRATIONS) <= version <= SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} has version {version}, this program knows {min(_MIGRATIONS)} .. {SCHEMA_VERSION}",
                hint="use the hopsum that wrote it",
            )

    def _migrate(self, version: int) -> list[str]:
        """Bring a database of an older version to this one. Return the names of the jobs that end with that."""
        for older in range(version, SCHEMA_VERSION):
            for statement in _MIGRATIONS[older].split(";\n"):
                self._database.execute(statement)
        ended = self._end_packed() if version <= 13 else []
        if version < SCHEMA_VERSION:
            for (name,) in self._database.execute("SELECT name FROM jobs").fetchall():
                self._seal(name)
        self._database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        return ended

    def _end_packed(self) -> list[str]:
        """Delete the jobs whose results had 6 bits, as `lifecycle.delete_job` does. Return their names."""
        ended = []
        query = "SELECT name, request, state, departed, confirmed FROM jobs ORDER BY name"
        for name, request, state, departed, confirmed in self._database.execute(query).fetchall():
            with self._sound(f"job {name!r}"):
                if json.loads(request).get(_PACKED) is None:
                    continue
            ended.append(name)
            # No switch has an entry of it.
            if state == JobState.FORMING.value and departed == "[]":
                self._database.execute("DELETE FROM jobs WHERE name = ?", (name,))
                self._removed[name] = _WHY_ENDED
                continue
            gone = confirmed if state in (JobState.CHANGING.value, JobState.ENDING.value) else "[]"
            change = "UPDATE jobs SET state = ?, reason = ?, confirmed = ? WHERE name = ?"
            self._database.execute(change, (JobState.ENDING.value, _WHY_ENDED, gone, name))
        return ended

    def _seal(self, name: str) -> None:
        """Write a job's checksum, of what is in the database now."""
        checksum = _checksum(self._rows(name))
        self._database.execute("UPDATE jobs SET checksum = ? WHERE name = ?", (checksum, name))

    @contextlib.contextmanager
    def _transaction(self, *, keep: bool = True) -> Iterator[sqlite3.Connection]:
        with self._reported("written"):
            self._database.execute("BEGIN EXCLUSIVE")
            try:
                yield self._database
                self._database.execute("COMMIT" if keep else "ROLLBACK")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            kind = StoreLockedError if _is_locked(error) else StoreError
            # SQLite quotes a damaged statement of the schema, with its line breaks.
            raise kind(f"{self.path} cannot be {what}: {' '.join(str(error).split())}", hint=_hint(error)) from error
        except (ValueError, TypeError) as error:
            # Python's binding meets bytes of a damaged page that are no text, or finds a row less than there is.
            raise StoreError(f"{self.path} is damaged: {error!r:.200}", hint=_DAMAGED) from error

    @contextlib.contextmanager
    def _sound(self, what: str) -> Iterator[None]:
        """Raise StoreError for values, of `what`, that cannot be read back."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{self.path} is damaged: {what}: {error!r:.200}", hint=_DAMAGED) from error

    def _rows(self, name: str) -> tuple[list[Any], ...]:
        """Return a job's rows of all tables: of the job, its members, retired incarnations, and earlier token."""
        queries = (
            f"SELECT {_JOB_COLUMNS} FROM jobs WHERE name = ?",
            f"SELECT {_MEMBER_COLUMNS} FROM members WHERE name = ? ORDER BY rank",
            "SELECT incarnation FROM retired WHERE name = ? ORDER BY position",
            "SELECT token_digest FROM earlier_tokens WHERE name = ?",
        )
        return tuple(self._database.execute(query, (name,)).fetchall() for query in queries)

    def _record(self, key: str, checksum: int) -> JobRecord:
        with self._sound(f"job {key!r}"):
            rows = self._rows(key)
            (job_row,), members, retired, earlier = rows
            name, request, token_digest, switch, job_index, slot_base, slots, state, job, reason, *more = job_row
            resume, newcomers, branches, confirmed, departed, absent = more
            record = JobRecord(
                request=value_of(JobRequest, request),
                token_digest=bytes(token_digest),
                switch=switch,
                job_index=int(job_index),
                region=SlotRange(int(slot_base), int(slots)),
                state=JobState(state),
                job=None if job is None else value_of(Job, job),
                reason=reason,
                members=tuple(_member(member) for member in members),
                retired=tuple(incarnation for (incarnation,) in retired),
                resume=None if resume is None else value_of(Resume, resume),
                newcomers=None if newcomers is None else value_of(Resume, newcomers),
                branches=_branches(branches),
                confirmed=value_of(tuple[str, ...], confirmed),
                departed=_branches(departed),
                earlier_token_digest=bytes(earlier[0][0]) if earlier else b"",
                absent=value_of(tuple[int, ...], absent),
            )
            # In FORMING there is no generation, and in the other states there is one, but for a job that ends while
            # only departed switches have entries.
            forming = record.state is JobState.FORMING
            may_lack_job = forming or (record.state is JobState.ENDING and bool(record.departed))
            wrong = not may_lack_job if record.job is None else forming
            if wrong or record.name != name:
                raise ValueError("it contradicts itself")
            _compare(checksum, _checksum(rows))
        return record


def _checksum(value: Any) -> int:
    """Return a checksum of texts, numbers and bytes, in lists and tuples."""
    # Unlike `repr`, `ascii` does not depend on Python's tables of printable characters, which change with its version.
    return zlib.crc32(ascii(value).encode())


def _compare(kept: int, found: int) -> None:
    if kept != found:
        raise ValueError(f"its checksum is {found:08x}, and {kept:08x} when it was written")


_DAMAGED = (
    "put a backup in its place (hopsum controller backup), or start with a new database and --remove-existing, which "
    "ends all jobs"
)
_EMPTY = (
    "put a backup in its place (hopsum controller backup); if no controller has ever served with it, remove the file"
)


def _keep_private(path: Path) -> bool:
    """Make the file, if there is none, so that only its owner can read it, and take one back that others can read.

    SQLite gives the files beside it the same mode. Says nothing where that fails: opening does.

    Returns whether it made the file.
    """
    with contextlib.suppress(OSError):
        # O_EXCL tells a file that this start makes from one that was emptied.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _PRIVATE))
        return True
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        # An older version, or a copy that an operator made.
        # Digests of tokens and secrets are in the file: nobody else needs to read it.
        if mode & _OTHERS:
            for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
                if each.exists():
                    each.chmod(_PRIVATE)
            _log.warning("database %s had mode %04o, others could read it: it is %04o now", path, mode, _PRIVATE)
    return False


def _is_locked(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _hint(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if _is_locked(error):
        return "another controller has it: stop that one, or give this one a database of its own"
    if name.startswith("SQLITE_FULL"):
        return "make room on the disk; nothing was changed, and the controller continues when there is some"
    if name.startswith("SQLITE_CORRUPT") or name.startswith("SQLITE_NOTADB"):
        return _DAMAGED
    return "make the file and its folder writable for the controller"


def _marks(columns: list[str]) -> str:
    return ", ".join("?" * len(columns))


def _job_row(record: JobRecord) -> tuple[object, ...]:
    return (
        record.name,
        json_of(record.request),
        record.token_digest,
        record.switch,
        record.job_index,
        *record.region,
        record.state.value,
        None if record.job is None else json_of(record.job),
        record.reason,
        None if record.resume is None else json_of(record.resume),
        None if record.newcomers is None else json_of(record.newcomers),
        json_of(record.branches),
        json_of(record.confirmed),
        json_of(record.departed),
        json_of(record.absent),
    )


def _member_row(name: str, member: Member) -> tuple[object, ...]:
    at = member.endpoint
    where = (at.rank, at.port, at.mac, at.ip, at.udp_port, member.side_port)
    report = None if member.report is None else json_of(member.report)
    settings = json_of(dict(member.settings))
    further = json_of([each._asdict() for each in member.further])
    identity = (member.incarnation, member.secret_digest, member.version)
    phase = (member.phase.value, member.joined_generation, member.notified_generation)
    return (name, *where, *identity, *phase, report, member.why, member.leaf, settings, further)


def _member(row: tuple[Any, ...]) -> Member:
    _, rank, port, mac, ip, udp_port, side_port, incarnation, secret, version, *rest = row
    phase, joined_generation, notified_generation, report, why, leaf, settings, further = rest
    endpoint = WorkerEndpoint(rank=rank, port=port, mac=mac, ip=ip, udp_port=udp_port)
    held = None if report is None else _report(report)
    seats = [ShardSeat(_convert(WorkerEndpoint, each["endpoint"]), each["side_port"]) for each in json.loads(further)]
    shared = tuple(value_of(dict[str, str], settings).items())
    identity = (endpoint, side_port, incarnation, secret, version)
    generations = (MemberPhase(phase), joined_generation, notified_generation)
    return Member(*identity, *generations, held, why, leaf, shared, tuple(seats))


# ---- values as JSON texts -----------------------------------------------------------------------------


def json_of(value: Any) -> str:
    """Return a dataclass, or a tuple of such, as JSON: an object has a key for each field."""
    return json.dumps(msgspec.to_builtins(value, enc_hook=str))


def value_of(kind: Any, text: str) -> Any:
    """Return the value of a type from its JSON. Raises ValueError or TypeError where the text has another shape.

    Keys that the type lacks are left out, and fields that a text of an older version lacks have their defaults.
    """
    return _convert(kind, json.loads(text))


def _convert(kind: Any, values: Any) -> Any:
    if kind is Job:
        # The default of `side_key` is a new random one, which no worker of the stored generation would have. A
        # database of before may name operations that no program has any more.
        known = [op for op in values.get("ops", ALL_OPS) if op in _OPS]
        values = {"side_key": "", **values, "ops": known}
    return msgspec.convert(values, kind, dec_hook=lambda wanted, text: wanted(text))


def _branches(text: str) -> tuple[BranchAssignment, ...]:
    found = []
    for values in json.loads(text):
        job = None if values["job"] is None else _convert(Job, values["job"])
        found.append(BranchAssignment(values["switch"], values["job_index"], SlotRange(*values["region"]), job))
    return tuple(found)


def _report(text: str) -> Report:
    report: Report = value_of(Report, text)
    try:
        report.check()
    except InvalidRequestError as error:
        raise ValueError(str(error)) from error
    return report
