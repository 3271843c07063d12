# SPDX-License-Identifier: Apache-2.0
"""Sends that fail are lost datagrams, and the cause of a deadline where that lasts; a defect is raised."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections import Counter
from contextlib import ExitStack
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.errors import AllReduceTimeoutError
from hopsum.protocol.worker import Membership, Timing
from hopsum.transport.link import DatagramLink
from hopsum.transport.outage import CALM_S, DEFECTS, Outage
from hopsum.transport.shard import Shard
from hopsum.transport.transport import Transport
from hopsum.transport.udp_link import UdpLink
from hopsum_oracle.aggregator import Aggregator
from hopsum_wire import Op

from ...support.clock import FakeClock
from ...support.server import LOCALHOST, UdpSwitch, job_for
from .lossy import WrappedLink
from .veth import PORT, SWITCH_IP, WORKER_IP, Veth

ROWS: NDArray[np.uint8] = np.zeros((3, 64), np.uint8)
WAIT_S = 60.0
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")


def failure(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def test_one_line_when_it_begins_and_one_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    clock, failures = FakeClock(), Counter[str]()
    outage = Outage("here to there", failures, clock=clock)
    outage.note_sent()
    for _ in range(3):
        outage.note(failure(errno.ENETUNREACH), 4)
        clock.now_s += CALM_S / 2
        outage.note_sent()
    assert failures == {"ENETUNREACH": 3}
    (begun,) = [record.getMessage() for record in caplog.records]
    assert begun.startswith("here to there: sending fails (ENETUNREACH: Network is unreachable, add a route")
    clock.now_s += CALM_S
    outage.note_sent()
    outage.note_sent()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "works again; it failed for 1.0 s, 12 datagrams" in caplog.records[1].getMessage()
    outage.note(failure(errno.EPERM))
    assert len(caplog.records) == 3, "another one"


@pytest.mark.parametrize("code", sorted(DEFECTS))
def test_a_defect_is_raised(code: int) -> None:
    failures = Counter[str]()
    given = failure(code)
    with pytest.raises(OSError, match=os.strerror(code)) as raised:
        Outage("here to there", failures).note(given)
    assert raised.value is given
    assert not failures


class Failing(WrappedLink):
    """A link whose sends fail: for so many calls, or for good."""

    def __init__(self, link: UdpLink, code: int, times: int | None) -> None:
        super().__init__(link)
        self._code, self._left = code, times
        self._outage = Outage("here to there", link.statistics.failures)

    def send(self, datagram: bytes | memoryview) -> None:
        if self._left != 0:
            self._left = None if self._left is None else self._left - 1
            self._outage.note(failure(self._code))
            return
        self._link.send(datagram)


def alone(stack: ExitStack, code: int, times: int | None, deadline_s: float) -> Transport:
    """Return a transport, the only rank of its job, with a link that fails."""
    aggregator = Aggregator()
    switch = stack.enter_context(UdpSwitch(aggregator))
    link = UdpLink((LOCALHOST, 0), switch.address)
    aggregator.add_job(job_for([link.local], generation=9, slots=2, table=None))
    timing = Timing(retransmit_s=0.01, retransmit_max_s=0.05, deadline_s=deadline_s)
    return stack.enter_context(Transport([Shard(Failing(link, code, times), Membership(9, 0, 1, 2), timing)]))


@pytest.mark.parametrize(
    "code",
    [errno.EMSGSIZE, errno.EIO, errno.EINVAL, errno.ENOBUFS, errno.EPERM, errno.ENETDOWN, errno.ENETUNREACH, 0x1234],
)
def test_what_passes_is_a_loss(stack: ExitStack, code: int) -> None:
    transport = alone(stack, code, 5, WAIT_S)
    done = transport.allreduce(Op.ADD32, np.ones((3, 1024), np.uint8))
    assert (done.results == 1).all()
    assert list(transport.statistics.link.failures.values()) == [5]


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EHOSTUNREACH, "see why the next hop does not answer (ip neigh)"),
        (errno.EMSGSIZE, "raise the MTU of the way to the switch (ip link set dev INTERFACE mtu 1500)"),
        (errno.EIO, "compare the offloads of the interface (ethtool -k)"),
        (errno.EACCES, "let this host's firewall pass UDP"),
    ],
)
def test_what_lasts_ends_at_the_deadline_and_is_named(stack: ExitStack, code: int, remedy: str) -> None:
    transport = alone(stack, code, None, 0.3)
    with pytest.raises(AllReduceTimeoutError) as raised:
        transport.allreduce(Op.ADD32, np.ones((1, 1024), np.uint8))
    assert f"x {errno.errorcode[code]} of this host, which sent nothing, {remedy}" in str(raised.value)
    assert "1056 bytes each" in str(raised.value)


@needs_root
@pytest.mark.parametrize("gso", ["auto", "off", "on"])
def test_an_mtu_that_falls_in_the_middle_of_a_job(
    stack: ExitStack, caplog: pytest.LogCaptureFixture, gso: Literal["auto", "off", "on"]
) -> None:
    """Datagrams that no longer fit are lost first; then IP fragments carry them to a switch at a UDP port."""
    veth, aggregator = Veth(stack, offloads=True), Aggregator()
    with veth.far.inside():
        switch = stack.enter_context(UdpSwitch(aggregator, SWITCH_IP))
    with veth.host.inside():
        link = UdpLink((WORKER_IP, PORT), switch.address, gso=gso)
    aggregator.add_job(job_for([(WORKER_IP, PORT)], generation=9, slots=16, table=None))
    timing = Timing(retransmit_s=0.05, deadline_s=WAIT_S if gso != "on" else 1.0)
    transport = stack.enter_context(Transport([Shard(link, Membership(9, 0, 1, 16), timing)]))
    ones = np.ones((100, 1024), np.uint8)
    assert (transport.allreduce(Op.ADD32, ones).results == 1).all()
    veth.host.ip("link", "set", "eth0", "mtu", "900")
    veth.far.ip("link", "set", "far0", "mtu", "900")
    if gso == "on":
        with pytest.raises(AllReduceTimeoutError, match="x EMSGSIZE of this host, which sent nothing, raise the MTU"):
            transport.allreduce(Op.ADD32, ones)
        return
    for _ in range(3):
        # One chunk, and then many: the size that the kernel cuts at is set already.
        assert (transport.allreduce(Op.ADD32, ones[:1]).results == 1).all()
        assert (transport.allreduce(Op.ADD32, ones).results == 1).all()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (gso == "auto"), said
    if said:
        assert "in IP fragments, since packets of 1084 bytes exceed the MTU 900" in said[0]


def linked(stack: ExitStack, kind: str) -> tuple[Veth, DatagramLink]:
    veth = Veth(stack)
    if kind == "scapy":
        return veth, veth.scapy_link((SWITCH_IP, PORT))
    with veth.host.inside():
        link = UdpLink((WORKER_IP, PORT), (SWITCH_IP, PORT), gso="auto" if kind == "segments" else "off")
    stack.callback(link.close)
    return veth, link


def send(link: DatagramLink) -> None:
    if isinstance(link, UdpLink):
        link.send_rows(ROWS)
    else:
        for row in ROWS:
            link.send(memoryview(row))


@needs_root
@pytest.mark.parametrize("kind", ["segments", "plain", "scapy"])
def test_an_interface_that_flaps(stack: ExitStack, kind: str) -> None:
    """The worker's own interface goes down and comes back: what is sent meanwhile is lost, and counted."""
    veth, link = linked(stack, kind)
    far = veth.socket(veth.far, SWITCH_IP, PORT)
    send(link)
    assert len(far.recv(100)) == 64
    for _ in range(2):
        veth.host.ip("link", "set", "eth0", "down")
        for _ in range(20):
            send(link)
            link.receive(0.0)
        lost = link.statistics.failures.total()
        assert lost >= 20, link.statistics
        assert set(link.statistics.failures) <= {"ENETUNREACH", "ENETDOWN", "EHOSTUNREACH"}
        veth.host.ip("link", "set", "eth0", "up")
        _drain(far)
        assert _arrives(link, far), "it sends again"


def _drain(far: socket.socket) -> None:
    far.settimeout(0)
    try:
        while True:
            far.recv(100)
    except BlockingIOError:
        pass


def _arrives(link: DatagramLink, far: socket.socket) -> bool:
    far.settimeout(0.05)
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        send(link)
        link.receive(0.0)
        try:
            return bool(far.recv(100))
        except TimeoutError:
            continue
    return False
