# SPDX-License-Identifier: Apache-2.0
"""A switch in this process, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.server import SwitchServer

from .controller import CPU_PORT, P4INFO, PROGRAM, Controller


@pytest.fixture
def empty_switch() -> Iterator[SwitchServer]:
    """A switch without a program."""
    with SwitchServer(device_id=1, cpu_port=CPU_PORT) as switch:
        yield switch


@pytest.fixture
def switch(empty_switch: SwitchServer) -> SwitchServer:
    """A switch with the test program and memory ports 0..3."""
    empty_switch.load(P4INFO.read_text(), PROGRAM.read_bytes())
    for number in range(4):
        empty_switch.dataplane.bind(number, MemoryPort())
    return empty_switch


@pytest.fixture
def memory_ports(switch: SwitchServer) -> list[MemoryPort]:
    """The ports 0..3 of `switch`, by number."""
    found = [switch.dataplane._ports[number] for number in range(4)]
    return [port for port in found if isinstance(port, MemoryPort)]


@pytest.fixture
def primary(switch: SwitchServer) -> Iterator[Controller]:
    """The primary client of `switch`."""
    with Controller(switch.grpc_address) as controller:
        yield controller.become_primary()


@pytest.fixture
def client(empty_switch: SwitchServer) -> Iterator[Controller]:
    """The primary client of `empty_switch`."""
    with Controller(empty_switch.grpc_address) as controller:
        yield controller.become_primary()
