# SPDX-License-Identifier: Apache-2.0
"""Variable-length fields: extracted, copied, hashed, emitted and counted with the length that they have."""

from __future__ import annotations

import zlib

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.errors import ProgramError, UnsupportedError
from hopsum_switch.native.native_engine import NativeEngine

from .builder import Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive

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
