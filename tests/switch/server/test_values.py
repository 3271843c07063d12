# SPDX-License-Identifier: Apache-2.0
"""Byte strings and controller headers (P4Runtime 1.4, section 8.4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum_switch.p4runtime.p4info_index import P4InfoField
from hopsum_switch.p4runtime.pipeline_config import PacketHeader
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode, decode, encode

HEADER = PacketHeader(
    "packet_out", (P4InfoField(1, "port", 9, False), P4InfoField(7, "pad", 7, False), P4InfoField(2, "tag", 16, False))
)


@pytest.mark.parametrize(
    ("width", "data", "value"),
    [
        (8, b"\x63", 99),
        (16, b"\x00\x63", 99),
        (16, b"\x63", 99),
        (16, b"\x00\x30\x64", 12388),
        (12, b"\0\0\x63", 99),
        (1, b"\0\0\x01", 1),
        (32, b"\0", 0),
    ],
)
def test_padding_is_accepted_and_the_shortest_form_sent(width: int, data: bytes, value: int) -> None:
    assert decode(data, width, "x") == value
    assert encode(value) == (data.lstrip(b"\0") or b"\0")


@pytest.mark.parametrize(
    ("width", "data"), [(8, b"\x01\x63"), (8, b""), (16, b"\x01\0\x63"), (12, b"\x10\x63"), (12, b"\x00\x40\x63")]
)
def test_what_does_not_fit_is_out_of_range(width: int, data: bytes) -> None:
    with pytest.raises(P4RuntimeError) as caught:
        decode(data, width, "x")
    assert caught.value.code is RpcCode.OUT_OF_RANGE


@given(st.integers(0, (1 << 2048) - 1), st.integers(0, 3))
def test_wide_values_survive(value: int, padding: int) -> None:
    assert decode(bytes(padding) + encode(value), 2048, "x") == value


@given(st.integers(0, 511), st.integers(0, 127), st.integers(0, 65535), st.binary(max_size=20))
def test_controller_headers_survive(port: int, pad: int, tag: int, payload: bytes) -> None:
    pairs = [(2, encode(tag)), (1, encode(port)), (7, encode(pad))]
    packed = HEADER.pack(pairs)
    assert int.from_bytes(packed, "big") == port << 23 | pad << 16 | tag
    got, rest = HEADER.unpack(packed + payload)
    assert dict(got) == dict(pairs)
    assert rest == payload


@pytest.mark.parametrize(
    "pairs",
    [
        [(1, b"\1"), (7, b"\0")],
        [(1, b"\1"), (7, b"\0"), (2, b"\0"), (2, b"\0")],
        [(1, b"\1"), (7, b"\0"), (2, b"\0"), (3, b"\0")],
    ],
)
def test_missing_repeated_and_unknown_metadata_are_refused(pairs: list[tuple[int, bytes]]) -> None:
    with pytest.raises(P4RuntimeError) as caught:
        HEADER.pack(pairs)
    assert caught.value.code is RpcCode.INVALID_ARGUMENT


def test_metadata_too_large_short_frames_and_odd_headers_are_refused() -> None:
    with pytest.raises(P4RuntimeError, match=r"packet_out\.port: 0x0200 does not fit 9 bits"):
        HEADER.pack([(1, b"\2\0"), (7, b"\0"), (2, b"\0")])
    with pytest.raises(P4RuntimeError, match="3 bytes"):
        HEADER.unpack(b"abc")
    with pytest.raises(P4RuntimeError, match="9 bits"):
        PacketHeader("packet_in", (P4InfoField(1, "port", 9, False),))
