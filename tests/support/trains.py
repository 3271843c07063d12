# SPDX-License-Identifier: Apache-2.0
"""A proxy that does to datagrams what a broken kernel, network card or link does: it loses some of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from hopsum.transport.offload import ANCILLARY_BYTES, UDP_GRO, datagram_bytes, set_option

from .server import LOCALHOST


@contextmanager
def loses(server: tuple[str, int], lost: Callable[[int, int], bool]) -> Iterator[list[tuple[str, int]]]:
    """Yield the address of a proxy for a client, and the address from which the proxy asks the server.

    `lost` says for each train, by its bytes and those of a datagram in it, whether it does not reach the server.
    """
    with ExitStack() as stack:
        front, back = (stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2))
        front.bind((LOCALHOST, 0))
        back.bind((LOCALHOST, 0))
        front.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        back.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        if not set_option(front, UDP_GRO, 1):
            pytest.skip("this kernel has no UDP_GRO")
        client: list[tuple[str, int]] = []

        def up() -> None:
            while True:
                data, ancillary, _, peer = front.recvmsg(65535, ANCILLARY_BYTES)
                if not data:
                    return
                client[:] = [peer]
                each = datagram_bytes(ancillary, len(data))
                if not lost(len(data), each):
                    for first in range(0, len(data), each):
                        back.sendto(data[first : first + each], server)

        def down() -> None:
            while data := back.recv(65535):
                front.sendto(data, client[0])

        threads = [threading.Thread(target=way) for way in (up, down)]
        for thread in threads:
            thread.start()
        try:
            yield [front.getsockname(), back.getsockname()]
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ender:
                for ended in (front, back):
                    ender.sendto(b"", ended.getsockname())
            for thread in threads:
                thread.join()
