# SPDX-License-Identifier: Apache-2.0
"""Messages between workers as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.protocol.peer_messages import (
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    PIECE_BYTES_MAX,
    PIECE_BYTES_MIN,
    PeerKind,
    PeerMessage,
    PeerMessageError,
)
from hopsum_wire import Op

FOUND = PeerMessage(PeerKind.FOUND, 3, 2**32 - 1, 7, 2**32 - 2, Op.MAX32, 2**64 - 1, bytes(range(256)) * 4)
FOUND_BYTES = len(FOUND.pack())
FETCH = PeerMessage(PeerKind.FETCH, 63, 7, slot=2047, round=1)


PIECE = PeerMessage(PeerKind.STATE_PIECE, 0, 7, round=5, value=2**40, payload=bytes(PIECE_BYTES_MIN) + b"piece")


@pytest.mark.parametrize("message", [FOUND, FETCH, PIECE, PeerMessage(PeerKind.DONE, 0, 1, value=12345, shard=63)])
def test_there_and_back(message: PeerMessage) -> None:
    assert PeerMessage.unpack(message.pack()) == message
    assert PeerMessage.unpack(memoryview(message.pack())) == message


def test_sizes() -> None:
    assert (len(FETCH.pack()), HEADER_BYTES, MESSAGE_BYTES_MAX) == (24, 24, 24 + PIECE_BYTES_MAX)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "length"),
        (FETCH.pack()[:-1], "length"),
        (FETCH.pack() + b"x", "length"),
        (FOUND.pack()[:-1], "length"),
        (FOUND.pack() + b"x", "length"),
        (b"\0" + FETCH.pack()[1:], "kind"),
        (b"\x0c" + FETCH.pack()[1:], "kind"),
        (b"\xff" + FETCH.pack()[1:], "kind"),
        (PIECE._replace(payload=bytes(PIECE_BYTES_MIN - 1)).pack(), "length"),
        (PIECE._replace(payload=bytes(PIECE_BYTES_MAX + 1)).pack(), "length"),
        (FETCH._replace(kind=PeerKind.STATE_ASK, payload=b"x").pack(), "length"),
        (PIECE._replace(op=Op.ADD32).pack(), "value"),
        (FETCH._replace(sender=64).pack(), "sender"),
        (FETCH._replace(op=Op.ADD32).pack(), "value"),
        (FOUND._replace(op=0).pack(), "value"),
        (FOUND._replace(op=99).pack(), "value"),
        (FETCH._replace(shard=64).pack(), "value"),
    ],
)
def test_what_is_no_message(data: bytes, reason: str) -> None:
    with pytest.raises(PeerMessageError) as raised:
        PeerMessage.unpack(data)
    assert raised.value.reason == reason


@given(st.binary(max_size=FOUND_BYTES + 8))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = PeerMessage.unpack(data)
    except PeerMessageError as refused:
        assert refused.reason in {"length", "kind", "sender", "value"}  # noqa: PT017 (either way is right)
    else:
        assert message.pack() == data
