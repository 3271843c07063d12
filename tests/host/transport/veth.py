# SPDX-License-Identifier: Apache-2.0
"""A worker's host and the machine at the other end of its link, as two namespaces."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from hopsum.transport.scapy_link import PacketView, ScapyLink
from hopsum_topologies import Namespace

WORKER_IP, SWITCH_IP = "10.6.0.1", "10.6.0.254"
PORT = 5000


class Veth:
    """eth0 in `host`, which has the worker's address; far0 in `far`, which has the switch's."""

    def __init__(self, stack: ExitStack, *, offloads: bool = False) -> None:
        self._stack = stack
        self.host, self.far = (stack.enter_context(Namespace()) for _ in range(2))
        self.host.add_veth("eth0", "far0", self.far, mtu_bytes=1500, offloads=offloads)
        self.far.ip("addr", "add", f"{SWITCH_IP}/24", "dev", "far0")
        self.host.ip("addr", "add", f"{WORKER_IP}/24", "dev", "eth0")

    def socket(self, namespace: Namespace, ip: str, port: int = 0) -> socket.socket:
        """Return a UDP socket in a namespace, closed with the stack."""
        with namespace.inside():
            made = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made.bind((ip, port))
        made.settimeout(60)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        return made

    def scapy_link(
        self, switch: tuple[str, int], *, port: int = PORT, via: str | None = None, view: PacketView | None = None
    ) -> ScapyLink:
        """Return a link of the worker through scapy's layer-2 socket, closed with the stack."""
        with self.host.inside():
            link = ScapyLink((WORKER_IP, port), switch, interface="eth0", via=via, view=view)
        self._stack.callback(link.close)
        return link
