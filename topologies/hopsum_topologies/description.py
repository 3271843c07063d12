# SPDX-License-Identifier: Apache-2.0
"""Descriptions of networks as values and as JSON: hosts, switches, links and jobs. Some networks have a name.

Addresses and port numbers follow from the order in which things are named, so every realisation has the same ones:

  host k         10.0.0.(k + 1), MAC 02:00:00:00:02:k, one interface `eth0`
  switch k       its service at 10.0.0.(254 - k), MAC 02:00:00:00:fe:k, P4Runtime device k
  port of a link its place among the links of the switch, from 1, with interface SWITCH-PORT
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from hopsum_topologies.errors import TopologyError

HOST_INTERFACE: Final = "eth0"
# That of Ethernet without jumbo frames, in which a chunk of every codec fits.
MTU_BYTES: Final = 1500
# Hosts and switches share the last byte of 10.0.0.x. The contributors of a sum are a bitmap of 64 bits.
MAX_HOSTS, MAX_SWITCHES, MAX_JOB_WORKERS = 200, 50, 64
MIN_RATE_BPS, MAX_RATE_BPS = 1e4, 1e12
MAX_DELAY_S: Final = 10.0
# A switch's name, a dash and a port number are the name of an interface, of which Linux takes 15 bytes.
_NAME = re.compile(r"[a-z][a-z0-9]{0,8}")


class DescriptionError(TopologyError):
    """A description of an invalid network. The message names the fault and a valid form."""


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cable between two nodes, the same both ways.

    `rate_bps` is in bits per second, None for no limit. `delay_s` is in seconds one way. `loss` is the probability, 0
    to below 1, that a frame is lost one way.
    """

    ends: tuple[str, str]
    rate_bps: float | None = None
    delay_s: float = 0.0
    loss: float = 0.0

    def __str__(self) -> str:
        """Return `h1-s1`."""
        return "-".join(self.ends)

    def other(self, node: str) -> str:
        """Return the end that is not `node`. `node` must be an end of the link: nothing is checked."""
        return self.ends[1] if node == self.ends[0] else self.ends[0]


class JobPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job: its name, and its workers as names of hosts. A worker's rank is its place in `workers`, from 0."""

    name: str
    workers: tuple[str, ...]


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A valid network: one tree of switches with hosts at its switches. Construction raises DescriptionError.

    Nodes in arguments are names of hosts and switches of this network. The order of `links` gives the port numbers.
    """

    name: str
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    links: tuple[Link, ...]
    summary: str = ""
    jobs: tuple[JobPlan, ...] = ()

    def __post_init__(self) -> None:
        """Check names, links, shape and jobs. Raises DescriptionError."""
        if not _NAME.fullmatch(self.name.replace("_", "")):
            raise self._wrong(f"the name {self.name!r}", "small letters, digits and _, a letter first")
        self._check_nodes()
        for link in self.links:
            self._check_link(link)
        self._check_shape()
        self._check_jobs()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the names of all hosts, then of all switches."""
        return self.hosts + self.switches

    def links_of(self, node: str) -> tuple[Link, ...]:
        """Return the links of a node, in the order of its ports."""
        return tuple(link for link in self.links if node in link.ends)

    def port(self, switch: str, link: Link) -> int:
        """Return the number, from 1, of the port at which a link meets a switch. Raises ValueError where none does."""
        return self.links_of(switch).index(link) + 1

    def interface(self, node: str, link: Link) -> str:
        """Return the name of the interface at which a link meets a node."""
        return HOST_INTERFACE if node in self.hosts else f"{node}-{self.port(node, link)}"

    def ip(self, node: str) -> str:
        """Return a host's IPv4 address, or that of a switch's service."""
        if node in self.hosts:
            return f"10.0.0.{self.hosts.index(node) + 1}"
        return f"10.0.0.{254 - self.switches.index(node)}"

    def mac(self, node: str) -> str:
        """Return a host's MAC address, or that of a switch's service."""
        if node in self.hosts:
            return f"02:00:00:00:02:{self.hosts.index(node):02x}"
        return f"02:00:00:00:fe:{self.switches.index(node):02x}"

    def device_id(self, switch: str) -> int:
        """Return a switch's P4Runtime device id."""
        return self.switches.index(switch)

    def switch_of(self, host: str) -> str:
        """Return the switch that a host's one link leads to."""
        return self.links_of(host)[0].other(host)

    def switches_of(self, job: JobPlan) -> tuple[str, ...]:
        """Return the switches to which a job's workers have their links, each once, in the order of ranks."""
        return tuple(dict.fromkeys(map(self.switch_of, job.workers)))

    def spine_of(self, job: JobPlan) -> str | None:
        """Return the switch that is next to all switches of a job's workers and has no worker of the job, or None.

        None too where all workers are at one switch: they need no spine.
        """
        around = self.switches_of(job)
        near = [{link.other(leaf) for link in self.links_of(leaf)} - {*around, *self.hosts} for leaf in around]
        common = set.intersection(*near)
        return common.pop() if common and len(around) > 1 else None

    def link_between(self, node: str, other: str) -> Link:
        """Return the link that joins two nodes next to each other. Raises StopIteration where no link joins them."""
        return next(link for link in self.links_of(node) if link.other(node) == other)

    def _check_nodes(self) -> None:
        for what, names, most in (("hosts", self.hosts, MAX_HOSTS), ("switches", self.switches, MAX_SWITCHES)):
            if not 1 <= len(names) <= most:
                raise self._wrong(f"{len(names)} {what}", f"1 to {most}")
        for name in self.nodes:
            if not _NAME.fullmatch(name):
                raise self._wrong(f"the name {name!r}", "small letters and digits, a letter first, at most 9")
        twice = [name for name, times in Counter(self.nodes).items() if times > 1]
        if twice:
            raise self._wrong(f"several nodes named {', '.join(twice)}", "give each its own name")

    def _check_link(self, link: Link) -> None:
        unknown = [end for end in link.ends if end not in self.nodes]
        if unknown:
            raise self._wrong(
                f"link {link} ends at {', '.join(unknown)}", "its ends are hosts and switches named above"
            )
        if not any(end in self.switches for end in link.ends):
            raise self._wrong(f"link {link} joins two hosts", "one end of every link is a switch")
        if link.ends[0] == link.ends[1]:
            raise self._wrong(f"link {link} leads back to where it comes from", "join two nodes")
        if link.rate_bps is not None and not MIN_RATE_BPS <= link.rate_bps <= MAX_RATE_BPS:
            hint = f"{MIN_RATE_BPS:g} to {MAX_RATE_BPS:g} bits per second, or none"
            raise self._wrong(f"link {link}: rate_bps {link.rate_bps:g}", hint)
        if not 0 <= link.delay_s <= MAX_DELAY_S:
            raise self._wrong(f"link {link}: delay_s {link.delay_s:g}", f"0 to {MAX_DELAY_S:g} seconds")
        if not 0 <= link.loss < 1:
            raise self._wrong(f"link {link}: loss {link.loss:g}", "a probability, 0 to below 1")

    def _check_shape(self) -> None:
        for host in self.hosts:
            if len(self.links_of(host)) != 1:
                raise self._wrong(f"host {host} has {len(self.links_of(host))} links", "a host has one")
        reached, waiting = {self.nodes[0]}, [self.nodes[0]]
        while waiting:
            node = waiting.pop()
            fresh = {link.other(node) for link in self.links_of(node)} - reached
            reached |= fresh
            waiting += fresh
        if apart := [node for node in self.nodes if node not in reached]:
            raise self._wrong(f"no way from {self.nodes[0]} to {', '.join(apart)}", "join all nodes by links")
        if len(self.links) >= len(self.nodes):
            hint = f"{len(self.nodes)} nodes are joined by {len(self.nodes) - 1} links: flooded frames would go round"
            raise self._wrong(f"{len(self.links)} links make a loop", hint)

    def _check_jobs(self) -> None:
        if twice := [name for name, times in Counter(job.name for job in self.jobs).items() if times > 1]:
            raise self._wrong(f"several jobs named {', '.join(twice)}", "give each its own name")
        seen: Counter[str] = Counter(host for job in self.jobs for host in job.workers)
        for job in self.jobs:
            if not job.name or not 1 <= len(job.workers) <= MAX_JOB_WORKERS:
                hint = f"a job has a name and 1 to {MAX_JOB_WORKERS} workers"
                raise self._wrong(f"job {job.name!r} of {len(job.workers)} workers", hint)
            for host in job.workers:
                if host not in self.hosts:
                    raise self._wrong(f"job {job.name!r} has a worker {host}", f"hosts are {', '.join(self.hosts)}")
                if seen[host] > 1:
                    raise self._wrong(f"host {host} is a worker {seen[host]} times", "a host is one worker of one job")

    def _wrong(self, what: str, hint: str) -> DescriptionError:
        return DescriptionError(f"topology {self.name!r}: {what}; {hint}")


# ---- the networks that have a name ------------------------------------------------------------------

LOSS: Final = 0.05
"""The loss probability of every link of `lossy_star`, each way."""
UPLINK_BPS: Final = 1e8
"""The rate of the links between racks and spine in `two_rack`."""


class NetworkEntry(NamedTuple):
    """A named network in several sizes: `make(count, summary)` returns the one with this number of workers.

    `workers` is the default number. Every number is a multiple of `step`.
    """

    summary: str
    make: Callable[[int, str], Topology]
    workers: int = 4
    step: int = 1


def _star(
    workers: int, summary: str, name: str = "star", loss: float = 0.0, jobs: tuple[str, ...] = ("train",)
) -> Topology:
    """Make a network of one switch, whose hosts are shared out evenly to jobs of these names."""
    hosts = _hosts(workers)
    each = workers // len(jobs)
    plans = tuple(JobPlan(job, hosts[number * each : (number + 1) * each]) for number, job in enumerate(jobs))
    return Topology(name, hosts, ("s1",), tuple(Link((host, "s1"), loss=loss) for host in hosts), summary, plans)


def _two_rack(workers: int, summary: str) -> Topology:
    hosts, rack = _hosts(workers), workers // 2
    down = tuple(Link((host, "leaf1" if number < rack else "leaf2")) for number, host in enumerate(hosts))
    up = tuple(Link((leaf, "spine"), UPLINK_BPS) for leaf in ("leaf1", "leaf2"))
    return Topology("two_rack", hosts, ("leaf1", "leaf2", "spine"), down + up, summary, (JobPlan("train", hosts),))


def _hosts(count: int) -> tuple[str, ...]:
    return tuple(f"h{number + 1}" for number in range(count))


CATALOGUE: Final = {
    "star": NetworkEntry("one switch, one job", _star),
    "lossy_star": NetworkEntry(
        f"one switch, one job, {LOSS * 100:g} % of frames lost on every link each way",
        partial(_star, name="lossy_star", loss=LOSS),
    ),
    "shared": NetworkEntry(
        "one switch, two jobs of half the hosts each", partial(_star, name="shared", jobs=("blue", "red")), step=2
    ),
    "two_rack": NetworkEntry(
        f"two racks joined by a spine, uplinks of {UPLINK_BPS / 1e6:g} Mbit/s", _two_rack, 8, step=2
    ),
}


def topology(name: str, workers: int | None = None) -> Topology:
    """Return the network with this name in the catalogue, of `workers` workers. None: its default number.

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
    return entry.make(count, entry.summary)


# ---- descriptions as JSON ----------------------------------------------------------------------------


def as_document(topology: Topology) -> dict[str, Any]:
    """Return a description as a dict that `json.dumps` takes. `from_document` turns it into the same description."""
    document: dict[str, Any] = msgspec.to_builtins(topology)
    return document


def find_topology(name: str, workers: int | None) -> Topology:
    """Return a network of the catalogue, or the one that a file FILE.json describes.

    `workers` is the number of workers of a network of the catalogue. None: its default number.

    Raises DescriptionError: there is none, or `workers` is given for a file, which names its hosts.
    """
    if not name.endswith(".json"):
        return topology(name, workers)
    if workers is not None:
        hint = f"{name} says which hosts there are"
        raise DescriptionError(f"--workers {workers} is for networks of the catalogue: {hint}")
    return load_topology(Path(name))


def load_topology(path: Path) -> Topology:
    """Read the description in a JSON file. Raises DescriptionError: it cannot be read, or describes no network."""
    try:
        return from_document(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DescriptionError(f"{path} cannot be read: {error}") from error
    except DescriptionError as error:
        raise DescriptionError(f"{path}: {error}") from error


def from_document(document: Any) -> Topology:
    """Return the description that a parsed JSON document has, the inverse of `as_document`.

    Raises DescriptionError. It names the wrong key by its path, or the rule for networks that the document breaks.
    """
    try:
        return msgspec.convert(document, Topology)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        raise DescriptionError(f"{path.rstrip('`') or 'the topology'}: {what}") from error
