# SPDX-License-Identifier: Apache-2.0
"""The embedded switch's interface ports on veth pairs: frames, offloads that the kernel left undone, errors."""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsum_switch.management import ManagementClient
from hopsum_switch.ports.interface import InterfacePort, finish_checksum
from hopsum_switch.ports.port import PortError
from hopsum_topologies import Namespace, NativeSwitch, TopologyError

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("namespaces")]

DEADLINE_S = 60.0
STATION = Path(__file__).resolve().parents[1] / "switch" / "server" / "program" / "station"
PROGRAM, P4INFO = STATION.with_suffix(".json"), STATION.with_suffix(".p4info.txtpb")
OTHERS = bytes.fromhex("02000000000a02000000000b")  # addresses that are nobody's here
UDP_SEGMENT = 103


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """A namespace with a veth pair from `s` to `p`."""
    with Namespace() as namespace:
        namespace.add_veth("s", "p")
        yield namespace


@pytest.fixture
def port(namespace: Namespace) -> Iterator[InterfacePort]:
    """A port over `s`."""
    with namespace.inside():
        port = InterfacePort("s")
    yield port
    port.close()
    port.close()


def raw(namespace: Namespace, interface: str) -> socket.socket:
    """Return a raw socket on an interface."""
    with namespace.inside():
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.bind((interface, 3))
    sock.settimeout(DEADLINE_S)
    return sock


def frame(size: int) -> bytes:
    return (OTHERS + b"\x88\xb5" + bytes(range(256)) * 36)[:size]


def wait(port: InterfacePort) -> list[bytes]:
    """Return what arrives next."""
    give_up = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up:
        assert select.select([port], [], [], DEADLINE_S)[0], "nothing arrived"
        frames = port.receive()
        if frames:
            return frames
    raise AssertionError("only frames that are not taken")


def wait_for_drop(port: InterfacePort, reason: str) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while not port.counters.dropped[reason]:
        assert time.monotonic() < give_up, port.counters.dropped
        select.select([port], [], [], 0.1)
        assert port.receive() == []


def test_frames_to_any_destination_cross_both_ways(namespace: Namespace, port: InterfacePort) -> None:
    sizes = (14, 60, 1514, 9014)
    with raw(namespace, "p") as peer:
        for size in sizes:
            peer.send(frame(size))
            assert wait(port) == [frame(size)]
            port.send(frame(size))
            assert peer.recv(10000) == frame(size)
    assert port.receive() == [], "its own frames came back"
    assert port.counters.as_dict() == {
        "received": len(sizes),
        "received_bytes": sum(sizes),
        "sent": len(sizes),
        "sent_bytes": sum(sizes),
        "dropped": {},
    }
    assert port.describe() == {"kind": "interface", "interface": "s"}


def test_frames_that_others_send_on_the_interface_are_not_received(namespace: Namespace, port: InterfacePort) -> None:
    with raw(namespace, "s") as other, raw(namespace, "p") as peer:
        other.send(frame(100))
        assert peer.recv(200) == frame(100)
        peer.send(frame(60))
        assert wait(port) == [frame(60)]


@pytest.mark.parametrize("kind", [0x8100, 0x88A8])
def test_vlan_tags_stay_in_the_frame(namespace: Namespace, port: InterfacePort, kind: int) -> None:
    tagged = OTHERS + struct.pack("!HHH", kind, 0xA123, 0x88B5) + bytes(50)
    twice = OTHERS + struct.pack("!HHHHH", kind, 0x0007, 0x8100, 0x0008, 0x88B5) + bytes(50)
    with raw(namespace, "p") as peer:
        for sent in (tagged, twice):
            peer.send(sent)
            assert wait(port) == [sent]


def internet_sum(data: bytes) -> int:
    """Return the folded sum of 16-bit words, written out."""
    total = sum(word for (word,) in struct.iter_unpack("!H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@pytest.fixture
def offloading(namespace: Namespace) -> Iterator[tuple[InterfacePort, socket.socket]]:
    """A port, and a UDP socket that sends to it through a veth whose offloads are as the kernel made them."""
    with Namespace() as host:
        host.ip("link", "add", "name", "h", "type", "veth", "peer", "name", "t", "netns", namespace.name)
        namespace.ip("link", "set", "dev", "t", "up")
        host.ip("link", "set", "dev", "h", "up")
        host.wait_until_carrying("h")
        host.ip("addr", "add", "10.9.0.1/24", "dev", "h")
        host.ip("neigh", "add", "10.9.0.2", "lladdr", "02:00:00:00:00:09", "dev", "h", "nud", "permanent")
        with namespace.inside():
            port = InterfacePort("t")
        with host.inside():
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with sender:
            sender.connect(("10.9.0.2", 5000))
            yield port, sender
        port.close()


@pytest.mark.parametrize("size", [1, 17, 100, 1400])
def test_partial_checksums_are_finished(offloading: tuple[InterfacePort, socket.socket], size: int) -> None:
    port, sender = offloading
    for fill in range(3):
        payload = bytes((fill + index) % 251 for index in range(size))
        sender.send(payload)
        (received,) = wait(port)
        datagram = received[34:]
        assert datagram[8:] == payload
        pseudo_header = received[26:34] + struct.pack("!HH", 17, len(datagram))
        assert internet_sum(pseudo_header + datagram) == 0xFFFF, "the checksum is wrong"
    assert port.counters.dropped == {}


def test_a_checksum_is_never_written_as_none() -> None:
    frame = bytearray(b"\xff\xff" + bytes(4) + b"\xff\xff")
    finish_checksum(frame, 2, 2)  # covers 0000 0000 ffff, whose checksum would be 0
    assert frame == b"\xff\xff" + bytes(2) + b"\xff\xff" + b"\xff\xff"


def test_frames_left_to_be_segmented_are_dropped_and_said_once(
    offloading: tuple[InterfacePort, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    port, sender = offloading
    sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 1000)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            sender.send(bytes(8000))
        wait_for_drop(port, "segmentation_offload")
        sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 0)
        sender.send(b"whole")
        (whole,) = wait(port)
    assert whole[42:47] == b"whole"
    assert port.counters.dropped == {"segmentation_offload": 2}
    (message,) = [message for *_, message in caplog.record_tuples]
    assert message.startswith("interface t: dropping frames that are yet to be cut into packets")
    assert "ethtool -K t gro off" in message


def test_frames_that_cannot_leave_are_counted_by_reason(namespace: Namespace, port: InterfacePort) -> None:
    port.send(frame(9015))
    port.send(b"short")
    namespace.ip("link", "set", "s", "down")
    port.send(frame(60))
    port.receive()
    namespace.ip("link", "set", "s", "up")
    namespace.wait_until_carrying("s")
    with raw(namespace, "p") as peer:
        port.send(frame(60))
        assert peer.recv(100) == frame(60)
    namespace.ip("link", "delete", "s")
    port.send(frame(60))
    assert port.receive() == []
    assert port.counters.as_dict()["sent"] == 1
    assert dict(port.counters.dropped) == {
        "longer_than_mtu": 1,
        "too_short": 1,
        "interface_down": 1,
        "interface_gone": 1,
    }


def test_a_gone_interface_does_not_keep_the_loop_busy(namespace: Namespace, port: InterfacePort) -> None:
    namespace.ip("link", "delete", "s")
    port.receive()
    assert select.select([port], [], [], 0)[0] == []


def test_frames_that_the_kernel_could_not_keep_are_counted(namespace: Namespace, port: InterfacePort) -> None:
    with socket.socket(fileno=os.dup(port.fileno() or 0)) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20000)
    with raw(namespace, "p") as peer:
        for _ in range(100):
            peer.send(frame(1514))
    port.describe()
    lost = port.counters.dropped["receive_buffer_full"]
    kept = []
    while frames := port.receive():
        kept += frames
    assert kept
    assert len(kept) + lost == 100
    port.describe()
    assert port.counters.dropped["receive_buffer_full"] == lost, "counted twice"


def test_what_is_wrong_with_an_interface_is_said(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace.ip("link", "set", "p", "down")
    with namespace.inside():
        with pytest.raises(PortError, match=r"no interface 'nowhere' in this network namespace; there are: lo, p, s"):
            InterfacePort("nowhere")
        with pytest.raises(PortError, match="no interface 'a-name-that-is-too-long'"):
            InterfacePort("a-name-that-is-too-long")
        with pytest.raises(PortError, match="interface p is down: ip link set p up"):
            InterfacePort("p")
        with pytest.raises(PortError, match=r"interface lo is not Ethernet \(its hardware type is 772\)"):
            InterfacePort("lo")

        def refuse(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr("hopsum_switch.ports.interface.socket.socket", refuse)
        with pytest.raises(PortError, match=r"opening interface s needs root \(CAP_NET_RAW\): Operation not permitted"):
            InterfacePort("s")


def test_a_switch_on_a_unix_socket_is_reached_from_every_namespace(namespace: Namespace) -> None:
    """gRPC's threads connect from the namespace in which they began: here, while another client lives."""
    with NativeSwitch(PROGRAM, P4INFO) as outside, ManagementClient(outside.address, timeout_s=DEADLINE_S) as first:
        assert first.list_ports() == {}
        with (
            NativeSwitch(PROGRAM, P4INFO, interfaces={0: "s"}, namespace=namespace, grpc="unix") as switch,
            ManagementClient(switch.address, timeout_s=DEADLINE_S) as client,
        ):
            assert switch.address.startswith("unix:/")
            with namespace.inside():
                assert list(client.list_ports()) == [0]
    assert not Path(switch.address.removeprefix("unix:")).exists()


def test_a_native_switch_says_why_it_cannot_start(namespace: Namespace) -> None:
    with pytest.raises(TopologyError, match=r"error: there is no interface 'q' in this network namespace"):
        NativeSwitch(PROGRAM, P4INFO, interfaces={0: "q"}, namespace=namespace)
