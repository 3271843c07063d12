# SPDX-License-Identifier: Apache-2.0
"""The database's contents in memory, always as they are on disk: every step is on disk before any caller sees it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hopsum_controlplane.cluster.records import JobRecord, JobState
from hopsum_controlplane.cluster.state_store import StateStore
from hopsum_controlplane.errors import JobExistsError, StoreError, UnknownJobError
from hopsum_controlplane.resource_allocator import GenerationAllocator

_log = logging.getLogger(__name__)

KEPT_DELETED = 256
"""The number of deleted jobs that are remembered, for answers to their workers."""
STORE_PROBE_S = 10.0
"""The time between two tries whether the database can be written."""
Step = Callable[[JobRecord], JobRecord | None]
"""A change of a record. None removes the job."""


class JobStateCache:
    """All jobs, by name. Thread-safe: `changed` is its lock, and is notified of every step.

    `monotonic` gives seconds that never go back.

    Raises StoreError as StateStore does. A step that could not be written has not happened.
    """

    def __init__(self, store: StateStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        stored = store.load()
        self.changed = threading.Condition(threading.RLock())
        self._store = store
        self._records = {record.name: record for record in stored.records}
        # Replaced as a whole, so that `owner_of` needs no lock: calls of strangers never wait for the database.
        self._digests = {key: place for record in stored.records for key, place in _digests(record).items()}
        self._watchers: list[Callable[[str], None]] = []
        self._deleted = dict(stored.removed)
        """The words on the last deleted jobs, by name. They are only in memory."""
        self.store_condition = ""
        """The reason why the database could not be written at the last write, empty when it could."""
        self._probe_store_at_s = monotonic() + STORE_PROBE_S
        self._generations = GenerationAllocator()
        self.observe_generation(stored.last_generation)

    def records(self, switch: str | None = None) -> tuple[JobRecord, ...]:
        """Return the records that have slots on a switch, or all, in the order of their names."""
        with self.changed:
            found = [record for record in self._records.values() if switch is None or switch in record.places]
        return tuple(sorted(found, key=lambda record: record.name))

    def find(self, name: str) -> JobRecord | None:
        """Return the record of a job, None when there is no job of this name."""
        with self.changed:
            return self._records.get(name)

    def get(self, name: str) -> JobRecord:
        """Return the record of a job. Raises UnknownJobError when there is no job of this name."""
        with self.changed:
            record, deleted = self._records.get(name), self._deleted.get(name)
        if record is None and deleted is not None:
            raise UnknownJobError(f"no job {name!r:.80}: {deleted}", hint="make it again to use it")
        if record is None:
            raise UnknownJobError(
                f"no job {name!r:.80}", hint="make it first, or look for its name in `hopsum job list`"
            )
        return record

    def was_deleted(self, name: str) -> bool:
        """Return whether one of the last KEPT_DELETED deleted jobs had this name, and no present job has it."""
        with self.changed:
            return name not in self._records and name in self._deleted

    def check_new(self, name: str) -> None:
        """Raise JobExistsError when there is a record of this name."""
        record = self.find(name)
        if record is not None:
            raise JobExistsError(
                f"a job {name!r} exists, {record.state.value}", hint="delete it first, or choose another name"
            )

    def owner_of(self, digest: bytes) -> tuple[str, int | None] | None:
        """Return job and rank of the member whose secret has this digest, or the job and None for a job's token.

        None when no job and no member has it. The call waits for no lock.
        """
        return self._digests.get(digest)

    def watch(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        """Have `watcher` called with a job's name after each `apply` that changed it, in any thread, under the lock.

        `watcher` must not block.

        Returns a function that ends the calls.
        """
        with self.changed:
            self._watchers.append(watcher)

        def unwatch() -> None:
            # `unwatch` was called before.
            with self.changed, suppress(ValueError):
                self._watchers.remove(watcher)

        return unwatch

    def add(self, record: JobRecord) -> None:
        """Write a new record into the database and then into memory, and log it. Watchers are not called.

        Raises JobExistsError when there is a record of its name, and StoreError.
        """
        with self.changed:
            self.check_new(record.name)
            self._keep(record)
        _report(None, record)

    def apply(self, name: str, step: Step, *, missing_ok: bool = False) -> JobRecord | None:
        """Replace a job's record by `step(record)`, in the database and then in memory, and call the watchers.

        A `step` that returns None removes the job. One that returns an equal record changes nothing, and no watcher is
        called. `step` runs under the lock. A new state is logged. Returns the record after the step, or None for a job
        that was removed, or was missing with `missing_ok`.

        Raises UnknownJobError unless `missing_ok`, StoreError, and the error of `step`. Nothing has changed then.
        """
        with self.changed:
            if missing_ok and name not in self._records:
                return None
            before = self.get(name)
            after = step(before)
            if after == before:
                return after
            if after is None:
                # Disk before memory: a step that cannot be written has not happened.
                with self._writing():
                    self._store.remove(name)
                del self._records[name]
                self._digests = {key: place for key, place in self._digests.items() if place[0] != name}
                why = before.reason if before.state is JobState.ENDING else "it was deleted"
                # Removed and added again, so that the dictionary is in the order of deletion.
                self._deleted.pop(name, None)
                self._deleted[name] = f"{why} at {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}"
                for old in list(self._deleted)[:-KEPT_DELETED]:
                    del self._deleted[old]
            else:
                self._keep(after)
            self.changed.notify_all()
            # Under the lock, so that watchers see every step, in order. They only set events.
            for watcher in self._watchers:
                watcher(name)
        _report(before, after)
        return after

    def observe_generation(self, generation: int) -> None:
        """Count a generation as taken: it was found on a switch."""
        with self.changed:
            self._generations.observe(generation)

    def allot_generation(self, now: float) -> int:
        """Return a generation that was never taken, at `now` (unix seconds). Nothing is written to the database.

        Raises ControlPlaneError when it does not fit 32 bits.
        """
        with self.changed:
            return self._generations.allot(now)

    def probe_store(self, now_s: float) -> None:
        """Write to the database to update `store_condition`, if the last probe was STORE_PROBE_S ago or more.

        `now_s` is of the clock `monotonic`. A change of the condition is logged. Raises no StoreError.
        """
        with self.changed, suppress(StoreError):
            if now_s >= self._probe_store_at_s:
                self._probe_store_at_s = now_s + STORE_PROBE_S
                with self._writing():
                    self._store.probe()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Note whether the block can write the database, and log when that changes: one line, however often it fails.

        Raises the block's StoreError.
        """
        before = self.store_condition
        try:
            yield
        except StoreError as error:
            self.store_condition = str(error)
            if not before:
                _log.error("%s; sums continue, no job changes", error)
            raise
        self.store_condition = ""
        if before:
            _log.info("the database can be written again")

    def _keep(self, record: JobRecord) -> None:
        # Disk before memory: a reader of the cache sees nothing that a crash could take back.
        with self._writing():
            self._store.put(record)
        others = {key: place for key, place in self._digests.items() if place[0] != record.name}
        self._digests = others | _digests(record)
        self._records[record.name] = record


def _digests(record: JobRecord) -> dict[bytes, tuple[str, int | None]]:
    found: dict[bytes, tuple[str, int | None]] = {
        token: (record.name, None) for token in (record.token_digest, record.earlier_token_digest) if token
    }
    return found | {member.secret_digest: (record.name, member.rank) for member in record.members}


def _report(before: JobRecord | None, after: JobRecord | None) -> None:
    record = after or before
    if record is None or (before is not None and after is not None and before.state is after.state):
        return
    was = "new" if before is None else before.state.value
    now = "gone" if after is None else after.state.value
    details = {"job": record.name, "switch": record.switch, "generation": record.generation, "state": now}
    ends = after is not None and after.state in (JobState.CHANGING, JobState.ENDING)
    because = f", because {record.reason}" if ends else ""
    stopped = ends and before is not None and before.state is JobState.RUNNING and not record.finished
    level = logging.WARNING if stopped else logging.INFO
    _log.log(level, "job %s: %s -> %s%s", record.name, was, now, because, extra=details)
