# SPDX-License-Identifier: Apache-2.0
"""The database: jobs with their members, and the last generation, in one SQLite database.

A job is one row: its name, its JobRecord as JSON, and a checksum of that text.

- An entry that may be on a switch is in the database first: a record is written before the switch is.
- A record is written by one transaction, which is on disk when `put` returns (write-ahead log, synchronous=FULL).
- One process at a time has the database: the database stays locked while it is open.
- A generation is counted by the transaction that writes it, and never goes back.
- A job has a checksum: SQLite does not notice a changed bit in the middle of a value.
- A database of an older version is copied to a file next to it before it is changed.
- A copy of the file has another owner number: a switch never takes two controllers that run for one.

Tokens and secrets are not in it, only their digests. Not thread-safe.
"""

from __future__ import annotations

import contextlib
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

import msgspec

from hopsum_controlplane.cluster.older_databases import FIRST_VERSION, WHY_ENDED, extract_older_jobs
from hopsum_controlplane.cluster.records import JobRecord, JobState
from hopsum_controlplane.errors import InvalidRequestError, StoreError, StoreLockedError
from hopsum_controlplane.membership_file import write_atomically

SCHEMA_VERSION = 16
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
CREATE TABLE owner (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), number INTEGER NOT NULL, file TEXT NOT NULL);
"""
_JOBS = """
CREATE TABLE jobs (name TEXT PRIMARY KEY, record TEXT NOT NULL, checksum INTEGER NOT NULL) STRICT;
CREATE UNIQUE INDEX places ON jobs (json_extract(record, '$.switch'), json_extract(record, '$.job_index'));
"""


@dataclass(frozen=True)
class StoredState:
    """The contents of the database.

    records: in the order of their names. last_generation: the highest one that was ever taken.
    removed: jobs that this start has removed, by name, and why.
    """

    records: tuple[JobRecord, ...]
    last_generation: int
    removed: Mapping[str, str] = field(default_factory=dict)


class StateStore:
    """The database at `path`, made when there is none. `StateStore(...)` holds the lock until `close`.

    A database of an older version is copied to a file in its folder, and then changed to this version. A file that
    others can read gets mode 0600. `trial` takes all changes of the content back, and is for `count_jobs`.

    `owner` is a number of this database file: switches tell the sessions of one controller by it.

    Raises StoreLockedError when another process has the database, and StoreError when the file is none of ours, newer
    than this program, damaged, empty or cannot be written.
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
    def count_jobs(cls, path: Path) -> int:
        """Return the number of jobs that a start with the database at `path` would find. The database is left as it is.

        Without a file it returns 0, and makes none. Raises the StoreError that the start would raise.
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
        """Read and check all contents. Raises StoreError when the database is damaged or cannot be read."""
        with self._reported("read"):
            (last_generation,) = self._database.execute("SELECT last_generation FROM books").fetchone()
            jobs = self._database.execute("SELECT name, record, checksum FROM jobs ORDER BY name").fetchall()
            return StoredState(tuple(self._record(*job) for job in jobs), last_generation, self._removed)

    def put(self, record: JobRecord) -> None:
        """Write a record in the place of the one with its name, and count its generation as taken.

        Raises StoreError when that cannot be done: what was there before is there still.
        """
        with self._transaction() as database:
            # In the record's own transaction: a generation is never on a switch without being counted.
            database.execute("UPDATE books SET last_generation = max(last_generation, ?)", (record.generation,))
            self._write(record)

    def remove(self, name: str) -> None:
        """Remove a job's record, if there is one. Raises StoreError when that fails: the record is there still."""
        with self._transaction() as database:
            database.execute("DELETE FROM jobs WHERE name = ?", (name,))

    def probe(self) -> None:
        """Write a counter into the database, to test whether it can be written. Raises StoreError when it cannot."""
        with self._transaction() as database:
            # Another value each time: SQLite writes nothing for an UPDATE that changes nothing, and so would notice
            # neither a full disk nor a broken one.
            database.execute("UPDATE books SET probes = probes + 1")

    def backup(self) -> bytes:
        """Return the bytes of a database file with the same jobs, without an owner number. Nothing is written.

        A controller that starts with these bytes gets an owner number of its own. Raises StoreError when this database
        cannot be read.
        """
        in_memory = sqlite3.connect(":memory:", isolation_level=None)
        with self._reported("read"), contextlib.closing(in_memory) as copy:
            self._database.backup(copy)
            # A controller of the backup is another one, though the first may still run.
            copy.execute("DELETE FROM owner")
            return copy.serialize()

    def _keep_older(self, version: int) -> Path:
        """Copy the database, of an older version, to a file next to it, in place of an earlier such copy."""
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
        """Close the database, and release its lock. Does nothing when it is closed."""
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
        ended: tuple[str, ...] = ()
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
                if version < SCHEMA_VERSION:
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
        for name in () if trial else ended:
            _log.warning("job %s ended: %s; make it again to use it", name, WHY_ENDED, extra={"job": name})
        if journal != "wal":
            raise StoreError(f"{self.path} cannot have a write-ahead log", hint="put it on a local file system")

    def _create(self) -> None:
        self._execute(_SCHEMA + _JOBS)
        self._database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        self._database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _execute(self, statements: str) -> None:
        for statement in statements.split(";\n"):
            self._database.execute(statement)

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
        if not FIRST_VERSION <= version <= SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} has version {version}, this program knows {FIRST_VERSION} .. {SCHEMA_VERSION}",
                hint="use the hopsum that wrote it",
            )

    def _migrate(self, version: int) -> tuple[str, ...]:
        """Bring a database of an older version to this one. Return the names of the jobs that end with that."""
        try:
            older = extract_older_jobs(self._database, version)
        except ValueError as error:
            raise self._damaged(str(error)) from error
        self._execute(_JOBS)
        for record in older.records:
            self._write(record)
        self._removed.update(dict.fromkeys(older.removed, WHY_ENDED))
        self._database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        return older.ended

    def _write(self, record: JobRecord) -> None:
        text = msgspec.json.encode(record)
        # The index of places refuses the slots of another job.
        self._database.execute(
            "INSERT INTO jobs VALUES (?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE SET record = excluded.record, checksum = excluded.checksum",
            (record.name, text.decode(), zlib.crc32(text)),
        )

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

    def _damaged(self, what: str) -> StoreError:
        return StoreError(f"{self.path} is damaged: {what}", hint=_DAMAGED)

    def _record(self, name: str, text: str, checksum: int) -> JobRecord:
        try:
            if (found := zlib.crc32(text.encode())) != checksum:
                raise ValueError(f"its checksum is {found:08x}, and {checksum:08x} when it was written")
            return _sound(name, msgspec.json.decode(text, type=JobRecord))
        except (ValueError, InvalidRequestError) as error:
            raise self._damaged(f"job {name!r}: {error!r:.200}") from error


def _sound(name: str, record: JobRecord) -> JobRecord:
    """Return a record. Raises ValueError or InvalidRequestError for one that contradicts itself."""
    # In FORMING there is no generation, and in the other states there is one, but for a job that ends while only
    # departed switches have entries.
    forming = record.state is JobState.FORMING
    may_lack_job = forming or (record.state is JobState.ENDING and bool(record.departed))
    wrong = not may_lack_job if record.job is None else forming
    if wrong or record.name != name:
        raise ValueError("it contradicts itself")
    for member in record.members:
        if member.report is not None:
            member.report.check()
    return record


_DAMAGED = (
    "put a backup in its place (hopsum controller backup), or start with a new database and --remove-existing, which "
    "ends all jobs"
)
_EMPTY = (
    "put a backup in its place (hopsum controller backup); if no controller has ever served with it, remove the file"
)


def _keep_private(path: Path) -> bool:
    """Make the file, if there is none, so that only its owner can read it, and take one back that others can read.

    SQLite gives its own files next to it the same mode. Says nothing where that fails: opening does.

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
