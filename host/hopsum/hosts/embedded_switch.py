# SPDX-License-Identifier: Apache-2.0
"""An embedded switch as a child process, with one UDP port for all workers."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from hopsum.hosts.children import Children
from hopsum_wire import HOPSUM_UDP_PORT

START_S: Final = 120.0
_READY: Final = re.compile(r"^ready grpc=(\S+) .*\n(?:udp 1=\S+:(\d+)\n)?", re.MULTILINE)
_READY_ANY_PORT: Final = re.compile(r"^ready grpc=(\S+) .*\nudp 1=\S+:(\d+)\n", re.MULTILINE)


class EmbeddedSwitch(NamedTuple):
    """A switch that runs: its host's address, HOST:PORT of its P4Runtime server, and the UDP port for workers."""

    ip: str
    grpc: str
    udp_port: int


def start_switch(
    children: Children, ip: str, service_ip: str, *, p4runtime_port: int = 0, udp_port: int = 0
) -> EmbeddedSwitch:
    """Start a switch at an address of this host. Ports 0 are any free ones.

    Args:
        service_ip: the service's address inside the switch's frames.

    Raises:
        ChildError: it did not start, with what it printed.
    """
    service = f"{service_ip}:{HOPSUM_UDP_PORT}"
    arguments = ["hopsum_switch", "--grpc", f"{ip}:{p4runtime_port}", "--udp", f"1={ip}:{udp_port},as={service}"]
    ready = _READY if udp_port else _READY_ANY_PORT
    text = children.start("switch", arguments, ready, START_S)
    found = ready.search(text)
    if found is None:
        raise RuntimeError(f"a switch that is ready and does not say where: {text}")
    return EmbeddedSwitch(ip, found[1], udp_port or int(found[2]))
