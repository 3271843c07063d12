# SPDX-License-Identifier: Apache-2.0
"""bmv2 processes: two side by side, and what is said when one does not start."""

from __future__ import annotations

import socket

import pytest

from hopsum_topologies import Bmv2Switch, Namespace, TopologyError

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("bmv2")]


def _connects(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_two_side_by_side_in_one_namespace() -> None:
    with Namespace() as namespace:
        namespace.add_veth("s0", "p0")
        namespace.add_veth("s1", "p1")
        with (
            Bmv2Switch({0: "s0"}, namespace=namespace, device_id=0) as first,
            Bmv2Switch({0: "s1"}, namespace=namespace, device_id=1) as second,
        ):
            assert first.address != second.address
            assert first.process.running()
            assert second.process.running()
            with namespace.inside():
                assert _connects(first.address)
                assert _connects(second.address)
            # Loopback of the namespace, not of the machine.
            assert not _connects(first.address)
        assert not first.process.running()
        assert not second.process.running()


def test_missing_interface_is_named() -> None:
    # bmv2 itself would start and leave the port out.
    with Namespace() as namespace, pytest.raises(TopologyError, match="port 0: no interface nowhere in namespace"):
        Bmv2Switch({0: "nowhere"}, namespace=namespace)
