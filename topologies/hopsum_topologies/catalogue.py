# SPDX-License-Identifier: Apache-2.0
"""The networks that have a name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Final, NamedTuple

from hopsum_topologies.description import DescriptionError, JobPlan, Link, Topology

LOSS: Final = 0.05
"""The loss probability of every link of `lossy_star`, each way."""
UPLINK_BPS: Final = 1e8
"""The rate of the links between racks and spine in `two_rack`."""


class NetworkEntry(NamedTuple):
    """A network in some sizes: `make` takes the number of workers, which `step` divides."""

    summary: str
    make: Callable[[int], Topology]
    workers: int = 4
    step: int = 1


def _hosts(count: int) -> tuple[str, ...]:
    return tuple(f"h{number + 1}" for number in range(count))


def _star(workers: int) -> Topology:
    hosts = _hosts(workers)
    links = tuple(Link((host, "s1")) for host in hosts)
    return Topology("star", CATALOGUE["star"].summary, hosts, ("s1",), links, (JobPlan("train", hosts),))


def _lossy_star(workers: int) -> Topology:
    hosts = _hosts(workers)
    links = tuple(Link((host, "s1"), loss=LOSS) for host in hosts)
    summary = CATALOGUE["lossy_star"].summary
    return Topology("lossy_star", summary, hosts, ("s1",), links, (JobPlan("train", hosts),))


def _shared(workers: int) -> Topology:
    hosts = _hosts(workers)
    jobs = JobPlan("blue", hosts[: workers // 2]), JobPlan("red", hosts[workers // 2 :])
    links = tuple(Link((host, "s1")) for host in hosts)
    return Topology("shared", CATALOGUE["shared"].summary, hosts, ("s1",), links, jobs)


def _two_rack(workers: int) -> Topology:
    hosts, rack = _hosts(workers), workers // 2
    down = tuple(Link((host, "leaf1" if number < rack else "leaf2")) for number, host in enumerate(hosts))
    up = tuple(Link((leaf, "spine"), UPLINK_BPS) for leaf in ("leaf1", "leaf2"))
    summary = CATALOGUE["two_rack"].summary
    return Topology("two_rack", summary, hosts, ("leaf1", "leaf2", "spine"), down + up, (JobPlan("train", hosts),))


CATALOGUE: Final = {
    "star": NetworkEntry("one switch, one job", _star),
    "lossy_star": NetworkEntry(
        f"one switch, one job, {LOSS * 100:g} % of frames lost on every link each way", _lossy_star
    ),
    "shared": NetworkEntry("one switch, two jobs of half the hosts each", _shared, step=2),
    "two_rack": NetworkEntry(
        f"two racks joined by a spine, uplinks of {UPLINK_BPS / 1e6:g} Mbit/s", _two_rack, 8, step=2
    ),
}


def topology(name: str, workers: int | None = None) -> Topology:
    """Return a network of the catalogue, with `workers` workers instead of its own number.

    Raises DescriptionError: no such name, or a number of workers that it cannot have.
    """
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, n=1)
        told = f"did you mean {near[0]}?" if near else f"there are {', '.join(CATALOGUE)}"
        raise DescriptionError(f"no topology {name!r}: {told}")
    entry = CATALOGUE[name]
    count = entry.workers if workers is None else workers
    if count < entry.step or count % entry.step:
        raise DescriptionError(f"topology {name!r} of {count} workers: it has a multiple of {entry.step}")
    return entry.make(count)
