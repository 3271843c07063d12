# SPDX-License-Identifier: Apache-2.0
"""Whole frames through the oracle, read and written with scapy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from hopsum_oracle.aggregator import Aggregator, AggregatorConfig
from hopsum_oracle.frame_aggregator import FrameAggregator
from hopsum_wire import HOPSUM_UDP_PORT, Drop, Header
from hopsum_wire.frames import FramePath, build_frame
from hopsum_wire.payload import SHAPES
from hopsum_wire.scapy import Hopsum

from .jobs import job, update, words, worker

SWITCH = AggregatorConfig(forwarding={0xAA: 3}, floods={0xFFFFFFFFFFFF: (1, 2, 3)})


def path_of(rank: int) -> FramePath:
    where = worker(rank)
    return FramePath(where.mac, SWITCH.mac, where.ip, SWITCH.ip, where.udp_port)


def frame(header: Header, payload: bytes = b"") -> bytes:
    body = payload or words(header.worker + 1).tobytes()[: header.length]
    return build_frame(path_of(header.worker), header, body)


def aggregator() -> FrameAggregator:
    return FrameAggregator(SWITCH, [job()])


def drop_of(data: bytes, port: int = 10) -> Drop:
    outcome, frames = aggregator().explain_frame(port, data)
    assert not frames
    return outcome.drop


def test_result_frames() -> None:
    switch = aggregator()
    assert switch.receive_frame(10, frame(update(0, slot=2))) == []
    frames = switch.receive_frame(11, frame(update(1, slot=2)))
    assert [port for port, _ in frames] == [10, 11]
    for rank, (_, data) in enumerate(frames):
        expected = (
            Ether(src="02:00:00:00:00:01", dst=f"02:00:00:00:01:0{rank}")
            / IP(src="10.0.0.254", dst=f"10.0.0.{rank + 1}", id=0, flags="DF", ttl=64)
            / UDP(sport=HOPSUM_UDP_PORT, dport=5000 + rank, chksum=0)
            / Hopsum(
                kind="RESULT",
                op="ADD32",
                worker=rank,
                slot=2,
                generation=7,
                round=1,
                contributors=3,
                count=256,
                length=1024,
            )
            / Raw(words(3).tobytes())
        )
        assert data == bytes(expected)


@pytest.mark.parametrize("op", sorted(SHAPES))
def test_frames_and_datagrams_agree(op: int) -> None:
    """The frame level adds addressing and nothing else."""
    frames, datagrams = aggregator(), Aggregator(SWITCH, [job()])
    rng = np.random.default_rng(op)
    for _ in range(200):
        rank = int(rng.integers(0, 2))
        header = update(rank, op=op, slot=int(rng.integers(0, 2)), round=int(rng.integers(1, 5)))
        payload = rng.integers(0, 128, header.length, dtype=np.uint8).tobytes()
        where = worker(rank)
        outcome = datagrams.receive(where.port, where.ip, where.udp_port, header.pack() + payload)
        replies = frames.receive_frame(where.port, frame(header, payload))
        assert [(o.worker.port, o.header.pack() + o.payload) for o in outcome.outputs] == [
            (port, data[42:]) for port, data in replies
        ]
    assert frames.job_events == datagrams.job_events


def test_a_stale_frame_is_short() -> None:
    switch = aggregator()
    switch.receive_frame(10, frame(update(0, round=3)))
    ((port, data),) = switch.receive_frame(10, frame(update(0, round=1)))
    assert (port, len(data)) == (10, 14 + 20 + 8 + 32)
    assert Ether(data)[Hopsum].held == 3


def test_a_trailer_is_nobodys() -> None:
    switch = aggregator()
    switch.receive_frame(10, frame(update(0)) + b"trailer")
    replies = switch.receive_frame(11, frame(update(1)))
    assert [len(data) for _, data in replies] == [74 + 1024] * 2


def edited(**changes: int) -> bytes:
    """A good frame with fields of IP or UDP changed, checksum right unless it is what changed."""
    packet: Packet = Ether(frame(update(0)))
    for name, value in changes.items():
        layer, field = name.split("_", 1)
        target = packet[IP] if layer == "ip" else packet[UDP]
        setattr(target, field, value)
    if "ip_chksum" not in changes:
        del packet[IP].chksum
    return bytes(packet)


def test_drops_of_the_lower_layers() -> None:
    assert drop_of(edited(ip_chksum=1)) is Drop.BAD_CHECKSUM
    assert drop_of(edited(ip_len=1083)) is Drop.BAD_LENGTH
    assert drop_of(edited(udp_len=1063)) is Drop.BAD_LENGTH
    assert drop_of(edited(udp_len=1065, ip_len=1085)) is Drop.BAD_LENGTH
    assert drop_of(frame(update(0))[:-1]) is Drop.TRUNCATED
    assert drop_of(edited(ip_chksum=1)[:-1]) is Drop.TRUNCATED
    assert drop_of(frame(update(0))[:73]) is Drop.TRUNCATED
    assert drop_of(frame(update(0)), port=11) is Drop.WRONG_PORT
    assert drop_of(edited(udp_sport=5001)) is Drop.WRONG_SOURCE
    assert drop_of(edited(ip_chksum=1)[:42] + replace(update(0), version=3).pack()) is Drop.BAD_CHECKSUM


def test_a_bad_header_hides_the_missing_payload() -> None:
    """No payload is announced, so none is missed: version, kind, op and length are looked at in turn."""
    for change, reason in [
        ({"version": 3}, Drop.BAD_VERSION),
        ({"kind": 7}, Drop.BAD_KIND),
        ({"op": 9}, Drop.BAD_OP),
        ({"length": 512}, Drop.BAD_LENGTH),
    ]:
        assert drop_of(frame(update(0))[:42] + replace(update(0), **change).pack()) is reason


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytes(Ether(dst="00:00:00:00:00:aa", src="02:00:00:00:01:00") / ARP()), id="arp"),
        pytest.param(edited(ip_dst="10.0.0.9"), id="another address"),
        pytest.param(edited(udp_dport=53), id="another port"),
        pytest.param(edited(ip_proto=6), id="tcp"),
        pytest.param(edited(ip_flags="MF"), id="first fragment"),
        pytest.param(edited(ip_frag=1), id="later fragment"),
        pytest.param(frame(update(0))[:41], id="cut in the UDP header"),
        pytest.param(frame(update(0))[:20], id="cut in the IPv4 header"),
    ],
)
def test_everything_else_is_plain_forwarding(data: bytes) -> None:
    switch = aggregator()
    to_port_3 = bytes(5) + b"\xaa" + data[6:]
    assert switch.receive_frame(1, to_port_3) == [(3, to_port_3)]
    flooded = b"\xff" * 6 + data[6:]
    assert switch.receive_frame(2, flooded) == [(1, flooded), (3, flooded)]
    assert switch.receive_frame(1, bytes(6) + data[6:]) == []
    assert switch.drops == {Drop.NO_ROUTE: 1}
    assert not switch.job_events


def test_a_scrap_has_no_destination() -> None:
    for size in range(14):
        assert drop_of(bytes(size)) is Drop.NO_ROUTE
