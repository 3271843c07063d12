# SPDX-License-Identifier: Apache-2.0
"""The account of the demo's frames: what one place counted and the next one did not was lost between the two.

    up    workers -> interfaces of the switches -> program
    down  program -> interfaces of the switches -> workers

A queue on the way may be full: a socket's buffer, a device's queue, a queue of the switch. The frame is lost, and it is
sent again. No place can count a frame that the place before it did not have: that is a difference.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from hopsum_topologies.switch_testbed import InterfaceCounters

ARRIVED: Final = ("added", "duplicate", "answered", "stale", "probed", "resent")
"""Events of the program that are one frame of a worker each, which it did not drop."""
QUIET_S: Final = 10.0
_PAUSE_S: Final = 0.05


class LostFrames(NamedTuple):
    """Frames that one place counted and the next did not, in the order of their way. Below 0 it is a difference."""

    before_interfaces: int
    """Up: workers sent them. The buffer of the switch's socket or the device's queue was full."""
    before_program: int
    """Up: interfaces had them. The queue in which a switch receives was full."""
    behind_program: int
    """Down: the program sent them. The queue in which a switch sends was full."""
    before_workers: int
    """Down: interfaces had them. The buffer of a worker's socket was full, or they came after its last result."""


@dataclass(frozen=True, slots=True)
class DemoCounts:
    """Counts of the switches' interfaces and programs at one moment."""

    interfaces: InterfaceCounters
    """The counts at the links of workers."""
    uplinks: dict[str, int]
    """Frames that went up between switches of a tree, by link."""
    events: dict[str, int]
    """The fate of the workers' frames."""
    replies: int
    """Frames that programs sent to workers."""
    drops: dict[str, int]
    """Frames that programs dropped, by reason."""

    def since(self, earlier: DemoCounts) -> DemoCounts:
        """Return what was counted after `earlier`. Reasons of drops that did not occur are left out."""
        drops = {name: count - earlier.drops.get(name, 0) for name, count in self.drops.items()}
        return DemoCounts(
            self.interfaces - earlier.interfaces,
            {link: count - earlier.uplinks[link] for link, count in self.uplinks.items()},
            {name: count - earlier.events[name] for name, count in self.events.items()},
            self.replies - earlier.replies,
            {name: count for name, count in drops.items() if count},
        )

    @property
    def arrived(self) -> int:
        """Return how many frames of workers the programs took in or dropped."""
        return sum(self.events[name] for name in ARRIVED) + sum(self.drops.values())


class Counting(Protocol):
    """Whatever can be read for a `DemoCounts`."""

    def read_counts(self) -> DemoCounts:
        """Read interfaces and programs, one after the other."""
        ...


def read_quiet(place: Counting, quiet_s: float = QUIET_S) -> DemoCounts:
    """Read until two looks are equal, or for `quiet_s` seconds.

    Counters of several places are read one after the other, so a frame that is under way at the first look is counted
    only by the places that are read last.
    """
    give_up_s, found = time.monotonic() + quiet_s, place.read_counts()
    while time.monotonic() < give_up_s:
        time.sleep(_PAUSE_S)
        last, found = found, place.read_counts()
        if found == last:
            break
    return found


def lost_between(agents: InterfaceCounters, counts: DemoCounts) -> LostFrames:
    """Return what was lost, given what the workers counted at their sockets."""
    interfaces = counts.interfaces
    return LostFrames(
        agents.packets_up - interfaces.packets_up,
        interfaces.packets_up - counts.arrived,
        counts.replies - interfaces.packets_down,
        interfaces.packets_down - agents.packets_down,
    )


def is_possible(lost: LostFrames, agents: InterfaceCounters, counts: DemoCounts) -> bool:
    """Return whether no place counted a frame that the one before it did not have, in frames and in bytes."""
    up = agents.bytes_up - counts.interfaces.bytes_up
    down = counts.interfaces.bytes_down - agents.bytes_down
    missing = ((lost.before_interfaces, up), (lost.before_workers, down))
    return min(*lost, up, down) >= 0 and all((frames > 0) == (size > 0) for frames, size in missing)
