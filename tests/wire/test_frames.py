# SPDX-License-Identifier: Apache-2.0
"""Stamped datagrams and frames against one packet at a time, and against scapy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether
from scapy.packet import Padding, Raw

from hopsum_wire import HOPSUM_UDP_PORT, Drop, Header, Kind, Op, WireError
from hopsum_wire.datagrams import stamp_datagrams, update_template
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES, FramePath, build_frame, ipv4_checksum, stamp_frames
from hopsum_wire.payload import SHAPES
from hopsum_wire.scapy import Hopsum, scapy_frame

from .strategies import HEADERS, PATHS, bits

PATH = FramePath(0x020000000101, 0x020000000001, 0x0A000001, 0x0A0000FE, 5001)
BATCHES = st.lists(st.tuples(bits(16), bits(32), bits(16)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SHAPES)), bits(32), bits(16), PATHS, BATCHES, st.integers(0, 2**32 - 1))
def test_stamped_is_built_one_by_one(
    op: int, generation: int, worker: int, path: FramePath, batch: list[tuple[int, int, int]], seed: int
) -> None:
    template = update_template(op=op, generation=generation, worker=worker)
    slots, rounds, counts = (list(column) for column in zip(*batch, strict=True))
    payloads = np.random.default_rng(seed).integers(0, 256, (len(batch), template.length), dtype=np.uint8)
    arguments = {"slots": slots, "rounds": rounds, "counts": counts, "payloads": payloads}
    datagrams = stamp_datagrams(template, **arguments)  # type: ignore[arg-type]
    frames = stamp_frames(path, template, **arguments)  # type: ignore[arg-type]
    assert frames.shape == (len(batch), FRAME_OVERHEAD_BYTES + template.length)
    for index, (slot, round_, count) in enumerate(batch):
        header = replace(template, slot=slot, round=round_, count=count)
        payload = payloads[index].tobytes()
        assert datagrams[index].tobytes() == header.pack() + payload
        assert frames[index].tobytes() == bytes(scapy_frame(path, header, payload))


@settings(max_examples=60, deadline=None)
@given(PATHS, HEADERS, st.binary(max_size=64))
def test_built_is_scapys(path: FramePath, header: Header, payload: bytes) -> None:
    header = replace(header, length=len(payload))
    assert build_frame(path, header, payload) == bytes(scapy_frame(path, header, payload))


@settings(max_examples=60, deadline=None)
@given(PATHS, HEADERS, st.binary(min_size=1, max_size=64), st.binary(max_size=20))
def test_scapy_reads_what_was_built(path: FramePath, header: Header, payload: bytes, trailer: bytes) -> None:
    header = replace(header, length=len(payload))
    path = replace(path, src_port=5001)  # a port that scapy does not take for another protocol's
    read = Ether(build_frame(path, header, payload) + trailer)
    assert [int(read[Hopsum].getfieldval(f.name)) for f in Hopsum.fields_desc] == [
        getattr(header, f.name) for f in Hopsum.fields_desc
    ]
    assert read[Raw].load == payload
    assert (read[Padding].load if Padding in read else b"") == trailer


def test_scapy_dissects_replies_by_source_port() -> None:
    path = replace(PATH, src_port=HOPSUM_UDP_PORT, dst_port=5001)
    read = Ether(build_frame(path, Header(kind=Kind.STALE, op=Op.ADD32, held=7)))
    assert read[Hopsum].held == 7
    assert read.sprintf("%Hopsum.kind% %Hopsum.op%") == "STALE ADD32"


def test_scapy_fills_in_length_and_port() -> None:
    packet = UDP(bytes(UDP(sport=5) / Hopsum(kind="UPDATE", op="MAX32", flags="FLUSH") / Raw(b"12345")))
    assert packet.dport == HOPSUM_UDP_PORT
    assert (packet[Hopsum].length, packet[Hopsum].op, int(packet[Hopsum].flags)) == (5, Op.MAX32, 1)
    assert "hopsum UPDATE MAX32" in packet.summary()


def test_checksum() -> None:
    frame = build_frame(PATH, Header())
    assert ipv4_checksum(frame[14:34]) == 0
    broken = frame[14:22] + bytes([frame[22] ^ 1]) + frame[23:34]
    assert ipv4_checksum(broken) != 0


def test_refusals_name_what_is_wrong() -> None:
    template = update_template(op=Op.ADD32, generation=1, worker=0)
    good = {"slots": [0], "rounds": [1], "counts": 1, "payloads": np.zeros((1, 1024), np.uint8)}
    for change, message, reason in [
        ({"slots": [65536]}, "slots from 65536 to 65536 do not fit below 65536", Drop.BAD_VALUE),
        ({"rounds": [-1]}, "rounds from -1 to -1 do not fit below 4294967296", Drop.BAD_VALUE),
        ({"payloads": np.zeros((1, 512), np.uint8)}, r"payloads must be uint8\[n, 1024\]", Drop.BAD_LENGTH),
        ({"payloads": np.zeros(1024, np.uint8)}, r"not uint8\[1024\]", Drop.BAD_LENGTH),
        ({"payloads": np.zeros((1, 1024), np.uint16)}, "not uint16", Drop.BAD_LENGTH),
    ]:
        with pytest.raises(WireError, match=message) as raised:
            stamp_datagrams(template, **{**good, **change})  # type: ignore[arg-type]
        assert raised.value.reason is reason
    with pytest.raises(WireError, match="header says 4 payload bytes, there are 0"):
        build_frame(PATH, Header(length=4))


def test_no_chunks_no_frames() -> None:
    template = update_template(op=Op.ADD32, generation=1, worker=0)
    empty = np.zeros((0, 1024), np.uint8)
    assert stamp_datagrams(template, slots=[], rounds=[], counts=[], payloads=empty).shape == (0, 1056)
