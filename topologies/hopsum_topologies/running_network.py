# SPDX-License-Identifier: Apache-2.0
"""The interface of all running networks, and the network of namespaces and switch processes.

Every host has a namespace of its own. All switches share one namespace, the home, which has their ends of all links.
So a controller in the home reaches all switches, and the interfaces of the home count the frames of every link.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple, Protocol

from hopsum_controlplane.artifacts import compiled_program
from hopsum_topologies.bmv2_process import Bmv2Switch, bmv2_unavailable
from hopsum_topologies.commands import HostTask, OutputLine, run_in_namespaces
from hopsum_topologies.description import HOST_INTERFACE, MTU_BYTES, Link, Topology
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.native_process import NativeSwitch
from hopsum_topologies.netns import Namespace
from hopsum_topologies.process import launcher_command
from hopsum_topologies.shaping import require_delay_support, shape_interface


class LinkTraffic(NamedTuple):
    """Frames and their bytes, Ethernet headers included, from a link's first end to its second and back."""

    frames_there: int
    bytes_there: int
    frames_back: int
    bytes_back: int

    def since(self, earlier: LinkTraffic) -> LinkTraffic:
        """Return the traffic after `earlier`: these counts minus those."""
        return LinkTraffic(*(now - then for now, then in zip(self, earlier, strict=True)))

    def sent_from(self, node: str, link: Link) -> int:
        """Return the frames that the link carried away from one of its ends."""
        return self.frames_there if link.ends[0] == node else self.frames_back


class RunningNetwork(Protocol):
    """A network with running switches. They have no table entries, so they forward nothing yet. A context manager."""

    topology: Topology
    driver: str
    """The driver of the switches, as the controller names it."""
    home: Namespace
    """The namespace of the switches. `addresses` are valid in this namespace."""
    addresses: Mapping[str, str]
    """P4Runtime servers by switch."""
    pids: Mapping[str, int]
    """Processes by switch. In Mininet, Mininet's."""
    hosts: Mapping[str, Namespace]
    """Namespaces by host."""

    def __enter__(self) -> RunningNetwork: ...

    def __exit__(self, *_: object) -> None: ...


def read_traffic(network: RunningNetwork) -> dict[Link, LinkTraffic]:
    """Read from the home's interfaces the traffic of every link since the start. Return it. Raises TopologyError."""
    shown = json.loads(network.home.ip("-s", "-j", "link", "show"))
    counts = {each["ifname"]: each["stats64"] for each in shown}
    found = {}
    for link in network.topology.links:
        switch = next(end for end in link.ends if end in network.topology.switches)
        count = counts[network.topology.interface(switch, link)]
        # The switch's end counts: its tx is the way to the other node.
        out, back = ((int(count[way]["packets"]), int(count[way]["bytes"])) for way in ("tx", "rx"))
        found[link] = LinkTraffic(*out, *back) if switch == link.ends[0] else LinkTraffic(*back, *out)
    return found


def read_traffic_since(network: RunningNetwork, before: Mapping[Link, LinkTraffic]) -> dict[Link, LinkTraffic]:
    """Read the traffic of every link since `before`, an earlier result of `read_traffic`. Raises TopologyError."""
    return {link: now.since(before[link]) for link, now in read_traffic(network).items()}


def require_all_reachable(network: RunningNetwork, deadline_s: float) -> None:
    """Ping every other host and every switch from every host until all have answered.

    The echo requests run in processes on the hosts. Raises TopologyError when one has not answered after `deadline_s`
    seconds.
    """
    module = (sys.executable, "-m", "hopsum_topologies.reachability", f"{deadline_s:g}")
    topology, (_, environment) = network.topology, launcher_command((), None)
    commands = [
        HostTask(host, host, (*module, *(topology.ip(node) for node in topology.nodes if node != host)), environment)
        for host in topology.hosts
    ]
    with closing(run_in_namespaces(commands, network.hosts)) as events:
        said = [f"{event.label}: {event.text}" for event in events if isinstance(event, OutputLine)]
    if said:
        raise TopologyError(f"topology {topology.name!r} does not join all nodes: {'; '.join(said)}")


def interfaces_of(topology: Topology, switch: str) -> dict[int, str]:
    """Return the names of a switch's interfaces by port number."""
    return {topology.port(switch, link): topology.interface(switch, link) for link in topology.links_of(switch)}


class NamespaceNetwork:
    """A `RunningNetwork` of namespaces, veth pairs and one process a switch: the embedded switch (`native`) or bmv2.

    `driver` is "native" or "bmv2". `folder` gets the files. `home` is the caller's namespace for the switches, by
    default one is made. The links have rates and delays. `NetworkControl` makes their losses. The context manager ends
    the switches and removes the namespaces that it made. Raises TopologyError without root, bmv2 or netem for a delay.
    Nothing is left then.
    """

    def __init__(self, topology: Topology, driver: str, folder: Path, home: Namespace | None = None) -> None:
        if driver == "bmv2" and (reason := bmv2_unavailable()) is not None:
            raise TopologyError(
                f"bmv2 cannot run here: {reason}; install p4lang-bmv2 and be root, or use --target native"
            )
        require_delay_support(topology)
        self.topology, self.driver = topology, driver
        with ExitStack() as stack:
            # One home for all switches: the controller reaches each of them, and every link can be counted there.
            self.home = stack.enter_context(Namespace()) if home is None else home
            self.hosts: Mapping[str, Namespace] = {host: stack.enter_context(Namespace()) for host in topology.hosts}
            # Links before switches: a switch opens its interfaces when it starts.
            for link in topology.links:
                self._connect(link)
            for host in topology.hosts:
                self._settle(host)
            started = {switch: self._start(stack, switch, folder) for switch in topology.switches}
            self.addresses: Mapping[str, str] = {switch: each.address for switch, each in started.items()}
            self.pids: Mapping[str, int] = {switch: each.process.pid for switch, each in started.items()}
            self._stack = stack.pop_all()

    def __enter__(self) -> NamespaceNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _at(self, node: str) -> Namespace:
        return self.hosts.get(node, self.home)

    def _connect(self, link: Link) -> None:
        ends = [(self._at(end), self.topology.interface(end, link)) for end in link.ends]
        (left, name), (right, peer) = ends
        left.add_veth(name, peer, right, mtu_bytes=MTU_BYTES)
        for namespace, interface in ends:
            shape_interface(namespace, interface, link)

    def _settle(self, host: str) -> None:
        topology, switch = self.topology, self.topology.switch_of(host)
        service = topology.ip(switch), topology.mac(switch)
        self.hosts[host].configure_interface(HOST_INTERFACE, topology.mac(host), topology.ip(host), service)

    def _start(self, stack: ExitStack, switch: str, folder: Path) -> Bmv2Switch | NativeSwitch:
        interfaces, device_id = interfaces_of(self.topology, switch), self.topology.device_id(switch)
        if self.driver == "bmv2":
            bmv2 = Bmv2Switch(interfaces, namespace=self.home, device_id=device_id, folder=folder)
            return stack.enter_context(bmv2)
        program, p4info = compiled_program()
        native = NativeSwitch(
            program, p4info, interfaces=interfaces, namespace=self.home, device_id=device_id, grpc="unix", folder=folder
        )
        return stack.enter_context(native)
