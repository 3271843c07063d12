# SPDX-License-Identifier: Apache-2.0
"""Captures of ports: what is in the files, of every kind of port, and what happens where they cannot be written."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import RawPcapNgReader, rdpcap

from hopsum_switch.ports.batches import FrameBuffer, Frames
from hopsum_switch.ports.capture import CapturedPort, CaptureFolder
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.ports.port import MemoryPort, PortError
from hopsum_switch.ports.udp import UdpAddress, UdpPort
from hopsum_switch.ports.unix import UnixPort, open_peer
from hopsum_switch.server import SwitchServer

from ...support.processes import await_that
from ..server.controller import CPU_PORT, INSERT, P4INFO, PROGRAM, Controller, l2

INBOUND, OUTBOUND = 1, 2


def recorded(path: Path) -> list[tuple[int, bytes]]:
    """Return (direction, frame) of a file, as scapy reads them."""
    with RawPcapNgReader(str(path)) as reader:
        return [(info.direction, data) for data, info in reader]


def test_both_directions_with_times_in_order(tmp_path: Path) -> None:
    memory = MemoryPort()
    port = CaptureFolder(tmp_path / "new" / "folder").capture_port(3, memory)
    memory.inject(bytes(60))
    assert port.receive() == [bytes(60)]
    port.send(bytes(range(61)))
    path = tmp_path / "new" / "folder" / "port3.pcapng"
    assert recorded(path) == [(INBOUND, bytes(60)), (OUTBOUND, bytes(range(61)))]  # while it is open
    times = [float(packet.time) for packet in rdpcap(str(path))]
    assert times == sorted(times)
    assert times[0] > 1.6e9
    assert (port.counters.received, port.counters.sent) == (1, 1)
    assert port.describe() == {"kind": "memory", "capture": str(path)}
    port.close()
    port.close()


def test_batches_are_recorded_frame_by_frame(tmp_path: Path) -> None:
    memory = MemoryPort()
    port = CaptureFolder(tmp_path).capture_port(1, memory)
    buffer = FrameBuffer()
    buffer.add(b"of another port")
    for number in range(3):
        memory.inject(bytes([number]) * 20)
    port.receive_batch(buffer)
    port.send_batch(Frames.from_bytes([b"a" * 30, b"b" * 31]))
    arrived = [(INBOUND, bytes([number]) * 20) for number in range(3)]
    assert recorded(tmp_path / "port1.pcapng") == [*arrived, (OUTBOUND, b"a" * 30), (OUTBOUND, b"b" * 31)]
    assert buffer.count == 4
    assert memory.pop_sent() == [b"a" * 30, b"b" * 31]
    port.close()


def test_a_udp_ports_frames_have_the_headers_that_the_program_sees(tmp_path: Path) -> None:
    udp = UdpPort.bind(7, UdpAddress("127.0.0.1", 0), UdpAddress("10.0.0.254", 24677))
    port = CaptureFolder(tmp_path).capture_port(7, udp)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.sendto(b"up", udp.address)
        received: list[bytes] = []
        await_that(lambda: bool(received.extend(port.receive()) or received))
        answer = (
            Ether() / IP(src="10.0.0.254", dst="127.0.0.1") / UDP(sport=24677, dport=peer.getsockname()[1], chksum=0)
        )
        port.send(bytes(answer / Raw(b"down")))
        port.send(bytes(Ether(type=0x0806) / Raw(bytes(28))))  # which a UDP port drops
        assert peer.recv(100) == b"down"
        up, down = rdpcap(str(tmp_path / "port7.pcapng"))
        assert (up[IP].src, up[UDP].sport) == peer.getsockname()
        assert (up[IP].dst, up[UDP].dport, bytes(up[UDP].payload)) == ("10.0.0.254", 24677, b"up")
        checksum = up[IP].chksum
        del up[IP].chksum
        assert IP(bytes(up[IP])).chksum == checksum
    assert (down[IP].dst, bytes(down[UDP].payload)) == ("127.0.0.1", b"down")
    assert port.counters.dropped == {"not_ipv4": 1}
    assert bytes(up) == received[0]
    port.close()


def test_a_switch_records_every_port_and_the_cpu_port(tmp_path: Path) -> None:
    folder = tmp_path / "pcap"
    with SwitchServer("127.0.0.1:0", cpu_port=CPU_PORT, capture_folder=folder) as switch:
        switch.load(P4INFO.read_text(), PROGRAM.read_bytes())
        memory = MemoryPort()
        switch.dataplane.bind(1, memory)
        switch.dataplane.bind(2, UnixPort.bind(str(tmp_path / "two")))
        with Controller(switch.grpc_address, switch.device_id) as controller, open_peer(str(tmp_path / "two")) as peer:
            controller.become_primary().write(l2(INSERT, b"\x05", "forward", b"\x02"))
            frame = bytes(5) + b"\x05" + bytes(8) + b"payload"
            memory.inject(frame)
            peer.settimeout(60)
            assert peer.recv(100) == frame
            kinds = {number: shown["kind"] for number, shown in switch.dataplane.ports().items()}
            assert kinds == {1: "memory", 2: "unix", CPU_PORT: "cpu"}
            switch.dataplane.inject(1, frame)
            assert peer.recv(100) == frame
            switch.dataplane.inject(CPU_PORT, bytes(60))
    assert recorded(folder / "port1.pcapng") == [(INBOUND, frame)] * 2
    assert recorded(folder / "port2.pcapng") == [(OUTBOUND, frame)] * 2
    with RawPcapNgReader(str(folder / f"port{CPU_PORT}.pcapng")) as reader:
        assert [(info.linktype, info.direction, data) for data, info in reader] == [(147, INBOUND, bytes(60))]


def test_without_captures_a_port_stays_what_it_is(tmp_path: Path) -> None:
    dataplane = Dataplane()
    port = MemoryPort()
    dataplane.bind(1, port)
    assert dataplane._ports[1] is port
    dataplane.close()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(PortError, match=r"captures cannot be written to .*/file"):
        CaptureFolder(file)
    folder = CaptureFolder(tmp_path / "folder")
    (tmp_path / "folder" / "port1.pcapng").mkdir()
    dataplane = Dataplane(folder)
    with pytest.raises(PortError, match=r"switch port 1: capture .*port1\.pcapng cannot be written: Is a directory"):
        dataplane.bind(1, MemoryPort())
    assert dataplane.ports() == {}
    dataplane.close()


def test_traffic_continues_where_the_disk_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = MemoryPort()
    port = CaptureFolder(tmp_path).capture_port(1, memory)
    fill(port)
    with caplog.at_level(logging.WARNING, "hopsum_switch.ports"):
        port.send(bytes(60))
        port.send(bytes(61))
    assert memory.pop_sent() == [bytes(60), bytes(61)]
    assert [record.message for record in caplog.records] == [
        f"capture {tmp_path / 'port1.pcapng'} ends here, the switch continues without it: No space left on device"
    ]
    port.close()


def fill(port: CapturedPort) -> None:
    """Let the port's file be on a device on which nothing has room."""
    file: Any = port._file
    file._file.close()
    file._file = Path("/dev/full").open("wb")  # noqa: SIM115 (the port closes it)
