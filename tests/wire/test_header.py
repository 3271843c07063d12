# SPDX-License-Identifier: Apache-2.0
"""Header and datagram: there and back, and what is refused."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum_wire import Drop, Header, Kind, Op, WireError, split_datagram
from hopsum_wire._layout import HOPSUM_DTYPE, HOPSUM_FIELDS
from hopsum_wire.fields import pack_fields, unpack_fields

from .strategies import HEADERS

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
