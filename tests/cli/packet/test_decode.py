# SPDX-License-Identifier: Apache-2.0
"""`hopsum packet decode`: rounds of captures, and what it says of frames and files that are something else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, CookedLinux, Dot1Q, Ether
from scapy.packet import Raw
from scapy.utils import PcapNgWriter, wrpcap

from hopsum_cli.packet import main
from hopsum_cli.packet.captured_rounds import read_capture
from hopsum_wire import HOPSUM_UDP_PORT, Kind

from .captures import GENERATION, frame, whole_round, write


def decoded(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main(["decode", "--json", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def only_round(values: Any) -> Any:
    (generation,) = values["generations"]
    (found,) = generation["rounds"]
    return found


def test_a_plain_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.pcap", whole_round(3))
    values = decoded(capsys, path)
    assert values["files"] == [
        {"file": str(path), "frames": 6, "hopsum": 6, "foreign": {}, "malformed": {}, "notes": []}
    ]
    (generation,) = values["generations"]
    assert generation["generation"] == GENERATION
    assert generation["workers"] == [0, 1, 2]
    assert generation["packets"] == {"UPDATE": 3, "RESULT": 3}
    assert (generation["rounds_complete"], generation["sent_again"], generation["answered_again"]) == (1, 0, 0)
    found = only_round(values)
    assert (found["slot"], found["round"], found["op"], found["complete"]) == (0, 1, "ADD32", True)
    assert (found["first_s"], found["last_s"]) == (pytest.approx(1000.0), pytest.approx(1000.005))
    assert found["updates"] == found["results"] == {"0": 1, "1": 1, "2": 1}
    assert found["contributors"] == [0, 1, 2]
    assert found["silent"] == found["left_out"] == found["without_result"] == []


def test_what_comes_twice_and_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = [
        *whole_round(3),  # so that three workers are known
        frame(Kind.UPDATE, 0, 4, 2),
        frame(Kind.UPDATE, 0, 4, 2, flags=1),
        frame(Kind.UPDATE, 1, 4, 2),
        frame(Kind.RESULT, 0, 4, 2, contributors=0b001),
        frame(Kind.RESULT, 0, 4, 2, contributors=0b001),
        frame(Kind.UPDATE, 2, 4, 3),
        frame(Kind.STALE, 2, 4, 1, held=3, contributors=0b100),
        frame(Kind.PROBE, 1, 4, 3, op=0),
        frame(Kind.STATE, 1, 4, 3, held=3, contributors=0b100),
    ]
    path = write(tmp_path / "a.pcap", frames)
    values = decoded(capsys, path, "--slot", 4)
    (generation,) = values["generations"]
    assert (generation["rounds_seen"], generation["rounds_complete"]) == (4, 2)
    assert (generation["sent_again"], generation["answered_again"]) == (1, 1)
    second, third, first = generation["rounds"]
    assert (second["updates"], second["results"], second["flushes"]) == ({"0": 2, "1": 1}, {"0": 2}, 1)
    assert (second["silent"], second["left_out"], second["without_result"]) == ([2], [1], [1])
    assert (third["complete"], third["silent"], third["probes"], third["states"]) == (False, [0, 1], {"1": 1}, {"1": 1})
    assert (first["round"], first["stale"], first["held"]) == (1, {"2": 1}, [3])

    assert main(["decode", str(path), "--unusual"]) == 0
    text = capsys.readouterr().out
    assert "workers 0 1 2; 4 rounds in 2 slots, 2 complete" in text
    assert "1 sent again, 1 answered again" in text
    assert "no UPDATE of 2; not in the sum: 1; no RESULT to 1; 1 FLUSH" in text
    assert "no RESULT; no UPDATE of 0 1; 1 PROBE; 1 STATE" in text
    assert "the slot held round 3" in text
    assert "1 rounds are not shown" in text


def test_files_of_several_ports_are_put_in_order_of_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = write(tmp_path / "later.pcap", [frame(Kind.RESULT, 0, contributors=0b11)], first_s=1002.0)
    first = write(tmp_path / "first.pcap", [frame(Kind.UPDATE, 0)], first_s=1000.0)
    second = write(tmp_path / "second.pcap", [frame(Kind.UPDATE, 1)], first_s=1001.0)
    found = only_round(decoded(capsys, later, first, second))
    assert (found["first_s"], found["last_s"]) == (pytest.approx(1000.0), pytest.approx(1002.0))
    assert found["without_result"] == [1]


def test_generations_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.pcap", [frame(Kind.UPDATE, 0), frame(Kind.UPDATE, 0, generation=8)])
    assert [each["generation"] for each in decoded(capsys, path)["generations"]] == [7, 8]
    assert [each["generation"] for each in decoded(capsys, path, "--generation", 8)["generations"]] == [8]


def test_partial_sums_of_a_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.pcap", [frame(Kind.PARTIAL, 1, contributors=0b1100)] * 2)
    found = only_round(decoded(capsys, path))
    assert (found["partials"], found["updates"]) == ({"1": 2}, {})


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
    assert file["foreign"] == {
        "ARP": 1,
        "ICMP": 1,
        "IP protocol 6": 1,
        "Ethernet type 0x86dd": 1,
        "UDP of other ports": 1,
        "IP fragment": 1,
        "cut off before its UDP header ends": 1,
        "cut off before its link header ends": 1,
    }
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
            assert capture.foreign == {"link type 9": 1}
        else:
            assert [found.header.worker for found in capture.packets] == [3]


@pytest.mark.parametrize("lost", [1, 10, 75])
def test_a_file_that_ends_inside_a_frame(lost: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.pcap", whole_round(1))
    path.write_bytes(path.read_bytes()[:-lost])
    capture = read_capture(path, HOPSUM_UDP_PORT)
    assert [packet.header.kind for packet in capture.packets] == [Kind.UPDATE]
    (note,) = capture.notes
    assert "ends inside" in note
    assert "frame 2" in note
    assert main(["decode", str(path)]) == 0
    assert note in capsys.readouterr().out


def test_a_pcapng_file_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    with PcapNgWriter(str(path)) as writer:
        writer.write([Ether(each) for each in whole_round(1)])
    path.write_bytes(path.read_bytes()[:-20])
    capture = read_capture(path, HOPSUM_UDP_PORT)
    assert [packet.header.kind for packet in capture.packets] == [Kind.UPDATE]
    assert "damaged" in capture.notes[0]


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
    assert "UDP ports 5555 (1): --udp-port names another" in capsys.readouterr().err
    found = only_round(decoded(capsys, path, "--udp-port", 5555))
    assert found["updates"] == {"2": 1}
