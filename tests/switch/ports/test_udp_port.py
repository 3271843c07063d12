# SPDX-License-Identifier: Apache-2.0
"""UDP and AF_UNIX ports: the frames they make, the frames and addresses they refuse, and what is left on the disk."""

from __future__ import annotations

import os
import select
import socket
import struct
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum_switch.ports.port import PortError
from hopsum_switch.ports.udp import UdpAddress, UdpPort, parse_udp_address
from hopsum_switch.ports.udp_frames import FrameError, checksum, headers, strip
from hopsum_switch.ports.unix import UnixPort
from hopsum_switch.ports.unix import open_peer as open_unix_peer

LOOPBACK = UdpAddress("127.0.0.1", 0)
DEADLINE_S = 60.0


def open_peer(stack: ExitStack) -> socket.socket:
    peer = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    peer.bind(LOOPBACK)
    peer.settimeout(DEADLINE_S)
    return peer


def open_port(stack: ExitStack, number: int = 3, shown_as: UdpAddress | None = None) -> UdpPort:
    port = UdpPort.bind(number, LOOPBACK, shown_as)
    stack.callback(port.close)
    return port


def receive_one(port: UdpPort) -> bytes:
    """Loopback delivers before sendto returns, so one call suffices."""
    (frame,) = port.receive()
    return frame


def reference_checksum(data: bytes) -> int:
    """RFC 1071 as written: add 16-bit words, fold the carries, complement."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


@given(
    st.one_of(
        st.binary(max_size=80), st.sampled_from([b"", b"\0\0", b"\xff\xff", b"\xff\xff\xff\xff", b"\0\1\xff\xfe"])
    )
)
def test_checksum_is_rfc_1071s(data: bytes) -> None:
    assert checksum(data) == reference_checksum(data)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 1400, 9001, 65507])
def test_a_datagram_of_any_size_becomes_a_frame_consistent_with_itself(stack: ExitStack, size: int) -> None:
    port, peer = open_port(stack), open_peer(stack)
    payload = bytes(i * 7 & 0xFF for i in range(size))
    peer.sendto(payload, port.address)
    frame = receive_one(port)
    assert frame[:14] == bytes.fromhex("0200000000030200000001030800")
    ip, udp = frame[14:34], frame[34:42]
    assert frame[42:] == payload
    assert (ip[0], ip[8], ip[9]) == (0x45, 64, 17)
    assert int.from_bytes(ip[2:4], "big") == 28 + size
    assert ip[12:16] == ip[16:20] == socket.inet_aton("127.0.0.1")
    assert struct.unpack("!HHH", udp[:6]) == (peer.getsockname()[1], port.address.port, 8 + size)
    assert reference_checksum(ip) == 0
    assert udp[6:8] == b"\0\0", "none: the kernel has verified it"
    assert (port.counters.received, port.counters.received_bytes) == (1, 42 + size)


def test_as_replaces_the_destination_only(stack: ExitStack) -> None:
    port, peer = open_port(stack, shown_as=UdpAddress("10.0.0.1", 24677)), open_peer(stack)
    peer.sendto(b"x", port.address)
    frame = receive_one(port)
    assert frame[26:34] == socket.inet_aton("127.0.0.1") + socket.inet_aton("10.0.0.1")
    assert struct.unpack("!HH", frame[34:38]) == (peer.getsockname()[1], 24677)
    assert strip(frame)[1] == ("10.0.0.1", 24677)


def test_a_frame_goes_to_the_address_it_names_from_the_ports_socket(stack: ExitStack) -> None:
    port, first, second = open_port(stack), open_peer(stack), open_peer(stack)
    for peer, payload in ((first, b"one"), (second, b""), (first, b"three")):
        port.send(frame_to(peer, payload))
        assert peer.recvfrom(100) == (payload, tuple(port.address))
    assert (port.counters.sent, port.counters.dropped) == (3, {})


def test_padding_after_the_packet_is_not_sent(stack: ExitStack) -> None:
    port, peer = open_port(stack), open_peer(stack)
    port.send(frame_to(peer, b"tiny") + bytes(14))
    assert peer.recv(100) == b"tiny"


def ipv4_udp(source: bytes, destination: bytes, source_port: int, destination_port: int, payload: bytes) -> bytes:
    """Return an IPv4/UDP packet with a UDP checksum."""
    packet = bytearray(headers((source, source_port), (destination, destination_port), len(payload)) + payload)
    pseudo = source + destination + struct.pack("!HH", 17, 8 + len(payload))
    packet[26:28] = (checksum(pseudo + bytes(packet[20:])) or 0xFFFF).to_bytes(2, "big")
    return bytes(packet)


def frame_to(peer: socket.socket, payload: bytes) -> bytes:
    packet = ipv4_udp(
        socket.inet_aton("10.0.0.1"), socket.inet_aton("127.0.0.1"), 24677, peer.getsockname()[1], payload
    )
    return bytes(12) + b"\x08\x00" + packet


GOOD = bytes(12) + b"\x08\x00" + ipv4_udp(b"\x0a\0\0\1", b"\x7f\0\0\1", 5, 9, b"payload!")


def changed(offset: int, data: bytes, *, fix: bool = True) -> bytes:
    """GOOD with some bytes replaced and, where asked, the checksums made right again."""
    frame = bytearray(GOOD)
    frame[offset : offset + len(data)] = data
    if fix:
        frame[24:26] = frame[40:42] = bytes(2)
        frame[24:26] = checksum(bytes(frame[14:34])).to_bytes(2, "big")
    return bytes(frame)


REFUSED = {
    "arp": (changed(12, b"\x08\x06"), "not_ipv4"),
    "ipv6 in an ipv4 ethertype": (changed(14, b"\x65"), "not_ipv4"),
    "header length 4": (changed(14, b"\x41"), "not_ipv4"),
    "tcp": (changed(23, b"\x06"), "not_udp"),
    "empty": (b"", "truncated"),
    "ethernet only": (GOOD[:14], "truncated"),
    "half an ip header": (GOOD[:25], "truncated"),
    "payload cut": (GOOD[:-1], "truncated"),
    "total length below the headers": (changed(16, b"\0\x1b"), "truncated"),
    "udp length beyond the packet": (changed(38, b"\0\x11"), "truncated"),
    "udp length 7": (changed(38, b"\0\x07"), "truncated"),
    "more fragments": (changed(20, b"\x20\0"), "fragment"),
    "fragment offset": (changed(20, b"\0\x01"), "fragment"),
    "ip checksum": (changed(22, b"\x3f", fix=False), "bad_checksum"),
    "udp checksum": (changed(44, b"!", fix=False), "bad_checksum"),
    "to 0.0.0.0": (changed(30, bytes(4)), "bad_destination"),
    "to multicast": (changed(30, b"\xe0\0\0\1"), "bad_destination"),
    "to broadcast": (changed(30, b"\xff\xff\xff\xff"), "bad_destination"),
    "to udp port 0": (changed(36, bytes(2)), "bad_destination"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_frames_a_socket_cannot_send_are_dropped_and_counted(stack: ExitStack, name: str) -> None:
    frame, reason = REFUSED[name]
    port = open_port(stack)
    port.send(frame)
    assert port.counters.as_dict()["dropped"] == {reason: 1}
    assert port.counters.sent == 0


@given(st.binary(max_size=60), st.integers(0, 60), st.binary(max_size=8))
def test_no_frame_makes_it_crash(noise: bytes, offset: int, patch: bytes) -> None:
    for frame in (noise, changed(min(offset, 41), patch)[: len(GOOD)], GOOD[:offset]):
        try:
            payload, (_, port) = strip(frame)
        except FrameError:
            continue
        assert len(payload) <= len(frame) - 42
        assert port


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1: 80",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:٣",
        ":80",
        "localhost:80",
        "127.1:80",
        "::1:80",
        "[::1]:80",
    ],
)
def test_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(PortError, match=r"HOST:PORT|dotted"):
        parse_udp_address(text)


@pytest.mark.parametrize(
    ("address", "shown_as", "message"),
    [
        ("0.0.0.0:0", None, "add as="),
        ("224.0.0.1:0", None, "not the address of one host"),
        ("255.255.255.255:0", None, "not the address of one host"),
        ("127.0.0.1:0", "0.0.0.0:5", "as=0.0.0.0:5 is no address of a frame"),
        ("127.0.0.1:0", "10.0.0.1:0", "UDP port 1..65535"),
        ("127.0.0.1:0", "239.1.1.1:9", "is no address of a frame"),
        ("203.0.113.7:0", None, "cannot bind UDP 203.0.113.7:0"),
    ],
)
def test_nonsense_addresses_are_refused_when_bound(address: str, shown_as: str | None, message: str) -> None:
    with pytest.raises(PortError, match=message):
        UdpPort.bind(1, parse_udp_address(address), parse_udp_address(shown_as) if shown_as else None)


def test_an_address_in_use_is_named(stack: ExitStack) -> None:
    port = open_port(stack)
    with pytest.raises(PortError, match=f"switch port 4: cannot bind UDP {port.address}: Address already in use"):
        UdpPort.bind(4, port.address)


def test_every_address_with_as_is_fine(stack: ExitStack) -> None:
    port = UdpPort.bind(0, UdpAddress("0.0.0.0", 0), UdpAddress("10.0.0.1", 5))
    stack.callback(port.close)
    peer = open_peer(stack)
    peer.sendto(b"x", ("127.0.0.1", port.address.port))
    assert receive_one(port)[30:34] == b"\x0a\0\0\1"


@pytest.mark.parametrize("number", [-1, 511, 512])
def test_port_numbers_a_program_cannot_name_are_refused(number: int) -> None:
    with pytest.raises(PortError, match=r"0\.\.510"):
        UdpPort.bind(number, LOOPBACK)


def test_frames_cross_a_socketpair_both_ways() -> None:
    inside, outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    port = UnixPort(inside)
    with outside:
        outside.setblocking(False)
        outside.send(b"a" * 60)
        outside.send(b"b" * 9000)
        assert port.receive() == [b"a" * 60, b"b" * 9000]
        assert port.receive() == []
        port.send(b"c" * 1514)
        assert outside.recv(65536) == b"c" * 1514
    port.send(b"d")
    assert port.receive() == []
    assert port.counters.as_dict() == {
        "received": 2,
        "received_bytes": 9060,
        "sent": 1,
        "sent_bytes": 1514,
        "dropped": {"no_peer": 1},
    }
    port.close()
    port.close()


def test_a_lost_peer_does_not_keep_the_loop_busy() -> None:
    inside, outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    port = UnixPort(inside)
    outside.close()
    port.receive()
    assert select.select([inside], [], [], 0)[0] == []
    port.close()


def test_a_bound_path_serves_its_peer_and_is_removed(tmp_path: Path) -> None:
    path = str(tmp_path / "p1")
    port = UnixPort.bind(path)
    port.send(b"too early")
    with open_unix_peer(path) as peer:
        peer.setblocking(False)
        port.send(b"before the peer has said anything")
        assert peer.recv(100) == b"before the peer has said anything"
        peer.send(b"hello")
        assert port.receive() == [b"hello"]
    port.send(b"too late")
    assert port.counters.dropped == {"no_peer": 2}
    port.close()
    assert os.listdir(tmp_path) == ["p1.peer"]


def test_a_slow_peer_costs_frames_and_not_the_switch(tmp_path: Path) -> None:
    path = str(tmp_path / "p1")
    port = UnixPort.bind(path)
    with open_unix_peer(path) as peer:
        while not port.counters.dropped:
            port.send(bytes(100))
        assert port.counters.dropped == {"queue_full": 1}
        peer.setblocking(False)
        for _ in range(port.counters.sent):
            assert peer.recv(200) == bytes(100)
    port.close()


def test_what_a_killed_process_left_is_reused_and_what_lives_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "p1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stale:
        stale.bind(path)
    port = UnixPort.bind(path)
    with pytest.raises(PortError, match="in use"):
        UnixPort.bind(path)
    with open_unix_peer(path), pytest.raises(PortError, match="in use"):
        open_unix_peer(path)
    with open_unix_peer(path) as again:
        again.send(b"x")
    assert port.receive() == [b"x"]
    port.close()


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(PortError, match="not a socket"):
        UnixPort.bind(str(file))
    assert file.read_text() == "mine"


@pytest.mark.parametrize("path", ["", "/tmp/" + "x" * 98])
def test_paths_that_do_not_fit_are_refused(path: str) -> None:
    with pytest.raises(PortError, match=r"1\.\.102 fit"):
        UnixPort.bind(path)


def test_a_missing_directory_and_a_missing_switch_are_named(tmp_path: Path) -> None:
    with pytest.raises(PortError, match="No such file"):
        UnixPort.bind(str(tmp_path / "no" / "p1"))
    with pytest.raises(PortError, match="no switch port listens"):
        open_unix_peer(str(tmp_path / "p1"))
    assert os.listdir(tmp_path) == []
