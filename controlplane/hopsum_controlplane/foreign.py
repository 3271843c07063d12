# SPDX-License-Identifier: Apache-2.0
"""Generations on a switch that the database does not have, as after a restored backup: found, shown and kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from hopsum_controlplane.entries import Entity, MulticastGroup, TableEntry
from hopsum_controlplane.resource_allocator import Allocation
from hopsum_controlplane.slots import SlotRange
from hopsum_controlplane.tables import admit

Key = tuple[object, ...]
_PLACE: Final = ("job_index", "slot_base", "slots", "group")
"""Parameters of an entry that admits a generation."""


@dataclass(frozen=True)
class ForeignGeneration:
    """A generation that a switch serves and the database does not have, with all its entries.

    `workers` are the IPv4 addresses that it admits, in order.
    """

    generation: int
    allocation: Allocation
    entities: tuple[Entity, ...]
    workers: tuple[str, ...]

    def __str__(self) -> str:
        """Return it in words: generation, slots, workers."""
        base, size = self.allocation.region
        at = f"slots {base}-{base + size - 1}, job index {self.allocation.job_index}"
        return f"generation {self.generation}: {at}, workers at {', '.join(self.workers) or 'no address'}"

    def overlaps(self, allocation: Allocation) -> bool:
        """Say whether it has a slot or the job index of a place."""
        base, size = self.allocation.region
        other_base, other_size = allocation.region
        slots = base < other_base + other_size and other_base < base + size
        return slots or self.allocation.job_index == allocation.job_index


def foreign_generations(foreign: Iterable[Entity], actual: Mapping[Key, Entity]) -> list[ForeignGeneration]:
    """Return the admitted generations among the foreign entries, in their order.

    `actual` is all that stands: a generation's multicast group may have the number of a job's that is wanted.
    """
    entries = [entity for entity in foreign if isinstance(entity, TableEntry)]
    found = []
    for entry in entries:
        if entry.table == admit.JOBS and set(_PLACE) <= set(entry.params):
            own = [each for each in entries if each.match.get("generation") == entry.match["generation"]]
            group = [
                each
                for each in actual.values()
                if isinstance(each, MulticastGroup) and each.id == entry.params["group"]
            ]
            region = SlotRange(entry.params["slot_base"], entry.params["slots"])
            found.append(
                ForeignGeneration(
                    entry.match["generation"],
                    Allocation(entry.params["job_index"], region),
                    (*own, *group),
                    tuple(str(IPv4Address(each.params["address"])) for each in own if each.table == admit.WORKERS),
                )
            )
    return sorted(found, key=lambda each: each.generation)
