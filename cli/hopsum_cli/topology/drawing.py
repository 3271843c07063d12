# SPDX-License-Identifier: Apache-2.0
"""A network in words and as a tree of lines, for the terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.tree import Tree

from hopsum_topologies.description import Link, Topology

_COLOURS = ("blue", "red", "green", "yellow")
"""The colours of jobs, in their order."""


def in_words(topology: Topology) -> str:
    """Return a line about a network, in rich's markup."""
    counts = f"{len(topology.hosts)} hosts, {len(topology.switches)} switches, {len(topology.links)} links"
    counts = counts.replace("1 switches", "1 switch") if len(topology.switches) == 1 else counts
    return f"[bold]{topology.name}[/]: {escape(topology.summary)}; {counts}"


def link_words(link: Link) -> list[str]:
    """Return rate, delay and loss of a link, as far as it has them."""
    words = []
    if link.rate_bps is not None:
        words.append(_rate(link.rate_bps))
    if link.delay_s:
        words.append(f"{link.delay_s * 1e3:g} ms")
    if link.loss:
        words.append(f"{link.loss * 100:g} % lost")
    return words


def tree(topology: Topology) -> Tree:
    """Return a network as a tree of lines from its middle."""
    top = _middle(topology)
    drawn, known = Tree(_label(topology, top, None)), {top: 0}
    branches, waiting = {top: drawn}, [top]
    # The list grows while it is walked: breadth first, so that nearer nodes are drawn first.
    for node in waiting:
        for child in _children(topology, node, known):
            known[child] = known[node] + 1
            link = next(link for link in topology.links_of(child) if node in link.ends)
            branches[child] = branches[node].add(_label(topology, child, link))
            waiting.append(child)
    return drawn


def _middle(topology: Topology) -> str:
    """Return the switch whose farthest node is nearest. Of several it is the first."""
    return min(topology.switches, key=lambda switch: max(_depths(topology, switch).values()))


def _depths(topology: Topology, start: str) -> dict[str, int]:
    """Count the links between every node and `start`."""
    found, waiting = {start: 0}, [start]
    for node in waiting:
        for child in _children(topology, node, found):
            found[child] = found[node] + 1
            waiting.append(child)
    return found


def _children(topology: Topology, node: str, known: dict[str, int]) -> list[str]:
    """Return the neighbours of a node that are not known yet."""
    return [far for link in topology.links_of(node) if (far := link.other(node)) not in known]


def _label(topology: Topology, node: str, up: Link | None) -> str:
    style = "bold" if node in topology.switches else "default"
    parts = [f"[{style}]{node}[/]", f"[dim]{topology.ip(node)}[/]"]
    words, job = _seat_words(topology, node)
    if job is not None:
        parts.append(f"[{_COLOURS[job % len(_COLOURS)]}]{escape(words)}[/]")
    if up is not None and (link := link_words(up)):
        parts.append(f"[dim]({', '.join(link)})[/]")
    return "  ".join(parts)


def _seat_words(topology: Topology, host: str) -> tuple[str, int | None]:
    """Return `JOB RANK` of a host's worker and the number of the job, empty and None for a host without a job."""
    for number, job in enumerate(topology.jobs):
        if host in job.workers:
            return f"{job.name} {job.workers.index(host)}", number
    return "", None


def _rate(rate_bps: float) -> str:
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if rate_bps >= size:
            return f"{rate_bps / size:g} {unit}"
    raise AssertionError(rate_bps)
