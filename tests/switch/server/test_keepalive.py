# SPDX-License-Identifier: Apache-2.0
"""A client whose connection dies without a word: the switch notices, and its place is free again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from google.rpc import code_pb2

from hopsum_switch.server import SwitchServer

from .controller import Controller, wait_until

pytestmark = pytest.mark.system


class Path:
    """A TCP path to a server that can go dead: nothing passes any more, and nothing is closed."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = host, int(port)
        self._dead = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._stack = ExitStack()
        self._stack.enter_context(self._listener)
        threading.Thread(target=self._accept, daemon=True).start()

    def die(self) -> None:
        self._dead.set()

    def close(self) -> None:
        self._stack.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                for each in (near, far):
                    self._stack.enter_context(each)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not self._dead.is_set():  # what arrives later is acknowledged by TCP, and goes nowhere
                    sink.sendall(data)
            if not self._dead.is_set():
                sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def path(empty_switch: SwitchServer) -> Iterator[Path]:
    path = Path(empty_switch.grpc_address)
    yield path
    path.close()


def test_a_dead_connection_loses_its_mastership(empty_switch: SwitchServer, path: Path) -> None:
    with Controller(empty_switch.grpc_address) as backup, Controller(path.address) as lost:
        lost.become_primary(7)
        backup.arbitrate(5)
        assert backup.told() == (code_pb2.ALREADY_EXISTS, 7)
        path.die()
        assert backup.told() == (code_pb2.NOT_FOUND, 7), "nobody is primary"
        backup.become_primary(8)
        lost.channel.close()  # it will hear of nothing by itself


def test_a_client_that_comes_back_gets_its_election_id(empty_switch: SwitchServer, path: Path) -> None:
    with Controller(path.address) as lost:
        lost.become_primary(7)
        path.die()

        def is_primary_again() -> bool:
            with Controller(empty_switch.grpc_address) as again:
                again.arbitrate(7)
                try:
                    return again.told() == (code_pb2.OK, 7)
                except AssertionError:  # refused: the id is in use
                    return False

        assert not is_primary_again()
        wait_until(is_primary_again)
        lost.channel.close()
