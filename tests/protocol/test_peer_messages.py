# SPDX-License-Identifier: Apache-2.0
"""Messages between workers as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.protocol.peer_messages import HEADER_BYTES, MESSAGE_BYTES_MAX, PeerKind, PeerMessage, PeerMessageError
from hopsum.wire import Op

FOUND = PeerMessage(PeerKind.FOUND, 3, 2**32 - 1, 7, 2**32 - 2, Op.MAX32, 2**64 - 1, bytes(range(256)) * 4)
FETCH = PeerMessage(PeerKind.FETCH, 63, 7, slot=2047, round=1)


@pytest.mark.parametrize("message", [FOUND, FETCH, PeerMessage(PeerKind.DONE, 0, 1, value=12345)])
def test_there_and_back(message: PeerMessage) -> None:
    assert PeerMessage.unpack(message.pack()) == message
    assert PeerMessage.unpack(memoryview(message.pack())) == message


def test_sizes() -> None:
    assert (len(FETCH.pack()), HEADER_BYTES, MESSAGE_BYTES_MAX) == (24, 24, 24 + 1024)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "length"),
        (FETCH.pack()[:-1], "length"),
        (FETCH.pack() + b"x", "length"),
        (FOUND.pack()[:-1], "length"),
        (FOUND.pack() + b"x", "length"),
        (b"\0" + FETCH.pack()[1:], "kind"),
        (b"\x08" + FETCH.pack()[1:], "kind"),
        (FETCH._replace(sender=64).pack(), "sender"),
        (FETCH._replace(op=Op.ADD32).pack(), "value"),
        (FOUND._replace(op=0).pack(), "value"),
        (FOUND._replace(op=99).pack(), "value"),
        (FETCH.pack()[:11] + b"\1" + FETCH.pack()[12:], "value"),
    ],
)
def test_what_is_no_message(data: bytes, reason: str) -> None:
    with pytest.raises(PeerMessageError) as raised:
        PeerMessage.unpack(data)
    assert raised.value.reason == reason


@given(st.binary(max_size=MESSAGE_BYTES_MAX + 8))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = PeerMessage.unpack(data)
    except PeerMessageError as refused:
        assert refused.reason in {"length", "kind", "sender", "value"}  # noqa: PT017 (either way is right)
    else:
        assert message.pack() == data
