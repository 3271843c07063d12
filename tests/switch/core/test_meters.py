# SPDX-License-Identifier: Apache-2.0
"""Meters, variable-length fields, hashes and checksums: by published values and against models."""

from __future__ import annotations

import random
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum_switch.engine import Engine
from hopsum_switch.errors import InvalidArgumentError, NotFoundError, ProgramError, UnsupportedError
from hopsum_switch.interp.calculations import ALGORITHMS, csum16
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.state.entry_lookup import Exact
from hopsum_switch.state.meter import GREEN, RED, YELLOW, MeterCell, MeterConfig

from .builder import Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive

METER: Json = {"type": "meter_array", "value": "meter"}


def metering(unit: str = "packets") -> ProgramBuilder:
    """Meter `meter`, indexed by `a`; the colour goes into `b`."""
    builder = build()
    builder.data["meter_arrays"] = [
        {"name": "meter", "id": 0, "type": unit, "rate_count": 2, "size": 4, "is_direct": False}
    ]
    builder.primitives.append(primitive("execute_meter", METER, field("h", "a"), field("h", "b")))
    return builder


def directly_metering() -> ProgramBuilder:
    """Table `tbl_in` on `a` with a direct meter of bytes; the colour goes into `b`."""
    builder = build()
    builder.data["meter_arrays"] = [
        {
            "name": "meter",
            "id": 0,
            "type": "bytes",
            "rate_count": 2,
            "is_direct": True,
            "binding": "tbl_in",
            "result_target": ["h", "b"],
        }
    ]
    key = [{"match_type": "exact", "name": "a", "target": ["h", "a"], "mask": None}]
    builder.ingress["tables"][0].update(key=key, direct_meters="meter", default_entry=None)
    return builder


def colour(engine: Engine, a: int, now_us: int = 0, size: int = 10) -> int:
    return engine.process(0, bytes([a, 0xEE]) + bytes(size - 2), now_us)[0].frame[1]


def test_a_meter_without_configuration_is_green_and_one_outside_does_nothing() -> None:
    engine = metering().engine()
    assert [colour(engine, a) for a in (0, 3, 4, 255)] == [GREEN, GREEN, 0xEE, 0xEE]


@pytest.mark.parametrize(("unit", "scale"), [("packets", 1), ("bytes", 10)])
def test_bursts_give_colours_and_time_fills_the_buckets(unit: str, scale: int) -> None:
    engine = metering(unit).engine()
    engine.meters.write("meter", 1, MeterConfig(1 * scale, 2 * scale, 2 * scale, 5 * scale))
    assert [colour(engine, 1) for _ in range(7)] == [GREEN] * 2 + [YELLOW] * 3 + [RED] * 2
    assert colour(engine, 1, 499_999) == RED
    assert colour(engine, 1, 500_000) == YELLOW
    assert [colour(engine, 1, 1_000_000) for _ in range(2)] == [GREEN, RED]
    assert [colour(engine, 1, 10**12) for _ in range(6)] == [GREEN] * 2 + [YELLOW] * 3 + [RED]
    engine.meters.write("meter", 1, None)
    assert colour(engine, 1, 10**12) == GREEN


def test_random_traffic_against_buckets_that_are_filled_all_the_time() -> None:
    rng = random.Random(3)
    seen = set()
    for _ in range(20):
        cir = rng.randrange(10**6)
        config = MeterConfig(cir, rng.randrange(3000), cir + rng.randrange(10**6), rng.randrange(3000))
        cell, now = MeterCell(), 0
        cell.configure(config)
        committed, peak = config.cburst, config.pburst
        for _ in range(300):
            before, now = now, now + rng.randrange(4000)
            committed = min(committed + now * config.cir // 10**6 - before * config.cir // 10**6, config.cburst)
            peak = min(peak + now * config.pir // 10**6 - before * config.pir // 10**6, config.pburst)
            amount, expected = rng.randrange(64, 1500), RED
            if peak >= amount:
                peak, expected = peak - amount, YELLOW
                if committed >= amount:
                    committed, expected = committed - amount, GREEN
            assert cell.execute(now, amount) == expected
            seen.add(expected)
    assert seen == {GREEN, YELLOW, RED}


def test_a_direct_meter_lives_with_its_entry() -> None:
    builder = directly_metering()
    builder.primitives.append(primitive("no_op"))
    engine = builder.engine()
    table = engine.tables["tbl_in"]
    handles = [table.insert([Exact(a)], "act", []) for a in (1, 2)]
    engine.meters.write_direct("tbl_in", handles[0], MeterConfig(0, 10, 0, 20))
    assert [colour(engine, 1) for _ in range(3)] == [GREEN, YELLOW, RED]
    assert [colour(engine, 2) for _ in range(3)] == [GREEN] * 3
    assert engine.meters.read_direct("tbl_in", handles[0]) == (0, 10, 0, 20)
    assert engine.meters.read_direct("tbl_in", handles[1]) is None
    table.delete(handles[0])
    with pytest.raises(NotFoundError):
        engine.meters.read_direct("tbl_in", handles[0])
    table.insert([Exact(1)], "act", [])
    assert colour(engine, 1) == GREEN


def test_configurations_and_cells_are_checked() -> None:
    engine = metering().engine()
    for config in (MeterConfig(2, 0, 1, 0), MeterConfig(-1, 0, 1, 0), MeterConfig(0, -1, 1, 0)):
        with pytest.raises(InvalidArgumentError, match="pir >= cir"):
            engine.meters.write("meter", 0, config)
    with pytest.raises(InvalidArgumentError, match="index 4 is outside"):
        engine.meters.write("meter", 4, None)
    with pytest.raises(NotFoundError, match="no indexed meter 'x'"):
        engine.meters.read("x", 0)
    with pytest.raises(InvalidArgumentError, match="has no direct meter"):
        engine.meters.read_direct("tbl_in", 1)


def test_wrong_meters_are_refused() -> None:
    builder = directly_metering()
    builder.primitives.append(primitive("execute_meter", METER, hexstr(0), field("h", "b")))
    with pytest.raises(ProgramError, match=r"execute_meter\(\) on the direct meter"):
        builder.load()
    builder = directly_metering()
    builder.data["meter_arrays"][0]["binding"] = "tbl_eg"
    with pytest.raises(ProgramError, match="the meter meter is not its own"):
        builder.load()
    builder = metering()
    builder.data["meter_arrays"][0]["size"] = 0
    with pytest.raises(ProgramError, match="size 0 is impossible"):
        builder.load()


MOST = 6  # bytes
V: Json = {"type": "header", "value": "v"}
W: Json = {"type": "header", "value": "w"}
ERROR = field("standard_metadata", "parser_error")
TOO_SHORT, HEADER_TOO_SHORT, INVALID_ARGUMENT = 1, 4, 6


def varying() -> ProgramBuilder:
    """`h` is (a, b); `v`, of (kind, data, tail) with a * 4 bits of data, follows. Emits h, v, w, extra."""
    builder = build()
    fields = [["kind", 8, False], ["data", "*"], ["tail", 8, False]]
    builder.data["header_types"].append({"name": "v_t", "id": 9, "fields": fields, "max_length": 2 + MOST})
    for number, name in enumerate("vw"):
        builder.data["headers"].append({"name": name, "id": 10 + number, "header_type": "v_t", "metadata": False})
    builder.data["deparsers"][0]["order"] = ["h", "v", "w", "extra"]
    length = expression("*", field("h", "a"), hexstr(4))
    extract = {"op": "extract_VL", "parameters": [{"type": "regular", "value": "v"}, length]}
    builder.states[0]["parser_ops"].append(extract)
    return builder


def frame(size: int) -> bytes:
    """A frame with this many bytes of data, and payload."""
    return bytes([2 * size, 0, 0x11, *range(0x80, 0x80 + size), 0x99]) + b"rest"


@pytest.mark.parametrize("size", range(MOST + 1))
def test_a_header_comes_and_goes_as_it_was(size: int) -> None:
    builder = varying()
    builder.primitives.append(assign(field("v", "kind"), hexstr(0x22)))
    assert builder.run(frame(size)) == frame(size)[:2] + b"\x22" + frame(size)[3:]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (frame(MOST + 1), HEADER_TOO_SHORT),
        (frame(MOST + 1)[:8], TOO_SHORT),
        (bytes([4, 0, 1, 2, 3]), TOO_SHORT),
        (bytes([3, 0]) + bytes(20), INVALID_ARGUMENT),
    ],
)
def test_lengths_that_do_not_fit_are_errors(data: bytes, error: int) -> None:
    builder = varying()
    builder.primitives.append(assign(field("h", "b"), ERROR))
    assert builder.run(data) == data[:1] + bytes([error]) + data[2:]


@pytest.mark.parametrize("size", [0, 1, MOST])
def test_copies_keep_the_length_and_new_headers_have_none(size: int) -> None:
    builder = varying()
    builder.primitives += [primitive("assign_header", W, V), primitive("remove_header", V)]
    builder.primitives += [primitive("add_header", V), assign(field("v", "tail"), hexstr(0x77))]
    assert builder.run(frame(size)) == frame(size)[:2] + b"\0\x77" + frame(size)[2:]
    builder = varying()
    builder.primitives += [primitive("add_header", W), primitive("assign_VL", field("w", "data"), field("v", "data"))]
    head = frame(size)[: 4 + size]
    assert builder.run(frame(size)) == head + b"\0" + frame(size)[3 : 3 + size] + b"\0rest"


@pytest.mark.parametrize("size", [0, 3, MOST])
def test_the_packet_length_counts_what_is_there(size: int) -> None:
    builder = varying()
    builder.primitives.append(primitive("remove_header", V))
    builder.egress_primitives.append(assign(field("h", "b"), field("standard_metadata", "packet_length")))
    assert builder.run(frame(size)) == bytes([2 * size, 6]) + b"rest"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("size", [0, 1, MOST])
def test_hashes_take_the_bytes_that_are_there(size: int, whole: bool) -> None:
    builder = varying()
    inputs = [V] if whole else [field("v", "data"), field("v", "kind")]
    builder.data["calculations"] = [{"name": "crc", "id": 0, "input": inputs, "algo": "crc32"}]
    crc = {"type": "calculation", "value": "crc"}
    target = field("scalars", "m")
    builder.primitives += [
        primitive("modify_field_with_hash_based_offset", target, hexstr(0), crc, hexstr(2**40)),
        assign(field("h", "b"), expression(">>", target, hexstr(24))),
    ]
    data = frame(size)[3 : 3 + size]
    covered = frame(size)[2 : 4 + size] if whole else data + b"\x11"
    assert builder.run(frame(size))[1] == zlib.crc32(covered) >> 24


def test_headers_are_equal_if_their_lengths_are() -> None:
    builder = varying()
    short = primitive("assign_VL", field("w", "data"), field("g", "data"))
    equal = assign(field("h", "b"), expression("b2d", None, expression("==", V, W)))
    builder.data["headers"][1]["header_type"] = "v_t"  # g: valid, with nothing in it
    builder.data["deparsers"][0]["order"] = ["h"]
    builder.primitives += [primitive("assign_header", W, V), equal]
    assert builder.run(frame(2))[1] == 1
    builder.primitives[1:1] = [primitive("add_header", {"type": "header", "value": "g"}), short]
    del builder.primitives[-1]
    assert builder.run(frame(2))[1] == 0


def test_fields_of_other_kinds_are_refused_and_so_is_machine_code() -> None:
    builder = varying()
    builder.primitives.append(primitive("assign_VL", field("w", "data"), field("v", "kind")))
    with pytest.raises(ProgramError, match=r"v\.kind is no variable-length field"):
        builder.load()
    builder = varying()
    builder.states[0]["parser_ops"][-1]["parameters"][0]["value"] = "g"
    with pytest.raises(ProgramError, match="g has no variable-length field"):
        builder.load()
    program = varying().load()
    Engine(program)
    with pytest.raises(UnsupportedError, match=r"not compiled: varbit: v\.data"):
        NativeEngine(program)


CHECK = b"123456789"  # the customary check input of CRC catalogues


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("crc16", 0xBB3D),
        ("crc32", 0xCBF43926),
        ("crcCCITT", 0x29B1),
        ("identity", 0x3132333435363738),
        ("xor16", 0x3132 ^ 0x3334 ^ 0x3536 ^ 0x3738 ^ 0x3900),
        ("csum16", 0xFFFF - (0x3132 + 0x3334 + 0x3536 + 0x3738 + 0x3900 - 0x10000 + 1)),
    ],
)
def test_check_values(algorithm: str, expected: int) -> None:
    assert ALGORITHMS[algorithm](CHECK) == expected


def words_checksum(data: bytes) -> int:
    """RFC 1071, by adding words one at a time."""
    total = 0
    for (word,) in struct.iter_unpack(">H", data + bytes(len(data) % 2)):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@given(
    st.one_of(st.binary(max_size=70), st.sampled_from([b"", b"\0\0", b"\xff\xff", b"\xff\xff\0\0", b"\xff\xfe\0\1"]))
)
def test_csum16_equals_adding_words(data: bytes) -> None:
    assert csum16(data) == words_checksum(data)


def with_calculation(inputs: list[Json], *fields: Any, algo: str = "csum16", **checksum: Any) -> ProgramBuilder:
    builder = build(*fields)
    builder.data["calculations"].append({"name": "calc", "id": 0, "algo": algo, "input": inputs})
    builder.data["checksums"].append(
        {
            "name": "sum",
            "id": 0,
            "type": "generic",
            "target": ["h", "sum"],
            "calculation": "calc",
            "verify": True,
            "update": True,
            **checksum,
        }
    )
    return builder


HEADER_FIELDS = (("x", 4), ("y", 12), ("sum", 16))
INPUTS = [field("h", "x"), field("h", "y"), {"type": "hexstr", "value": "0x0007", "bitwidth": 16}]


def test_update_writes_the_sum_over_fields_and_constants() -> None:
    builder = with_calculation(INPUTS, *HEADER_FIELDS)
    assert (
        builder.run(b"\x12\x34\xff\xff rest")
        == b"\x12\x34" + words_checksum(b"\x12\x34\0\7").to_bytes(2, "big") + b" rest"
    )


@pytest.mark.parametrize(("found", "flag"), [(words_checksum(b"\x12\x34\0\7"), 0), (0, 1)])
def test_verify_reports_in_the_metadata(found: int, flag: int) -> None:
    builder = with_calculation(INPUTS, *HEADER_FIELDS, update=False)
    builder.primitives += [
        primitive("add_header", {"type": "header", "value": "extra"}),
        assign(field("extra", "x"), field("standard_metadata", "checksum_error")),
    ]
    frame = b"\x12\x34" + found.to_bytes(2, "big")
    assert builder.run(frame) == frame + bytes([0, flag])


def test_a_checksum_of_an_invalid_header_is_right() -> None:
    builder = with_calculation(INPUTS, *HEADER_FIELDS, target=["g", "sum"], update=False)
    builder.primitives.append(assign(field("h", "sum"), field("standard_metadata", "checksum_error")))
    assert builder.run(b"\x12\x34\1\1") == b"\x12\x34\0\0"


@pytest.mark.parametrize(("first", "updated"), [(b"\x10\x00", True), (b"\x20\x00", False)])
def test_conditions_switch_verify_and_update(first: bytes, updated: bool) -> None:
    condition = expression("==", field("h", "x"), hexstr(1))
    builder = with_calculation(INPUTS, *HEADER_FIELDS, if_cond=condition)
    builder.primitives.append(assign(field("scalars", "m"), field("standard_metadata", "checksum_error")))
    builder.primitives += [
        primitive("add_header", {"type": "header", "value": "extra"}),
        assign(field("extra", "x"), field("standard_metadata", "checksum_error")),
    ]
    total = words_checksum(first + b"\0\7").to_bytes(2, "big") if updated else b"\xab\xcd"
    assert builder.run(first + b"\xab\xcd") == first + total + bytes([0, updated])


def test_payload_belongs_to_the_input_after_padding() -> None:
    builder = with_calculation([field("h", "x"), {"type": "payload", "value": None}], *HEADER_FIELDS)
    assert builder.run(b"\x50\0\0\0payload")[2:4] == words_checksum(b"\x50payload").to_bytes(2, "big")


def test_whole_headers_and_skipping_of_invalid_ones() -> None:
    inputs = [{"type": "header", "value": name} for name in ("g", "h")] + [field("g", "x")]
    builder = with_calculation(inputs, ("x", 4), ("y", 12), ("sum", 16), algo="xor16")
    assert builder.run(b"\x12\x34\x00\x01") == b"\x12\x34" + (0x1234 ^ 1).to_bytes(2, "big")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "ipv4"}, r"unsupported checksum type: ipv4 of sum"),
        ({"calculation": "other"}, "unknown calculation 'other'"),
        ({"target": ["h", "none"]}, "unknown field"),
    ],
)
def test_broken_checksums_are_refused(change: Json, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        with_calculation(INPUTS, *HEADER_FIELDS, **change).load()
