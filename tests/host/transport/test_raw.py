# SPDX-License-Identifier: Apache-2.0
"""Raw frames over veth pairs: addresses with and without a kernel, what shares the interface, errors, an all-reduce."""

from __future__ import annotations

import errno
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

import hopsum
from hopsum.transport import raw as raw_module
from hopsum.transport.offload import SOL_UDP, UDP_SEGMENT
from hopsum.transport.packet_filter import attach, frames_for
from hopsum.transport.raw import RawLink
from hopsum_controlplane.artifacts import compiled_program
from hopsum_topologies import Namespace, NativeSwitch
from hopsum_topologies.process import ManagedProcess
from hopsum_wire import Header, Kind
from hopsum_wire.membership import MembershipError

from .test_link_contract import everything
from .veth import PORT, SWITCH_IP, WORKER_IP, Veth

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("namespaces")]

WAIT_S = 60.0
RESULT = Header(kind=Kind.RESULT, length=1024).pack() + bytes(1024)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_an_address_that_no_kernel_has(stack: ExitStack) -> None:
    """The far kernel asks for it by ARP before it answers; nobody but the link can say where it is."""
    veth = Veth(stack, known=False)
    peer = veth.socket(veth.far, SWITCH_IP)
    link = veth.link(peer.getsockname())
    link.send(b"hello")
    assert peer.recvfrom(100) == (b"hello", (WORKER_IP, PORT))
    veth.far.ip("neigh", "flush", "dev", "far0")
    peer.sendto(b"hello yourself", (WORKER_IP, PORT))
    assert everything(link, 1) == [b"hello yourself"]
    (mac,) = re.findall(r"link/ether (\S+)", veth.host.ip("link", "show", "dev", "eth0"))
    assert mac in veth.far.ip("neigh", "show", WORKER_IP)


def test_a_kernel_with_the_address_neither_answers_nor_gives_the_port_away(stack: ExitStack) -> None:
    veth = Veth(stack)
    peer = veth.socket(veth.far, SWITCH_IP)
    link = veth.link(peer.getsockname(), port=0)
    peer.connect(link.local)
    for _ in range(3):
        peer.send(b"who is there?")  # "port unreachable" would end the second one
    assert everything(link, 3) == [b"who is there?"] * 3
    with pytest.raises(OSError, match="in use"):
        veth.socket(veth.host, WORKER_IP, link.local[1])
    with pytest.raises(OSError, match="in use"):
        veth.link(peer.getsockname(), port=link.local[1])
    link.close()
    veth.socket(veth.host, WORKER_IP, link.local[1])


def test_a_run_that_the_far_kernel_has_not_cut(stack: ExitStack) -> None:
    veth = Veth(stack, offloads=True)
    peer = veth.socket(veth.far, SWITCH_IP)
    link = veth.link(peer.getsockname())
    peer.connect(link.local)
    segments = [*([RESULT] * 20), Header(kind=Kind.STALE).pack()]
    peer.sendmsg(segments, [(SOL_UDP, UDP_SEGMENT, len(RESULT).to_bytes(2, sys.byteorder))])
    peer.send(b"alone, its checksum left to a device")
    assert everything(link, 22) == [*segments, b"alone, its checksum left to a device"]


def test_a_full_queue_loses_datagrams_and_nothing_else(stack: ExitStack) -> None:
    veth = Veth(stack)
    peer = veth.socket(veth.far, SWITCH_IP)
    link = veth.link(peer.getsockname())
    shape = ("root", "tbf", "rate", "8kbit", "burst", "3000", "limit", "3000")
    subprocess.run(("tc", "-n", veth.host.name, "qdisc", "replace", "dev", "eth0", *shape), check=True)
    for number in range(20):
        link.send(bytes([number]) * 1056)
    assert 1 <= link.statistics.datagrams_sent < 20, "frames go through the interface's queue"
    assert peer.recv(2000) == bytes(1056)


def test_a_switch_behind_a_router(stack: ExitStack) -> None:
    veth = Veth(stack)
    behind = stack.enter_context(Namespace())
    veth.far.add_veth("out", "in", behind, mtu_bytes=1500)
    veth.far.ip("addr", "add", "10.5.0.1/24", "dev", "out")
    behind.ip("addr", "add", "10.5.0.2/24", "dev", "in")
    behind.ip("route", "add", "default", "via", "10.5.0.1")
    with veth.far.inside():
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    peer = veth.socket(behind, "10.5.0.2")
    link = veth.link(peer.getsockname(), via=SWITCH_IP)
    link.send(b"over the hill")
    data, sender = peer.recvfrom(100)
    peer.sendto(b"and back", sender)
    assert (data, everything(link, 1)) == (b"over the hill", [b"and back"])


def test_what_cannot_be_opened(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    veth = Veth(stack)
    monkeypatch.setattr(raw_module, "ASK_S", 0.01)
    with veth.host.inside():
        for interface, switch, message in (
            ("eth9", SWITCH_IP, r"no interface 'eth9' in this network namespace; there are: eth0, lo"),
            ("lo", SWITCH_IP, "interface lo is not Ethernet"),
            ("eth0", "10.6.0.99", "no host on eth0 answers ARP for 10.6.0.99, asked 5 times"),
        ):
            with pytest.raises(OSError, match=message):
                RawLink(interface, (WORKER_IP, PORT), (switch, 24677))

        def refuse(*_: object) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(raw_module.socket, "socket", refuse)
        with pytest.raises(PermissionError, match="raw frames on eth0 need root: Operation not permitted"):
            RawLink("eth0", (WORKER_IP, PORT), (SWITCH_IP, 24677))


def test_the_kernel_wakes_nobody_for_frames_of_others(stack: ExitStack) -> None:
    """The filter alone, at a packet socket: what it lets through of frames that are nearly for a worker."""
    veth = Veth(stack)
    with veth.host.inside():
        sniffer = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    attach(sniffer, frames_for((WORKER_IP, PORT), (SWITCH_IP, 24677), "10.6.0.9"))
    sniffer.bind(("eth0", 3))
    with veth.far.inside():
        sender = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    sender.bind(("far0", 0))
    switch, udp = {"src": SWITCH_IP, "dst": WORKER_IP}, {"sport": 24677, "dport": PORT}
    frames = [
        (False, IP(**switch) / UDP(**{**udp, "dport": 1})),
        (False, IP(**switch) / UDP(**{**udp, "sport": 1})),
        (False, IP(**{**switch, "src": "10.6.0.7"}) / UDP(**udp)),
        (False, IP(**{**switch, "dst": "10.6.0.7"}) / UDP(**udp)),
        (False, IP(**switch, frag=3) / UDP(**udp)),
        (False, IP(**switch, flags="MF") / UDP(**udp)),
        (False, IP(**switch, options=b"\1" * 4) / UDP(**udp)),
        (False, IP(**switch, proto=6) / Raw(bytes(20))),
        (False, IP(**switch) / ICMP(type=8)),
        (False, IP(**{**switch, "dst": "10.6.0.7"}) / ICMP(type=3)),
        (False, ARP(psrc="10.6.0.7", pdst="10.6.0.8")),
        (False, Raw(bytes(50))),
        (True, IP(**switch) / UDP(**udp) / Raw(b"x")),
        (True, IP(**switch, flags="DF") / UDP(**udp)),
        (True, IP(**{**switch, "src": "10.6.0.7"}) / ICMP(type=3) / Raw(bytes(28))),
        (True, ARP(psrc="10.6.0.7", pdst=WORKER_IP)),
        (True, ARP(op=2, psrc="10.6.0.9", pdst="10.6.0.8")),
    ]
    whole = [(wanted, bytes(Ether(src="02:00:00:00:00:09", dst="02:00:00:00:00:01") / rest)) for wanted, rest in frames]
    for _, frame in whole:
        sender.send(frame)
    sniffer.settimeout(WAIT_S)
    wanted = [frame for wanted, frame in whole if wanted]
    assert [sniffer.recv(2000) for _ in wanted] == wanted


# Makes the job of the workers that stand in its arguments, on a switch in the same namespace.
MAKE_JOB = """
import sys
from pathlib import Path
from hopsum_controlplane import JobSpec, SwitchController, SwitchEndpoint, WorkerEndpoint, write_membership
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.base import PipelineConfig, ensure_pipeline
from hopsum_controlplane.devices.native import NativeDevice
address, path, *macs = sys.argv[1:]
with NativeDevice(address) as device:
    ensure_pipeline(device, PipelineConfig.load(*compiled_program()))
    workers = tuple(WorkerEndpoint(rank, rank + 1, mac, f"10.0.0.{rank + 1}", 6000) for rank, mac in enumerate(macs))
    controller = SwitchController(device, SwitchEndpoint("02:00:00:00:00:fe", "10.0.0.254"))
    write_membership(controller.create_job(JobSpec("raw", workers, 16)), Path(path))
print("done")
"""


def test_an_all_reduce_through_the_switch(stack: ExitStack, tmp_path: Path) -> None:
    """Two workers, each with its own interface: one has the address only on the wire, the other in its kernel too."""
    middle = stack.enter_context(Namespace())
    hosts = [stack.enter_context(Namespace()) for _ in range(2)]
    macs = [f"02:00:00:00:01:0{rank}" for rank in range(2)]
    for rank, host in enumerate(hosts):
        host.add_veth("eth0", f"s{rank + 1}", middle, mtu_bytes=1500)
        host.ip("link", "set", "dev", "eth0", "address", macs[rank])
    hosts[1].ip("addr", "add", "10.0.0.2/24", "dev", "eth0")
    switch = stack.enter_context(
        NativeSwitch(
            *compiled_program(), interfaces={1: "s1", 2: "s2"}, namespace=middle, extra=("--backend", "interpreter")
        )
    )
    path = tmp_path / "job.json"
    command = [sys.executable, "-c", MAKE_JOB, switch.address, str(path), *macs]
    maker = ManagedProcess(command, tmp_path / "log", namespace=middle.name)
    maker.wait_for(lambda: not maker.running(), "an end of the controller", 60)
    assert maker.log_text() == "done\n"

    def work(rank: int) -> np.ndarray:
        with hosts[rank].inside():
            job = hopsum.connect(f"raw://eth0/raw?membership={path}", rank=rank, codec="fixed", backend="numpy")
        with job:
            assert isinstance(job._transport._link, RawLink)
            return hopsum.allreduce(np.arange(3000, dtype=np.float32) * (rank + 1), job)

    with ThreadPoolExecutor(2) as pool:
        means = list(pool.map(work, range(2)))
    assert means[0].tobytes() == means[1].tobytes()
    np.testing.assert_allclose(means[0], np.arange(3000) * 1.5, atol=1e-3)
    with pytest.raises(MembershipError, match="is for job 'other'"):
        hopsum.connect(f"raw://eth0/other?membership={path}", rank=0)
