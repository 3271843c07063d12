# SPDX-License-Identifier: Apache-2.0
"""Wireshark's dissector, run by tshark, against the headers that hopsum_wire packs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

import hopsum_wire
from hopsum_switch.ports.capture import CaptureFolder
from hopsum_switch.ports.port import MemoryPort
from hopsum_wire import Header, Kind, Op
from hopsum_wire._layout import HOPSUM_FIELDS
from hopsum_wire.frames import FramePath, build_frame

TSHARK = shutil.which("tshark")
DISSECTOR = Path(hopsum_wire.__file__).with_name("hopsum.lua")
PATH = FramePath(0x020000000101, 0x020000000001, 0x0A000001, 0x0A0000FE, 5001)
NAMES = tuple(field.name for field in HOPSUM_FIELDS)
HEADERS = (
    Header(
        kind=Kind.UPDATE, flags=1, op=Op.ADD32, worker=65535, slot=3, generation=2**32 - 1, round=5, count=2, length=8
    ),
    Header(kind=Kind.RESULT, op=Op.OR, worker=1, generation=7, round=1, contributors=1 << 63 | 0b101),
    Header(kind=Kind.STALE, op=Op.ADD8, worker=2, slot=1, generation=7, round=1, held=2**32 - 1, contributors=1),
    Header(kind=Kind.PROBE, worker=0, slot=2047, generation=7, round=2),
    Header(kind=Kind.STATE, op=Op.MAX32, worker=0, generation=7, round=2, held=2, count=1),
    Header(kind=200, op=99, generation=7),
)

pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed (package tshark)")


def tshark(path: Path, *arguments: str) -> list[str]:
    assert TSHARK is not None
    command = [TSHARK, "-X", f"lua_script:{DISSECTOR}", "-r", str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def fields(path: Path, names: Sequence[str]) -> list[list[str]]:
    wanted = [word for name in names for word in ("-e", f"hopsum.{name}")]
    return [line.split("\t") for line in tshark(path, "-T", "fields", *wanted)]


@pytest.fixture
def frames() -> list[bytes]:
    return [build_frame(PATH, header, bytes(range(header.length))) for header in HEADERS]


def test_every_field_of_every_kind(tmp_path: Path, frames: list[bytes]) -> None:
    path = tmp_path / "a.pcap"
    wrpcap(str(path), [Ether(frame) for frame in frames])
    rows = fields(path, NAMES)
    assert [[int(cell, 0) for cell in row] for row in rows] == [
        [getattr(header, name) for name in NAMES] for header in HEADERS
    ]
    assert fields(path, ["flags.flush", "payload"]) == [["1", "0001020304050607"], *[["0", ""]] * 5]


def test_lines_and_ranks(tmp_path: Path, frames: list[bytes]) -> None:
    path = tmp_path / "a.pcap"
    wrpcap(str(path), [Ether(frame) for frame in frames])
    assert tshark(path, "-T", "fields", "-e", "_ws.col.Info") == [
        "UPDATE ADD32 worker 65535 generation 4294967295 slot 3 round 5",
        "RESULT OR worker 1 generation 7 slot 0 round 1",
        "STALE ADD8 worker 2 generation 7 slot 1 round 1 held 4294967295",
        "PROBE worker 0 generation 7 slot 2047 round 2",
        "STATE MAX32 worker 0 generation 7 slot 0 round 2 COLLECTING",
        "unknown kind worker 0 generation 7 slot 0 round 0",
    ]
    (line,) = [line for line in tshark(path, "-V", "-Y", "hopsum.kind == 2") if "contributors:" in line]
    assert line.strip() == "contributors: 0x8000000000000005 workers 0 2 63"


def test_what_is_no_packet_is_left_alone(tmp_path: Path, frames: list[bytes]) -> None:
    other = build_frame(PATH, Header(version=2, kind=1))
    short = bytes(Ether(frames[0]))[:60]
    path = tmp_path / "a.pcap"
    wrpcap(str(path), [Ether(other), Ether(short)])
    assert fields(path, ["kind"]) == [[""], [""]]


def test_a_capture_of_the_switch_with_two_sections(tmp_path: Path, frames: list[bytes]) -> None:
    folder = CaptureFolder(tmp_path)
    for frame in frames[:2]:
        memory = MemoryPort()
        port = folder.capture_port(1, memory)
        memory.inject(frame)
        assert port.receive() == [frame]
        port.send(frame)
        port.close()
    path = tmp_path / "port1.pcapng"
    assert fields(path, ["worker"]) == [["65535"], ["65535"], ["1"], ["1"]]
    names = tshark(path, "-T", "fields", "-e", "frame.interface_name", "-e", "frame.packet_flags_direction")
    assert [line.split("\t")[0] for line in names] == ["port 1"] * 4
    assert [int(line.split("\t")[1], 0) for line in names] == [1, 2, 1, 2]
