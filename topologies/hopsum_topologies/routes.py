# SPDX-License-Identifier: Apache-2.0
"""Ways through a network: at every switch, the port that leads to every other node."""

from __future__ import annotations

from hopsum_topologies.description import Topology


def routes(topology: Topology, switch: str) -> dict[str, int]:
    """Return, by the name of every other node, the port of `switch` that leads to it: one, since it is a tree."""
    found: dict[str, int] = {}
    for link in topology.links_of(switch):
        port = topology.port(switch, link)
        waiting = [link.other(switch)]
        while waiting:
            node = waiting.pop()
            found[node] = port
            around = (other.other(node) for other in topology.links_of(node))
            waiting += [near for near in around if near != switch and near not in found]
    return found


def stations(topology: Topology, switch: str) -> dict[str, int]:
    """Return the same by MAC address: the forwarding of `switch` to hosts and to the services of other switches."""
    return {topology.mac(node): port for node, port in routes(topology, switch).items()}


def losses(topology: Topology, switch: str) -> dict[int, tuple[float, float]]:
    """Return, by port, the loss that `switch` simulates for its links: of frames that come in, of frames that go out.

    A direction is simulated once: by the switch that receives, and towards a host by the switch that sends.
    """
    found = {}
    for link in topology.links_of(switch):
        if link.loss:
            outwards = link.loss if link.other(switch) in topology.hosts else 0.0
            found[topology.port(switch, link)] = (link.loss, outwards)
    return found
