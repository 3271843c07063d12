# SPDX-License-Identifier: Apache-2.0
"""A switch in memory, for tests of what drives a Device: it fails where it is told to."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from hopsum_controlplane.devices.device import Capabilities, Device, PipelineConfig
from hopsum_controlplane.entries import (
    CounterValue,
    DefaultAction,
    Delete,
    Entity,
    Insert,
    MulticastGroup,
    TableEntry,
    Update,
)
from hopsum_controlplane.errors import FailedUpdate, WriteError
from hopsum_controlplane.p4info import P4Info, read_program
from hopsum_controlplane.p4runtime_encoding import encode_update
from hopsum_controlplane.program import V1MODEL

_COUNTER_CELLS = 1024


class Failure(enum.Enum):
    """The kind of failure of the chosen update of a FakeDevice."""

    REFUSED = "this update is refused, the others of its batch are applied"
    UNANSWERED = "the batch is applied up to this update, and nobody tells"
    UNREACHABLE = "as UNANSWERED, and from then on every write fails until `repair`"


class FakeDevice(Device):
    """A switch in memory.

    The `fail_at`-th update since construction (from 0, batches are applied in order) fails as `failure` says, None: no
    update fails. With `p4info` every update is encoded first, and tables and counters are looked up, so that names,
    widths and sizes are checked.
    `batches` has all batches that reached the switch, `entities` the present entries by key, `updates` the number of
    updates since construction. Tests write packets into `counters`, by counter and cell.
    """

    def __init__(
        self,
        p4info: P4Info | None = None,
        *,
        fail_at: int | None = None,
        failure: Failure = Failure.REFUSED,
        capabilities: Capabilities | None = None,
    ) -> None:
        self.where = "fake switch"
        self.capabilities = capabilities or Capabilities("fake")
        self.program = V1MODEL if p4info is None else read_program(p4info)
        self.entities: dict[tuple[object, ...], Entity] = {}
        self.batches: list[tuple[Update, ...]] = []
        self.counters: dict[str, dict[int, int]] = {}
        self.updates = 0
        self._p4info = p4info
        self._fail_at = fail_at
        self._failure = failure
        self._reachable = True
        self._cookie: int | None = None

    def fail(self, *, at: int, failure: Failure) -> None:
        """Let the update with this number fail, counted as `updates` counts. An earlier failure is repaired."""
        self._fail_at, self._failure, self._reachable = at, failure, True

    def repair(self) -> None:
        """Let no further update fail, and make the switch reachable again."""
        self._fail_at = None
        self._reachable = True

    def write(self, updates: Sequence[Update]) -> None:
        """Apply a batch in order. Raises WriteError for updates that are impossible or chosen to fail."""
        # Encoded first, as a driver does: a batch that cannot be encoded reaches no switch.
        if self._p4info is not None:
            for update in updates:
                encode_update(self._p4info, update)
        if not self._reachable:
            raise WriteError(updates, [], why="unreachable", where=self.where)
        self.batches.append(tuple(updates))
        failures = []
        for index, update in enumerate(updates):
            failing = self.updates == self._fail_at
            self.updates += 1
            if failing and self._failure is not Failure.REFUSED:
                self._reachable = self._failure is not Failure.UNREACHABLE
                raise WriteError(updates, [], why="no answer", where=self.where)
            code = "INTERNAL" if failing else self._apply(update)
            if code:
                failures.append(FailedUpdate(index, update, code, "as told" if failing else "no such change"))
        if failures:
            raise WriteError(updates, failures, where=self.where)

    def read_table(self, table: str) -> list[TableEntry]:
        if self._p4info is not None:
            table = self._p4info.tables[table].alias
        entries = [item for item in self.entities.values() if isinstance(item, TableEntry)]
        return [entry for entry in entries if entry.table == table]

    def read_groups(self) -> list[MulticastGroup]:
        groups = [item for item in self.entities.values() if isinstance(item, MulticastGroup)]
        return sorted(groups, key=lambda group: group.id)

    def read_counter(self, counter: str, start: int = 0, count: int | None = None) -> list[CounterValue]:
        """Return cells of `counters`, whose packets tests set, 1024 cells each, or as many as `p4info` says."""
        cells = self.counters.get(counter, {})
        size = _COUNTER_CELLS if self._p4info is None else self._p4info.counters[counter].size
        stop = size if count is None else start + count
        return [CounterValue(cells.get(index, 0), 0) for index in range(start, stop)]

    def read_cookie(self) -> int | None:
        return self._cookie

    def set_pipeline_config(self, pipeline: PipelineConfig) -> None:
        """Remove all entities and counters, and keep the program's cookie. `batches` and `updates` stay."""
        # The failure that a test chose stays: a push is no repair.
        self.entities.clear()
        self.counters.clear()
        self._cookie = pipeline.cookie

    def close(self) -> None:
        """Do nothing."""

    def _apply(self, update: Update) -> str:
        """Apply one update and return why not, as the name of a canonical code, or an empty string."""
        key = update.entity.key()
        if isinstance(update, Insert):
            if key in self.entities:
                return "ALREADY_EXISTS"
        elif key not in self.entities and not isinstance(update.entity, DefaultAction):
            return "NOT_FOUND"
        if isinstance(update, Delete):
            del self.entities[key]
        else:
            self.entities[key] = update.entity
        return ""
