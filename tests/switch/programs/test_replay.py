# SPDX-License-Identifier: Apache-2.0
"""Traffic of the router program that bmv2 was given, in the form of p4lang's exercises."""

from __future__ import annotations

import shutil
from pathlib import Path

from scapy.utils import rdpcap, wrpcap

from hopsum_switch.engine import Output

from .replay import record, replay

ROUTER = Path(__file__).parent / "router"
FILES = ROUTER / "router.json", ROUTER / "router.p4info.txtpb"


def test_what_bmv2_sent_is_sent_here() -> None:
    assert replay(*FILES, ROUTER / "recorded") == []


def test_a_difference_is_named(tmp_path: Path) -> None:
    shutil.copytree(ROUTER / "recorded", tmp_path / "mine")
    capture = tmp_path / "mine" / "pcaps" / "s1-eth11_out.pcap"
    packets = [bytes(packet) for packet in rdpcap(str(capture))]
    wrpcap(str(capture), [packets[0][:-1] + b"!", *packets[1:]], linktype=1)
    assert [line.partition(":")[0] for line in replay(*FILES, tmp_path / "mine")] == ["port 11, frame 0"]
    record(tmp_path / "other", [], [(1, bytes(20), [Output(2, bytes(20))])])
    assert replay(*FILES, tmp_path / "other") == ["port 2: 0 frames, 1 recorded"]
