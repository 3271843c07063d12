# SPDX-License-Identifier: Apache-2.0
"""Packets that the scapy link shows, on an interface and over a UDP socket, and arguments that it refuses."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw
from scapy.utils import rdpcap

from hopsum.transport.scapy_link import PacketView, ScapyLink
from hopsum_wire import HOPSUM_UDP_PORT, Header, Kind, Op
from hopsum_wire.frames import FramePath, build_frame
from hopsum_wire.scapy import Hopsum

from .veth import PORT, SWITCH_IP, WORKER_IP, Veth

LOCALHOST = "127.0.0.1"
WAIT_S = 60.0
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


def test_an_address_that_the_kernel_does_not_have_answers_arp(namespaces: None) -> None:
    with ExitStack() as stack:
        veth = Veth(stack, known=False)
        peer = veth.socket(veth.far, SWITCH_IP)
        link = veth.scapy_link(peer.getsockname())
        link.send(b"from nowhere")
        assert peer.recvfrom(65535) == (b"from nowhere", (WORKER_IP, PORT))
        veth.far.ip("neigh", "flush", "all")
        peer.sendto(b"who has it?", (WORKER_IP, PORT))
        assert receive_one(link) == b"who has it?"


def test_frames_for_others_and_broken_ones_are_nobodys(namespaces: None) -> None:
    with ExitStack() as stack:
        veth = Veth(stack)
        peer = veth.socket(veth.far, SWITCH_IP)
        link = veth.scapy_link(peer.getsockname())
        from_switch = {"sport": peer.getsockname()[1], "dport": PORT}
        with veth.far.inside():
            raw = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            raw.bind(("far0", 0))
        below = Ether(dst="ff:ff:ff:ff:ff:ff") / IP(src=SWITCH_IP, dst=WORKER_IP)
        for wrong in (
            below / UDP(sport=9, dport=PORT) / Raw(b"other port"),
            below / UDP(**from_switch, len=200) / Raw(b"cut"),
            Ether(dst="ff:ff:ff:ff:ff:ff") / IP(src="10.6.0.77", dst=WORKER_IP) / UDP(**from_switch) / Raw(b"stranger"),
            Ether(dst="ff:ff:ff:ff:ff:ff") / ARP(op=2, psrc="10.6.0.77", pdst=WORKER_IP),
        ):
            raw.send(bytes(wrong))
        peer.sendto(b"right", (WORKER_IP, PORT))
        assert receive_one(link) == b"right"
        assert link.statistics.datagrams_received == 1


def test_nobody_answers_arp(namespaces: None) -> None:
    with ExitStack() as stack:
        veth = Veth(stack)
        with pytest.raises(OSError, match=r"no host on eth0 answers ARP for 10\.6\.0\.9"):
            veth.scapy_link(("10.6.0.9", HOPSUM_UDP_PORT))
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
