# SPDX-License-Identifier: Apache-2.0
"""Switches and databases that look at each other with every write, and die when they are told to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from hopsum_controlplane.cluster import StateStore
from hopsum_controlplane.cluster.records import JobRecord
from hopsum_controlplane.entries import CounterValue, Insert, TableEntry, Update
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_ptf.fake_device import FakeDevice

FOREIGN_GENERATION = 77
"""Of entries that nobody's controller wrote."""


class Killed(BaseException):
    """The controller's process ends here: nothing of it runs any more."""


class Fuse:
    """Kills at the `at`-th event (from 0) since it was armed, and at all after it; None: at none."""

    def __init__(self) -> None:
        self.arm(None)

    def arm(self, at: int | None) -> None:
        self.events, self._at = 0, at

    def burn(self) -> None:
        self.events += 1
        if self._at is not None and self.events > self._at:
            raise Killed


class Intents:
    """The switches, and by switch the allocations that the database recorded for every generation before its writes."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.places: dict[int, dict[str, SlotRange]] = {}
        """A spine comes before its leaves."""
        self.devices: dict[str, WatchedDevice] = {}


class WatchedStore(StateStore):
    """A database in which no generation may be written down twice. `fuse` burns before and after every commit."""

    def __init__(self, path: Path, intents: Intents, fuse: Fuse) -> None:
        self.intents, self.fuse = intents, fuse
        super().__init__(path)
        self._database.execute("PRAGMA synchronous = OFF")  # processes die here, machines do not

    def put(self, record: JobRecord) -> None:
        self.fuse.burn()
        super().put(record)
        if record.generation:
            places = {switch: record.place(switch)[1] for switch in record.switches}
            assert self.intents.places.setdefault(record.generation, places) == places, "a generation twice"
            assert self.intents.names.setdefault(record.generation, record.name) == record.name, "a generation twice"
        self.fuse.burn()

    def remove(self, name: str) -> None:
        self.fuse.burn()
        super().remove(name)
        self.fuse.burn()


class WatchedDevice(FakeDevice):
    """A switch on which no generation may be installed that is not in the database, none twice, and no two in one slot.

    A leaf admits nobody before its spine does, and no switch while another one admits an older generation of the job
    (T7).

    `fuse` burns before every update and every read, and when a batch is done.
    """

    def __init__(self, name: str, intents: Intents, fuse: Fuse) -> None:
        super().__init__()
        self.name, self.intents, self.fuse = name, intents, fuse
        self.admitted: set[int] = set()
        intents.devices[name] = self

    def write(self, updates: Sequence[Update]) -> None:
        super().write(updates)
        self.fuse.burn()

    def read_table(self, table: str) -> list[TableEntry]:
        self.fuse.burn()
        return super().read_table(table)

    def read_counter(self, counter: str, start: int = 0, count: int | None = None) -> list[CounterValue]:
        self.fuse.burn()
        return super().read_counter(counter, start, count)

    def forget(self) -> None:
        """Lose everything, as a switch does that was started again."""
        self.entities.clear()

    def _apply(self, update: Update) -> str:
        self.fuse.burn()
        code = super()._apply(update)
        entity = update.entity
        if not code and isinstance(update, Insert) and isinstance(entity, TableEntry) and entity.table == "jobs":
            assert entity.match["generation"] not in self.admitted, "a generation a second time"
            self.admitted.add(entity.match["generation"])
            self._check_tree(entity.match["generation"])
        self._check()
        return code

    def _check_tree(self, generation: int) -> None:
        names, devices = self.intents.names, self.intents.devices
        spine = next(iter(self.intents.places[generation]))
        assert self.name == spine or generation in devices[spine].generations("jobs"), "a leaf admits before its spine"
        for device in devices.values():
            others = device.generations("jobs") - {FOREIGN_GENERATION, generation}
            assert names[generation] not in {names[other] for other in others}, (
                "two generations of a job on its switches"
            )

    def _check(self) -> None:
        actual = self.generations() - {FOREIGN_GENERATION}
        assert actual <= set(self.intents.places), "a generation is installed that is not in the database"
        for one, other in combinations(actual, 2):
            a, b = self.intents.places[one][self.name], self.intents.places[other][self.name]
            assert a.end <= b.base or b.end <= a.base, f"generations {one} and {other} in one slot"

    def generations(self, table: str = "") -> set[int]:
        """Return the generations that have entries, in a table if one is named."""
        return {
            entity.match["generation"]
            for entity in self.entities.values()
            if isinstance(entity, TableEntry) and "generation" in entity.match and table in ("", entity.table)
        }
