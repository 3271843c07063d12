# SPDX-License-Identifier: Apache-2.0
"""Ports that are free now: each caller gets another one, and none that is taken."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from hopsum_topologies import TopologyError
from hopsum_topologies import free_port as module
from hopsum_topologies.free_port import free_port

pytestmark = pytest.mark.system


def test_ports_that_nobody_bound_to_yet_are_not_returned_twice() -> None:
    assert len({free_port() for _ in range(500)}) == 500


def test_taken_ports_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        taken = [free_port(socket.SOCK_DGRAM) for _ in range(3)]
        for port in taken[:2]:
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)).bind(("127.0.0.1", port))
        monkeypatch.setattr(module, "_returned", [])
        monkeypatch.setattr(module._random, "sample", lambda ports, count: taken)
        assert free_port(socket.SOCK_DGRAM) == taken[2]
        monkeypatch.setattr(module._random, "sample", lambda ports, count: taken[:2])
        with pytest.raises(TopologyError, match=r"none of 1000 ports of 127\.0\.0\.1 between 120.. and 24000"):
            free_port(socket.SOCK_DGRAM)
