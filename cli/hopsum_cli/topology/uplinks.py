# SPDX-License-Identifier: Apache-2.0
"""Frames of one job on the links between leaf and spine switches, and the number of them that was sent again.

Links count frames, of whatever kind. The switches count what became of packets of the job. A contribution is added
once, a round is closed by one partial sum and ended by one result: exact counts, however often packets were sent::

    tree   up     first: partial sums (closed)     again: resent
           down   first: results (taken)           again: known, and STALE passed down (relayed)
    flat   up     first: contributions (added)     again: duplicate, answered, stale
           down   first: completed * workers       again: answered, stale
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hopsum_topologies.description import JobPlan, Link
from hopsum_topologies.network_control import NetworkControl, Placed
from hopsum_topologies.running_network import LinkTraffic


class Way(NamedTuple):
    """One direction: frames that passed, and packets of the job that were sent for the first time, and again."""

    frames: int
    first: int
    again: int


class Uplink(NamedTuple):
    """A rack's link to the spine, or those of all racks where one switch sums for all."""

    name: str
    up: Way
    down: Way
    contributions: int
    """The contributions of the workers below. Without sums before the spine the link carries as many, and as many
    results down."""

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "links": self.name,
            "up": self.up._asdict(),
            "down": self.down._asdict(),
            "contributions": self.contributions,
        }


def uplinks_of(
    job: JobPlan, placed: Placed, control: NetworkControl, carried: Mapping[Link, LinkTraffic], flat: str | None
) -> list[Uplink]:
    """Count the packets of a job on the links to its spine. No links where the job has no spine or is summed elsewhere.

    `flat` is the one switch that sums for all, None in a tree. Raises ControlPlaneError when a switch does not answer.
    """
    topology = control.topology
    spine = topology.spine_of(job)
    if spine is None or flat not in (None, spine):
        return []
    parts = {leaf: (topology.link_between(leaf, spine), part) for leaf, part in placed.parts.items()}
    # In a tree each leaf has counted for itself: `closed` once a round, however often its workers sent.
    if flat is None:
        return [
            _of_leaf(control.counters(leaf, part), str(link), *_frames({leaf: link}, carried))
            for leaf, (link, part) in parts.items()
        ]
    links = {leaf: link for leaf, (link, _) in parts.items()}
    # One switch has counted for all racks together, so their links are one row.
    events = control.counters(spine, next(iter(placed.parts.values())))
    return [_of_spine(events, len(job.workers), " + ".join(map(str, links.values())), *_frames(links, carried))]


def _frames(links: Mapping[str, Link], carried: Mapping[Link, LinkTraffic]) -> tuple[int, int]:
    """Return the frames that went up and down."""
    up = sum(carried[link].sent_from(leaf, link) for leaf, link in links.items())
    return up, sum(carried[link].sent_from(link.other(leaf), link) for leaf, link in links.items())


def _of_leaf(events: Mapping[str, int], name: str, up: int, down: int) -> Uplink:
    results = Way(down, events["taken"], events["known"] + events["relayed"])
    return Uplink(name, Way(up, events["closed"], events["resent"]), results, events["added"])


def _of_spine(events: Mapping[str, int], workers: int, name: str, up: int, down: int) -> Uplink:
    answers = events["answered"] + events["stale"]
    # A result is multicast: one copy for each worker, each by its own link's way down.
    results = Way(down, events["completed"] * workers, answers)
    return Uplink(name, Way(up, events["added"], events["duplicate"] + answers), results, events["added"])
