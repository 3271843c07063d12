# SPDX-License-Identifier: Apache-2.0
"""The program that sums lane by lane (evaluation/naive), behind the control plane's interface of the shipped one.

It has the shipped program's tables but for those of trees, and `lookup`, in whose place it has one table for each of
the 1024 codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.entries import (
    CounterValue,
    Insert,
    MulticastGroup,
    TableEntry,
    Update,
)
from hopsum_controlplane.tables.lookup import LOOKUP, polynomial
from hopsum_controlplane.tables.tree import LEAVES, PARENT_REWRITE, PARENTS
from hopsum_evaluation.bench.made_datagrams import CODES
from hopsum_wire import TABLE_ENTRIES

SLOTS = 8
"""Outstanding per worker: a packet takes the program milliseconds."""
_BUILD = Path(__file__).resolve().parents[2] / "naive" / "build"
_LACKS = (LOOKUP, LEAVES, PARENTS, PARENT_REWRITE)
_WRITE_UPDATES = 2048
_BYTE = 0xFF


def naive_program() -> tuple[Path, Path] | None:
    """Return the paths of its JSON and P4Info, or None outside a source tree."""
    json, p4info = _BUILD / "naive.json", _BUILD / "naive.p4info.txtpb"
    return (json, p4info) if json.is_file() and p4info.is_file() else None


class NaiveDevice(Device):
    """A switch with that program, to which a job's lookup table is written once for every lane.

    What was written so stays until the program goes: no packet reaches it when the job has gone.
    """

    def __init__(self, device: Device) -> None:
        self.where = device.where
        self.capabilities = device.capabilities
        self._device = device

    def write(self, updates: Sequence[Update]) -> None:
        """Write everything but lookup entries first, then the lanes, in several batches."""
        rest = [update for update in updates if not _is_lookup(update)]
        lanes = [Insert(entry) for update in updates if _is_lookup(update) for entry in _per_lane(update)]
        if rest:
            self._device.write(rest)
        for at in range(0, len(lanes), _WRITE_UPDATES):
            self._device.write(lanes[at : at + _WRITE_UPDATES])

    def read_table(self, table: str) -> list[TableEntry]:
        """Read a table. A table that the program lacks is read as empty."""
        return [] if table in _LACKS else self._device.read_table(table)

    def read_groups(self) -> list[MulticastGroup]:
        return self._device.read_groups()

    def read_counter(self, counter: str, start: int = 0, count: int | None = None) -> list[CounterValue]:
        return self._device.read_counter(counter, start, count)

    def cookie(self) -> int | None:
        return self._device.cookie()

    def set_pipeline_config(self, pipeline: PipelineConfig) -> None:
        self._device.set_pipeline_config(pipeline)

    def close(self) -> None:
        self._device.close()


def _is_lookup(update: Update) -> bool:
    return isinstance(update.entity, TableEntry) and update.entity.table == LOOKUP


def _per_lane(update: Update) -> Iterator[TableEntry]:
    """Yield the entries of all lanes for an inserted lookup entry, none for one that goes."""
    entry = update.entity
    assert isinstance(entry, TableEntry)
    if not isinstance(update, Insert):
        return
    # The shipped program has the coefficients of a polynomial over GF(2). The transform from values to coefficients is
    # its own inverse: applied again it returns the table's values.
    values = polynomial([entry.params[f"c{number}"] & _BYTE for number in range(TABLE_ENTRIES)])
    for lane in range(CODES):
        for code, value in enumerate(values):
            key = {"generation": entry.match["generation"], "code": code}
            yield TableEntry(f"{LOOKUP}{lane:03x}", key, f"set{lane:03x}", {"value": value})
