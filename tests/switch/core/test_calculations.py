# SPDX-License-Identifier: Apache-2.0
"""Hash algorithms by published check values, checksums and input packing through whole programs."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum_switch.errors import ProgramError
from hopsum_switch.interp.calculations import ALGORITHMS, csum16

from .builder import Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive

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
