# SPDX-License-Identifier: Apache-2.0
"""Checks of the way to the switch, in network namespaces where it is broken: interface, route, MTU, peers."""

from __future__ import annotations

import errno
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopsum_cli.diagnosis import DiagnosisReport, Patience, Status, examine, probe_client
from hopsum_topologies import Namespace
from hopsum_wire import HOPSUM_BYTES, Header, Kind

from ...support.diagnosis_rig import membership

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("namespaces")]

WORKER, SWITCH, BEYOND = ("10.7.0.1", 5000), ("10.7.0.254", 24677), ("10.9.0.254", 24677)
PATIENT = Patience(answer_s=60.0, refusal_s=0.3, settle_s=0.01)
"""For what answers: it does so at once, or when the machine lets it."""
BRIEF = replace(PATIENT, answer_s=3.0)
"""For silence on the way, together with kernels that answer."""


class Net:
    """The worker's host with eth0 (its address) and eth1, and a machine at the other ends, which has no address yet."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        self.host, self.far = (stack.enter_context(Namespace()) for _ in range(2))
        for number, network in enumerate(("10.7.0", "10.8.0")):
            self.host.add_veth(f"eth{number}", f"far{number}", self.far)
            self.host.ip("addr", "add", f"{network}.1/24", "dev", f"eth{number}")

    def examine(
        self, switch: tuple[str, int] = SWITCH, patience: Patience = PATIENT, **changes: Any
    ) -> DiagnosisReport:
        path = self._folder / "membership.json"
        document = membership([WORKER, ("10.7.0.2", 5000)], switch)
        for key, values in changes.items():
            for entry, value in zip(document["workers"], values, strict=True):
                entry[key] = value
        path.write_text(json.dumps(document))
        with self.host.inside():
            return examine(str(path), 0, patience=patience)

    def answer(self, namespace: Namespace, address: tuple[str, int] = SWITCH) -> None:
        """Answer every PROBE there with an empty STATE, until the stack ends."""
        with namespace.inside():
            server = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            waker = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        server.bind(address)
        thread = threading.Thread(target=_serve, args=(server,))
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(waker.sendto, b"", address)


def _serve(server: socket.socket) -> None:
    while True:
        data, sender = server.recvfrom(2048)
        if not data:
            return
        if len(data) == HOPSUM_BYTES:
            server.sendto(replace(Header.unpack(data), kind=Kind.STATE).pack(), sender)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    with ExitStack() as stack:
        yield Net(stack, tmp_path)


def failures(report: DiagnosisReport) -> list[str]:
    return [row.check for row in report.rows if row.status is Status.FAIL]


def test_all_is_well_over_a_veth_pair(net: Net) -> None:
    net.far.ip("addr", "add", "10.7.0.254/24", "dev", "far0")
    net.answer(net.far)
    report = net.examine()
    assert failures(report) == []
    assert report["route"].facts == {"interface": "eth0", "gateway": None}
    assert report["mtu"].facts["mtu_bytes"] == 9000


def test_an_interface_that_is_down(net: Net) -> None:
    net.host.ip("link", "set", "dev", "eth0", "down")
    report = net.examine()
    assert failures(report) == ["address"]
    assert report["address"].fix == "ip link set dev eth0 up"


def test_no_way_to_the_switch(net: Net) -> None:
    report = net.examine(("192.0.2.9", 1))
    assert failures(report) == ["route"]
    assert report["route"].finding == "no way from 10.7.0.1 to 192.0.2.9: Network is unreachable"


def test_the_way_goes_out_of_another_interface(net: Net) -> None:
    net.host.ip("route", "add", "192.0.2.9/32", "dev", "eth1")
    report = net.examine(("192.0.2.9", 1))
    assert failures(report) == ["route"]
    assert report["route"].finding == "to 192.0.2.9 goes out of eth1, but 10.7.0.1 is on eth0"
    assert "ip route replace 192.0.2.9/32 dev eth0 src 10.7.0.1" in report["route"].fix
    assert "(10.8.0.1)" in report["route"].fix


def test_an_interface_with_a_small_mtu(net: Net) -> None:
    net.far.ip("addr", "add", "10.7.0.254/24", "dev", "far0")
    net.answer(net.far)
    net.host.ip("link", "set", "dev", "eth0", "mtu", "1083")
    report = net.examine()
    assert failures(report) == ["mtu"]
    assert report["mtu"].finding.startswith("1083 bytes for packets of up to 1084")
    assert report["mtu"].fix.startswith("ip link set dev eth0 mtu 1500")
    net.host.ip("link", "set", "dev", "eth0", "mtu", "1084")
    assert net.examine().good


def behind_a_router(net: Net, stack: ExitStack, mtu_bytes: int) -> Namespace:
    """Put a machine with the address BEYOND behind the far one, which forwards."""
    behind = stack.enter_context(Namespace())
    net.far.add_veth("out", "in", behind)
    net.far.ip("link", "set", "dev", "out", "mtu", str(mtu_bytes))
    net.far.ip("addr", "add", "10.7.0.9/24", "dev", "far0")
    net.far.ip("addr", "add", "10.9.0.9/24", "dev", "out")
    with net.far.inside():
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    net.host.ip("route", "add", "10.9.0.0/24", "via", "10.7.0.9")
    behind.ip("addr", "add", "10.9.0.254/24", "dev", "in")
    behind.ip("route", "add", "default", "via", "10.9.0.9")
    return behind


@pytest.mark.parametrize("mtu_bytes", [1083, 1084])
def test_a_small_mtu_beyond_a_gateway(net: Net, mtu_bytes: int) -> None:
    with ExitStack() as stack:
        behind = behind_a_router(net, stack, mtu_bytes)
        net.answer(behind, BEYOND)
        report = net.examine(BEYOND)
        net._stack.close()
    assert failures(report) == (["mtu"] if mtu_bytes < 1084 else [])
    if mtu_bytes < 1084:
        assert report["mtu"].facts == {"mtu_bytes": mtu_bytes, "needed_bytes": 1084}
        assert "beyond gateway 10.7.0.9" in report["mtu"].fix


def test_silence_beyond_a_gateway(net: Net) -> None:
    """Whether anything arrives there is not known: that comes first."""
    with ExitStack() as stack:
        behind = behind_a_router(net, stack, 1500)
        with behind.inside():
            deaf = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        deaf.bind(BEYOND)
        report = net.examine(BEYOND, BRIEF)
    assert failures(report) == ["switch"]
    assert report["switch"].facts["causes"][0].startswith("nothing beyond gateway 10.7.0.9 is known")
    assert "registered at another port of the switch" in report["switch"].facts["causes"][3]


def test_a_host_beyond_that_is_not_there(net: Net) -> None:
    with ExitStack() as stack:
        behind = behind_a_router(net, stack, 1500)
        behind.ip("addr", "del", "10.9.0.254/24", "dev", "in")
        net.far.ip("route", "add", "unreachable", "10.9.0.254/32")
        report = net.examine(BEYOND, BRIEF)
    assert failures(report) == ["switch"]
    assert report["switch"].finding == "10.9.0.254:24677: No route to host"


def test_peers_that_cannot_be_reached(net: Net) -> None:
    net.far.ip("addr", "add", "10.7.0.254/24", "dev", "far0")
    net.answer(net.far)
    net.host.ip("route", "add", "prohibit", "10.7.0.2/32")
    report = net.examine(side_port=(6000, 6001))
    assert failures(report) == ["peers"]
    assert report["peers"].finding == "not reachable by TCP: rank 1 at 10.7.0.2:6001 (Permission denied)"
    assert report["peers"].facts == {"reached": 0, "refused": [], "unreachable": [1]}


def test_a_firewall_of_this_host(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says EPERM to a sender where a rule drops what it sends."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    net.far.ip("addr", "add", "10.7.0.254/24", "dev", "far0")
    net.host.ip("neigh", "add", "10.7.0.254", "lladdr", "02:00:00:00:00:09", "dev", "eth0")
    monkeypatch.setattr(probe_client.UdpProbeTransport, "send", refuse)
    report = net.examine()
    assert failures(report) == ["switch"]
    assert report["switch"].finding == "nothing can be sent to 10.7.0.254:24677: Operation not permitted"
    assert "nft list ruleset" in report["switch"].fix
