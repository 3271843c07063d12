# SPDX-License-Identifier: Apache-2.0
"""A client whose connection dies without a word: the switch notices, and its place is free again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from google.rpc import code_pb2

from hopsum_switch.server import SwitchServer

from ...system.drills.silent_proxy import SilentProxy
from .controller import Controller, wait_until

pytestmark = pytest.mark.system


@pytest.fixture
def way(empty_switch: SwitchServer) -> Iterator[SilentProxy]:
    with closing(SilentProxy("127.0.0.1", empty_switch.grpc_address)) as way:
        yield way


def test_a_dead_connection_loses_its_mastership(empty_switch: SwitchServer, way: SilentProxy) -> None:
    with Controller(empty_switch.grpc_address) as backup, Controller(way.address) as lost:
        lost.become_primary(7)
        backup.arbitrate(5)
        assert backup.told() == (code_pb2.ALREADY_EXISTS, 7)
        way.kill_connections()
        assert backup.told() == (code_pb2.NOT_FOUND, 7), "nobody is primary"
        backup.become_primary(8)
        lost.channel.close()  # it will hear of nothing by itself


def test_a_client_that_comes_back_gets_its_election_id(empty_switch: SwitchServer, way: SilentProxy) -> None:
    with Controller(way.address) as lost:
        lost.become_primary(7)
        way.kill_connections()

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
