# SPDX-License-Identifier: Apache-2.0
"""One wait for the datagrams of several links: of all shards of a worker, in one thread."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Final

from hopsum.transport.link import DatagramLink
from hopsum.transport.udp_link import UdpLink

_TURN_S: Final = 0.001
"""The longest wait for one of several links that are no UDP sockets: these are polled one after the other."""


class LinksReceiver:
    """Receives from links, at least one, in one thread at a time."""

    def __init__(self, links: Sequence[DatagramLink]) -> None:
        self._links = links
        self._poll = _poll_of(links)

    def receive(self, timeout_s: float) -> list[Sequence[bytes | memoryview]]:
        """Wait for datagrams of any link, for `timeout_s` at most, and return them by link, as `DatagramLink.receive`.

        The error of a signal handler passes through.
        """
        if len(self._links) == 1:
            return [self._links[0].receive(timeout_s)]
        if self._poll is None:
            return [link.receive(min(timeout_s, _TURN_S)) for link in self._links]
        self._poll.poll(max(timeout_s, 0.0) * 1000)
        return [link.receive(0.0) for link in self._links]


def _poll_of(links: Sequence[DatagramLink]) -> select.poll | None:
    """Return a poll of the sockets and wakers of all links; None if a link is no UDP socket."""
    sockets = [link for link in links if isinstance(link, UdpLink)]
    if len(sockets) < len(links):
        return None
    poll = select.poll()
    for link in sockets:
        poll.register(link.fileno(), select.POLLIN)
        poll.register(link.waker.fd, select.POLLIN)
    return poll
