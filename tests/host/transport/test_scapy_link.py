# SPDX-License-Identifier: Apache-2.0
"""Packets that the scapy link shows, on an interface and over a UDP socket, and arguments that it refuses."""

from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw
from scapy.utils import rdpcap

import hopsum
from hopsum.connection.url import UrlError
from hopsum.transport.offload import SOL_UDP, UDP_SEGMENT
from hopsum.transport.scapy_link import PacketView, ScapyLink, split_segments
from hopsum_topologies import LocalCluster, Namespace, topology
from hopsum_wire import HOPSUM_UDP_PORT, Header, Kind, Op
from hopsum_wire.frames import FramePath, build_frame
from hopsum_wire.membership import MembershipError
from hopsum_wire.scapy import Hopsum

from .test_link_contract import everything
from .veth import PORT, SWITCH_IP, WORKER_IP, Veth

LOCALHOST = "127.0.0.1"
WAIT_S = 60.0
STATE = Header(kind=Kind.STATE).pack()
RESULT = Header(kind=Kind.RESULT, length=1024).pack() + bytes(1024)
KINDS = [
    (kind, Header(kind=kind, op=Op.LOOKUP_ADD8.value, generation=7, worker=1, slot=3, round=9, count=1000, length=size))
    for kind in Kind
    for size in (0, 512)
]


def number(ip: str) -> int:
    return int.from_bytes(socket.inet_aton(ip), "big")


def receive_one(link: ScapyLink) -> bytes:
    (datagram,) = link.receive(WAIT_S)
    return bytes(datagram)


@pytest.mark.parametrize(
    "datagrams",
    [[STATE], [RESULT], [STATE] * 32, [RESULT] * 5, [RESULT, RESULT, STATE], [b"short"], [bytes(32)], [RESULT[:-1]]],
)
def test_a_run_is_cut_into_its_datagrams(datagrams: list[bytes]) -> None:
    assert [bytes(view) for view in split_segments(memoryview(b"".join(datagrams)))] == datagrams


def test_every_kind_of_packet_is_the_frame_of_the_fast_links(
    namespaces: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[Any, bool]] = []
    view = PacketView(tmp_path / "w.pcap", lambda packet, sent: seen.append((packet, sent)), show=True)
    with ExitStack() as stack:
        veth = Veth(stack)
        peer = veth.socket(veth.far, SWITCH_IP, HOPSUM_UDP_PORT)
        link = veth.scapy_link((SWITCH_IP, HOPSUM_UDP_PORT), view=view)
        datagrams = [header.pack() + bytes(header.length) for _, header in KINDS]
        for datagram in datagrams:
            link.send(datagram)
            assert peer.recv(65535) == datagram
            peer.sendto(datagram, (WORKER_IP, PORT))
            assert receive_one(link) == datagram
    packets = rdpcap(str(tmp_path / "w.pcap"))
    assert [sent for _, sent in seen] == [True, False] * len(KINDS)
    assert [bytes(packet) for packet in packets] == [bytes(packet) for packet, _ in seen]
    macs = packets[0].src, packets[0].dst
    path = FramePath(*(int(mac.replace(":", ""), 16) for mac in macs), number(WORKER_IP), number(SWITCH_IP), PORT)
    for (kind, header), up, down in zip(KINDS, packets[::2], packets[1::2], strict=True):
        assert bytes(up) == build_frame(path, header, bytes(header.length))
        assert (up[Hopsum].kind, down[Hopsum].kind) == (kind, kind)
        assert (down[IP].src, down[UDP].dport, down[Hopsum].slot) == (SWITCH_IP, PORT, 3)
        assert up.time <= down.time
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 * len(KINDS)
    assert "-> " in lines[0]
    assert "<- " in lines[1]
    assert f"hopsum {Kind(KINDS[0][0]).name} LOOKUP_ADD8 worker 1 generation 7 slot 3 round 9" in lines[0]


def test_frames_for_others_and_broken_ones_are_nobodys(namespaces: None) -> None:
    with ExitStack() as stack:
        veth = Veth(stack)
        peer = veth.socket(veth.far, SWITCH_IP)
        link = veth.scapy_link(peer.getsockname())
        from_switch = {"sport": peer.getsockname()[1], "dport": PORT}
        with veth.far.inside():
            raw = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            raw.bind(("far0", 0))
        switch, right = {"src": SWITCH_IP, "dst": WORKER_IP}, UDP(**from_switch) / Raw(b"wrong")
        for wrong in (
            IP(**switch) / UDP(sport=9, dport=PORT) / Raw(b"other port"),
            IP(**switch) / UDP(sport=from_switch["sport"], dport=9) / Raw(b"for another port"),
            IP(**switch) / UDP(**from_switch, len=200) / Raw(b"cut"),
            IP(**switch, frag=3) / right,
            IP(**switch, flags="MF") / right,
            IP(**switch, options=b"\1" * 4) / right,
            IP(**switch, proto=6) / Raw(bytes(20)),
            IP(**switch) / ICMP(type=8),
            IP(**switch) / ICMP(type=3) / Raw(bytes(28)),
            IP(**switch) / Raw(b"no layer above"),
            IP(**{**switch, "src": "10.6.0.77"}) / right,
            IP(**{**switch, "dst": "10.6.0.77"}) / right,
            ARP(op=2, psrc="10.6.0.77", pdst=WORKER_IP),
            Raw(b"short"),
        ):
            frame = bytes(Ether(dst="ff:ff:ff:ff:ff:ff") / wrong)
            raw.send(frame)
            raw.send(frame[: max(15, len(frame) - 30)])
        peer.sendto(b"right", (WORKER_IP, PORT))
        assert receive_one(link) == b"right"
        assert (link.statistics.datagrams_received, link.statistics.unreachable) == (1, 0)


def test_nobody_answers_arp(namespaces: None) -> None:
    with ExitStack() as stack:
        veth = Veth(stack)
        with pytest.raises(OSError, match=r"no host on eth0 answers ARP for 10\.6\.0\.9"):
            veth.scapy_link(("10.6.0.9", HOPSUM_UDP_PORT))
        with veth.host.inside(), pytest.raises(OSError, match="Cannot assign requested address"):
            ScapyLink(("10.6.0.9", PORT), (SWITCH_IP, 1), interface="eth0")
        with veth.host.inside(), pytest.raises(OSError, match=r"no interface 'none0' in .* there are: eth0, lo"):
            ScapyLink((WORKER_IP, PORT), (SWITCH_IP, 1), interface="none0")


def test_a_pcap_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        ScapyLink((LOCALHOST, 0), (LOCALHOST, 9), view=PacketView(tmp_path / "none" / "w.pcap"))


def test_without_scapy_the_message_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['scapy'] = None\n"
        "from hopsum.transport.scapy_link import ScapyLink\n"
        "ScapyLink(('127.0.0.1', 0), ('127.0.0.1', 9))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ScapyMissingError: link scapy: scapy is not installed; pip install 'hopsum[scapy]'" in done.stderr


def test_a_kernel_with_the_address_neither_answers_nor_gives_the_port_away(namespaces: None, stack: ExitStack) -> None:
    veth = Veth(stack)
    peer = veth.socket(veth.far, SWITCH_IP)
    link = veth.scapy_link(peer.getsockname(), port=0)
    peer.connect(link.local)
    for _ in range(3):
        peer.send(b"who is there?")  # "port unreachable" would end the second one
    assert everything(link, 3) == [b"who is there?"] * 3
    with pytest.raises(OSError, match="in use"):
        veth.socket(veth.host, WORKER_IP, link.local[1])
    with pytest.raises(OSError, match="in use"):
        veth.scapy_link(peer.getsockname(), port=link.local[1])
    link.close()
    veth.socket(veth.host, WORKER_IP, link.local[1])


def test_a_run_that_the_far_kernel_has_not_cut(namespaces: None, stack: ExitStack) -> None:
    veth = Veth(stack, offloads=True)
    peer = veth.socket(veth.far, SWITCH_IP)
    link = veth.scapy_link(peer.getsockname())
    peer.connect(link.local)
    segments = [*([RESULT] * 20), Header(kind=Kind.STALE).pack()]
    peer.sendmsg(segments, [(SOL_UDP, UDP_SEGMENT, len(RESULT).to_bytes(2, sys.byteorder))])
    peer.send(b"alone, its checksum left to a device")
    assert everything(link, 22) == [*segments, b"alone, its checksum left to a device"]


def test_a_switch_behind_a_router(namespaces: None, stack: ExitStack) -> None:
    veth = Veth(stack)
    behind = stack.enter_context(Namespace())
    veth.far.add_veth("out", "in", behind, mtu_bytes=1500)
    veth.far.ip("addr", "add", "10.5.0.1/24", "dev", "out")
    behind.ip("addr", "add", "10.5.0.2/24", "dev", "in")
    behind.ip("route", "add", "default", "via", "10.5.0.1")
    with veth.far.inside():
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    peer = veth.socket(behind, "10.5.0.2")
    link = veth.scapy_link(peer.getsockname(), via=SWITCH_IP)
    link.send(b"over the hill")
    data, sender = peer.recvfrom(100)
    peer.sendto(b"and back", sender)
    assert (data, everything(link, 1)) == (b"over the hill", [b"and back"])


@pytest.mark.usefixtures("namespaces")
def test_an_all_reduce_through_the_switch(stack: ExitStack, tmp_path: Path) -> None:
    """Two workers, each with its own interface."""
    cluster = stack.enter_context(LocalCluster(network=topology("star", 2)))
    assert cluster.network is not None
    hosts = list(cluster.network.hosts.values())
    job = cluster.create_job("raw", [[(seat.ip, 6000)] for seat in cluster.seats], {}, slots=16)
    path = job.write(tmp_path / "job.json")

    def work(rank: int) -> np.ndarray:
        with hosts[rank].inside():
            job = hopsum.connect(
                f"raw://eth0/raw?membership={path}", rank=rank, codec="fixed", backend="numpy", link="scapy"
            )
        with job:
            return hopsum.allreduce(np.arange(3000, dtype=np.float32) * (rank + 1), job)

    with ThreadPoolExecutor(2) as pool:
        means = list(pool.map(work, range(2)))
    assert means[0].tobytes() == means[1].tobytes()
    np.testing.assert_allclose(means[0], np.arange(3000) * 1.5, atol=1e-3)
    with pytest.raises(MembershipError, match="is for job 'other'"):
        hopsum.connect(f"raw://eth0/other?membership={path}", rank=0, link="scapy")
    with pytest.raises(UrlError, match='frames on an interface pass scapy: link="scapy", or a URL file://'):
        hopsum.connect(f"raw://eth0/raw?membership={path}", rank=0)
