# SPDX-License-Identifier: Apache-2.0
"""`hopsum packet decode`: packets of captures, and what it says of frames and files that are something else."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, CookedLinux, Dot1Q, Ether
from scapy.packet import Raw
from scapy.utils import PcapNgWriter, wrpcap

from hopsum_cli.packet.captured_packets import read_capture
from hopsum_cli.packet.packet_command import main
from hopsum_wire import HOPSUM_UDP_PORT, Header, Kind, Op
from hopsum_wire.frames import FramePath, build_frame


def decoded(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main(["decode", "--json", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_round_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.pcap", [*whole_round(2), frame(Kind.UPDATE, 0, 4, 2, flags=1)])
    values = decoded(capsys, path)
    assert values["files"] == [{"file": str(path), "frames": 5, "hopsum": 5, "foreign": {}, "malformed": {}}]
    assert [packet["kind"] for packet in values["packets"]] == ["UPDATE", "UPDATE", "RESULT", "RESULT", "UPDATE"]
    first, result, last = values["packets"][0], values["packets"][2], values["packets"][4]
    assert (first["time_s"], first["op"], first["worker"]) == (pytest.approx(1000.0), "ADD32", 0)
    assert (first["generation"], first["slot"], first["round"]) == (GENERATION, 0, 1)
    assert (first["source"], first["destination"]) == ("10.0.0.1:5001", f"10.0.0.254:{HOPSUM_UDP_PORT}")
    assert (result["contributors"], last["flags"]) == (0b11, ["FLUSH"])
    assert [packet["slot"] for packet in decoded(capsys, path, "--slot", 4)["packets"]] == [4]

    assert main(["decode", str(path)]) == 0
    about, _, _, third, _, fifth = capsys.readouterr().out.splitlines()
    assert about == f"{path}: 5 frames, 5 hopsum packets"
    assert third.startswith(f"0.002000  10.0.0.254:{HOPSUM_UDP_PORT} > 10.0.0.1:5001  hopsum RESULT ADD32 worker 0")
    assert third.endswith("slot 0 round 1 contributors 0,1")
    assert fifth.endswith("slot 4 round 2 flags FLUSH")


def test_files_of_several_ports_are_put_in_order_of_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = write(tmp_path / "later.pcap", [frame(Kind.RESULT, 0, contributors=0b11)], first_s=1002.0)
    first = write(tmp_path / "first.pcap", [frame(Kind.UPDATE, 0, generation=8)], first_s=1000.0)
    second = write(tmp_path / "second.pcap", [frame(Kind.UPDATE, 1)], first_s=1001.0)
    packets = decoded(capsys, later, first, second)["packets"]
    assert [(packet["kind"], packet["worker"]) for packet in packets] == [("UPDATE", 0), ("UPDATE", 1), ("RESULT", 0)]
    assert [packet["worker"] for packet in decoded(capsys, first, second, "--generation", 8)["packets"]] == [0]


def test_foreign_frames_are_counted_by_what_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service = UDP(sport=5001, dport=HOPSUM_UDP_PORT)
    hopsum = Ether(frame(Kind.UPDATE, 0))
    frames = [
        hopsum,
        Ether() / Dot1Q(vlan=5) / hopsum[IP],
        Ether() / ARP(),
        Ether() / IP() / ICMP(),
        Ether() / IP(proto=6) / Raw(bytes(20)),
        Ether() / IPv6() / UDP(),
        Ether() / IP() / UDP(dport=53) / Raw(b"?"),
        Ether() / IP(frag=5, proto=17) / Raw(bytes(40)),
        Ether() / IP() / service / Raw(bytes(10)),
        Ether() / IP() / service / Raw(b"\x09" + bytes(31)),
        Ether() / IP() / service / Raw(b"\x01\x63" + bytes(30)),
        Ether(bytes(hopsum)[:38]),
        Raw(b"\x01\x02\x03"),
    ]
    path = tmp_path / "a.pcap"
    wrpcap(str(path), [Ether(bytes(each)) if not isinstance(each, Raw) else each for each in frames], linktype=1)
    (file,) = decoded(capsys, path)["files"]
    assert file["hopsum"] == 2
    assert file["malformed"] == {"TRUNCATED": 1, "BAD_VERSION": 1, "BAD_KIND": 1}
    assert file["foreign"]["UDP to port 53"] == file["foreign"]["ARP"] == file["foreign"]["ICMP"] == 1
    assert sum(file["foreign"].values()) == 8
    assert file["frames"] == 2 + 3 + 8


def test_frames_that_the_capture_has_cut(tmp_path: Path) -> None:
    whole = frame(Kind.UPDATE, 3, length=1024, count=256)
    path = tmp_path / "cut.pcapng"
    with PcapNgWriter(str(path)) as writer:
        writer.write_header(Ether(whole))
        for kept in (len(whole), 74, 60):
            packet = Ether(whole[:kept])
            packet.wirelen = len(whole)
            writer.write_packet(packet)
    capture = read_capture(path, HOPSUM_UDP_PORT)
    assert [packet.header.worker for packet in capture.packets] == [3, 3]
    assert capture.malformed == {"TRUNCATED": 1}


def test_link_types(tmp_path: Path) -> None:
    packet = Ether(frame(Kind.UPDATE, 3))[IP]
    for number, (link_type, each) in enumerate(
        {101: packet, 113: CookedLinux(proto=0x0800) / packet, 9: packet}.items()
    ):
        path = tmp_path / f"{number}.pcap"
        wrpcap(str(path), [each], linktype=link_type)
        capture = read_capture(path, HOPSUM_UDP_PORT)
        if link_type == 9:
            assert capture.foreign.total() == 1
        else:
            assert [found.header.worker for found in capture.packets] == [3]


@pytest.mark.parametrize("lost", [1, 10, 75])
def test_a_file_that_ends_inside_a_frame_is_read_up_to_there(lost: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.pcap", whole_round(1))
    path.write_bytes(path.read_bytes()[:-lost])
    capture = read_capture(path, HOPSUM_UDP_PORT)
    assert capture.packets[0].header.kind == Kind.UPDATE


def test_gzip(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pcap", whole_round(1))
    packed = tmp_path / "a.pcap.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert len(read_capture(packed, HOPSUM_UDP_PORT).packets) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "no capture that can be read"),
        (b"not a capture" * 9, "no capture that can be read"),
    ],
)
def test_files_that_are_no_captures(
    content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    assert main(["decode", str(path)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"hopsum packet: {path}: ")
    assert words in said.err
    assert said.out == ""


def test_nothing_of_hopsum_names_the_ports_that_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pcap"
    datagram = Ether(frame(Kind.UPDATE, 2))
    datagram[UDP].dport = 5555
    wrpcap(str(path), [datagram])
    assert main(["decode", str(path)]) == 1
    assert "1 UDP to port 5555; --udp-port names another port" in capsys.readouterr().err
    (found,) = decoded(capsys, path, "--udp-port", 5555)["packets"]
    assert (found["kind"], found["worker"]) == ("UPDATE", 2)


GENERATION = 7
UP = FramePath(0x020000000101, 0x020000000001, 0x0A000001, 0x0A0000FE, 5001)
DOWN = FramePath(0x020000000001, 0x020000000101, 0x0A0000FE, 0x0A000001, HOPSUM_UDP_PORT, 5001)


def frame(kind: Kind, worker: int, slot: int = 0, round: int = 1, **fields: int) -> bytes:
    """Return a frame with a header of ADD32 and as many zeros as `length` says."""
    fields = {"generation": GENERATION, "op": Op.ADD32, **fields}
    header = Header(kind=kind, worker=worker, slot=slot, round=round, **fields)
    path = UP if kind in (Kind.UPDATE, Kind.PROBE, Kind.PARTIAL) else DOWN
    return build_frame(path, header, bytes(header.length))


def write(path: Path, frames: Iterable[bytes], first_s: float = 1000.0, **options: Any) -> Path:
    """Write frames to a pcap file, a millisecond apart."""
    packets = []
    for number, data in enumerate(frames):
        packet = Ether(data)
        packet.time = first_s + number / 1000
        packets.append(packet)
    wrpcap(str(path), packets, **options)
    return path


def whole_round(workers: int, slot: int = 0, round: int = 1) -> list[bytes]:
    """Return the frames of a round without loss."""
    ups = [frame(Kind.UPDATE, worker, slot, round) for worker in range(workers)]
    everyone = (1 << workers) - 1
    return [*ups, *(frame(Kind.RESULT, worker, slot, round, contributors=everyone) for worker in range(workers))]
