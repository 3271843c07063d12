# SPDX-License-Identifier: Apache-2.0
"""A network in words, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.markup import escape

from hopsum_base.units import format_rate
from hopsum_topologies.description import Link, Topology


def topology_text(topology: Topology) -> str:
    """Return a line about a network, in rich's markup."""
    counts = f"{len(topology.hosts)} hosts, {len(topology.switches)} switches, {len(topology.links)} links"
    counts = counts.replace("1 switches", "1 switch") if len(topology.switches) == 1 else counts
    return f"[bold]{topology.name}[/]: {escape(topology.summary)}; {counts}"


def link_words(link: Link) -> list[str]:
    """Return rate, delay and loss of a link in words, those that it has. Empty for an unlimited link."""
    words = []
    if link.rate_bps is not None:
        words.append(format_rate(link.rate_bps))
    if link.delay_s:
        words.append(f"{link.delay_s * 1e3:g} ms")
    if link.loss:
        words.append(f"{link.loss * 100:g} % lost")
    return words


def link_lines(topology: Topology) -> Iterator[str]:
    """Yield a line for each link, in plain text: both ends with their addresses, the worker at a host, its limits."""
    seats = {host: f" ({job.name} {rank})" for job in topology.jobs for rank, host in enumerate(job.workers)}
    for link in topology.links:
        ends = " - ".join(f"{end} {topology.ip(end)}{seats.get(end, '')}" for end in link.ends)
        yield f"  {', '.join([ends, *link_words(link)])}"
