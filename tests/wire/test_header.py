# SPDX-License-Identifier: Apache-2.0
"""Headers, datagrams, frames, and the order of codes and lanes: there and back, and what is refused."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether
from scapy.packet import Padding, Raw

from hopsum_wire import (
    CODE_GROUPS,
    HOPSUM_UDP_PORT,
    LANE_GROUP_CODES,
    Drop,
    Header,
    Kind,
    Op,
    WireError,
    down_bytes,
    pack_codes,
    split_datagram,
    unpack_codes,
    up_bytes,
)
from hopsum_wire._layout import HOPSUM_DTYPE, HOPSUM_FIELDS, RETIRED_OP
from hopsum_wire.datagrams import stamp_datagrams, update_template
from hopsum_wire.fields import pack_fields, unpack_fields
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES, FramePath, build_frame, ipv4_checksum, stamp_frames
from hopsum_wire.payload import SHAPES, lanes, requantize
from hopsum_wire.scapy import Hopsum, scapy_frame

from .strategies import HEADERS, PATHS, bits

GOOD = Header(kind=Kind.RESULT, op=Op.ADD32, worker=1, slot=2, generation=3, round=4, contributors=5, length=8)


@given(HEADERS)
def test_pack_and_unpack(header: Header) -> None:
    packed = header.pack()
    assert Header.unpack(packed) == header
    assert Header.unpack(memoryview(packed + b"more")) == header


@given(HEADERS)
def test_three_codings_agree(header: Header) -> None:
    packed = header.pack()
    assert pack_fields(HOPSUM_FIELDS, asdict(header)) == packed
    assert unpack_fields(HOPSUM_FIELDS, packed) == asdict(header)
    record = np.frombuffer(packed, HOPSUM_DTYPE)[0]
    assert {name: int(record[name]) for name in asdict(header)} == asdict(header)


def test_known_bytes() -> None:
    header = Header(1, 2, 0, 5, 0x0102, 0x0304, 0x05060708, 0x090A0B0C, 0x0D0E0F10, 0x11 << 56, 0x1213, 0x1415)
    expected = "01020005 0102 0304 05060708 090a0b0c 0d0e0f10 1100000000000000 1213 1415"
    assert header.pack() == bytes.fromhex(expected)


@pytest.mark.parametrize("field", HOPSUM_FIELDS, ids=lambda field: field.name)
@pytest.mark.parametrize("sign", [1, -1])
def test_pack_refuses_what_does_not_fit(field: tuple[str, int, int], sign: int) -> None:
    name, width, _ = field
    value = 1 << width if sign > 0 else -1
    with pytest.raises(WireError, match=f"^{name} = {value} does not fit in {width} bits$") as raised:
        replace(GOOD, **{name: value}).pack()
    assert raised.value.reason is Drop.BAD_VALUE
    with pytest.raises(WireError, match=f"{name} = {value} does not fit"):
        pack_fields(HOPSUM_FIELDS, {name: value})


def test_pack_fields_refuses_unknown_names() -> None:
    with pytest.raises(WireError, match="no header field is named colour"):
        pack_fields(HOPSUM_FIELDS, {"colour": 1})


@given(st.binary(max_size=31))
def test_short_buffers(data: bytes) -> None:
    with pytest.raises(WireError, match=f"{len(data)} bytes are no 32-byte") as raised:
        Header.unpack(data)
    assert raised.value.reason is Drop.TRUNCATED
    with pytest.raises(WireError, match="no 32-byte header"):
        unpack_fields(HOPSUM_FIELDS, data)


@pytest.mark.parametrize(
    ("data", "reason", "message"),
    [
        (replace(GOOD, version=2).pack() + bytes(8), Drop.BAD_VERSION, "wire version 2 instead of 1"),
        (replace(GOOD, kind=9).pack() + bytes(8), Drop.BAD_KIND, "unknown kind 9"),
        (replace(GOOD, op=0).pack() + bytes(8), Drop.BAD_OP, "unknown op 0"),
        (GOOD.pack() + bytes(7), Drop.TRUNCATED, "header says 8 payload bytes, datagram has 7"),
        (GOOD.pack() + bytes(9), Drop.BAD_LENGTH, "header says 8 payload bytes, datagram has 9"),
        (GOOD.pack()[:31], Drop.TRUNCATED, "31 bytes"),
        (b"", Drop.TRUNCATED, "0 bytes"),
    ],
)
def test_foreign_datagrams(data: bytes, reason: Drop, message: str) -> None:
    with pytest.raises(WireError, match=message) as raised:
        split_datagram(data)
    assert raised.value.reason is reason


@given(st.binary(max_size=80))
def test_garbage_parses_or_raises_wire_error(data: bytes) -> None:
    try:
        header, payload = split_datagram(data)
    except WireError:
        return
    assert header.pack() + bytes(payload) == data


@pytest.mark.parametrize("kind", [Kind.PROBE, Kind.STATE])
def test_questions_and_their_answers_may_have_no_op(kind: Kind) -> None:
    header = Header(kind=kind, generation=3, round=4)
    assert split_datagram(header.pack())[0] == header


def test_split_returns_a_view() -> None:
    data = bytearray(GOOD.pack() + bytes(range(8)))
    header, payload = split_datagram(memoryview(data))
    assert (header, bytes(payload)) == (GOOD, bytes(range(8)))
    data[-1] = 99
    assert payload[-1] == 99


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


@pytest.mark.parametrize("lane_bits", [8, 16])
@given(
    st.lists(st.integers(0, 3), max_size=2), st.integers(1, 3), st.sampled_from(CODE_GROUPS), st.integers(0, 2**32 - 1)
)
def test_codes_there_and_back(lane_bits: int, lead: list[int], groups: int, group: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 16, (*lead, groups * group), dtype=np.uint8)
    packed = pack_codes(codes, lane_bits, group)
    assert packed.shape == (*lead, groups * group // 2)
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(unpack_codes(packed, lane_bits, group), codes)


def test_groups_fill_chunks_and_words_fill_groups() -> None:
    assert LANE_GROUP_CODES in CODE_GROUPS
    for op, lane_bits in ((Op.LOOKUP_ADD8, 8), (Op.LOOKUP_ADD16, 16)):
        assert all(SHAPES[op].elements % group == group % (lane_bits // 4) == 0 for group in CODE_GROUPS)


@pytest.mark.parametrize("lane_bits", [8, 16])
@pytest.mark.parametrize("group", CODE_GROUPS)
def test_order_of_codes_in_any_group(lane_bits: int, group: int) -> None:
    """Word j of a group of W words: codes j, j + W, ..., the first in the highest nibble; said once more in a loop."""
    codes = np.random.default_rng(group).integers(0, 16, 1024, dtype=np.uint8)
    nibbles, expected = lane_bits // 4, b""
    for first in range(0, 1024, group):
        for j in range(group // nibbles):
            digits = [int(codes[first + j + nibble * (group // nibbles)]) for nibble in range(nibbles)]
            expected += bytes.fromhex("".join(f"{digit:x}" for digit in digits))
    assert pack_codes(codes, lane_bits, group).tobytes() == expected


def test_sizes() -> None:
    assert {op: (up_bytes(op), down_bytes(op)) for op in Op} == {
        Op.LOOKUP_ADD8: (512, 1024),
        Op.LOOKUP_ADD16: (256, 1024),
        Op.LOOKUP_ADD_LOOKUP4: (512, 512),
        Op.LOOKUP_ADD_LOOKUP3: (384, 384),
        Op.LOOKUP_ADD_LOOKUP2: (256, 256),
        **dict.fromkeys((Op.ADD8, Op.ADD16, Op.ADD32, Op.OR, Op.MAX32), (1024, 1024)),
    }


@pytest.mark.parametrize("op", Op)
def test_a_full_chunk_fills_its_lanes(op: Op) -> None:
    shape = SHAPES[op]
    element_bits = 1 if op is Op.OR else shape.down_bits
    assert shape.elements * element_bits == shape.down_bytes * 8
    assert shape.up_bytes * 8 == shape.elements * (shape.code_bits if shape.has_codes else element_bits)
    assert shape.has_codes == op.name.startswith("LOOKUP")
    if shape.down_codes:
        assert op.name == f"LOOKUP_ADD_LOOKUP{shape.down_bits}"
    else:
        assert shape.down_bits == shape.lane_bits


@pytest.mark.parametrize("op", [0, RETIRED_OP, 12, 200])
def test_other_ops_have_no_size(op: int) -> None:
    with pytest.raises(WireError, match=f"op {op} is none of the switch program's, which are LOOKUP_ADD8") as raised:
        up_bytes(op)
    assert raised.value.reason is Drop.BAD_OP


def test_refused_codes() -> None:
    with pytest.raises(WireError, match="code 16 does not fit in 4 bits"):
        pack_codes(np.full(512, 16, np.uint8))
    with pytest.raises(WireError, match="last axis must be a multiple of 512"):
        pack_codes(np.zeros((3, 511), np.uint8))
    with pytest.raises(WireError, match="must be uint8, not int64"):
        pack_codes(np.zeros(512, np.int64))  # type: ignore[arg-type]
    with pytest.raises(WireError, match="last axis must be a multiple of 256"):
        unpack_codes(np.zeros(255, np.uint8))
    with pytest.raises(WireError, match="last axis must be a multiple of 64"):
        pack_codes(np.zeros(1000, np.uint8), group=64)


BITS = pytest.mark.parametrize("bits", [4, 3, 2])
OP_OF_BITS = {4: Op.LOOKUP_ADD_LOOKUP4, 3: Op.LOOKUP_ADD_LOOKUP3, 2: Op.LOOKUP_ADD_LOOKUP2}


@BITS
@pytest.mark.parametrize("shape", [(1024,), (3, 1024), (2, 3, 2048), (0, 1024)])
def test_codes_of_any_bits_come_back(bits: int, shape: tuple[int, ...]) -> None:
    codes = np.random.default_rng(3).integers(0, 1 << bits, shape, dtype=np.uint8)
    packed = pack_codes(codes, bits=bits)
    assert (packed.shape, packed.dtype) == ((*shape[:-1], shape[-1] * bits // 8), np.uint8)
    np.testing.assert_array_equal(unpack_codes(packed, bits=bits), codes)


@BITS
@given(st.data())
def test_every_payload_of_codes_is_that_of_its_codes(bits: int, data: st.DataObject) -> None:
    payload = data.draw(st.binary(min_size=128 * bits, max_size=128 * bits))
    codes = unpack_codes(np.frombuffer(payload, np.uint8), bits=bits)
    assert int(codes.max()) < 1 << bits
    assert pack_codes(codes, bits=bits).tobytes() == payload


def test_order_of_codes_of_2_bits() -> None:
    """Byte j: codes j, 256 + j, 512 + j, 768 + j, the first in the highest bits."""
    codes = np.random.default_rng(4).integers(0, 4, 1024, dtype=np.uint8)
    expected = [int("".join(f"{codes[part * 256 + j]:02b}" for part in range(4)), 2) for j in range(256)]
    assert pack_codes(codes, bits=2).tolist() == expected


def test_order_of_codes_of_3_bits() -> None:
    """Bytes A: codes j and 256 + j below two bits of 768 + j. Bytes B: 512 + j and 640 + j below two high bits."""
    codes = [int(code) for code in np.random.default_rng(5).integers(0, 8, 1024)]
    a = [codes[j] | codes[256 + j] << 3 | (codes[768 + j] & 3) << 6 for j in range(256)]
    b = [codes[512 + j] | codes[640 + j] << 3 | codes[768 + j] >> 2 << 6 | codes[896 + j] >> 2 << 7 for j in range(128)]
    assert pack_codes(np.array(codes, np.uint8), bits=3).tolist() == a + b


@BITS
def test_refused_codes_of_any_bits(bits: int) -> None:
    with pytest.raises(WireError, match=f"code {1 << bits} does not fit in {bits} bits"):
        pack_codes(np.full(1024, 1 << bits, np.uint8), bits=bits)
    whole = 512 if bits == 4 else 1024
    with pytest.raises(WireError, match=f"last axis must be a multiple of {whole}"):
        pack_codes(np.zeros((2, whole - 1), np.uint8), bits=bits)
    with pytest.raises(WireError, match=f"last axis must be a multiple of {whole * bits // 8}"):
        unpack_codes(np.zeros(whole * bits // 8 - 1, np.uint8), bits=bits)
    with pytest.raises(WireError, match="must be uint8, not int8"):
        pack_codes(np.zeros(1024, np.int8), bits=bits)  # type: ignore[arg-type]


@BITS
def test_codes_of_a_result_are_lanes_of_a_leaf(bits: int) -> None:
    codes = np.random.default_rng(6).integers(0, 1 << bits, (2, 1024), dtype=np.uint8)
    np.testing.assert_array_equal(lanes(OP_OF_BITS[bits], pack_codes(codes, bits=bits)), codes)
    assert np.shares_memory(lanes(OP_OF_BITS[bits], codes), codes), "a PARTIAL has lanes"


@given(st.sampled_from([3, 7, 15]), st.integers(0, 2**32 - 1))
def test_sums_are_looked_up_again(count: int, seed: int) -> None:
    """The code of every sum is the number of thresholds at most half the biased sum, whatever the lanes' type."""
    thresholds = sorted(np.random.default_rng(seed).integers(1, 128, count).tolist())
    sums = np.arange(-128, 128, dtype=np.int8)
    expected = [sum(threshold <= (int(each) + 128) // 2 for threshold in thresholds) for each in sums]
    for held in (sums, sums.view(np.uint8)):
        found = requantize(held, thresholds)
        assert (found.dtype, found.tolist()) == (np.uint8, expected)
    assert requantize(sums.reshape(2, 4, 32), thresholds).shape == (2, 4, 32)


def test_lanes_are_views_in_element_order() -> None:
    payload = np.arange(1024, dtype=np.uint16).astype(np.uint8)
    words = lanes(Op.ADD32, payload)
    assert words.shape == (256,)
    assert int(words[1]) == 0x04050607
    words[0] = 0x01020304
    assert payload[:4].tolist() == [1, 2, 3, 4]
    assert lanes(Op.LOOKUP_ADD8, payload).tolist() == payload.tolist()
    assert lanes(Op.MAX32, np.zeros((2, 5, 1024), np.uint8)).shape == (2, 5, 256)
    with pytest.raises(WireError, match="no whole lanes of 4 bytes"):
        lanes(Op.ADD32, payload[:6])
